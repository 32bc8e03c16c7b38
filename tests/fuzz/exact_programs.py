"""Random programs over tensors of any dtype, laid out in memory in any way, that are exact.

    python -m tests.fuzz.exact_programs [--seed 0] [--count 200] [--length 6] [--seconds S]

Floats are quarters, of few of which sums and products have no rounding, so that results are those
of eager to the bit, whatever comes after them: comparisons, positions of extremes, integers. Every
program is called with several layouts and dtypes in turn: what holds for one must be asked again.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.equal import assert_equal_to_eager
from tests.fuzz.command_line import run_seeds
from tests.fuzz.exact_steps import BINARY, UNARY, like, natural

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
SIZES = (1, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 100)


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
