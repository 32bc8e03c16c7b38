"""Tensors that are parts of larger ones, laid out in them in any way, apart or over each other."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from torch import Tensor

SPACE = 1200  # elements of a tensor that inputs are parts of, at least
SPECS = (
    ("n", "m"), ("n", "m"), ("n", "m"), ("m", "n"), ("m",), ("n",), ("n", "n"), ("n", 2, "m"),
    ("n", "m", 3), ("n", 3, "m", 2), (1, "m"), ("n", 1), ("n", 4), (2, "m"), (4, 3), (),
)  # fmt: skip
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Part:
    """A tensor of ``spec`` within ``base``: its dimensions lie in ``order``, outermost
    first; each has elements that are none of it before, between (``step``) and behind, or, of a
    step of 0, is expanded. ``start``: the first element, None for behind the parts before.
    ``windows``: how far a step goes in every dimension of a part whose elements share memory."""

    base: int
    spec: tuple[str | int, ...]
    order: tuple[int, ...]
    before: tuple[int, ...]
    step: tuple[int, ...]
    behind: tuple[int, ...]
    start: int | None
    windows: int = 0

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(sizes[s] if isinstance(s, str) else s for s in self.spec)

    def elements(self, sizes: dict[str, int]) -> int:
        """What it takes of its base, with what is left out."""
        return math.prod(self._extent(sizes))

    def of(self, base: Tensor, start: int, sizes: dict[str, int]) -> Tensor:
        """The view."""
        shape = self.shape(sizes)
        if self.windows:
            return base[start:].as_strided(shape, (self.windows,) * len(shape))
        extent = self._extent(sizes)
        block = base[start : start + math.prod(extent)].view([extent[d] for d in self.order])
        made = block.permute([self.order.index(d) for d in range(len(extent))])
        for d, (size, first, step) in enumerate(zip(shape, self.before, self.step, strict=True)):
            if step:
                made = made[(slice(None),) * d + (slice(first, first + size * step, step),)]
        return made.expand(shape)

    def _extent(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Of its dimensions in memory."""
        shape = self.shape(sizes)
        if self.windows:
            return (1 + self.windows * sum(shape),)
        every = zip(shape, self.before, self.step, self.behind, strict=True)
        return tuple(b + size * s + e if s else 1 for size, b, s, e in every)


@dataclass(frozen=True)
class Call:
    """Sizes (``n``, ``m``, ``k``), the place of each input, and whether gradients are off."""

    sizes: tuple[int, int, int]
    parts: tuple[Part, ...]
    off: bool

    def named_sizes(self) -> dict[str, int]:
        return dict(zip("nm", self.sizes, strict=False))


def drawn_part(draw: random.Random, spec: tuple[str | int, ...], base: int, overlap: float) -> Part:
    """One; ``overlap``: how often it begins where another may, or shares elements with itself."""
    dims = len(spec)
    order = list(range(dims))
    if draw.random() < 0.4:
        draw.shuffle(order)
    elif draw.random() < 0.15 and dims > 2:
        order = [0, *range(2, dims), 1]  # channels last
    plain = draw.random() < 0.4
    before, behind = (
        tuple(0 if plain else draw.choice(few) for _ in range(dims))
        for few in ((0, 0, 1, 2), (0, 0, 1))
    )
    step = tuple(1 if draw.random() < 0.85 else draw.choice((2, 2, 0)) for _ in range(dims))
    start = draw.choice((0, 7, 30, 31)) if draw.random() < overlap else None
    windows = draw.choice((1, 1, 2)) if draw.random() < overlap / 2 else 0
    return Part(base, spec, tuple(order), before, step, behind, start, windows)


def drawn_calls(draw: random.Random, count: int) -> tuple[Call, ...]:
    """``count`` of them, whose three inputs lie alike in most, their sizes being others."""
    overlap = draw.choice((0.0, 0.0, 0.0, 0.0, 0.3))
    specs = [draw.choice(SPECS[:9] if i == 0 else SPECS) for i in range(3)]
    if draw.random() < 0.3:
        specs[1] = specs[0]
    bases = draw.choice((*[(0, 1, 2)] * 5, (0, 0, 1), (0, 1, 1), (0, 0, 0)))
    parts = _drawn_parts(draw, specs, bases, overlap)
    least = draw.choice((0, 1, 2, 2))
    sizes = [size for size in SIZES if size >= least]
    calls, keep = [], draw.random() < 0.6
    for _ in range(count):
        n, m = draw.choice(sizes), draw.choice(sizes)
        at = (n, n if draw.random() < 0.15 else m, draw.choice((1, 1, 2, 2, 3)))
        if not keep and draw.random() < 0.3:
            parts = _drawn_parts(draw, specs, bases, overlap)
        calls.append(Call(at, parts, draw.random() < 0.1))
    return tuple(calls)


def _drawn_parts(
    draw: random.Random,
    specs: list[tuple[str | int, ...]],
    bases: tuple[int, ...],
    overlap: float,
) -> tuple[Part, ...]:
    x, y, z = map(drawn_part, [draw] * 3, specs, bases, [overlap] * 3)
    if draw.random() < 0.03:
        y = replace(x, start=draw.choice((0, 3, None)))
    return x, y, z
