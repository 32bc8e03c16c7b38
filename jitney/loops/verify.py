"""What holds of every `LoopProgram` between passes; a breach is a `CompilerBug`.

1. Buffer names are unique and every access names one of them.
2. A buffer is written (or is an input or a constant) before it is read; constants are not written.
3. Axes are unique within a nest, and every axis of an index is in scope.
4. A name is bound once per nest, before its use.
5. Dtypes agree: a load with its buffer, a stored value with its buffer, operands with their op.
6. Opcodes and reductions are known and have their number of operands and results.
7. An unmasked access with known bounds stays inside its buffer (`_is_bounded`): by these, or by
   those of cases (`reach_by_cases`).
8. An output is a view of an input, a constant, an output or an extern buffer, never of a temp.
9. No iteration of a loop touches what another one of it writes (`verify_order`); what a template
   writes is no operand of it.
10. Once slots are given, every temp has one, and two that are alive at once do not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from jitney import config
from jitney.errors import CompilerBug
from jitney.events import log
from jitney.loops import ir, visit
from jitney.loops.index import Axis, Dim, Index, Value, is_empty
from jitney.loops.print_program import expr_text, node_lines, program_lines
from jitney.loops.reach_by_cases import begins_before, stays_inside
from jitney.loops.verify_order import where_iterations_meet
from jitney.loops.whole_parts import in_whole_parts, known_multiples

_FREE_OPERANDS = ("cast", "bitcast", "philox_uniform", "philox_normal", "philox_bits", *ir.RUNNING)


class Broken(Exception):
    """An invariant that does not hold, and the text it failed at."""


def verify(program: ir.LoopProgram, after: str = "lowering") -> None:
    """Raises CompilerBug naming the broken invariant, with the ten lines around it."""
    node: ir.Node | None = None
    try:
        table = _unique_buffers(program)
        given = ("input", "constant")
        written = {b.name for b in program.buffers if b.kind in given or is_empty(b.shape)}
        for node in program.nodes:
            _check_node(node, table, written, program.assumptions)
        node = None
        _check_outputs(program, table, written)
        _check_slots(program, table)
    except Broken as broken:
        raise CompilerBug(_report(program, node, str(broken), after)) from None


def check_step(program: ir.LoopProgram, after: str) -> None:
    """Called between passes: tells listeners of the log what a pass has made, and runs `verify`
    where ``config.verify`` asks for it."""
    if log.heard:
        log.emit("pass", after=after, program=program)
    if config.current().verify:
        verify(program, after)


def _report(program: ir.LoopProgram, node: ir.Node | None, why: str, after: str) -> str:
    lines = program_lines(program)
    at = 0
    if node is not None:
        head = node_lines(node)[0]
        at = next((i for i, line in enumerate(lines) if line.strip() == head.strip()), 0)
    shown = "\n".join(
        ("> " if i == at else "  ") + lines[i]
        for i in range(max(0, at - 4), min(len(lines), at + 6))
    )
    return f"invalid loop program after {after}: {why}\n{shown}"


@dataclass
class _Scope:
    table: dict[str, ir.Buffer]
    axes: set[Axis]
    names: dict[str, torch.dtype | None] = field(default_factory=dict)
    assumptions: tuple[ir.Assumption, ...] = ()

    def inside(self, axes: tuple[Axis, ...]) -> _Scope:
        for axis in axes:
            if axis in self.axes or any(axis.name == a.name for a in self.axes):
                raise Broken(f"axis {axis.name} is bound twice")
        return _Scope(self.table, self.axes | set(axes), dict(self.names), self.assumptions)


def _unique_buffers(program: ir.LoopProgram) -> dict[str, ir.Buffer]:
    table = {b.name: b for b in program.buffers}
    if len(table) != len(program.buffers):
        raise Broken("two buffers share a name")
    for argument in program.arguments:
        if isinstance(argument, str) and (argument not in table or table[argument].kind != "input"):
            raise Broken(f"argument {argument} is not an input buffer")
    return table


def _check_node(
    node: ir.Node,
    table: dict[str, ir.Buffer],
    written: set[str],
    assumptions: tuple[ir.Assumption, ...],
) -> None:
    for name in visit.writes(node):
        if name not in table:
            raise Broken(f"unknown buffer {name}")
        if table[name].kind == "constant":
            raise Broken(f"constant {name} is written")
    if isinstance(node, ir.Together):
        _check_together(node)
    inside = set(node.mutates if isinstance(node, ir.Extern) else visit.writes(node))
    for name in visit.reads(node):
        if name not in table:
            raise Broken(f"unknown buffer {name}")
        if name not in written and name not in inside:
            raise Broken(f"{name} is read before it is written")
    if isinstance(node, ir.Extern):
        for view in visit.views((node.args, node.kwargs)):
            _check_view(view, table[view.buffer], assumptions)
    inner = node.before if isinstance(node, ir.Attention) else (node,)
    around = _Scope(table, set(), assumptions=assumptions)
    for nest in node.nests if isinstance(node, ir.Together) else inner:
        if isinstance(nest, ir.LoopNest):
            _check_block(nest.body, around.inside(nest.axes))
        elif isinstance(nest, ir.Gemm):
            _check_gemm(nest, around)
    if isinstance(node, ir.Attention):
        for access in (node.q, node.k, node.v, node.out, node.mask, node.logsumexp):
            if access is not None:
                axes = {*node.batch, node.s, node.t, node.d, node.dv}
                scope = _Scope(table, axes, assumptions=assumptions)
                _check_access(access.buffer, access.index, access.dtype, scope)
    if why := _meeting(node, assumptions):
        raise Broken(why)
    written |= set(visit.writes(node))


def _meeting(node: ir.Node, assumptions: tuple[ir.Assumption, ...]) -> str:
    why = where_iterations_meet(node)
    multiples = known_multiples(assumptions) if why else {}
    if not multiples:
        return why
    nests = node.nests if isinstance(node, ir.Together) else (node,)
    again = (in_whole_parts(n, multiples) if isinstance(n, ir.LoopNest) else n for n in nests)
    return next(filter(None, map(where_iterations_meet, again)), "")


def _check_together(node: ir.Together) -> None:
    for number, nest in enumerate(node.nests):
        made = set(visit.writes(nest))
        others = node.nests[:number] + node.nests[number + 1 :]
        if any(made & {*visit.reads(o), *visit.writes(o)} for o in others):
            raise Broken(f"{nest.name} writes what its neighbours in {node.name} use")


def _check_gemm(node: ir.Gemm, around: _Scope) -> None:
    rows = around.inside((*node.batch, node.m))
    _check_block(node.row_prologue, rows)
    left, right = rows.inside((node.k,)), around.inside((*node.batch, node.k, node.n))
    if node.a_value is not None:
        _check_expr(node.a_value, left)
    else:
        _check_access(node.a.buffer, node.a.index, node.a.dtype, left)
    _check_access(node.b.buffer, node.b.index, node.b.dtype, right)
    scope = rows.inside((node.n,))
    scope.names["acc"] = node.acc_dtype
    _check_block(node.epilogue, scope)


def _check_block(body: tuple[ir.Stmt, ...], scope: _Scope) -> None:
    for stmt in body:
        for expr in visit.expr_nodes(visit.stmt_exprs(stmt)):
            if not isinstance(stmt, ir.Reduce):
                _check_expr(expr, scope)
        if isinstance(stmt, ir.Let):
            _bind(scope, stmt.name, stmt.value.dtype)
        elif isinstance(stmt, ir.Store):
            _check_store(stmt, scope)
        elif isinstance(stmt, ir.Loop):
            _check_block(stmt.body, scope.inside(stmt.axes))
        else:
            _check_reduce(stmt, scope)


def _check_reduce(stmt: ir.Reduce, scope: _Scope) -> None:
    inner = scope.inside(stmt.axes)
    _check_block(stmt.body, inner)
    for result in stmt.results:
        for expr in visit.expr_nodes([result.value]):
            _check_expr(expr, inner)
        if result.op not in ir.REDUCTIONS:
            raise Broken(f"unknown reduction {result.op}")
        if len(result.names) != {"welford": 3, "softmax": 2}.get(result.op, 1):
            raise Broken(f"{result.op} binds {len(result.names)} names")
        if result.op not in ir.POSITIONAL and result.value.dtype != result.dtype:
            raise Broken(f"{result.op} of {result.value.dtype} accumulates in {result.dtype}")
    for result in stmt.results:
        dtype = torch.int64 if result.op in ir.POSITIONAL else result.dtype
        for name in result.names:
            _bind(scope, name, dtype)


def _bind(scope: _Scope, name: str, dtype: torch.dtype) -> None:
    if name in scope.names:
        raise Broken(f"{name} is bound twice")
    scope.names[name] = dtype


def _check_store(stmt: ir.Store, scope: _Scope) -> None:
    _check_access(stmt.buffer, stmt.index, stmt.value.dtype, scope, stmt.mask is not None)
    if stmt.mode not in ("set", "sum", "assert", *ir.COMBINING):
        raise Broken(f"unknown store mode {stmt.mode}")


def _check_access(
    buffer: str, where: Index, dtype: torch.dtype, scope: _Scope, masked: bool = False
) -> None:
    if buffer not in scope.table:
        raise Broken(f"unknown buffer {buffer}")
    known = scope.table[buffer]
    if known.dtype != dtype:
        raise Broken(f"{buffer} holds {known.dtype}, accessed as {dtype}")
    _check_index(where, scope)
    if not masked:
        low, high = where.bounds()
        size = _size(known)
        reached = _is_bounded(where) and not any(a.extent == Index() for a in scope.axes)
        if reached and low is not None and high is not None and size is not None:
            fits = 0 <= low and high < size
            if not fits and not stays_inside(where, scope.axes, size, scope.assumptions):
                raise Broken(f"{buffer}[{where}] reaches {low}..{high} of {size} elements")


def _check_view(
    view: ir.BufferView, buffer: ir.Buffer, assumptions: tuple[ir.Assumption, ...]
) -> None:
    """A library that is handed memory outside of the buffer would read or write it."""
    if is_empty(view.shape):
        return
    pairs = zip(view.shape, view.strides, strict=True)
    last = sum(((n - 1) * s for n, s in pairs), view.offset)
    size = _size(buffer)
    before = begins_before(view.offset, view.shape, assumptions)  # s - s // 2 does not
    after = last.is_const and size is not None and last.const >= size
    if before or after:
        raise Broken(f"a view of {buffer.name} reaches {view.offset}..{last} of {size} elements")


def _is_bounded(where: Index) -> bool:
    """Whether guards say no more of an index than its bounds do. Bounds know neither sums of
    several counts, nor facts about a number that may have either sign."""
    within = [a.extent.atoms() if isinstance(a, Axis) else (a,) for a in where.atoms()]
    counts = [atom for atoms in within for atom in atoms if isinstance(atom, Dim)]
    return len(counts) < 2 and all(count.low >= 0 for count in counts)


def _size(buffer: ir.Buffer) -> int | None:
    """How many elements from the first to the last of a buffer of static size."""
    if not all(x.is_const for x in (*buffer.shape, *buffer.strides)):
        return None
    if any(s.const == 0 for s in buffer.shape):
        return 0
    pairs = zip(buffer.shape, buffer.strides, strict=True)
    return 1 + sum((n.const - 1) * s.const for n, s in pairs)


def _check_index(where: Index, scope: _Scope) -> None:
    for atom in where.atoms():
        if isinstance(atom, Axis) and atom not in scope.axes:
            raise Broken(f"axis {atom.name} of {where} is not in scope")
        if isinstance(atom, Value) and atom.name not in scope.names:
            raise Broken(f"{atom.name} of {where} is not bound")


def _check_expr(expr: ir.Expr, scope: _Scope) -> None:
    if isinstance(expr, ir.Load):
        masked = expr.mask is not None
        _check_access(expr.buffer, expr.index, expr.dtype, scope, masked)
        if expr.mask is not None and expr.mask.dtype != torch.bool:
            raise Broken(f"mask {expr_text(expr.mask)} is {expr.mask.dtype}")
    elif isinstance(expr, ir.Ref):
        if expr.name not in scope.names:
            raise Broken(f"{expr.name} is not bound")
        if scope.names[expr.name] != expr.dtype:
            raise Broken(f"{expr.name} is {scope.names[expr.name]}, used as {expr.dtype}")
    elif isinstance(expr, ir.IndexValue):
        _check_index(expr.index, scope)
    elif isinstance(expr, ir.Op):
        _check_op(expr)


def _check_op(expr: ir.Op) -> None:
    if expr.op not in ir.OPS:
        raise Broken(f"unknown opcode {expr.op}")
    if len(expr.args) != ir.OPS[expr.op]:
        raise Broken(f"{expr.op} has {len(expr.args)} operands: {expr_text(expr)}")
    if expr.op in _FREE_OPERANDS:
        return
    operands = expr.args[1:] if expr.op == "where" else expr.args
    wanted = expr.dtype
    if expr.op in ir.GIVE_BOOL:
        if expr.dtype != torch.bool:
            raise Broken(f"{expr.op} gives {expr.dtype}")
        wanted = operands[0].dtype
    if expr.op == "where" and expr.args[0].dtype != torch.bool:
        raise Broken(f"where on {expr.args[0].dtype}")
    if any(a.dtype != wanted for a in operands):
        raise Broken(f"operands of {expr.op} differ in dtype: {expr_text(expr)}")


def _check_outputs(program: ir.LoopProgram, table: dict[str, ir.Buffer], written: set[str]) -> None:
    for out in program.outputs:
        if isinstance(out, ir.Output):
            name = out.view.buffer
            if name not in table or table[name].kind == "temp":
                raise Broken(f"output {name} is a temp or unknown")
            if name not in written:
                raise Broken(f"output {name} is never written")


def _check_slots(program: ir.LoopProgram, table: dict[str, ir.Buffer]) -> None:
    if not program.slots:
        return
    placed = dict(program.slots)
    alive: dict[str, list[int]] = {}
    for at, node in enumerate(program.nodes):
        for name in (*visit.reads(node), *visit.writes(node)):
            if table[name].kind == "temp":
                if name not in placed:
                    raise Broken(f"temp {name} has no slot")
                alive.setdefault(name, [at, at])[1] = at
    known = sorted(
        (placed[n].const, placed[n].const + (_size(table[n]) or 0) * table[n].dtype.itemsize, n)
        for n in alive
        if placed[n].is_const and _size(table[n])
    )
    open_now: list[tuple[int, str]] = []
    for start, end, name in known:
        open_now = [(e, n) for e, n in open_now if e > start]
        for _, other in open_now:
            (a, b), (c, d) = alive[name], alive[other]
            if a < d and c < b:
                raise Broken(f"{name} and {other} overlap in the workspace while both are alive")
        open_now.append((end, name))
