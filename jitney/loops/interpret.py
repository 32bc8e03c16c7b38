"""The reference interpreter of a `LoopProgram`: slow, plain, and what every backend must equal.

A statement is evaluated for all points of its axes at once: a value of a scope with ``n`` axes is
a tensor of ``n`` dimensions (1 along axes it does not depend on). Iterations that meet in memory,
so that their order would matter, are an error (`meetings`). Arithmetic is torch's own, so roundings
and special values are eager's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import CompilerBug, LeftToEager
from jitney.loops import ir
from jitney.loops.evaluate_scalar import evaluate_scalar
from jitney.loops.index import Atom, Axis, Dim, FloorDiv, Index, Mod, Value, index
from jitney.loops.interpret_ops import apply_op, reduce_all, scan_all
from jitney.loops.meetings import Meetings, Touch
from jitney.loops.read_sizes import symbols_of
from jitney.loops.visit import stores

Tensor = torch.Tensor


def interpret(
    program: ir.LoopProgram, constants: Mapping[str, Tensor], args: Sequence[Any]
) -> list[Any]:
    """Runs ``program``: ``args`` as its ``arguments`` say, ``constants`` by buffer name.

    Returns one value per output; inputs the program mutates are written in place. Raises
    LeftToEager where a check of the program finds one.
    """
    machine = _Machine(program, constants, args)
    for node in program.nodes:
        machine.run(node)
    if any(b.kind == "check" and bool(machine.flat[b.name].any()) for b in program.buffers):
        raise LeftToEager("a check of the program failed")
    return [machine.output(out) for out in program.outputs]


@dataclass
class _Scope:
    """Axes in order (dimension of each), the values bound so far, and the loops this is inside of,
    each with how many of the axes it and those around it have."""

    axes: dict[Axis, int]
    sizes: list[int]
    bound: dict[str, Tensor] = field(default_factory=dict)
    loops: tuple[tuple[object, int], ...] = ()

    def inside(self, axes: tuple[Axis, ...], sizes: list[int]) -> _Scope:
        dims = dict(self.axes)
        for axis in axes:
            dims[axis] = len(dims)
        loops = (*self.loops, (object(), len(dims)))
        return _Scope(dims, self.sizes + sizes, dict(self.bound), loops)

    def touch(
        self,
        buffer: str,
        positions: Tensor,
        mask: Tensor | None,
        mode: str = "load",
        value: Tensor | None = None,
    ) -> Touch:
        """What a statement here meets."""
        lifted = [None if x is None else self.lift(x) for x in (mask, value)]
        return Touch(buffer, mode, self.loops, tuple(self.sizes), self.lift(positions), *lifted)

    def lift(self, value: Tensor) -> Tensor:
        """A value of an outer scope with this scope's number of dimensions."""
        return value.reshape(value.shape + (1,) * (len(self.sizes) - value.dim()))


class _Machine:
    def __init__(
        self, program: ir.LoopProgram, constants: Mapping[str, Tensor], args: Sequence[Any]
    ) -> None:
        self.table = program.buffer_table()
        self.dims: dict[Atom, int] = {}
        self.scalars: dict[str, Any] = {}
        self.flat: dict[str, Tensor] = {}
        self.meetings = Meetings()
        if len(args) != len(program.arguments):
            raise ValueError(f"{len(program.arguments)} arguments expected, {len(args)} given")
        for argument, value in zip(program.arguments, args, strict=True):
            if isinstance(argument, Dim):
                self.dims[argument] = int(value)
            elif isinstance(argument, ir.ScalarArg):
                self.scalars[argument.name] = value
            else:
                self.flat[argument] = _flat_view(value)
                for symbol in symbols_of(self.table[argument]):
                    self.dims.setdefault(symbol.dim, symbol.of(value))
        for name, value in constants.items():
            if name in self.table:
                self.flat[name] = _flat_view(value)
        for buffer in program.buffers:
            if buffer.kind in ("output", "temp", "large", "check"):
                self.flat[buffer.name] = self._allocated(buffer)

    def _allocated(self, buffer: ir.Buffer) -> Tensor:
        shape, strides = self.ints(buffer.shape), self.ints(buffer.strides)
        fresh = torch.empty(_span(shape, strides), dtype=buffer.dtype)
        unwritten = math.nan if buffer.dtype.is_floating_point else buffer.kind != "check"
        return fresh.fill_(unwritten)

    def ints(self, sizes: Sequence[Index]) -> list[int]:
        return [size.evaluate(self.dims) for size in sizes]

    def view(self, view: ir.BufferView) -> Tensor:
        """The strided tensor it names, sharing the buffer's memory."""
        base = self.flat[view.buffer]
        offset = base.storage_offset() + view.offset.evaluate(self.dims)
        return base.as_strided(self.ints(view.shape), self.ints(view.strides), offset)

    def output(self, out: ir.ProgramOutput) -> Any:
        if isinstance(out, ir.Output):
            return self.view(out.view)
        if isinstance(out, ir.IntOutput):
            return out.value.evaluate(self.dims)
        return evaluate_scalar(out.value, self.scalars, self.dims)

    # ------------------------------------------------------------ nodes

    def run(self, node: ir.Node) -> None:
        self.meetings = Meetings()
        if isinstance(node, ir.LoopNest):
            for store in stores(node.body):
                if store.mode == "sum":
                    self.flat[store.buffer].zero_()
            self.block(node.body, self.scope(node.axes))
        elif isinstance(node, ir.Gemm):
            self.gemm(node)
        elif isinstance(node, ir.Attention):
            self.attention(node)
        elif isinstance(node, ir.Together):
            for nest in node.nests:
                self.run(nest)
        else:
            self.extern(node)
        self.meetings.check()

    def scope(self, axes: tuple[Axis, ...]) -> _Scope:
        return _Scope({}, []).inside(axes, self.ints([a.extent for a in axes]))

    def gemm(self, node: ir.Gemm) -> None:
        rows = self.scope((*node.batch, node.m))
        self.block(node.row_prologue, rows)
        inner = rows.inside((node.k,), self.ints([node.k.extent]))
        a = node.a_value or ir.Load(node.a.buffer, node.a.index, node.a.dtype)
        left = self.full(self.expr(a, inner), inner).to(node.acc_dtype)
        right = self.access(node.b, (*node.batch, node.k, node.n)).to(node.acc_dtype)
        scope = self.scope((*node.batch, node.m, node.n))
        scope.bound["acc"] = left @ right
        for name, value in rows.bound.items():
            scope.bound[name] = value
        self.block(node.epilogue, scope)

    def access(self, access: ir.Access, axes: tuple[Axis, ...]) -> Tensor:
        scope = self.scope(axes)
        return self.full(self.load(access.buffer, access.index, scope), scope)

    def attention(self, node: ir.Attention) -> None:
        for nest in node.before:
            self.run(nest)
        work = torch.float64 if node.q.dtype == torch.float64 else torch.float32
        q = self.access(node.q, (*node.batch, node.s, node.d)).to(work)
        k = self.access(node.k, (*node.batch, node.t, node.d)).to(work)
        v = self.access(node.v, (*node.batch, node.t, node.dv)).to(work)
        scope = self.scope((*node.batch, node.s, node.t))
        scores = q @ k.transpose(-1, -2) * self.expr(node.scale, scope).to(work)
        s, t = (self.index(index(axis), scope) for axis in (node.s, node.t))
        if node.mask is not None:
            mask = self.access(node.mask, (*node.batch, node.s, node.t))
            kept = mask if mask.dtype == torch.bool else None
            scores = scores + mask if kept is None else scores.where(kept, -math.inf)
        if node.causal or node.window is not None:
            last = s + node.causal_offset.evaluate(self.dims)
            scores = scores.where(t <= last, -math.inf)
            if node.window is not None:
                scores = scores.where(t > last - node.window, -math.inf)
        weights = scores.softmax(-1)
        weights = weights.where((scores != -math.inf).any(-1, keepdim=True), 0.0)
        out = self.scope((*node.batch, node.s, node.dv))
        self.store(node.out.buffer, node.out.index, (weights @ v).to(node.out.dtype), None, out)
        if node.logsumexp is not None:
            lse, rows = node.logsumexp, self.scope((*node.batch, node.s))
            total = scores.logsumexp(-1)
            total = total.masked_fill(total == -torch.inf, 0.0)
            self.store(lse.buffer, lse.index, total.to(lse.dtype), None, rows)

    def extern(self, node: ir.Extern) -> None:
        args = [self.argument(a) for a in node.args]
        kwargs = {k: self.argument(v) for k, v in node.kwargs}
        results = torch_api.find_op(node.target)(*args, **kwargs)
        if not isinstance(results, list | tuple):
            results = (results,)
        for name, value in zip(node.outputs, results, strict=False):
            if name is not None:
                self.flat[name] = self._laid_out(self.table[name], value)

    def _laid_out(self, buffer: ir.Buffer, value: Tensor) -> Tensor:
        shape, strides = self.ints(buffer.shape), self.ints(buffer.strides)
        if list(value.shape) != shape:
            raise CompilerBug(f"{buffer.name}: shape {shape} declared, {list(value.shape)} made")
        if list(value.stride()) != strides and value.numel() > 1:
            laid = torch.empty_strided(shape, strides, dtype=value.dtype)
            value = laid.copy_(value)
        return _flat_view(value)

    def argument(self, value: Any) -> Any:
        """An extern's operand with buffers, sizes and scalars filled in."""
        if isinstance(value, ir.BufferView):
            return self.view(value)
        if isinstance(value, Index):
            return value.evaluate(self.dims)
        if isinstance(value, list | tuple):
            return type(value)(self.argument(v) for v in value)
        return evaluate_scalar(value, self.scalars, self.dims)

    # ------------------------------------------------------------ statements

    def block(self, body: tuple[ir.Stmt, ...], scope: _Scope) -> None:
        for stmt in body:
            if isinstance(stmt, ir.Let):
                scope.bound[stmt.name] = self.expr(stmt.value, scope)
            elif isinstance(stmt, ir.Store):
                mask = None if stmt.mask is None else self.expr(stmt.mask, scope)
                value = self.expr(stmt.value, scope)
                self.store(stmt.buffer, stmt.index, value, mask, scope, stmt.mode)
            elif isinstance(stmt, ir.Loop):
                self.block(stmt.body, scope.inside(stmt.axes, self._extents(stmt.axes)))
            else:
                self.reduce(stmt, scope)

    def _extents(self, axes: tuple[Axis, ...]) -> list[int]:
        return self.ints([axis.extent for axis in axes])

    def reduce(self, stmt: ir.Reduce, scope: _Scope) -> None:
        inner = scope.inside(stmt.axes, self._extents(stmt.axes))
        self.block(stmt.body, inner)
        kept = len(scope.sizes)
        for result in stmt.results:
            value = self.expr(result.value, inner)
            value = value.expand(*value.shape[:kept], *inner.sizes[kept:])
            values = reduce_all(result.op, value.flatten(kept), result.dtype)
            scope.bound.update(zip(result.names, values, strict=True))

    def store(
        self,
        buffer: str,
        where: Index,
        value: Tensor,
        mask: Tensor | None,
        scope: _Scope,
        mode: str = "set",
    ) -> None:
        flat = self.flat[buffer]
        touch = scope.touch(buffer, self.index(where, scope), mask, mode, value)
        self.meetings.stores.append(touch)
        positions, values = touch.chosen(touch.positions), touch.chosen(scope.lift(value))
        self.check(buffer, positions)
        if mode in ("set", "add", "sum"):
            flat.index_put_((positions,), values, accumulate=mode != "set")
        elif mode == "assert":
            flat[0] |= values.any()
        else:
            flat.index_reduce_(0, positions, values, {"mul": "prod"}.get(mode, f"a{mode}"))

    # ------------------------------------------------------------ expressions

    def full(self, value: Tensor, scope: _Scope) -> Tensor:
        return scope.lift(value).expand(scope.sizes)

    def expr(self, expr: ir.Expr, scope: _Scope, memo: dict[int, Tensor] | None = None) -> Tensor:
        memo = {} if memo is None else memo
        found = memo.get(id(expr))
        if found is None:
            found = memo[id(expr)] = self._expr(expr, scope, memo)
        return found

    def _expr(self, expr: ir.Expr, scope: _Scope, memo: dict[int, Tensor]) -> Tensor:
        if isinstance(expr, ir.Op) and expr.op in ir.RUNNING:
            return self.running(expr, scope, memo)
        if isinstance(expr, ir.Op):
            return apply_op(expr, [self.expr(a, scope, memo) for a in expr.args])
        if isinstance(expr, ir.Load):
            if expr.mask is None:
                return self.load(expr.buffer, expr.index, scope)
            mask = self.expr(expr.mask, scope, memo)
            loaded = self.load(expr.buffer, expr.index, scope, mask)
            return loaded.where(mask, torch.tensor(expr.other, dtype=expr.dtype))
        if isinstance(expr, ir.Ref):
            return scope.lift(scope.bound[expr.name])
        if isinstance(expr, ir.IndexValue):
            return self.index(expr.index, scope).to(expr.dtype)
        if isinstance(expr, ir.ScalarArg):
            return self._constant(self.scalars[expr.name], expr.dtype, scope)
        return self._constant(expr.value, expr.dtype, scope)

    def running(self, expr: ir.Op, scope: _Scope, memo: dict[int, Tensor]) -> Tensor:
        """A reduction along the loop that its second operand counts."""
        assert isinstance(expr.args[1], ir.IndexValue)
        (axis,) = (a for a in expr.args[1].index.atoms() if isinstance(a, Axis))
        value = self.full(self.expr(expr.args[0], scope, memo), scope)
        return scan_all(expr.op, value, scope.axes[axis])

    def _constant(self, value: Any, dtype: torch.dtype, scope: _Scope) -> Tensor:
        return scope.lift(torch.tensor(value, dtype=dtype))

    def load(self, buffer: str, where: Index, scope: _Scope, mask: Tensor | None = None) -> Tensor:
        positions = self.index(where, scope)
        self.meetings.loads.append(scope.touch(buffer, positions, mask))
        if mask is not None:
            positions = positions.where(mask, 0)
            if not self.flat[buffer].numel():
                return torch.zeros(positions.shape, dtype=self.flat[buffer].dtype)
        self.check(buffer, positions)
        return self.flat[buffer][positions]

    def check(self, buffer: str, positions: Tensor) -> None:
        """Raises CompilerBug when a position lies outside the buffer."""
        if positions.numel():
            low, high = int(positions.min()), int(positions.max())
            if low < 0 or high >= self.flat[buffer].numel():
                size = self.flat[buffer].numel()
                raise CompilerBug(f"{buffer} has {size} elements, accessed at {low}..{high}")

    def index(self, where: Index, scope: _Scope) -> Tensor:
        """The index at every point of the scope, int64."""
        total = scope.lift(torch.tensor(where.const))
        for monomial, factor in where.terms:
            product = torch.tensor(factor)
            for atom in monomial:
                product = product * self._atom(atom, scope)
            total = total + product
        return total

    def _atom(self, atom: Atom, scope: _Scope) -> Tensor:
        if isinstance(atom, Axis):
            dim = scope.axes[atom]
            shape = [1] * len(scope.sizes)
            shape[dim] = scope.sizes[dim]
            return torch.arange(scope.sizes[dim]).reshape(shape)
        if isinstance(atom, Value):
            return scope.lift(scope.bound[atom.name]).long()
        if isinstance(atom, FloorDiv):
            return self.index(atom.numerator, scope) // self.index(atom.denominator, scope)
        if isinstance(atom, Mod):
            return self.index(atom.numerator, scope) % self.index(atom.denominator, scope)
        return torch.tensor(self.dims[atom])


def _flat_view(tensor: Tensor) -> Tensor:
    """The memory under a strided tensor as one dimension, from its first element."""
    tensor = tensor.detach()
    span = _span(tensor.shape, tensor.stride())
    return tensor.as_strided((span,), (1,), tensor.storage_offset())


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
