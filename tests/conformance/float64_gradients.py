"""Gradients of a model in training mode against a float64 run: eager's, eager's at inputs moved by
a rounding, and ours. A ReLU at zero or a batch of two images makes any of these errors large.

    python -m tests.conformance.float64_gradients NAME...      # names of timm's models
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch

import jitney
from tests.conformance.model_judges import timm_model

Gradients = dict[str, torch.Tensor]


def gradients(model: torch.nn.Module, call: Callable[..., Any], x: torch.Tensor) -> Gradients:
    """Of a fixed random sum of the results, by parameter, in float64."""
    model.zero_grad()
    out = call(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    (out * weights.to(out.dtype)).sum().backward()
    return {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}


def distances(found: Gradients, truth: Gradients) -> list[float]:
    """The largest error of each tensor by its scale, ascending."""
    pairs = [(found[name], exact) for name, exact in truth.items()]
    return sorted(float((a - b).abs().max() / b.abs().max().clamp(min=1e-300)) for a, b in pairs)


def runs(name: str) -> dict[str, Gradients]:
    """The gradients of every side, from the same weights and statistics."""
    model, (image,) = timm_model(name)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    fresh = copy.deepcopy(model.state_dict())
    wide = copy.deepcopy(model).double()
    sides = {"float64": gradients(wide, wide, image.double())}
    moved = image * (1 + 6e-8 * torch.randn_like(image).sign())
    compiled = jitney.compile(model)
    for side, call, x in (
        ("eager", model, image), ("eager, moved", model, moved), ("jitney", compiled, image),
    ):  # fmt: skip
        model.load_state_dict(fresh)
        sides[side] = gradients(model, call, x)
    return sides


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    torch.set_num_threads(1)
    for name in parser.parse_args().names:
        sides = runs(name)
        truth = sides.pop("float64")
        for side, found in sides.items():
            off = distances(found, truth)
            middle, most = off[len(off) // 2], off[9 * len(off) // 10]
            print(f"{name}: {side}: median {middle:.1e}, nine of ten {most:.1e}", flush=True)


if __name__ == "__main__":
    main()
