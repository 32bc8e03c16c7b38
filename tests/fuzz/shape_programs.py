"""Random programs whose sizes come from their inputs' sizes, from a Python integer, or from data.

Every step takes tensors of any shape (1 to 3 dimensions, sizes 0 and 1 too) and a number, and asks
sizes for all that it does: what is traced at some sizes must hold, or be traced anew, at others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fuzz.library_steps import LIBRARY, rows_of


def pairs(x: Tensor, k: int) -> Tensor:
    half = x.shape[0] // 2
    return x[: 2 * half].reshape(half, 2, *x.shape[1:]).sum(1)


def folded(x: Tensor, k: int) -> Tensor:
    return x.reshape(k, x.numel() // k) if x.numel() % k == 0 else x.flatten()


def chunks(x: Tensor, k: int) -> Tensor:
    return torch.cat([part * (i + 1) for i, part in enumerate(x.chunk(3))])


def pieces(x: Tensor, k: int) -> Tensor:
    return torch.stack([part.sum() for part in x.split(max(1, x.shape[0] // 3))])


def tensor_pieces(x: Tensor, k: int) -> Tensor:
    first, second, third = x.tensor_split(3)
    return torch.cat([third, first * 2, second[:1]])


def turned(x: Tensor, k: int) -> Tensor:
    half = x.shape[0] // 2
    return torch.cat([x[half:], x[:half]])


def padded(x: Tensor, k: int) -> Tensor:
    return F.pad(x, (1, x.shape[0] % 3), value=0.5)


def reflected(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()[None]
    return F.pad(flat, (min(k, flat.shape[1] - 1), 0), mode="reflect")[0] if flat.numel() else x


def cropped(x: Tensor, k: int) -> Tensor:
    return F.pad(x, (-min(k, x.shape[-1]), 1))


def spread(x: Tensor, k: int) -> Tensor:
    return (x.flatten()[:8, None].expand(-1, k) * torch.arange(k, device=x.device)).flatten()


def expanded(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()[:9]
    return flat[None].expand(flat.shape[0], -1) + flat[:, None]


def middle(x: Tensor, k: int) -> Tensor:
    return x[min(1, x.shape[0]) : max(x.shape[0] - 1, 0)]


def last_half(x: Tensor, k: int) -> Tensor:
    return x[-(x.shape[0] // 2) :]


def up_to(x: Tensor, k: int) -> Tensor:
    return x[..., :k] * 2


def windows(x: Tensor, k: int) -> Tensor:
    return x.unfold(0, min(3, x.shape[0]), 1).mean(-1) if x.numel() else x


def by_size(x: Tensor, k: int) -> Tensor:
    if x.shape[0] == x.shape[-1]:
        return x * 3
    return x * x.shape[0] if x.shape[0] > k else x / max(1, x.shape[-1])


def scaled(x: Tensor, k: int) -> Tensor:
    return x * (x.shape[-1] ** 0.5) / (1 + x.numel() % 5)


def set_inside(x: Tensor, k: int) -> Tensor:
    wide = x.new_zeros(x.shape[0] + k, *x.shape[1:])
    wide[k:] = x
    wide[: x.shape[0] // 2] += 1
    return wide


def added_to(x: Tensor, k: int) -> Tensor:
    y = x.clone()
    y[: x.shape[0] // 2] += y[x.shape[0] - x.shape[0] // 2 :].clone()
    if x.shape[0]:
        y[-1] = 0.25
    return y


def picked(x: Tensor, k: int) -> Tensor:
    return x[torch.arange(k * 2, device=x.device) % x.shape[0]] if x.shape[0] else x


def down(x: Tensor, k: int) -> Tensor:
    return x[torch.arange(x.shape[0] - 1, -1, -1, device=x.device)]


def triangle(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[:12]
    return (
        torch.ones(rows.shape[0], rows.shape[0], device=x.device).tril(-(rows.shape[0] // 3)) @ rows
    )


def products(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[:12]
    return rows @ rows.t()


def attended(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[:12]
    return F.scaled_dot_product_attention(rows[None], rows[None], rows[None])[0] if x.numel() else x


def pooled(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()[None]
    return F.adaptive_avg_pool1d(flat, max(1, flat.shape[1] // 2))[0] if flat.numel() else x


def resampled(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()[None, None, :32]
    if not flat.numel():
        return x
    return F.interpolate(flat, size=flat.shape[-1] + k, mode="linear")[0, 0]


def best(x: Tensor, k: int) -> Tensor:
    return x.flatten().topk(min(k, x.numel())).values


def normed(x: Tensor, k: int) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) if x.numel() else x


def halves(x: Tensor, k: int) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def convolved(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()[None, None]
    kernel = torch.linspace(-1, 1, 3, device=x.device)[None, None]
    return F.conv1d(flat, kernel, padding=1)[0, 0] if flat.numel() else x


UNARY: dict[str, Callable[[Tensor, int], Tensor]] = {
    function.__name__: function
    for function in (
        pairs, folded, chunks, pieces, tensor_pieces, turned, padded, reflected, cropped, spread,
        expanded, middle, last_half, up_to, windows, by_size, scaled, set_inside, added_to, picked,
        down, triangle, products, attended, pooled, resampled, best, normed, halves, convolved,
    )
} | {
    "flat": lambda x, k: x.flatten(),
    "square": lambda x, k: x * x,
    "relu": lambda x, k: x.relu(),
    "tail": lambda x, k: x[1:],
    "head": lambda x, k: x[:-1],
    "steps": lambda x, k: x[::2],
    "steps_last": lambda x, k: x[..., 1::k],
    "difference": lambda x, k: x[1:] - x[:-1],
    "second": lambda x, k: x[..., 1:] * x[..., :-1],
    "transposed": lambda x, k: x.transpose(0, -1),
    "transposed_flat": lambda x, k: x.transpose(0, -1).reshape(x.shape),
    "contiguous": lambda x, k: x.transpose(0, -1).contiguous(),
    "sum_first": lambda x, k: x.sum(0, keepdim=True),
    "sum_last": lambda x, k: x.sum(-1, keepdim=True),
    "centred": lambda x, k: x - x.mean(0, keepdim=True),
    "largest": lambda x, k: x.amax(0, keepdim=True) if x.shape[0] else x,
    "softmax": lambda x, k: torch.softmax(x, -1),
    "cumsum": lambda x, k: x.cumsum(0),
    "rolled": lambda x, k: x.roll(k, 0),
    "rolled_half": lambda x, k: x.roll(x.shape[-1] // 2, -1),
    "flipped": lambda x, k: x.flip(0),
    "repeated": lambda x, k: x[:6].repeat_interleave(k, 0),
    "tiled": lambda x, k: x[:6].repeat(2, *[1] * (x.dim() - 1)),
    "unsqueezed": lambda x, k: x.flatten()[:, None],
}  # fmt: skip


def from_data(x: Tensor) -> Tensor:
    """Small integers, zero or more, from the values of a tensor, which steps of theirs decide."""
    return (x.detach().flatten().abs() * 4 + 0.125).long() % 5


def positive(x: Tensor, k: int) -> Tensor:
    return x[x > 0.0625] * 2


def places(x: Tensor, k: int) -> Tensor:
    found = (x > 0.0625).nonzero()
    return x[tuple(found.t())] + found.sum(1)


def distinct(x: Tensor, k: int) -> Tensor:
    values, inverse = from_data(x).unique(return_inverse=True)
    return x.new_zeros(values.shape[0]).index_add(0, inverse, x.flatten())


def routed(x: Tensor, k: int) -> Tensor:
    choice = from_data(x)
    counts = choice.bincount(minlength=5).tolist()
    parts = x.flatten()[choice.argsort(stable=True)].split(counts)
    return torch.cat([part * (i + 1) for i, part in enumerate(parts)])


def routed_back(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)
    choice = from_data(rows[:, :1])[: rows.shape[0]]
    out = torch.zeros_like(rows)
    for expert in range(3):
        if rows.shape[1]:
            where = (choice == expert).nonzero().flatten()
            out.index_add_(0, where, rows[where] * (expert + 1))
    return out


def one_hot(x: Tensor, k: int) -> Tensor:
    return F.one_hot(from_data(x), 5).to(x.dtype).t() @ x.flatten()[:, None]


def by_counts(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()[:12]
    return flat.repeat_interleave(from_data(flat))


def count_of(x: Tensor, k: int) -> Tensor:
    count = int((x > 0.0625).sum())
    flat = x.flatten()
    return torch.cat([flat[:count] * 2, flat[count:]]) + flat.new_ones(count).sum()


def ends(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()
    stops = from_data(flat[:3]).cumsum(0).tolist()
    starts = [0, *stops[:-1]]
    return torch.cat([flat[a:b].sum()[None] for a, b in zip(starts, stops, strict=False)] + [flat])


DATA: dict[str, Callable[[Tensor, int], Tensor]] = {
    function.__name__: function
    for function in (
        positive, places, distinct, routed, routed_back, one_hot, by_counts, count_of, ends
    )
}  # fmt: skip


def trimmed(a: Tensor, b: Tensor, k: int) -> Tensor:
    size = min(a.numel(), b.numel())
    return a.flatten()[:size] + b.flatten()[:size]


def outer(a: Tensor, b: Tensor, k: int) -> Tensor:
    return a.flatten()[:10, None] * b.flatten()[None, :10]


def grown(a: Tensor, b: Tensor, k: int) -> Tensor:
    missing = b.numel() - a.numel()
    small, large = (a, b) if missing > 0 else (b, a)
    return F.pad(small.flatten(), (0, abs(missing))) * large.flatten()


def same_or_cat(a: Tensor, b: Tensor, k: int) -> Tensor:
    return a - b if a.shape == b.shape else torch.cat([a.flatten(), b.flatten()])


def reshaped(a: Tensor, b: Tensor, k: int) -> Tensor:
    return a.reshape(b.shape) * b if a.numel() == b.numel() else b


def rows_product(a: Tensor, b: Tensor, k: int) -> Tensor:
    a, b = rows_of(a)[:10], rows_of(b)[:10]
    size = min(a.shape[1], b.shape[0])
    return a[:, :size] @ b[:size]


def scattered(a: Tensor, b: Tensor, k: int) -> Tensor:
    if not a.numel():
        return b
    flat, where = b.flatten(), torch.arange(b.numel(), device=a.device) % a.numel()
    return a.flatten().index_add(0, where, flat)


def gathered(a: Tensor, b: Tensor, k: int) -> Tensor:
    if not a.numel():
        return b
    return (
        a.flatten().gather(0, torch.arange(b.numel(), device=a.device) * k % a.numel())
        - b.flatten()
    )


def chosen(a: Tensor, b: Tensor, k: int) -> Tensor:
    size = max(a.shape[0], b.shape[0])
    return torch.where(
        torch.arange(size, device=a.device)[:, None] < a.shape[0],
        a.sum().reshape(1, 1),
        b.flatten()[None, :8],
    )


BINARY: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    function.__name__: function
    for function in (
        trimmed, outer, grown, same_or_cat, reshaped, rows_product, scattered, gathered, chosen
    )
}  # fmt: skip

UNARY |= LIBRARY
TABLE: dict[str, Any] = UNARY | DATA | BINARY

SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17)


@dataclass(frozen=True)
class Step:
    """``t[n] = op(*(t[i] for i in operands), k)`` where n is the step's place after the inputs."""

    op: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class ShapeProgram:
    """Steps over ``x`` (n, m), ``y`` (m) and ``k``; the results are the last value and one other.

    ``series``: the (n, m, k) it is called with, one after the other.
    """

    steps: tuple[Step, ...]
    other: int
    series: tuple[tuple[int, int, int], ...]

    def __call__(self, x: Tensor, y: Tensor, k: int) -> Any:
        """Runs the steps."""
        values = [x, y]
        for step in self.steps:
            made = TABLE[step.op](*[values[i] for i in step.operands], k)
            values.append(made.flatten()[:500] if made.dim() > 3 or made.numel() > 500 else made)
        return values[-1], values[self.other]

    def inputs(self, number: int, device: str = "cpu") -> tuple[Tensor, Tensor, int]:
        """Multiples of a quarter, which sums and products of few keep exact."""
        n, m, k = self.series[number]
        generator = torch.Generator().manual_seed(number)
        x, y = (torch.randint(-8, 9, size, generator=generator) / 4 for size in ((n, m), (m,)))
        return x.to(device).requires_grad_(), y.to(device).requires_grad_(), k


def shape_program(seed: int, length: int, calls: int, data: float = 0.15) -> ShapeProgram:
    """A random program of ``length`` steps, a share of them over sizes from ``data``."""
    draw = random.Random(seed)
    steps: list[Step] = []
    for number in range(2, 2 + length):
        kind = draw.random()
        recent = draw.choice([0, 1, *range(2, number), *([number - 1] * 4)])
        if kind < data:
            steps.append(Step(draw.choice(sorted(DATA)), (recent,)))
        elif kind < data + 0.2:
            steps.append(Step(draw.choice(sorted(BINARY)), (recent, draw.randrange(number))))
        else:
            steps.append(Step(draw.choice(sorted(UNARY)), (recent,)))
    few = [draw.choice(SIZES), draw.choice(SIZES), 0, 1]
    series = [
        tuple(draw.choice(few if draw.random() < 0.3 else SIZES) for _ in range(2))
        + (draw.choice((1, 2, 3, 4)),)
        for _ in range(calls - 1)
    ]
    series.append(series[0])
    return ShapeProgram(tuple(steps), draw.randrange(2, 2 + length), tuple(series))
