"""Loads and stores of one element per lane: vector, uniform, or gathered."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from jitney.kernels.llvm.conversions import broadcast, cast, lane, suffix
from jitney.kernels.llvm.operations import emit_op, i_and, select
from jitney.kernels.llvm.ssa import Ssa, constant, intrinsic_suffix, memory_type, vector_of
from jitney.kernels.llvm.strided_loads import StridedLoad
from jitney.kernels.llvm.text import FunctionText
from jitney.loops.index import Index, index
from jitney.loops.ir import Load, Store

if TYPE_CHECKING:
    from jitney.kernels.llvm.expressions import Scope

_ZERO, _ONE = index(0), index(1)
_ZERO_MEMORY = "@jitney.zero = private unnamed_addr constant [64 x i8] zeroinitializer, align 64"


def load(scope: Scope, node: Load, own: Ssa | None) -> Ssa:
    """The value of a Load; ``own`` is its mask, already emitted."""
    stride = scope.indices.stride(node.index)
    if stride == _ZERO and (own is None or not own.lanes):
        return _load_uniform(scope, node, own)
    if stride == _ZERO and own is not None:
        return _load_uniform_where_any(scope, node, own)
    if stride == _ONE and own is not None and _all_or_none(scope, own):
        return _load_vector_or_other(scope, node, own)
    mask = _both(scope, scope.mask, own)
    if stride == _ONE:
        return _load_vector(scope, node, mask, own)
    if stride is not None and mask is None and not scope.text.isa.masks:
        return _load_strided(scope, node, stride)
    return _gather(scope, node, mask)


def address(scope: Scope, buffer: str, position: Index, dtype: torch.dtype) -> str:
    """The pointer to lane 0's element."""
    pointer, element = scope.operands.pointer(buffer), memory_type(dtype)
    for offset in scope.indices.offsets(position):
        pointer = scope.text.pure(f"getelementptr {element}, ptr {pointer}, i64 {offset}", "p")
    return pointer


def _read(scope: Scope, buffer: str, code: str) -> str:
    if buffer in scope.operands.written:
        return scope.text.emit(code)
    return scope.text.read(code)


def _from_memory(scope: Scope, name: str, dtype: torch.dtype, lanes: int) -> Ssa:
    if dtype != torch.bool:
        return Ssa(name, dtype, lanes)
    return cast(scope.text, Ssa(name, torch.uint8, lanes), torch.bool)


def _load_uniform(scope: Scope, node: Load, own: Ssa | None) -> Ssa:
    pointer = address(scope, node.buffer, node.index, node.dtype)
    if own is not None:
        scope.text.declare(_ZERO_MEMORY)
        pointer = scope.text.pure(f"select i1 {own.name}, ptr {pointer}, ptr @jitney.zero")
    kind = memory_type(node.dtype)
    name = _read(scope, node.buffer, f"load {kind}, ptr {pointer}, align {node.dtype.itemsize}")
    value = _from_memory(scope, name, node.dtype, 0)
    if own is None:
        return value
    return select(scope.text, own, value, constant(node.other, node.dtype))


def _load_uniform_where_any(scope: Scope, node: Load, own: Ssa) -> Ssa:
    wanted = _both(scope, own, scope.mask)
    assert wanted is not None
    value = _load_uniform(scope, node, Ssa(_any_lane(scope, wanted), torch.bool))
    return select(scope.text, own, value, constant(node.other, node.dtype))


def _load_vector(scope: Scope, node: Load, mask: Ssa | None, own: Ssa | None = None) -> Ssa:
    pointer = address(scope, node.buffer, node.index, node.dtype)
    if own is not None:
        pointer = _mapped(scope, node.buffer, pointer, own)
    lanes, size = scope.width, node.dtype.itemsize
    kind = memory_type(node.dtype, lanes)
    if mask is None:
        name = _read(scope, node.buffer, f"load {kind}, ptr {pointer}, align {size}")
        return _from_memory(scope, name, node.dtype, lanes)
    other = _other(node, lanes)
    callee = f"llvm.masked.load.{intrinsic_suffix(_stored(node.dtype), lanes)}.p0"
    scope.text.declare(f"declare {kind} @{callee}(ptr, i32, <{lanes} x i1>, {kind})")
    code = f"call {kind} @{callee}(ptr {pointer}, i32 {size}, {mask.typed}, {other})"
    return _from_memory(scope, _read(scope, node.buffer, code), node.dtype, lanes)


def _all_or_none(scope: Scope, own: Ssa) -> bool:
    """Whether ``own`` is one bool for all lanes, which a choice of address serves better than the
    masked instructions of a target whose masks are vectors (and has none for small elements)."""
    return not own.lanes and scope.mask is None and not scope.text.isa.masks


def _load_vector_or_other(scope: Scope, node: Load, own: Ssa) -> Ssa:
    """A whole vector where ``own`` holds, else one of the Load's ``other`` that lies in memory."""
    pointer = address(scope, node.buffer, node.index, node.dtype)
    other = _other(node, scope.width)
    name = "@jitney.other." + hashlib.sha256(other.encode()).hexdigest()[:16]
    scope.text.declare(f"{name} = private unnamed_addr constant {other}, align 64")
    pointer = scope.text.pure(f"select i1 {own.name}, ptr {pointer}, ptr {name}", "p")
    kind = memory_type(node.dtype, scope.width)
    code = f"load {kind}, ptr {pointer}, align {node.dtype.itemsize}"
    return _from_memory(scope, _read(scope, node.buffer, code), node.dtype, scope.width)


def _mapped(scope: Scope, buffer: str, pointer: str, mask: Ssa) -> str:
    """``pointer``, or the buffer's own start where ``mask`` allows no lane: a masked load from a
    page that is not there does not fault, but costs over a hundred nanoseconds."""
    some = mask.name
    if mask.lanes:
        some = scope.text.call("i1", f"llvm.vector.reduce.or.v{mask.lanes}i1", mask.typed)
    base = scope.operands.pointer(buffer)
    return scope.text.pure(f"select i1 {some}, ptr {pointer}, ptr {base}", "p")


def _gather(scope: Scope, node: Load, mask: Ssa | None) -> Ssa:
    positions = scope.indices.value(node.index)
    lanes, size = positions.lanes, node.dtype.itemsize
    pointers = _pointers(scope, node.buffer, positions, node.dtype)
    mask = mask if mask is not None else constant(True, torch.bool, lanes)
    kind = memory_type(node.dtype, lanes)
    callee = f"llvm.masked.gather.{intrinsic_suffix(_stored(node.dtype), lanes)}.v{lanes}p0"
    scope.text.declare(f"declare {kind} @{callee}(<{lanes} x ptr>, i32, <{lanes} x i1>, {kind})")
    code = (
        f"call {kind} @{callee}(<{lanes} x ptr> {pointers}, i32 {size}, {mask.typed}, "
        f"{_other(node, lanes)})"
    )
    return _from_memory(scope, _read(scope, node.buffer, code), node.dtype, lanes)


def _load_strided(scope: Scope, node: Load, stride: Index) -> Ssa:
    pointer = address(scope, node.buffer, node.index, node.dtype)
    stays = node.buffer in scope.operands.written
    apart = StridedLoad(scope.text, pointer, node.dtype, scope.width, stays)
    loaded = apart.by(scope.indices.uniform(stride))
    return cast(scope.text, loaded, torch.bool) if node.dtype == torch.bool else loaded


def _other(node: Load, lanes: int) -> str:
    return constant(node.other, _stored(node.dtype), lanes).typed


def _stored(dtype: torch.dtype) -> torch.dtype:
    """The value as it is stored: a bool is a byte in memory."""
    return torch.uint8 if dtype == torch.bool else dtype


def _pointers(scope: Scope, buffer: str, positions: Ssa, dtype: torch.dtype) -> str:
    base = scope.operands.pointer(buffer)
    return scope.text.pure(f"getelementptr {memory_type(dtype)}, ptr {base}, {positions.typed}")


def _both(scope: Scope, a: Ssa | None, b: Ssa | None) -> Ssa | None:
    """The lanes allowed by both masks, as a vector."""
    if a is None or b is None:
        one = a if a is not None else b
        if one is None or one.lanes or not scope.width:
            return one
        return broadcast(scope.text, one, scope.width)
    lanes = max(a.lanes, b.lanes)
    return i_and(scope.text, [broadcast(scope.text, m, lanes) for m in (a, b)])


# ---------------------------------------------------------------- stores


def store(scope: Scope, node: Store, value: Ssa, own: Ssa | None) -> None:
    """Writes ``value``; ``own`` is the Store's mask, already emitted."""
    stride = scope.indices.stride(node.index)
    dtype = value.dtype
    if stride == _ZERO and not scope.width:
        _store_scalar(scope, node, value, own)
        return
    mask = _both(scope, scope.mask, own)
    if stride == _ZERO and mask is not None and not value.lanes and not node.combines:
        with scope.text.when(_any_lane(scope, mask)):
            _write(scope, node, value, address(scope, node.buffer, node.index, dtype))
        return
    if stride == _ONE and own is not None and _all_or_none(scope, own):
        with scope.text.when(own.name):
            _store_vector(scope, node, broadcast(scope.text, value, scope.width), None)
        return
    value = broadcast(scope.text, value, scope.width or value.lanes)
    if node.combines and (stride is None or not stride.is_const or stride == _ZERO):
        _store_each_lane(scope, node, value, mask)
        return
    if stride == _ONE:
        _store_vector(scope, node, value, mask)
        return
    if node.combines:
        there = _gather(scope, Load(node.buffer, node.index, dtype), mask)
        value = emit_op(scope.text, node.mode, [there, value], dtype)
    _scatter(scope, node, value, mask)


def _any_lane(scope: Scope, mask: Ssa) -> str:
    return scope.text.call("i1", f"llvm.vector.reduce.or.v{mask.lanes}i1", mask.typed)


def _to_memory(scope: Scope, value: Ssa) -> Ssa:
    return cast(scope.text, value, torch.uint8) if value.dtype == torch.bool else value


def _store_scalar(scope: Scope, node: Store, value: Ssa, own: Ssa | None) -> None:
    pointer = address(scope, node.buffer, node.index, value.dtype)
    mask = own if scope.mask is None else _both(scope, scope.mask, own)
    if mask is None:
        _write(scope, node, value, pointer)
        return
    with scope.text.when(mask.name):
        _write(scope, node, value, pointer)


def _write(scope: Scope, node: Store, value: Ssa, pointer: str) -> None:
    dtype, size = value.dtype, value.dtype.itemsize
    if node.combines:
        kind = memory_type(dtype)
        there = scope.text.emit(f"load {kind}, ptr {pointer}, align {size}")
        value = emit_op(scope.text, node.mode, [_from_memory(scope, there, dtype, 0), value], dtype)
    scope.text.do(f"store {_to_memory(scope, value).typed}, ptr {pointer}, align {size}")


def _store_vector(scope: Scope, node: Store, value: Ssa, mask: Ssa | None) -> None:
    dtype = value.dtype
    if node.combines:
        there = _load_vector(scope, Load(node.buffer, node.index, dtype), mask)
        value = emit_op(scope.text, node.mode, [there, value], dtype)
    pointer = address(scope, node.buffer, node.index, dtype)
    store_lanes(scope.text, _to_memory(scope, value), pointer, mask)


def store_lanes(text: FunctionText, value: Ssa, pointer: str, mask: Ssa | None) -> None:
    """Writes the lanes of a vector that ``mask`` allows (None: all) to adjacent elements."""
    size = value.dtype.itemsize
    if mask is None:
        text.do(f"store {value.typed}, ptr {pointer}, align {size}")
        return
    callee = f"llvm.masked.store.{suffix(value)}.p0"
    text.declare(f"declare void @{callee}({value.type}, ptr, i32, {mask.type})")
    text.do(f"call void @{callee}({value.typed}, ptr {pointer}, i32 {size}, {mask.typed})")


def _scatter(scope: Scope, node: Store, value: Ssa, mask: Ssa | None) -> None:
    positions = scope.indices.value(node.index)
    pointers = _pointers(
        scope, node.buffer, broadcast(scope.text, positions, value.lanes), value.dtype
    )
    value, lanes = _to_memory(scope, value), value.lanes
    mask = mask if mask is not None else constant(True, torch.bool, lanes)
    where = vector_of("ptr", lanes)
    callee = f"llvm.masked.scatter.{suffix(value)}.v{lanes}p0"
    scope.text.declare(f"declare void @{callee}({value.type}, {where}, i32, {mask.type})")
    scope.text.do(
        f"call void @{callee}({value.typed}, {where} {pointers}, "
        f"i32 {value.dtype.itemsize}, {mask.typed})"
    )


def _store_each_lane(scope: Scope, node: Store, value: Ssa, mask: Ssa | None) -> None:
    """Stores the lanes one after the other, since several may hit one element."""
    positions = broadcast(scope.text, scope.indices.value(node.index), value.lanes)
    base, element = scope.operands.pointer(node.buffer), memory_type(value.dtype)
    for k in range(value.lanes):
        here = lane(scope.text, positions, k)
        pointer = scope.text.pure(f"getelementptr {element}, ptr {base}, i64 {here.name}")
        if mask is None:
            _write(scope, node, lane(scope.text, value, k), pointer)
            continue
        with scope.text.when(lane(scope.text, mask, k).name):
            _write(scope, node, lane(scope.text, value, k), pointer)
