"""Both products of bfloat16 attention in matrix registers.

The weights are rounded to bfloat16, as eager's are, and lie where the scores of their row began;
keys up to whole registers have a weight of zero and a value of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

from jitney.kernels.llvm.attention_parts import AttentionCode, Block
from jitney.kernels.llvm.matrix_tile import STRIP, MatrixTile, matrix_routine
from jitney.kernels.llvm.pack_columns import pad_pairs_routine


def matrix_scores(code: AttentionCode, block: Block, row: str, column: str) -> None:
    """``scores[row + r, column + c] = q[r, :] . panel[c]`` for a tile of rows."""
    node, f, plan = code.node, code.f, code.plan
    whole, rest = divmod(int(node.d.extent) // 2, STRIP)
    tile = MatrixTile(plan.tile_rows // STRIP, plan.k_vectors, rest)
    s = f.text.pure(f"add nsw i64 {block.first}, {row}")
    q = f.address(block.scope.inner({node.s: s}), node.q, (node.d,))
    pitch = plan.pitch * plan.dtype.itemsize
    out = f.offset(f.offset(code.scores, row, pitch), column, plan.dtype.itemsize)
    _multiply(
        code, tile, (q, f.step(node.q, node.s)), _valid(code, block, row), whole, (out, pitch)
    )


def matrix_values(code: AttentionCode, block: Block, key: str, count: str) -> None:
    """``sums[r, :] = sums[r, :] * rescale[r] + weights[r, :] @ v[key:key + count, :]``."""
    node, f, plan = code.node, code.f, code.plan
    v = f.address(block.scope.inner({node.t: key}), node.v, (node.dv,))
    for first, vectors, panel in _panels(code):
        b = f.text.pure(f"getelementptr i8, ptr {v}, i64 {2 * first * plan.lanes}")
        left = int(node.dv.extent) - first * plan.lanes
        routine = code.use(pad_pairs_routine(plan.lanes, vectors))
        arguments = f"ptr {b}, i64 {f.step(node.v, node.t)}, i64 {count}, i64 {left}, ptr {panel}"
        f.text.do(f"call void @{routine}({arguments})")
    with f.text.loop("0", block.rows, step=plan.tile_rows, nonempty=True) as row:
        with code.keys_of_tile(block, row.index, key, count) as wanted:
            _weighted_rows(code, block, row.index, wanted)


def _weighted_rows(code: AttentionCode, block: Block, row: str, count: str) -> None:
    f, plan = code.f, code.plan
    valid = _valid(code, block, row)
    pitch = plan.pitch * plan.dtype.itemsize
    steps = f.text.pure(f"lshr i64 {f.text.pure(f'add i64 {count}, {2 * STRIP - 1}')}, 5")
    for first, vectors, panel in _panels(code):
        tile = MatrixTile(plan.tile_rows // STRIP, vectors)
        line = vectors * plan.lanes * plan.dtype.itemsize
        product = f.text.allocate(plan.tile_rows * line)
        weights = (f.offset(code.scores, row, pitch), str(pitch))
        _multiply(code, tile, weights, valid, steps, (product, line), panel)
        code.add_product(row, valid, product, first, vectors)


def _multiply(
    code: AttentionCode,
    tile: MatrixTile,
    a: tuple[str, str],
    rows: str,
    steps: int | str,
    out: tuple[str, int],
    b: str = "",
) -> None:
    """Calls the tile on rows of ``a`` (where, pitch) and a panel, by default that of the keys."""
    b = b or code.panel
    line = tile.vectors * code.plan.lanes * 4
    operands = f"ptr {a[0]}, i64 {a[1]}, i64 {rows}, ptr {b}, i64 {line}, i64 {steps}"
    result = f"ptr {out[0]}, i64 {out[1]}, ptr {b}, i64 0"
    code.f.text.do(f"call void @{code.use(matrix_routine(tile))}({operands}, {result})")


def _valid(code: AttentionCode, block: Block, row: str) -> str:
    """How many rows of the tile at ``row`` exist."""
    left = code.f.text.pure(f"sub i64 {block.rows}, {row}")
    return code.f.text.smaller(left, str(code.plan.tile_rows))


def _panels(code: AttentionCode) -> Iterator[tuple[int, int, str]]:
    """Of each panel of values: its first vector, how many it has, and where it lies."""
    plan, first = code.plan, 0
    for vectors in plan.v_vectors:
        start = first * plan.lanes * plan.keys * 2
        yield first, vectors, code.f.text.pure(f"getelementptr i8, ptr {code.values}, i64 {start}")
        first += vectors
