"""The softmax between the two products of attention, and the division at the end."""

from __future__ import annotations

import torch

from jitney.kernels.llvm.attention_parts import AttentionCode, Block
from jitney.kernels.llvm.attention_plan import first_and_last_key
from jitney.kernels.llvm.conversions import broadcast, cast
from jitney.kernels.llvm.expressions import Lanes, Scope
from jitney.kernels.llvm.gemm_parts import lanes_below, tail_mask
from jitney.kernels.llvm.operations import emit_op, select
from jitney.kernels.llvm.softmax_exp import exp_of_nonpositive
from jitney.kernels.llvm.ssa import ELEMENT, Ssa, constant, intrinsic_suffix, iota
from jitney.loops.ir import Const, Load, Ref, Store


def emit_softmax(code: AttentionCode, block: Block, key: str, count: str) -> None:
    """Turns ``count`` scores a row, of keys from ``key`` on, into weights.

    The row's running maximum, its total and the factor for what was summed before follow; a row
    with nothing kept has weights 0 and stays 0, as in eager.
    """
    f, plan = code.f, code.plan
    with f.text.loop("0", block.rows, step=plan.tile_rows, nonempty=True) as tile:
        end = f.text.smaller(f.text.pure(f"add nsw i64 {tile.index}, {plan.tile_rows}"), block.rows)
        with code.keys_of_tile(block, tile.index, key, count) as wanted:
            with f.text.loop(tile.index, end, nonempty=True) as row:
                _softmax_of_row(code, block, row.index, key, wanted)


def _softmax_of_row(code: AttentionCode, block: Block, row: str, key: str, count: str) -> None:
    f, plan = code.f, code.plan
    line = f.offset(code.scores, row, plan.pitch * plan.dtype.itemsize)
    s = f.text.pure(f"add nsw i64 {block.first}, {row}")
    scope = block.scope.inner({code.node.s: s})
    best = _masked_scores(code, scope, line, key, count)
    old = code.load(code.element(code.maxima, row))
    new = emit_op(f.text, "fmax", [old, _across(code, "fmax", best)], plan.dtype)
    nothing = constant(float("-inf"), plan.dtype)
    none = Ssa(f.text.pure(f"fcmp oeq {new.typed}, {nothing.name}"), torch.bool)
    base = select(f.text, none, constant(0.0, plan.dtype), new)
    total = _exponentials(code, line, count, base)
    change = emit_op(f.text, "sub", [old, base], plan.dtype)
    factor = exp_of_nonpositive(f.text, change)
    code.store(new, code.element(code.maxima, row))
    code.store(factor, code.element(code.rescale, row))
    before = code.load(code.element(code.totals, row))
    after = emit_op(f.text, "fma", [before, factor, _across(code, "fadd", total)], plan.dtype)
    code.store(after, code.element(code.totals, row))


def _masked_scores(code: AttentionCode, scope: Scope, line: str, key: str, count: str) -> Ssa:
    """Scales and masks a row of scores in place. Returns the greatest score of each lane."""
    f, plan, node = code.f, code.plan, code.node
    lowest = constant(float("-inf"), plan.dtype, plan.lanes)
    with f.text.loop("0", count, step=plan.lanes, carried=(lowest,), nonempty=True) as loop:
        at = code.element(line, loop.index)
        t = f.text.pure(f"add nsw i64 {key}, {loop.index}")
        here = scope.inner({node.t: t}, Lanes(node.t, plan.lanes, aligned=False))
        scale = _scale(code, here)
        value = emit_op(f.text, "mul", [code.load(at, plan.lanes), scale], plan.dtype)
        left = f.text.pure(f"sub i64 {count}, {loop.index}")
        keep = [] if _whole(code) else [lanes_below(f, left, plan.lanes)]
        value = _with_mask(code, here, keep, value)
        keep += _kept_by_position(code, here, t)
        for mask in keep:
            value = select(f.text, mask, value, lowest)
        code.store(value, at)
        loop.next = (emit_op(f.text, "fmax", [loop.carried[0], value], plan.dtype),)
    return loop.results[0]


def _scale(code: AttentionCode, here: Scope) -> Ssa:
    """The scale; a constant in full precision."""
    node, dtype = code.node, code.plan.dtype
    if isinstance(node.scale, Const):
        return constant(node.scale.value, dtype)
    return cast(code.f.text, here.emit(node.scale), dtype)


def _whole(code: AttentionCode) -> bool:
    """Whether every step has whole vectors of keys."""
    first, last = first_and_last_key(code.node)
    extent = code.node.t.extent
    return last is None and extent.is_const and int(extent) % code.plan.lanes == 0


def _with_mask(code: AttentionCode, here: Scope, keep: list[Ssa], value: Ssa) -> Ssa:
    """The scores with the node's own mask added, or what it drops at -inf."""
    node, f = code.node, code.f
    if node.mask is None:
        return value
    inner = here.inner(mask=keep[0]) if keep else here
    there = inner.emit(Load(node.mask.buffer, node.mask.index, node.mask.dtype))
    if node.mask.dtype == torch.bool:
        return select(f.text, there, value, constant(float("-inf"), value.dtype, value.lanes))
    return emit_op(f.text, "add", [value, cast(f.text, there, value.dtype)], value.dtype)


def _kept_by_position(code: AttentionCode, here: Scope, t: str) -> list[Ssa]:
    """The lanes that causality and the window keep."""
    f, plan = code.f, code.plan
    first, last = first_and_last_key(code.node)
    masks = []
    if last is not None:
        end = here.indices.uniform(last)
        masks.append(lanes_below(f, f.text.pure(f"sub i64 {end}, {t}"), plan.lanes))
    if first is not None:
        begin = f.text.pure(f"sub i64 {here.indices.uniform(first)}, {t}")
        wide = broadcast(f.text, Ssa(begin, torch.int64), plan.lanes)
        lanes = plan.lanes
        name = f.text.pure(f"icmp sge <{lanes} x i64> {iota(lanes).name}, {wide.name}")
        masks.append(Ssa(name, torch.bool, lanes))
    return masks


def _exponentials(code: AttentionCode, line: str, count: str, base: Ssa) -> Ssa:
    """Replaces a row by ``exp(score - base)``; the sum of each lane.

    For matrix registers the weights are bfloat16, side by side from where the row begins, and
    zeros follow up to whole registers.
    """
    f, plan = code.f, code.plan
    zero = constant(0.0, plan.dtype, plan.lanes)
    with f.text.loop("0", count, step=plan.lanes, carried=(zero,), nonempty=True) as loop:
        at = code.element(line, loop.index)
        value = emit_op(f.text, "sub", [code.load(at, plan.lanes), base], plan.dtype)
        value = exp_of_nonpositive(f.text, value)
        if plan.matrix:
            half = cast(f.text, value, torch.bfloat16)
            f.text.do(f"store {half.typed}, ptr {f.offset(line, loop.index, 2)}, align 2")
        else:
            code.store(value, at)
        loop.next = (emit_op(f.text, "add", [loop.carried[0], value], plan.dtype),)
    if plan.matrix:
        past = f.text.pure(f"add i64 {count}, {plan.lanes - 1}")
        past = f.text.pure(f"and i64 {past}, -{plan.lanes}")
        nothing = cast(f.text, zero, torch.bfloat16)
        f.text.do(f"store {nothing.typed}, ptr {f.offset(line, past, 2)}, align 2")
    return loop.results[0]


def _across(code: AttentionCode, kind: str, value: Ssa) -> Ssa:
    """The sum or the maximum of all lanes."""
    scalar = ELEMENT[value.dtype]
    callee = f"llvm.vector.reduce.{kind}.{intrinsic_suffix(value.dtype, value.lanes)}"
    start = f"{constant(0.0, value.dtype).typed}, " if kind == "fadd" else ""
    types = f"{scalar}, {value.type}" if start else value.type
    code.f.text.declare(f"declare {scalar} @{callee}({types})")
    flag = "reassoc " if start else ""
    name = code.f.text.emit(f"call {flag}{scalar} @{callee}({start}{value.typed})")
    return Ssa(name, value.dtype)


def store_output(code: AttentionCode, block: Block) -> None:
    """``out[s, :] = sums[s, :] / total[s]``, and the logsumexp where it is wanted."""
    f, plan, node = code.f, code.plan, code.node
    with f.text.loop("0", block.rows, nonempty=True) as row:
        s = f.text.pure(f"add nsw i64 {block.first}, {row.index}")
        scope = block.scope.inner({node.s: s})
        total = code.load(code.element(code.totals, row.index))
        none = Ssa(
            f.text.pure(f"fcmp oeq {total.typed}, {constant(0.0, plan.dtype).name}"), torch.bool
        )
        inverse = emit_op(f.text, "div", [constant(1.0, plan.dtype), total], plan.dtype)
        inverse = select(f.text, none, constant(0.0, plan.dtype), inverse)
        line = f.offset(code.sums, row.index, plan.depth * plan.dtype.itemsize)
        with f.text.loop("0", f.size(node.dv.extent), step=plan.lanes, nonempty=True) as c:
            value = code.load(code.element(line, c.index), plan.lanes)
            value = emit_op(f.text, "mul", [value, inverse], plan.dtype)
            inner = scope.inner(
                {node.dv: c.index},
                Lanes(node.dv, plan.lanes),
                tail_mask(f, node.dv, c.index, plan.lanes),
                values={"out": cast(f.text, value, node.out.dtype)},
            )
            inner.store(Store(node.out.buffer, node.out.index, Ref("out", node.out.dtype)))
        if node.logsumexp is not None:
            _store_logsumexp(code, scope, row.index, total, none)


def _store_logsumexp(code: AttentionCode, scope: Scope, row: str, total: Ssa, none: Ssa) -> None:
    """Stores zero for a row with nothing kept (``none``): from its scores, all -inf, the backward
    pass then makes weights of zero, as in eager."""
    access = code.node.logsumexp
    assert access is not None
    text, dtype = code.f.text, code.plan.dtype
    best = code.load(code.element(code.maxima, row))
    value = emit_op(text, "add", [best, emit_op(text, "log", [total], dtype)], dtype)
    value = select(text, none, constant(0.0, dtype), value)
    inner = scope.inner(values={"logsumexp": cast(text, value, access.dtype)})
    inner.store(Store(access.buffer, access.index, Ref("logsumexp", access.dtype)))
