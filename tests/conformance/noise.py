"""How far eager is off at inputs a rounding away: what no compiled result can be blamed for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jitney.diagnostics.equality import TOLERANCE, Difference, distance, scale_of, tensors

CANCELLED = 1e-6

Move = Callable[[Any], Any]


def errors_nearby(
    run: Callable[[Move], tuple[Any, Any]],
    runs: int = 16,
    others: Sequence[Move] = (),
    eps: float | None = None,
    enough: Callable[[dict[str, float]], bool] = lambda own: False,
) -> dict[str, float]:
    """Eager's largest error by path, over ``runs`` at inputs that are a rounding (of ``eps``,
    unless their dtype's) away, and at those that ``others`` make; fewer once what they came to is
    ``enough``.

    ``run`` gives eager's result and the reference for it, both on inputs that went through the
    function it is given. Where what is summed cancels (the gradient of a norm over two elements is
    zero but for its epsilon), one run's error is luck: eager may round to the truth, and next to it
    be far off. Where a rounding decides which side of a ReLU's zero an element falls on, one run in
    eight may be the one that takes the compiled result's side.
    """
    own: dict[str, float] = {}
    for move in (*(mover(seed, eps) for seed in range(runs)), *others):
        result, reference = run(move)
        for path, error in errors(result, reference).items():
            own[path] = max(own.get(path, 0.0), error)
        if enough(own):
            break
    return own


def errors(result: Any, reference: Any) -> dict[str, float]:
    """The largest error by path of each tensor of floats that both hold."""
    truth = dict(tensors(reference))
    return {
        path: distance(value.detach(), truth[path].detach())
        for path, value in tensors(result)
        if path in truth and value.is_floating_point() and truth[path].shape == value.shape
    }


def mover(seed: int, eps: float | None = None) -> Move:
    """Moves each element of a tensor of floats down or up by a rounding (of its dtype, or the
    coarser ``eps`` of what a program rounds to), or not at all."""
    generator = torch.Generator().manual_seed(seed)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        steps = torch.randint(-1, 2, value.shape, generator=generator).to(value.device)
        by = torch.finfo(value.dtype).eps if eps is None else eps
        return (value.detach() * (1 + steps * by)).to(value).requires_grad_(value.requires_grad)

    return moved


def on_cpu(value: Any) -> Any:
    """A tensor, or what names a GPU, on the CPU: where eager computes by other formulas."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().requires_grad_(value.requires_grad)
    return "cpu" if str(value).startswith("cuda") else value


@dataclass(frozen=True)
class Suspect:
    """A difference, its error (inf: not a matter of rounding), and how much of an error is allowed
    beside twice eager's own."""

    found: Difference
    error: float
    allowed: float

    def is_noise(self, own: dict[str, float]) -> bool:
        """Whether the error is what `differences` allows, by eager's errors nearby."""
        path = self.found.path
        return path in own and self.error <= 2 * own[path] + self.allowed


def suspects(found: Sequence[Difference], actual: Any, reference: Any) -> list[Suspect]:
    """What to judge of each difference. Of a tensor below `CANCELLED` of the whole result's scale
    one rounding of what has cancelled is allowed too."""
    ours, truth = dict(tensors(actual)), dict(tensors(reference))
    scales = [scale_of(t.detach()) for t in truth.values() if t.is_floating_point()]
    whole = max(scales, default=0.0)

    def suspect(one: Difference) -> Suspect:
        mine, theirs = ours.get(one.path), truth.get(one.path)
        if not one.what.startswith("error") or mine is None or theirs is None:
            return Suspect(one, float("inf"), 0.0)
        if not mine.is_floating_point() or mine.shape != theirs.shape:
            return Suspect(one, float("inf"), 0.0)
        scale = scale_of(theirs.detach())
        cancelled = torch.finfo(mine.dtype).eps * whole if scale < CANCELLED * whole else 0.0
        error = distance(mine.detach(), theirs.detach())
        return Suspect(one, error, TOLERANCE[mine.dtype] * scale + cancelled)

    return [suspect(one) for one in found]
