"""Random numbers on a GPU, drawn as eager's kernels draw them (`philox`), so that they can be made
where they are used. A CPU's eager draws from another generator, one number after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from jitney.loops.index import Index, index
from jitney.loops.ir import Buffer, Expr, Extern, Load, Op
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    HALF,
    Operand,
    add,
    apply,
    as_expr,
    cast,
    compute_dtype,
    const,
    index_expr,
    is_int,
    mul,
    where,
)
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.philox import LOADED, neighbours, thread_count

aten = torch.ops.aten

#: The call that reads eager's generator and moves it on: `kernels.philox_state`.
STATE = "jitney.philox_state.default"
#: What one row of its result holds: seed, offset, threads, together.
COLUMNS = 4
I64 = torch.int64


# ---------------------------------------------------------------- the generator's state


def _draw(b: Builder, numel: Index, together: int) -> tuple[Expr, ...]:
    """Seed, offset, threads and together of eager's next draw, of ``numel`` elements.

    Draws with no other random call between them share one call that reads the state.
    """
    at = next((i for i, n in enumerate(b.nodes) if b.random_state in _names(n)), None)
    if at is None:
        at = len(b.nodes)
        b.random_state = b.fresh("philox_state")
        shape = index(0), index(COLUMNS)
        strides = index(COLUMNS), index(1)
        b.buffers.append(Buffer(b.random_state, "extern", I64, b.device(), shape, strides))
        b.nodes.append(_state_call(b, b.random_state))
    call = b.nodes[at]
    assert isinstance(call, Extern)
    sizes, widths, device = call.args
    row = len(sizes)
    size = numel.const if numel.is_const else numel
    args = ((*sizes, size), (*widths, together), device)
    b.nodes[at] = replace(call, args=args)
    slot = next(i for i, buffer in enumerate(b.buffers) if buffer.name == b.random_state)
    b.buffers[slot] = replace(b.buffers[slot], shape=(index(row + 1), index(COLUMNS)))
    state = tuple(Load(b.random_state, index(row * COLUMNS + i), I64) for i in range(COLUMNS))
    if not numel.is_const:
        return state
    threads = thread_count(numel.const, b.target.multiprocessors, b.target.threads_each)
    return (*state[:2], const(threads, I64), const(neighbours(numel.const, together), I64))


def _names(node: Any) -> tuple[str | None, ...]:
    return node.outputs if isinstance(node, Extern) else ()


def _state_call(b: Builder, buffer: str) -> Extern:
    return Extern(
        b.fresh("philox_state_call"), STATE, ((), (), b.device()), (), (buffer,),
        effectful=True, reason="it moves eager's generator on",
    )  # fmt: skip


def _check(b: Builder, numel: Index, generator: Any) -> None:
    if b.target.kind != "cuda":
        raise Refused("eager draws from a generator that only runs in order")
    if generator is not None:
        raise Refused("a generator of the caller's")
    if not numel.bounds()[0]:
        raise Refused("perhaps nothing to draw")


def _places(fake: torch.Tensor) -> list[int] | None:
    """Dimensions by falling stride where the tensor fills its memory without gaps, else None."""
    strides: Any = fake.stride()
    order = sorted(range(fake.dim()), key=lambda d: (-strides[d], d))
    step: Any = 1
    for d in reversed(order):
        if fake.shape[d] != 1:
            if strides[d] != step:
                return None
            step = step * fake.shape[d]
    return order


def _element(shape: tuple[Index, ...], order: list[int], position: Position) -> Expr:
    """The number of a position, counted through dimensions in that order."""
    total = index(0)
    for d in order:
        total = total * shape[d] + position[d]
    return index_expr(total)


# ---------------------------------------------------------------- dropout


@lowers(aten.native_dropout.default)
def native_dropout(
    b: Builder, x: StridedTensor, p: float, train: bool | None
) -> tuple[StridedTensor, StridedTensor]:
    """Results: ``x`` scaled where it is kept, and what is kept.

    Eager's threads draw for as many neighbours in memory as they load at once, if these are as
    many everywhere; else for elements in their order, one by one.
    """
    _check(b, x.numel, None)
    if train is False or not isinstance(p, float) or not 0 <= p < 1:
        raise Refused("dropout of nothing or of all")
    order, together = _order_of_dropout(b, x)
    values, kept = (b.allocate(fake) for fake in b.fake)
    acc = compute_dtype(x.dtype)
    chance = torch.tensor(1.0 - p, dtype=acc).item()
    draw = _draw(b, x.numel, together)

    def keeps(position: Position) -> Expr:
        element = _element(x.shape, order, position)
        drawn = Op("philox_uniform", (*draw, element), torch.float32)
        return apply("lt", cast(drawn, acc), const(chance, acc))

    def value_at(position: Position) -> Expr:
        value = mul(cast(x.load(position), acc), cast(kept.load(position), acc))
        return mul(value, const(1.0 / chance, acc))

    b.compute(kept, keeps)
    return b.compute(values, value_at), kept


def _order_of_dropout(b: Builder, x: StridedTensor) -> tuple[list[int], int]:
    """How eager's dropout counts the elements of ``x``, and how many it takes at once at most."""
    fake: torch.Tensor = b.node.args[0].meta["val"]  # type: ignore[union-attr]
    plain = list(range(x.ndim))
    order = _places(fake)
    if order is None or (x.numel.is_const and x.numel.const % 2):
        return plain, 1
    if any(buffer.name == x.buffer and buffer.kind == "input" for buffer in b.buffers):
        raise Refused("where an input begins decides how eager draws")
    start = fake.storage_offset()
    together = LOADED // fake.itemsize if isinstance(start, int) else 1
    while together > 1 and start % together:
        together //= 2
    if together == 1 or (not x.numel.is_const and order != plain):
        raise Refused("where the tensor begins decides how eager draws")
    return order, together


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(
    b: Builder, gradient: StridedTensor, kept: StridedTensor, scale: Operand
) -> StridedTensor:
    """``kept * gradient * scale``, in the compute dtype of the result."""
    out = b.allocate()
    acc = compute_dtype(out.dtype)

    def value_at(position: Position) -> Expr:
        value = mul(cast(kept.load(position), acc), cast(gradient.load(position), acc))
        return mul(value, as_expr(scale, acc))

    return b.compute(out, value_at)


# ---------------------------------------------------------------- distributions


def _drawn(b: Builder, op: str, like: StridedTensor | None, generator: Any) -> Any:
    """A function from a position to a number eager's distribution kernels draw for it."""
    fakes = [b.fake]
    if like is not None:
        fakes.append(b.node.args[0].meta["val"])  # type: ignore[union-attr]
    shape = tuple(index(s) if isinstance(s, int) else None for s in b.fake.shape)
    if None in shape:
        raise Refused("a symbolic number of random numbers")
    out_shape = tuple(s for s in shape if s is not None)
    numel = index(b.fake.numel())
    _check(b, numel, generator)
    if numel.const * b.fake.itemsize >= 2**31:
        raise Refused("eager draws for so many elements in several turns")
    orders = [_places(fake) for fake in fakes]
    if orders[0] is None or any(order is None for order in orders):
        raise Refused("random numbers for a tensor with gaps")
    if b.fake.dtype is torch.float64:
        raise Refused("random numbers of double precision take two words")
    draw, order = _draw(b, numel, 1), orders[0]
    dtype = I64 if op == "philox_bits" else torch.float32

    def value_at(position: Position) -> Expr:
        return Op(op, (*draw, _element(out_shape, order, position)), dtype)

    return value_at


def _uniform(b: Builder, like: StridedTensor | None, low: float, high: float, gen: Any) -> Any:
    """In [low, high): eager draws from (0, 1] and takes the lower bound for the upper."""
    out_dtype = b.fake.dtype
    if out_dtype not in (torch.float32, *HALF):
        raise Refused(f"uniform numbers of {out_dtype}")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        raise Refused("bounds known only at run time")
    number = _drawn(b, "philox_uniform", like, gen)
    lower, upper = (torch.tensor(float(v), dtype=out_dtype) for v in (low, high))
    width = const((upper - lower).item(), torch.float32)
    ends = const(lower.item(), torch.float32), const(upper.item(), torch.float32)

    def value_at(position: Position) -> Expr:
        value = number(position)
        if (low, high) != (0, 1):
            value = apply("fma", value, width, ends[0])
        value = cast(cast(value, out_dtype), torch.float32)
        return where(apply("eq", value, ends[1]), ends[0], value)

    return b.compute(b.allocate(), value_at)


@lowers(aten.rand.default, aten.rand_like.default)
def rand(b: Builder, _size_or_like: Any, **_options: Any) -> StridedTensor:
    """Eager's numbers in [0, 1), of a GPU alone; what is refused: `_drawn`, `_uniform`."""
    return _uniform(b, None, 0, 1, None)


@lowers(aten.uniform.default)
def uniform(
    b: Builder, x: StridedTensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None
) -> StridedTensor:
    """Eager's numbers in [low, high), which are literals; refused as `rand`."""
    return _uniform(b, x, low, high, generator)


def _normal(b: Builder, like: StridedTensor | None, mean: float, std: float, gen: Any) -> Any:
    if b.fake.dtype not in (torch.float32, *HALF):
        raise Refused(f"normal numbers of {b.fake.dtype}")
    if not isinstance(mean, int | float) or not isinstance(std, int | float):
        raise Refused("moments known only at run time")
    number = _drawn(b, "philox_normal", like, gen)
    centre, width = const(mean, torch.float32), const(std, torch.float32)
    return b.compute(b.allocate(), lambda p: apply("fma", number(p), width, centre))


@lowers(aten.randn.default, aten.randn_like.default)
def randn(b: Builder, _size_or_like: Any, **_options: Any) -> StridedTensor:
    """Eager's normal numbers, of a GPU alone; what is refused: `_drawn`, `_normal`."""
    return _normal(b, None, 0, 1, None)


@lowers(aten.normal_functional.default)
def normal(
    b: Builder, x: StridedTensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> StridedTensor:
    """``mean + std * number``, rounded once; both are literals. Refused as `randn`."""
    return _normal(b, x, mean, std, generator)


@lowers(aten.bernoulli.p)
def bernoulli(b: Builder, x: StridedTensor, p: float, *, generator: Any = None) -> StridedTensor:
    """1 where a number in (0, 1] is below ``p``, compared in double precision."""
    if not isinstance(p, int | float) or not 0 <= p <= 1:
        raise Refused("a chance known only at run time, or none")
    number = _drawn(b, "philox_uniform", x, generator)
    chance = const(p, torch.float64)
    out = b.allocate()
    return b.compute(
        out, lambda at: cast(apply("lt", cast(number(at), torch.float64), chance), out.dtype)
    )


#: From so wide a range on eager takes two words for a number.
WIDE_RANGE = 1 << 28


def _integers(b: Builder, low: int | Index, high: int | Index) -> StridedTensor:
    if not isinstance(low, int) or not isinstance(high, int):
        raise Refused("a range known only at run time")
    out_dtype = b.fake.dtype
    if not is_int(out_dtype) or not 0 < high - low < WIDE_RANGE:
        raise Refused("random integers of a wide range, or that are no integers")
    number = _drawn(b, "philox_bits", None, None)
    size, least = const(high - low, I64), const(low, I64)
    return b.compute(b.allocate(), lambda p: add(apply("fmod", number(p), size), least))


@lowers(aten.randint.default)
def randint(b: Builder, high: int, _size: Any, **_options: Any) -> StridedTensor:
    """Eager's integers in [0, high), of a GPU alone; refused from `WIDE_RANGE` on."""
    return _integers(b, 0, high)


@lowers(aten.randint.low)
def randint_from(b: Builder, low: int, high: int, _size: Any, **_options: Any) -> StridedTensor:
    """As `randint`, in [low, high)."""
    return _integers(b, low, high)


@lowers(aten.randint_like.default)
def randint_like(b: Builder, x: StridedTensor, high: int, **_options: Any) -> StridedTensor:
    """As `randint`; ``x`` only says what the result is like."""
    return _integers(b, 0, high)


@lowers(aten.randint_like.low_dtype)
def randint_like_from(
    b: Builder, x: StridedTensor, low: int, high: int, **_options: Any
) -> StridedTensor:
    """As `randint_from`; ``x`` only says what the result is like."""
    return _integers(b, low, high)
