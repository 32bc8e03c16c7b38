"""Emits a pointwise body whose transposing loads go through tiles (`transpose_tile`)."""

from __future__ import annotations

import torch

from jitney.kernels.llvm.conversions import broadcast, cast
from jitney.kernels.llvm.emit_body import BodyEmitter, State
from jitney.kernels.llvm.expressions import Lanes, Scope
from jitney.kernels.llvm.operations import i_and
from jitney.kernels.llvm.schedule_nest import Schedule
from jitney.kernels.llvm.ssa import Ssa, memory_type
from jitney.kernels.llvm.transpose_tile import TiledBody, tile_width, transpose
from jitney.kernels.llvm.vector_loop import Span, VectorLoop, first_lanes
from jitney.loops.ir import Load


def emit_tiles(
    emitter: BodyEmitter, scope: Scope, schedule: Schedule, tile: TiledBody, span: Span
) -> None:
    """The tile axis by tiles, inside it the vector axis over ``span``, inside it the tile."""
    assert schedule.vector is not None
    text, axis = scope.text, tile.axis
    end, width = emitter.end(scope, axis), tile_width(axis, schedule.lanes)
    stacks = [text.allocate(schedule.lanes * width * 8) for _ in tile.loads]
    with text.loop("0", end, width) as blocks:
        outer = scope.inner({axis: blocks.index})
        left = text.pure(f"sub nsw i64 {end}, {blocks.index}")
        whole = axis.extent.is_const and axis.extent.const % width == 0
        rows = str(width) if whole else text.smaller(left, str(width))

        def leaf(scopes: list[Scope], states: list[State]) -> list[State]:
            (inner,) = scopes
            if inner.lanes is None:
                _one_by_one(emitter, inner, tile, rows)
                return states
            row_mask = None
            if not whole:
                row_mask = first_lanes(text, text.pure(f"trunc i64 {rows} to i32"), width)
            for load, stack in zip(tile.loads, stacks, strict=True):
                _fill(inner, tile, load, stack, (width, row_mask))
            _run(emitter, inner, tile, stacks, rows)
            return states

        VectorLoop([outer], schedule.vector, span, schedule.lanes, 1, leaf).emit()


def _fill(
    scope: Scope, tile: TiledBody, load: Load, stack: str, shape: tuple[int, Ssa | None]
) -> None:
    """Loads a row of the tile per lane, transposes, stores ``[row element][lane]``."""
    text, lanes = scope.text, scope.lanes
    assert lanes is not None
    width, row_mask = shape
    rows = []
    for k in range(lanes.count):
        place = text.pure(f"add nsw i64 {scope.axes[lanes.axis]}, {k}")
        mask = row_mask
        if scope.mask is not None:
            exists = Ssa(text.pure(f"extractelement {scope.mask.typed}, i64 {k}"), torch.bool)
            exists = broadcast(text, exists, width)
            mask = exists if mask is None else i_and(text, [mask, exists])
        row = Scope(
            text, scope.operands, {**scope.axes, lanes.axis: place}, Lanes(tile.axis, width), mask
        )
        rows.append(row.emit(load))
    for t, column in enumerate(transpose(text, rows)):
        column = cast(text, column, torch.uint8) if column.dtype == torch.bool else column
        size = lanes.count * load.dtype.itemsize
        pointer = text.pure(f"getelementptr i8, ptr {stack}, i64 {t * size}")
        text.do(f"store {column.typed}, ptr {pointer}, align {min(size, 16)}")


def _run(emitter: BodyEmitter, scope: Scope, tile: TiledBody, stacks: list[str], rows: str) -> None:
    """The body for every element of the tile axis, its tiled loads bound."""
    text, lanes = scope.text, scope.width
    with text.loop("0", rows, 1, nonempty=True) as loop:
        position = text.pure(f"add nsw i64 {scope.axes[tile.axis]}, {loop.index}")
        inner = scope.inner({tile.axis: position})
        for name, load, stack in zip(tile.names, tile.loads, stacks, strict=True):
            kind = memory_type(load.dtype, lanes)
            pointer = text.pure(f"getelementptr {kind}, ptr {stack}, i64 {loop.index}")
            alignment = min(lanes * load.dtype.itemsize, 16)
            value = text.emit(f"load {kind}, ptr {pointer}, align {alignment}")
            dtype = torch.uint8 if load.dtype == torch.bool else load.dtype
            inner.bind(name, cast(text, Ssa(value, dtype, lanes), load.dtype))
        emitter.block([inner], tile.body)


def _one_by_one(emitter: BodyEmitter, scope: Scope, tile: TiledBody, rows: str) -> None:
    """A scalar tail: the tile's loads are plain ones."""
    text = scope.text
    with text.loop("0", rows, 1, nonempty=True) as loop:
        position = text.pure(f"add nsw i64 {scope.axes[tile.axis]}, {loop.index}")
        inner = scope.inner({tile.axis: position})
        for name, load in zip(tile.names, tile.loads, strict=True):
            inner.bind(name, inner.emit(load))
        emitter.block([inner], tile.body)
