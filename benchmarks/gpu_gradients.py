"""Are gradients equal to eager's on the GPU? GPT-2 in three sizes, with and without autocast.

    python -m benchmarks.gpu_gradients [full]

Equal as `jitney.diagnostics.equality` defines it, against a float64 run. ``full`` adds the step
that `gpu_case` measures (16 x 1024 tokens, 12 layers), which has no float64 run: it prints how far
loss and gradients are from eager's. Exits with 1 if anything differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from jitney.diagnostics.equality import differences

Result = dict[str, torch.Tensor]
#: layers, width, heads, vocabulary, length, batch, autocast
SIZES = {
    "small fp32": (2, 128, 4, 2000, 64, 4, False),
    "small autocast": (2, 128, 4, 20000, 64, 40, True),
    "4 layers autocast": (4, 768, 12, 50304, 1024, 2, True),
}


def build(layers: int, width: int, heads: int, words: int, length: int) -> Any:
    """GPT-2 of that shape, seeded, without dropout."""
    import transformers

    torch.manual_seed(0)
    none = {"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
    shape = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": length}
    config = transformers.GPT2Config(**none, **shape, vocab_size=words)
    return transformers.GPT2LMHeadModel(config).to("cuda").train()


def step(model: Any, call: Callable[..., Any], tokens: torch.Tensor, autocast: bool) -> Result:
    """The loss and every parameter's gradient."""
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        loss = call(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters()}}


def compare(label: str) -> bool:
    """Prints what differs; whether nothing does."""
    import jitney

    *shape, batch, autocast = SIZES[label]
    model = build(*shape)
    tokens = torch.randint(0, shape[3], (batch, shape[4]), device="cuda")
    expected = step(model, model, tokens, autocast)
    call = jitney.compile(model)
    actual = [step(model, call, tokens, autocast) for _ in range(2)][-1]
    reference = step(model.double(), model, tokens, False)
    found = differences(actual, expected, reference)
    print(f"EQUAL {label}: {len(actual)} tensors, {len(found)} differ", *found[:5], sep="\n  ")
    return not found


def full() -> None:
    """Prints the distance of the measured step from eager's."""
    import jitney

    model = build(12, 768, 12, 50304, 1024)
    tokens = torch.randint(0, 50000, (16, 1024), device="cuda")
    expected = step(model, model, tokens, True)
    actual = step(model, jitney.compile(model), tokens, True)
    apart = {n: ((actual[n] - e).norm() / e.norm()).item() for n, e in expected.items()}
    worst = sorted(apart.items(), key=lambda item: -item[1])[:3]
    print(f"FULL loss {actual['loss']:.6f}, eager's {expected['loss']:.6f}; worst {worst}")


if __name__ == "__main__":
    equal = [compare(label) for label in SIZES]
    if "full" in sys.argv:
        full()
    sys.exit(not all(equal))
