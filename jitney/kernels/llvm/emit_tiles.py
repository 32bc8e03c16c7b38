"""Emits a pointwise body whose transposing loads go through tiles (`transpose_tile`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jitney.kernels.llvm.conversions import broadcast, cast
from jitney.kernels.llvm.emit_body import BodyEmitter, State
from jitney.kernels.llvm.expressions import Lanes, Scope
from jitney.kernels.llvm.operations import i_and
from jitney.kernels.llvm.schedule_nest import Schedule
from jitney.kernels.llvm.ssa import Ssa, memory_type
from jitney.kernels.llvm.transpose_tile import (
    TiledBody,
    stays_in_registers,
    tile_width,
    transpose,
)
from jitney.kernels.llvm.vector_loop import Span, VectorLoop, first_lanes
from jitney.loops.ir import Load


def emit_tiles(
    emitter: BodyEmitter,
    scope: Scope,
    schedule: Schedule,
    tile: TiledBody,
    spans: tuple[Span, Span],
) -> None:
    """The tile axis by tiles, inside it the vector axis, inside it the tile; ``spans``: of the
    two axes in this order."""
    assert schedule.vector is not None
    text, axis, (along, across) = scope.text, tile.axis, spans
    width = tile_width(axis, schedule.lanes)
    whole = axis.extent.is_const and axis.extent.const % width == 0  # blocks are whole tiles
    in_registers = whole and stays_in_registers(tile, width)
    stacks = [] if in_registers else [text.allocate(schedule.lanes * width * 8) for _ in tile.loads]
    with text.loop(along.begin, along.end, width) as blocks:
        outer = scope.inner({axis: blocks.index})
        left = text.pure(f"sub nsw i64 {along.end}, {blocks.index}")
        rows = str(width) if whole else text.smaller(left, str(width))

        def leaf(scopes: list[Scope], states: list[State]) -> list[State]:
            (inner,) = scopes
            if inner.lanes is None:
                _one_by_one(emitter, inner, tile, rows)
                return states
            row_mask = None
            if not whole:
                row_mask = first_lanes(text, text.pure(f"trunc i64 {rows} to i32"), width)
            columns = [_columns(inner, tile, load, (width, row_mask)) for load in tile.loads]
            if in_registers:
                _run_unrolled(emitter, inner, tile, columns)
            else:
                for column, stack in zip(columns, stacks, strict=True):
                    _fill(inner, column, stack)
                _run(emitter, inner, tile, stacks, rows)
            return states

        VectorLoop([outer], schedule.vector, across, schedule.lanes, 1, leaf).emit()


def _columns(scope: Scope, tile: TiledBody, load: Load, shape: tuple[int, Ssa | None]) -> list[Ssa]:
    """Loads a row of the tile per lane and transposes: a vector per element of a row."""
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
    return transpose(text, rows)


def _run_unrolled(
    emitter: BodyEmitter, scope: Scope, tile: TiledBody, columns: Sequence[Sequence[Ssa]]
) -> None:
    """The body for every element of the tile axis, each from its registers."""
    for t, values in enumerate(zip(*columns, strict=True)):
        position = scope.text.pure(f"add nsw i64 {scope.axes[tile.axis]}, {t}")
        inner = scope.inner({tile.axis: position})
        for name, value in zip(tile.names, values, strict=True):
            inner.bind(name, value)
        emitter.block([inner], tile.body)


def _fill(scope: Scope, columns: Sequence[Ssa], stack: str) -> None:
    """Stores a transposed tile as ``[row element][lane]``."""
    text = scope.text
    for t, column in enumerate(columns):
        kept = cast(text, column, torch.uint8) if column.dtype == torch.bool else column
        size = scope.width * kept.dtype.itemsize
        pointer = text.pure(f"getelementptr i8, ptr {stack}, i64 {t * size}")
        text.do(f"store {kept.typed}, ptr {pointer}, align {min(size, 16)}")


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
