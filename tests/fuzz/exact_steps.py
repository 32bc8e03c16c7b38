"""Steps of `exact_programs`: each gives, of tensors of any dtype, results without rounding."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: What sums and products are taken to; few quarters and powers of two fit.
WIDE = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8)


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


def summed_as(x: Tensor, k: int) -> Tensor:
    few = natural(x).clamp(max=8)
    return few.sum(some(x, k), dtype=WIDE[(k + x.dim()) % 6], keepdim=k % 2 == 0)


def running_as(x: Tensor, k: int) -> Tensor:
    return natural(x).clamp(max=8).cumsum(some(x, k), dtype=WIDE[(k + x.dim()) % 6])


def multiplied_as(x: Tensor, k: int) -> Tensor:
    return natural(x).clamp(1, 2).prod(some(x, k), dtype=WIDE[(k + x.dim()) % 6])


def summed_turned(x: Tensor, k: int) -> Tensor:
    """Over all axes of what does not lie in rows, or over two."""
    turned = small(number(x)).permute(tuple(range(x.dim()))[::-1])
    return turned.sum((0, -1)) if k % 2 and x.dim() > 1 else turned.sum()


def least_turned(x: Tensor, k: int) -> Tensor:
    if not x.numel():
        return x
    turned = number(x).permute(tuple(range(x.dim()))[::-1])
    return torch.stack([turned.argmin(), turned.argmax(), turned.flatten().argmin()])


def extremes_of_all(x: Tensor, k: int) -> Tensor:
    turned = x.transpose(0, -1) if x.dim() else x
    return torch.stack(list(torch.aminmax(turned))) if x.numel() else x


def places_of_least(x: Tensor, k: int) -> Tensor:
    return number(x).cummin(some(x, k)).indices if k % 2 else number(x).argmin(some(x, k))


def steps_between(x: Tensor, k: int) -> Tensor:
    return small(number(x)).diff(dim=some(x, k)) if x.dim() else x


def arranged(x: Tensor, k: int) -> Tensor:
    return x.argsort(dim=some(x, k), stable=True, descending=k % 2 == 0)


def taken_as(x: Tensor, k: int) -> Tensor:
    """From dtype to dtype, what all hold."""
    few = natural(x).clamp(max=100)
    return few.to(WIDE[(k + x.dim()) % 6]).to(torch.float16 if k % 2 else torch.int8)


UNARY: dict[str, Callable[[Tensor, int], Tensor]] = {
    function.__name__: function
    for function in (
        sums, largest, first_largest, extreme, running, running_most, windows, spread, bordered,
        part, doubled_part, triangle, ordered, pooled, turned_bits, halves, blended, summed_as,
        running_as, multiplied_as, summed_turned, least_turned, extremes_of_all, places_of_least,
        steps_between, arranged, taken_as,
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


def picked_along(x: Tensor, y: Tensor, k: int) -> Tensor:
    return torch.take_along_dim(x, places(x, y, k), some(x, k)) if x.numel() and x.dim() else x


def copied_to(x: Tensor, y: Tensor, k: int) -> Tensor:
    """Rows to other places, the last first."""
    if not x.numel() or not x.dim():
        return x
    rows = torch.arange(x.shape[0] - 1, -1, -1, device=x.device)[:k]
    return number(x).index_copy(0, rows, number(like(x, y)).to(number(x).dtype)[: len(rows)])


def found(x: Tensor, y: Tensor, k: int) -> Tensor:
    among = natural(x).reshape(-1).sort().values
    asked = natural(like(x, y)).to(among.dtype)
    return torch.searchsorted(among, asked, right=k % 2 == 0)


def scattered_by_mask(x: Tensor, y: Tensor, k: int) -> Tensor:
    return number(x).masked_scatter(x > 0, number(like(x, y)).to(number(x).dtype))


def weighed(x: Tensor, y: Tensor, k: int) -> Tensor:
    few = small(number(x))
    return small(torch.addcmul(few, few, small(like(few, number(y))).to(few.dtype), value=k))


def signed_as(x: Tensor, y: Tensor, k: int) -> Tensor:
    return (
        torch.copysign(number(x), like(x, y))
        if x.is_floating_point()
        else torch.gcd(whole(x), whole(like(x, y)))
    )


def is_any_of(x: Tensor, y: Tensor, k: int) -> Tensor:
    among = natural(x)
    return torch.isin(among, natural(y).reshape(-1)[:k].to(among.dtype))


def whole_parts(x: Tensor, y: Tensor, k: int) -> Tensor:
    by = natural(like(x, y)).clamp(1, 9).to(torch.int32)
    return torch.div(whole(x), by, rounding_mode=("floor", "trunc")[k % 2])


BINARY: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    function.__name__: function
    for function in (
        product, matrix_product, compared, bits, joined, gathered, scattered, added_at, written,
        into_out, put, picked_along, copied_to, found, scattered_by_mask, weighed, signed_as,
        is_any_of, whole_parts,
    )
} | {
    "sum": lambda x, y, k: small(number(x) + number(like(x, y))),
    "difference": lambda x, y, k: small(number(x) - number(like(x, y))),
    "maximum": lambda x, y, k: torch.maximum(x, like(x, y)),
    "least": lambda x, y, k: torch.fmin(number(x), number(like(x, y))),
    "where": lambda x, y, k: torch.where(x > 0, x, like(x, y)),
    "broadcast": lambda x, y, k: small(number(x) + number(y).reshape(-1, 1)[:3].sum(0)),
    "remainder": lambda x, y, k: number(x).remainder(whole(like(x, y)).abs().clamp(1, 9)),
    "apart": lambda x, y, k: torch.logical_xor(x, like(x, y)),
    "step": lambda x, y, k: torch.heaviside(number(x), number(like(x, y)).to(number(x).dtype)),
    "most": lambda x, y, k: torch.fmax(number(x), number(like(x, y))),
    "both": lambda x, y, k: torch.logical_and(x, like(x, y)),
    "cast_as": lambda x, y, k: natural(x).type_as(y),
}  # fmt: skip
