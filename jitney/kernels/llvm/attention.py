"""Attention as code: tiles for both products, a softmax between them with a running maximum.

A work item takes some rows of one head. Scores of at most `attention_plan.KEYS` keys live in its
scratch; with more keys the output so far is rescaled step by step, so memory does not grow with
the length (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
"""

from __future__ import annotations

from jitney.kernels.llvm.attention_matrix import matrix_scores, matrix_values
from jitney.kernels.llvm.attention_parts import AttentionCode, Block
from jitney.kernels.llvm.attention_plan import first_and_last_key, plan_attention
from jitney.kernels.llvm.attention_softmax import emit_softmax, store_output
from jitney.kernels.llvm.gemm_tile import Tile, tile_routine
from jitney.kernels.llvm.isa import isa_of
from jitney.kernels.llvm.node_code import NodeCode
from jitney.kernels.llvm.pack_columns import transpose_routine
from jitney.loops.index import Index
from jitney.loops.ir import Attention
from jitney.loops.points import points_of
from jitney.loops.target import Target


def emit_attention(node: Attention, target: Target) -> NodeCode:
    """The code of an attention node with head sizes known at compile time."""
    isa = isa_of(target)
    code = AttentionCode(node, plan_attention(node, isa, target), isa)
    f, plan = code.f, code.plan
    blocks = (node.s.extent + (plan.rows - 1)) // plan.rows
    with f.items() as item:
        *batch, number = f.unflatten(item.index, [*(a.extent for a in node.batch), blocks])
        first = f.text.pure(f"mul nsw i64 {number}, {plan.rows}")
        left = f.text.pure(f"sub i64 {f.size(node.s.extent)}, {first}")
        rows = f.text.smaller(left, str(plan.rows))
        scope = f.scope.inner(dict(zip(node.batch, batch, strict=True)))
        block = Block(scope, first, rows)
        code.clear_sums(rows)
        code.copy_query(block)
        begin, end = _keys_of_block(code, block)
        with f.text.loop(begin, end, step=plan.keys) as step:
            left = f.text.pure(f"sub i64 {end}, {step.index}")
            count = f.text.smaller(left, str(plan.keys))
            _scores(code, block, step.index, count)
            emit_softmax(code, block, step.index, count)
            _weighted_values(code, block, step.index, count)
        store_output(code, block)
    return code.finish(blocks * points_of(node.batch), _work(node, plan.rows))


def _work(node: Attention, rows: int) -> float:
    keys = max(node.t.extent.hint(), 1) * (0.5 if node.causal else 1.0)
    depth = int(node.d.extent) + int(node.dv.extent) + 16
    return rows * keys * depth


def _keys_of_block(code: AttentionCode, block: Block) -> tuple[str, str]:
    """The first key any row of the block keeps, and one past the last."""
    node, f = code.node, code.f
    first, last = first_and_last_key(node)
    begin, end = "0", f.size(node.t.extent)
    if last is not None:
        final = f.text.pure(f"add nsw i64 {block.first}, {block.rows}")
        final = f.text.pure(f"sub nsw i64 {final}, 1")
        end = f.text.smaller(end, _at_row(block, node, last, final))
    if first is not None:
        begin = f.text.larger(_at_row(block, node, first, block.first), "0")
    return begin, end


def _at_row(block: Block, node: Attention, position: Index, row: str) -> str:
    return block.scope.inner({node.s: row}).indices.uniform(position)


def _scores(code: AttentionCode, block: Block, key: str, count: str) -> None:
    """``scores[r, c] = q[r, :] . k[key + c, :]`` for the block's rows, ``count`` keys."""
    node, f, plan = code.node, code.f, code.plan
    depth = int(node.d.extent)
    steps = depth // 2 if plan.k == "pairs" else depth
    with f.text.loop("0", count, step=plan.panel, nonempty=True) as panel:
        here = f.text.pure(f"add nsw i64 {key}, {panel.index}")
        left = f.text.pure(f"sub i64 {count}, {panel.index}")
        _key_panel(code, block, here, f.text.smaller(left, str(plan.panel)), steps)
        with f.text.loop("0", block.rows, step=plan.tile_rows, nonempty=True) as row:
            with code.keys_of_tile(block, row.index, here, count):
                _score_tile(code, block, row.index, panel.index, steps)


def _score_tile(code: AttentionCode, block: Block, row: str, column: str, steps: int) -> None:
    f, plan = code.f, code.plan
    if plan.matrix:
        matrix_scores(code, block, row, column)
        return
    tile = Tile(plan.tile_rows, plan.k_vectors, plan.lanes, plan.dtype, plan.k == "pairs")
    line = plan.panel * plan.dtype.itemsize
    pitch = plan.pitch * plan.dtype.itemsize
    table = code.query_rows(block, row, tile.rows)
    out = f.offset(f.offset(code.scores, row, pitch), column, plan.dtype.itemsize)
    arguments = (
        f"ptr {table}, i64 {code.q_step()}, ptr {code.panel}, i64 {line}, i64 {steps}, "
        f"ptr {out}, i64 {pitch}, ptr {code.panel}, i64 0"
    )
    f.text.do(f"call void @{code.use(tile_routine(tile))}({arguments})")


def _key_panel(code: AttentionCode, block: Block, key: str, count: str, steps: int) -> None:
    """Lays ``count`` keys from ``key`` on out as the tile reads them."""
    node, f, plan = code.node, code.f, code.plan
    if plan.k == "gathered":
        code.gather_keys(block, key)
        return
    if plan.k == "converted":
        code.convert_rows(block, node.k, node.d, key, count, code.converted, int(node.d.extent))
        source, pitch = code.converted, str(int(node.d.extent) * plan.dtype.itemsize)
    else:
        source = f.address(block.scope.inner({node.t: key}), node.k, (node.d,))
        pitch = f.step(node.k, node.t)
    routine = code.use(transpose_routine(plan.lanes, plan.k_vectors))
    arguments = f"ptr {source}, i64 {pitch}, i64 {steps}, i64 {count}, ptr {code.panel}"
    f.text.do(f"call void @{routine}({arguments})")


def _weighted_values(code: AttentionCode, block: Block, key: str, count: str) -> None:
    """``sums[r, :] = sums[r, :] * rescale[r] + scores[r, :] @ v[key:key + count, :]``."""
    node, f, plan = code.node, code.f, code.plan
    size = plan.dtype.itemsize
    if plan.matrix:
        matrix_values(code, block, key, count)
        return
    if plan.v == "copied":
        code.convert_rows(block, node.v, node.dv, key, count, code.values, plan.depth)
        source, pitch = code.values, str(plan.depth * size)
    else:
        source = f.address(block.scope.inner({node.t: key}), node.v, (node.dv,))
        pitch = f.step(node.v, node.t)
    with f.text.loop("0", block.rows, step=plan.tile_rows, nonempty=True) as row:
        with code.keys_of_tile(block, row.index, key, count) as wanted:
            _value_tiles(code, block, row.index, wanted, source, pitch)


def _value_tiles(
    code: AttentionCode, block: Block, row: str, count: str, source: str, pitch: str
) -> None:
    f, plan, size = code.f, code.plan, code.plan.dtype.itemsize
    table = code.score_rows(row, plan.tile_rows)
    left = f.text.pure(f"sub i64 {block.rows}, {row}")
    valid = f.text.smaller(left, str(plan.tile_rows))
    first = 0
    for vectors in plan.v_vectors:
        tile = Tile(plan.tile_rows, vectors, plan.lanes, plan.dtype)
        product = f.text.allocate(tile.rows * tile.width * size)
        b = f.text.pure(f"getelementptr i8, ptr {source}, i64 {first * plan.lanes * size}")
        arguments = (
            f"ptr {table}, i64 {size}, ptr {b}, i64 {pitch}, i64 {count}, ptr {product}, "
            f"i64 {tile.width * size}, ptr {b}, i64 0"
        )
        f.text.do(f"call void @{code.use(tile_routine(tile))}({arguments})")
        code.add_product(row, valid, product, first, vectors)
        first += vectors
