"""Random programs of views and writes, and what their caller sees: values, which results share
memory, what writes to the results then do, and gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import jitney

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda a: a[0],
    "rest": lambda a: a[1:],
    "every_other": lambda a: a[::2],
    "turned": lambda a: a.transpose(0, -1),
    "whole": lambda a: a[:],
    "flat": lambda a: a.view(-1) if a.is_contiguous() else a.flatten(),
    "reshaped": lambda a: a.reshape(-1),
    "one_more": lambda a: a[..., None],
    "one_less": lambda a: a.squeeze(),
    "expanded": lambda a: a.expand(2, *a.shape),
    "chunk": lambda a: a.chunk(2)[0],
    "unbound": lambda a: a.unbind(0)[-1],
    "narrowed": lambda a: a.narrow(0, 0, 1),
    "diagonal": lambda a: a.diagonal() if a.dim() > 1 else a,
    "unfolded": lambda a: a.unfold(0, 1, 1),
    "detached": lambda a: a.detach(),
    "data": lambda a: a.data,
    "real": lambda a: a.real,
    "same": lambda a: a.contiguous(),
    "copied": lambda a: a.clone(),
    "doubled": lambda a: a * 2,
    "summed": lambda a: a.sum(),
    "padded": lambda a: torch.nn.functional.pad(a, (0, 0)),
    "repeated": lambda a: a.repeat_interleave(1),
}
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda a, b: a.add_(1),
    "double": lambda a, b: a.mul_(2),
    "set_first": lambda a, b: a[..., 0].fill_(3) if a.dim() else a.fill_(3),
    "copy": lambda a, b: a.copy_(b.sum()),
    "add_sum": lambda a, b: a.add_(b.sum()),
    "mask": lambda a, b: a.masked_fill_(a > 0, -1),
    "bounded": lambda a, b: a.clamp_(max=0.5),
    "through_data": lambda a, b: a.data.add_(1),
    "through_detach": lambda a, b: a.detach().mul_(3),
    "given": lambda a, b: torch.add(a.detach(), 1, out=a.detach()),
}


def strided() -> Tensor:
    return torch.randn(5, 6)[1:, ::2]


def turned() -> Tensor:
    return torch.randn(3, 4).t()


def expanded() -> Tensor:
    return torch.randn(4, 1).expand(4, 3)


def inference() -> Tensor:
    with torch.inference_mode():
        return torch.randn(4, 3)


def result() -> Tensor:
    return torch.randn(4, 3).requires_grad_() * 1


def leaf() -> Tensor:
    return torch.randn(4, 3).requires_grad_()


def view_of_leaf() -> Tensor:
    return torch.randn(5, 3).requires_grad_()[1:]


LAYOUTS: list[Callable[[], Tensor]] = [
    lambda: torch.randn(4, 3), strided, turned, expanded, inference, result, leaf, view_of_leaf,
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A view, which becomes one more value; a write to a value; a break. ``off``: without grad."""

    op: str
    operands: tuple[int, ...] = ()
    off: bool = False


@dataclass(frozen=True)
class ViewProgram:
    """Steps over ``x`` and ``y`` (4, 3) and a parameter ``p`` (4, 3); ``results``: the values that
    it returns; ``layouts``: of ``x`` in one call after the other."""

    seed: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    layouts: tuple[int, ...]

    def __call__(self, x: Tensor, y: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        """Runs the steps."""
        values = [x, y, p]
        for step in self.steps:
            if step.off:
                with torch.no_grad():
                    self._take(step, values)
            else:
                self._take(step, values)
        return tuple([values[i] for i in self.results])

    def _take(self, step: Step, values: list[Tensor]) -> None:
        if step.op in VIEWS:
            values.append(VIEWS[step.op](values[step.operands[0]]))
        elif step.op in WRITES:
            WRITES[step.op](values[step.operands[0]], values[step.operands[1]])
        else:
            jitney.graph_break()

    def seen(self, call: Callable[..., Any], number: int, device: str = "cpu") -> list[Any]:
        """What the caller of call ``number`` sees, in order; an error ends it."""
        torch.manual_seed(number)
        with torch.device(device):
            x, y = LAYOUTS[self.layouts[number]](), torch.randn(4, 3)
            p = torch.nn.Parameter(torch.randn(4, 3))
        given = [x, y, p]
        try:
            tensors = [*given, *call(*given)]
        except Exception as error:  # noqa: BLE001 - compared as any other result
            if "created in no_grad mode" in str(error):
                return []  # a write that autograd forbids, to what ours need not know for a view
            if "a leaf Variable that requires grad" in str(error):
                return []  # or one to a view that eager takes for a leaf until it is looked at
            if x.is_inference():  # eager writes to it, then refuses to; a graph does not write
                return [type(error).__name__]
            return [type(error).__name__, *[t.detach().clone() for t in given]]
        facts = [(t.dtype, t.shape, _steps(t), t.requires_grad) for t in tensors]
        shared = [(a is b, a.data_ptr() == b.data_ptr()) for a in tensors for b in tensors]
        return [*facts, *shared, *_written_by_the_caller(tensors, self.seed)]


def _steps(tensor: Tensor) -> list[int]:
    """The strides of dimensions in which there is more than one element."""
    return [a for a, size in zip(tensor.stride(), tensor.shape) if size > 1]


def _written_by_the_caller(tensors: list[Tensor], seed: int) -> list[Any]:
    """Values before and after writes to some of them, with and without a gradient."""
    draw, seen = random.Random(seed), [t.detach().clone() for t in tensors]
    weight = torch.tensor(2.0, requires_grad=True)
    for index in draw.sample(range(len(tensors)), 2):
        try:
            if draw.random() < 0.5:
                tensors[index].detach().add_(1.5)
            else:
                tensors[index].mul_(weight)
        except RuntimeError:  # a view that autograd forbids, which ours need not be
            return seen
        seen += [t.detach().clone() for t in tensors]
    try:
        sum(t.sum() for t in tensors if t.requires_grad).backward()  # type: ignore[union-attr]
    except RuntimeError:  # eager may have saved what was written to since, and we a copy of it
        return seen
    return [*seen, tensors[2].grad, weight.grad]


def view_program(seed: int, length: int, calls: int) -> ViewProgram:
    """A random program of ``length`` steps. Those of odd seeds are chains in the main, of which the
    caller gets several links."""
    draw, steps, count = random.Random(seed), [], 3
    for _ in range(length):
        kind, off = draw.random(), draw.random() < 0.2
        operands = draw.randrange(count), draw.randrange(count)
        if seed % 2 and draw.random() < 0.7:
            operands = draw.randrange(max(count - 2, 0), count), operands[1]
        if kind < 0.5:
            steps.append(Step(draw.choice(sorted(VIEWS)), operands[:1], off))
            count += 1
        elif kind < 0.92:
            steps.append(Step(draw.choice(sorted(WRITES)), operands, off))
        else:
            steps.append(Step("break", (), off))
    most = draw.randint(1, 4) + 4 * (seed % 2)
    results = tuple(draw.sample(range(count), min(count, most)))
    layouts = tuple(draw.randrange(len(LAYOUTS)) for _ in range(calls))
    return ViewProgram(seed, tuple(steps), results, layouts)
