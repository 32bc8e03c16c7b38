"""How far eager is off at inputs a rounding away: what no compiled result can be blamed for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jitney.diagnostics.equality import TOLERANCE, Difference, distance, scale_of, tensors

CANCELLED = 1e-6

Move = Callable[[Any], Any]


def errors_nearby(
    run: Callable[[Move], tuple[Any, Any]],
    runs: int = 16,
    others: Sequence[Move] = (),
    enough: Callable[[dict[str, float]], bool] = lambda own: False,
) -> dict[str, float]:
    """Eager's largest error by path, over ``runs`` at inputs that are a rounding away, and at those
    that ``others`` make; fewer once what they came to is ``enough``.

    ``run`` gives eager's result and the reference for it, both on inputs that went through the
    function it is given. Where what is summed cancels (the gradient of a norm over two elements is
    zero but for its epsilon), one run's error is luck: eager may round to the truth, and next to it
    be far off. Where a rounding decides which side of a ReLU's zero an element falls on, one run in
    eight may be the one that takes the compiled result's side.
    """
    own: dict[str, float] = {}
    for move in (*map(mover, range(runs)), *others):
        result, reference = run(move)
        truth = dict(tensors(reference))
        for path, value in tensors(result):
            there = truth.get(path)
            if there is not None and value.is_floating_point() and there.shape == value.shape:
                error = distance(value.detach(), there.detach())
                own[path] = max(own.get(path, 0.0), error)
        if enough(own):
            break
    return own


def mover(seed: int) -> Move:
    """Moves each element of a tensor of floats down or up by a rounding, or not at all."""
    generator = torch.Generator().manual_seed(seed)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        steps = torch.randint(-1, 2, value.shape, generator=generator).to(value.device)
        eps = torch.finfo(value.dtype).eps
        return (value.detach() * (1 + steps * eps)).to(value).requires_grad_(value.requires_grad)

    return moved


def on_cpu(value: Any) -> Any:
    """A tensor, or what names a GPU, on the CPU: where eager computes by other formulas."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().requires_grad_(value.requires_grad)
    return "cpu" if str(value).startswith("cuda") else value


def is_noise(found: Difference, actual: Any, reference: Any, own: dict[str, float]) -> bool:
    """Whether an error is what `differences` allows, by eager's errors nearby; of a tensor below
    `CANCELLED` of the whole result's scale also one rounding of what has cancelled."""
    path = found.path
    ours, truth = dict(tensors(actual)).get(path), dict(tensors(reference)).get(path)
    if not found.what.startswith("error") or ours is None or truth is None or path not in own:
        return False
    if not ours.is_floating_point():
        return False
    error = (ours.detach().double() - truth.detach()).abs().max()
    scale = scale_of(truth.detach())
    whole = max(scale_of(t.detach()) for _, t in tensors(reference) if t.is_floating_point())
    cancelled = torch.finfo(ours.dtype).eps * whole if scale < CANCELLED * whole else 0.0
    return bool(error <= 2 * own[path] + TOLERANCE[ours.dtype] * scale + cancelled)
