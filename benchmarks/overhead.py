"""What a call costs: a compiled ``a + 1`` on four elements, and a 12-layer BERT without its graph.

    python -m benchmarks.overhead

The second number is an upper bound of the guard check: a backend that computes once and then
hands out the same result leaves the guards, the fetching of inputs and the building of outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

import jitney
from jitney.cli.measure import interleave
from jitney.cli.workloads.hugging_face import BASE


def add_one(a: torch.Tensor) -> torch.Tensor:
    return a + 1


def call_overhead(runs: int = 1000) -> dict[str, float]:
    """Median seconds of a call on each side, no grad."""
    a = torch.randn(4)
    sides = {
        "eager": add_one,
        "torch.compile": torch.compile(add_one),
        "jitney": jitney.compile(add_one),
    }
    with torch.no_grad():
        for name, fn in sides.items():
            first, second = fn(a), fn(a * 2)
            assert torch.equal(first, a + 1) and torch.equal(second, a * 2 + 1), name
            for _ in range(3):
                assert fn(a).data_ptr() not in (first.data_ptr(), a.data_ptr()), name
        calls = {name: (lambda fn=fn: fn(a)) for name, fn in sides.items()}
        return {name: t.p50 for name, t in interleave(calls, runs).items()}


def compute_once(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    """A backend whose graphs run once and then give the same result."""
    found: list[Any] = []

    def run(*inputs: Any) -> Any:
        if not found:
            found.append(gm(*inputs))
        return found[0]

    return run


def bert_of_width(width: int) -> torch.nn.Module:
    """BERT with base's depth and heads; only the width differs, so that guards dominate."""
    import transformers

    shape = {**BASE, "hidden_size": width, "intermediate_size": width, "vocab_size": 64}
    return transformers.BertModel(transformers.BertConfig(**shape)).eval()


def call_without_graph(runs: int = 500) -> dict[str, float]:
    """Median seconds of a call of a 12-layer BERT whose graph does nothing."""
    model = bert_of_width(48)
    ids = torch.randint(64, (1, 8))
    mask = torch.ones_like(ids)
    sides = {
        "torch.compile": torch.compile(model, backend=compute_once),
        "jitney": jitney.compile(model, backend=compute_once),
    }
    with torch.no_grad():
        for fn in sides.values():
            for _ in range(5):
                fn(input_ids=ids, attention_mask=mask)
        calls = {
            name: (lambda fn=fn: fn(input_ids=ids, attention_mask=mask))
            for name, fn in sides.items()
        }
        return {name: t.p50 for name, t in interleave(calls, runs).items()}


def main() -> None:
    """Prints both as JSON, seconds."""
    print(json.dumps({"call": call_overhead(), "guards": call_without_graph()}))


if __name__ == "__main__":
    main()
