"""What to write instead, by the kind of a graph break, where the place that breaks says nothing."""

from __future__ import annotations

HINTS = {
    "c-call": "call it outside of the compiled function",
    "data-dependent": "use masks or torch.where, so that no size depends on data",
    "exception": "eager runs it, and raises its own error",
    "handled-around": "call the compiled function outside of the except block",
    "io": "read and write files outside of the compiled function",
    "rng": "set the seed outside of the compiled function",
    "tensor-layout": "make it outside of the compiled function",
    "tensor-value": "ask for it outside of the compiled function",
    "torch-call-failed": "see whether eager takes it, without fullgraph=True",
}
