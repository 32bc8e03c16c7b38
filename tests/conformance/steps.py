"""Which side of a step a value falls on where rounding decides it: a ReLU's zero, a tie in a pool.

Gradients far from eager's are right if some float64 run gives them in which values next to steps
are moved by no more than a few times eager's own rounding there. Such a run is looked for step by
step, from the last function of the forward pass to the first: what it leaves unexplained is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from jitney.diagnostics.equality import scale_of, tensors

FURTHER = 4  # times eager's error that a compiled value may be off: a transformed convolution's
COARSE = 1e-3  # of a tensor's scale: a function that has no step so near to a value has none
JUMP = 0.02  # of a slope's scale: what changes less is no step
SHARES = (1 / 64, 1 / 8, 1)  # of the distance looked at: a value is moved no further than it must
DRAWS = 6

Run = Callable[[bool], Any]  # a program's results; True for float64


@dataclass(frozen=True)
class Step:
    """A value near a step: element ``at`` of the argument of the ``call``-th function of one tensor
    is on the other side when it is moved ``by`` so much."""

    call: int
    at: int
    by: float


@dataclass(frozen=True)
class Call:
    """A function of one tensor: its arguments beside the tensor."""

    place: int
    function: Callable[..., Any]
    rest: tuple[Any, ...]
    kwargs: dict[str, Any]

    def slope(self, value: torch.Tensor) -> torch.Tensor | None:
        """The gradient of a fixed weighted sum of the result; None where there is none."""
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(0)
            x = value.detach().requires_grad_()
            out = self.function(x.clone(), *self.rest, **self.kwargs)
            if not isinstance(out, torch.Tensor) or not out.requires_grad:
                return None
            return torch.autograd.grad(out, x, 0.5 + torch.rand_like(out), allow_unused=True)[0]

    def steps(self, value: torch.Tensor, reach: torch.Tensor) -> Iterator[Step]:
        """Elements within ``reach`` of a jump of the slope, each once."""
        base = self.slope(value)
        if base is None:
            return
        known = torch.zeros_like(base, dtype=torch.bool)
        generator = torch.Generator().manual_seed(self.place)
        for share in SHARES:
            for _ in range(DRAWS):
                signs = torch.randint(0, 2, value.shape, generator=generator).to(value) * 2 - 1
                move = share * reach * signs
                there = self.slope(value.detach() + move)
                assert there is not None
                new = ((there - base).abs() > JUMP * scale_of(base)) & (move != 0) & ~known
                known |= new
                for at in new.flatten().nonzero().flatten().tolist():
                    yield Step(self.place, at, 2 * float(move.flatten()[at]))


class Visit(TorchFunctionMode):
    """Shows ``visit`` every function of one tensor that is differentiated, and the tensor; what it
    returns is what the function is called with."""

    def __init__(self, visit: Callable[[Call, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.visit, self.places = visit, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled() and args and is_inner(args[0]):
            if not any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves((args[1:], kwargs))):
                value = self.visit(Call(self.places, func, args[1:], kwargs), args[0])
                args = (value, *args[1:])
                self.places += 1
        return func(*args, **kwargs)


def is_inner(value: Any) -> bool:
    """A tensor of floats that was computed from what is differentiated."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.is_floating_point() and value.requires_grad and not value.is_leaf


def steps_of(run: Run) -> tuple[list[Step], int]:
    """The steps near values of a program's first call, those of the last function first and of one
    function the nearest; and how many functions of one tensor a call has: all of them where the
    program does not call twice in the same way."""
    narrow: dict[int, torch.Tensor] = {}
    names: list[Any] = []
    found: list[Step] = []

    def keep(call: Call, value: torch.Tensor) -> torch.Tensor:
        names.append((getattr(call.function, "__name__", ""), value.shape))
        reach = torch.full_like(value, COARSE * scale_of(value.detach()))
        if next(call.steps(value, reach), None):
            narrow[call.place] = value.detach().clone()
        return value

    def look(call: Call, value: torch.Tensor) -> torch.Tensor:
        if call.place in narrow and call.place < period:
            off = (value.detach() - narrow[call.place].double()).abs()
            # a zero that a ReLU made is the same in every precision
            found.extend(call.steps(value, FURTHER * off.max() * (off > 0)))
        return value

    with Visit(keep):
        run(False)
    half = len(names) // 2
    period = half if names[:half] == names[half:] else len(names)
    with Visit(look):
        run(True)
    return sorted(found, key=lambda step: (-step.call, abs(step.by))), period


def run_with(run: Run, steps: Sequence[Step], period: int) -> Any:
    """The float64 run with the values at ``steps`` moved."""

    def move(call: Call, value: torch.Tensor) -> torch.Tensor:
        moves = [step for step in steps if step.call == call.place % period]
        if not moves:
            return value
        delta = torch.zeros_like(value).flatten()
        for step in moves:
            delta[step.at] += step.by
        return value + delta.view(value.shape)

    with Visit(move):
        return run(True)


def reference_for(
    result: Any, reference: Any, run: Run, enough: Callable[[Any], bool], looks: int
) -> Any:
    """The float64 run nearest to ``result`` that a look at each of the first ``looks`` steps finds,
    beginning with ``reference``; no further than ``enough``."""
    steps, period = steps_of(run)
    taken: list[Step] = []
    off = distance_of(result, reference)
    for step in steps[:looks]:
        if enough(reference):
            break
        there = run_with(run, [*taken, step], period)
        if distance_of(result, there) < off:
            off, reference = distance_of(result, there), there
            taken.append(step)
    return reference


def distance_of(result: Any, reference: Any) -> float:
    """The sum over tensors of the squared error by the tensor's squared norm."""
    truth = dict(tensors(reference))
    pairs = [(v.detach().double(), truth[path].detach()) for path, v in tensors(result)]
    norms = [float(there.double().norm()) for _, there in pairs]
    least = max(1e-6 * max(norms, default=0.0), 1e-300)
    return sum(float((v - t).norm() / max(n, least)) ** 2 for (v, t), n in zip(pairs, norms))
