"""Random programs over tensors of any dtype, laid out in memory in any way, that are exact.

    python -m tests.fuzz.exact_programs [--seed 0] [--count 200] [--length 6] [--seconds S]

Floats are quarters, of few of which sums and products have no rounding, so that results are those
of eager to the bit, whatever comes after them: comparisons, positions of extremes, integers. Every
program is called with several layouts and dtypes in turn: what holds for one must be asked again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import jitney
from jitney.events import log
from tests.equal import assert_equal_to_eager
from tests.fuzz.command_line import run_seeds

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
SIZES = (1, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 100)


def number(x: Tensor) -> Tensor:
    """Truth values as numbers."""
    return x.to(torch.uint8) if x.dtype is torch.bool else x


def small(x: Tensor) -> Tensor:
    """Back among the few quarters that are exact in every dtype."""
    return (x * 4).round().clamp(-32, 32) / 4 if x.is_floating_point() else x


def whole(x: Tensor) -> Tensor:
    """As integers, those of NaN and infinities too."""
    return x.nan_to_num(1.0, 2.0, -2.0).to(torch.int64) if x.is_floating_point() else number(x)


def natural(x: Tensor) -> Tensor:
    """What every dtype holds."""
    return number(x).nan_to_num(1.0, 2.0, -2.0).abs()


def like(x: Tensor, y: Tensor) -> Tensor:
    """Elements of y in the shape of x."""
    flat = y.reshape(-1)
    times = -(-x.numel() // max(flat.numel(), 1))
    return flat.repeat(times)[: x.numel()].reshape(x.shape) if flat.numel() else x.clone()


def some(x: Tensor, k: int) -> int:
    """One of the dimensions."""
    return k % x.dim() if x.dim() else 0


def places(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Indices along a dimension of x, in the shape of x, from the values of y."""
    return whole(like(x, y)).long().remainder(x.shape[some(x, k)] if x.dim() else 1)


def sums(x: Tensor, k: int) -> Tensor:
    return x.sum(some(x, k), keepdim=k % 2 == 0)


def largest(x: Tensor, k: int) -> Tensor:
    return x.amax(some(x, k), keepdim=True) if x.numel() else x


def first_largest(x: Tensor, k: int) -> Tensor:
    dim = None if k % 3 == 2 else some(x, k)
    return number(x).argmax(dim, keepdim=k % 2 == 0) if x.numel() else x


def extreme(x: Tensor, k: int) -> Tensor:
    found = x.min(some(x, k)) if x.numel() else None
    return x if found is None else torch.where(found.indices > 0, found.values, found.values + 1)


def running(x: Tensor, k: int) -> Tensor:
    return small(x).cumsum(some(x, k))


def running_most(x: Tensor, k: int) -> Tensor:
    return x.cummax(some(x, k)).values if x.numel() else x


def windows(x: Tensor, k: int) -> Tensor:
    return x.unfold(-1, min(2, x.shape[-1]), 1) if x.dim() and x.shape[-1] else x


def spread(x: Tensor, k: int) -> Tensor:
    return x.unsqueeze(some(x, k)).expand(*x.shape[: some(x, k)], 3, *x.shape[some(x, k) :])


def bordered(x: Tensor, k: int) -> Tensor:
    if not x.dim() or not x.numel():
        return x
    mode = ("constant", "reflect", "replicate", "circular")[k % 4]
    by = min(k % 3 + 1, x.shape[-1] - (mode == "reflect"))
    rows = number(x).reshape(1, -1, x.shape[-1])
    return F.pad(rows, (by, 0), mode=mode)[0] if mode != "constant" or k % 2 else F.pad(x, (by, 1))


def part(x: Tensor, k: int) -> Tensor:
    return (
        x.narrow(some(x, k), k % 2, max(x.shape[some(x, k)] - 1, 0))
        if x.numel() > 1 and x.shape[some(x, k)] > 1
        else x
    )


def doubled_part(x: Tensor, k: int) -> Tensor:
    y = number(x).clone()
    part(y, k).mul_(2)
    y.transpose(0, -1)[:1].add_(1) if y.dim() else y.add_(1)
    return y


def triangle(x: Tensor, k: int) -> Tensor:
    return x.tril(k - 2) if x.dim() > 1 else x


def ordered(x: Tensor, k: int) -> Tensor:
    return x.sort(dim=some(x, k), stable=True, descending=k % 2 == 0).values


def pooled(x: Tensor, k: int) -> Tensor:
    if not x.numel() or not x.is_floating_point():
        return x
    return F.max_pool1d(x.reshape(1, 1, -1), min(3, x.numel()), stride=k)[0]


def turned_bits(x: Tensor, k: int) -> Tensor:
    return whole(x) << k if k % 2 else ~whole(x)


def halves(x: Tensor, k: int) -> Tensor:
    return torch.div(number(x), 2, rounding_mode=("floor", "trunc", None)[k % 3])


def blended(x: Tensor, k: int) -> Tensor:
    return torch.where(x > k - 2, x, k) if k % 2 else x.masked_fill(x == 1, k)


UNARY: dict[str, Callable[[Tensor, int], Tensor]] = {
    function.__name__: function
    for function in (
        sums, largest, first_largest, extreme, running, running_most, windows, spread, bordered,
        part, doubled_part, triangle, ordered, pooled, turned_bits, halves, blended,
    )
} | {
    "negated": lambda x, k: -number(x),
    "size": lambda x, k: number(x).abs(),
    "times": lambda x, k: small(x * k),
    "plus": lambda x, k: small(x + k),
    "minus": lambda x, k: small(k - number(x)),
    "rest": lambda x, k: number(x) % k,
    "rest_of_c": lambda x, k: torch.fmod(number(x), k),
    "any": lambda x, k: x.any(some(x, k)),
    "all": lambda x, k: (x > 0).all(some(x, k), keepdim=True),
    "count": lambda x, k: x.count_nonzero(some(x, k)),
    "not": lambda x, k: x.logical_not(),
    "sign": lambda x, k: number(x).sign(),
    "square": lambda x, k: small(x * x),
    "power": lambda x, k: small(small(x) ** 2),
    "relu": lambda x, k: number(x).relu(),
    "clamped": lambda x, k: number(x).clamp(-k if x.dtype is not torch.uint8 else 0, k),
    "rounded": lambda x, k: (number(x) / 2).round(),
    "transposed": lambda x, k: x.transpose(0, -1) if x.dim() else x,
    "moved": lambda x, k: x.movedim(0, some(x, k)) if x.dim() else x,
    "flipped": lambda x, k: x.flip(some(x, k)) if x.dim() else x,
    "rolled": lambda x, k: x.roll(k, some(x, k)) if x.dim() else x,
    "steps": lambda x, k: x[..., ::k] if x.dim() else x,
    "flat": lambda x, k: x.reshape(-1),
    "own_memory": lambda x, k: x.contiguous(),
    "repeated": lambda x, k: x.repeat_interleave(2, some(x, k)) if x.dim() else x,
    "chosen": lambda x, k: x.select(some(x, k), -1) if x.numel() and x.dim() else x,
    "diagonal": lambda x, k: x.diagonal() if x.dim() > 1 else x,
    "whole": lambda x, k: whole(x),
    "best": lambda x, k: number(x).reshape(-1).topk(min(k, x.numel())).values,
}  # fmt: skip


def product(x: Tensor, y: Tensor, k: int) -> Tensor:
    return small(x * like(x, y))


def matrix_product(x: Tensor, y: Tensor, k: int) -> Tensor:
    rows = small(x).reshape(-1, x.shape[-1]) if x.dim() else small(x).reshape(1, 1)
    other = small(like(rows, y)).t()
    return small(rows[:9] @ other[:, :9].to(rows.dtype)) if rows.is_floating_point() else rows


def compared(x: Tensor, y: Tensor, k: int) -> Tensor:
    return (torch.lt, torch.ge, torch.eq, torch.ne)[k % 4](x, like(x, y))


def bits(x: Tensor, y: Tensor, k: int) -> Tensor:
    op = (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor)[k % 3]
    return op(whole(x), whole(like(x, y)))


def joined(x: Tensor, y: Tensor, k: int) -> Tensor:
    return torch.cat([x, like(x, y)], some(x, k)) if x.dim() else torch.stack([x, like(x, y)])


def gathered(x: Tensor, y: Tensor, k: int) -> Tensor:
    return x.gather(some(x, k), places(x, y, k)) if x.numel() and x.dim() else x


def scattered(x: Tensor, y: Tensor, k: int) -> Tensor:
    if not x.numel() or not x.dim():
        return x
    x, reduce = number(x), ("sum", "amax", "amin")[k % 3]
    return small(x).scatter_reduce(some(x, k), places(x, y, k), small(x).flip(-1), reduce)


def added_at(x: Tensor, y: Tensor, k: int) -> Tensor:
    if not x.numel() or not x.dim():
        return x
    where = places(x, y, 0).reshape(-1)[: x.shape[0]]
    return small(number(x)).index_add(0, where, small(number(x))) if k % 2 else x[where]


def written(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Into a part of a copy, across dtypes."""
    made = x.clone()
    part(made, k).copy_(part(natural(like(x, y)), k))
    return made


def into_out(x: Tensor, y: Tensor, k: int) -> Tensor:
    out = torch.empty_like(number(x).transpose(0, -1) if x.dim() else number(x))
    out = out.transpose(0, -1) if x.dim() else out
    return torch.maximum(number(x), number(like(x, y)).to(out.dtype), out=out)


def put(x: Tensor, y: Tensor, k: int) -> Tensor:
    if not x.numel() or not x.dim():
        return x
    where = places(x, y, 0).reshape(-1)[: x.shape[0]]
    return small(number(x)).index_put((where,), small(number(x))[: len(where)], accumulate=True)


BINARY: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    function.__name__: function
    for function in (
        product, matrix_product, compared, bits, joined, gathered, scattered, added_at, written,
        into_out, put,
    )
} | {
    "sum": lambda x, y, k: small(number(x) + number(like(x, y))),
    "difference": lambda x, y, k: small(number(x) - number(like(x, y))),
    "maximum": lambda x, y, k: torch.maximum(x, like(x, y)),
    "least": lambda x, y, k: torch.fmin(number(x), number(like(x, y))),
    "where": lambda x, y, k: torch.where(x > 0, x, like(x, y)),
    "broadcast": lambda x, y, k: small(number(x) + number(y).reshape(-1, 1)[:3].sum(0)),
    "remainder": lambda x, y, k: number(x).remainder(whole(like(x, y)).abs().clamp(1, 9)),
    "both": lambda x, y, k: torch.logical_and(x, like(x, y)),
    "cast_as": lambda x, y, k: natural(x).type_as(y),
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: what is done to one that has its elements one after another."""

    dtype: torch.dtype
    kind: str
    special: bool  # NaN, infinities and -0.0 among the floats

    def made(self, shape: tuple[int, ...], seed: int) -> Tensor:
        """A tensor of ``shape``."""
        generator = torch.Generator().manual_seed(seed)

        def values(*size: int) -> Tensor:
            quarters = torch.randint(-12, 13, size, generator=generator)
            if not self.dtype.is_floating_point:
                return (quarters.abs() if self.dtype is torch.uint8 else quarters).to(self.dtype)
            exact = quarters / 4
            if self.special and exact.numel():
                for place, value in enumerate((math.nan, math.inf, -math.inf, -0.0)):
                    exact.view(-1)[(seed * 7 + place * 5) % exact.numel()] = value
            return exact.to(self.dtype)

        if self.kind == "transposed" and len(shape) > 1:
            return values(*shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
        if self.kind == "apart" and shape:
            return values(*shape[:-1], 2 * shape[-1])[..., ::2]
        if self.kind == "offset":
            return values(math.prod(shape) + 3)[3:].view(shape)
        if self.kind == "expanded" and shape:
            return values(*shape[:-1], 1).expand(shape)
        if self.kind == "expanded_first" and shape:
            return values(*shape[1:]).expand(shape)
        if self.kind == "overlapping" and shape and math.prod(shape):
            steps = [1] * len(shape)
            return values(sum(shape)).as_strided(shape, steps)
        if self.kind == "swapped" and len(shape) > 2:
            return values(shape[1], shape[0], *shape[2:]).transpose(0, 1)
        return values(*shape)


KINDS = ("plain", "plain", "transposed", "apart", "offset", "expanded", "expanded_first",
         "overlapping", "swapped")  # fmt: skip
WRITABLE = ("plain", "transposed", "apart", "offset", "swapped")


@dataclass(frozen=True)
class Step:
    """``t[n] = op(*(t[i] for i in operands), k)`` where n is the step's place after the inputs."""

    op: str
    operands: tuple[int, ...]
    k: int


@dataclass(frozen=True)
class ExactProgram:
    """Steps over inputs of ``shapes``, each call with a row of ``calls``; results are the last
    value and one other. ``changed``: whether the first input is written to at the end."""

    shapes: tuple[tuple[int, ...], ...]
    calls: tuple[tuple[Layout, ...], ...]
    steps: tuple[Step, ...]
    other: int
    changed: bool

    def __call__(self, *inputs: Tensor) -> Any:
        """Runs the steps."""
        values = list(inputs)
        for step in self.steps:
            table: dict[str, Any] = UNARY if len(step.operands) == 1 else BINARY
            made = table[step.op](*(values[i] for i in step.operands), step.k)
            values.append(
                made.reshape(-1)[:3000] if made.dim() > 4 or made.numel() > 3000 else made
            )
        if self.changed:
            inputs[0].copy_(natural(like(inputs[0], values[-1])))
        return values[-1], values[self.other]

    def inputs(self, call: int, device: str = "cpu") -> tuple[Tensor, ...]:
        """Those of one call."""
        pairs = zip(self.calls[call], self.shapes, strict=True)
        made = [layout.made(shape, n) for n, (layout, shape) in enumerate(pairs)]
        return tuple(on_device(x, device) for x in made)


def on_device(x: Tensor, device: str) -> Tensor:
    """A copy on ``device`` that lies in memory as ``x`` does; ``x`` itself for the CPU."""
    if device == "cpu":
        return x
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).to(device)
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


def exact_program(seed: int, length: int) -> ExactProgram:
    """A random program of up to ``length`` steps over two tensors, and three calls of it."""
    draw = random.Random(seed)
    shape = tuple(draw.choice(SIZES) for _ in range(draw.choice((0, 1, 2, 2, 3, 3, 4))))
    while math.prod(shape) > 3000:
        shape = shape[1:]
    if draw.random() < 0.05 and shape:
        shape = (0, *shape[1:])
    other = draw.choice((shape, shape[::-1], shape[1:], (1,) * len(shape)))
    special = draw.random() < 0.3

    def layout() -> Layout:
        return Layout(draw.choice(DTYPES), draw.choice(KINDS), special)

    first = (layout(), layout())
    second = tuple(replace(part, kind=draw.choice(KINDS)) for part in first)
    steps = []
    for at in range(2, 2 + draw.randint(1, length)):
        recent = draw.choice([0, 1, *range(2, at), *([at - 1] * 4)])
        if draw.random() < 0.4:
            operands: tuple[int, ...] = (recent, draw.randrange(at))
        else:
            operands = (recent,)
        table: dict[str, Any] = UNARY if len(operands) == 1 else BINARY
        steps.append(Step(draw.choice(sorted(table)), operands, draw.randint(1, 4)))
    calls = (first, second, (layout(), layout()))
    writable = all(call[0].kind in WRITABLE for call in calls)
    changed = writable and draw.random() < 0.5
    return ExactProgram(
        (shape, other), calls, tuple(steps), draw.randrange(len(steps) + 2), changed
    )


def check(seed: int, length: int, device: str = "cpu") -> int:
    """One program, compiled once, at all its calls on ``device``; how many graphs of it were
    compiled, 1 where it gives its inputs back and there is nothing to compile."""
    program = exact_program(seed, length)
    jitney.reset()
    log.clear()

    def call(*inputs: Tensor) -> Any:
        return program(*inputs)

    options = {"eager_on_bug": False, "verify": True, "recompile_limit": 64}
    options["cpu_features"] = "-avx512" if seed % 3 == 0 else ""
    dynamic = (None, False, True)[seed // 3 % 3]
    compiled = jitney.compile(call, dynamic=dynamic, options=options)
    for number_ in range(len(program.calls)):
        try:
            assert_equal_to_eager(call, compiled, program.inputs(number_, device), calls=1)
        except Exception as error:
            error.add_note(f"call {number_}, dynamic={dynamic}, seed {seed}: {program}")
            raise
    entries = log.events("entry")
    captured = bool(entries) and not any(map(log.events, ("graph_break", "eager_graph")))
    if captured and not any(entry.data["nodes"] for entry in entries):
        return 1
    return len(log.events("program"))


if __name__ == "__main__":
    run_seeds(check, __doc__, length=6)
