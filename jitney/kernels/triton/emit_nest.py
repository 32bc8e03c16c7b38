"""A loop nest as the source of one Triton kernel.

The parallel axes are flattened into ``x`` (one tile dimension) unless the schedule gives one of
them a dimension of its own (``y``, for transposes); a reduction or inner loop is the last tile
dimension ``r``. Every value knows which of those dimensions it depends on, so that a load that
does not vary along one is not repeated along it. Equal subexpressions are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from jitney.errors import CompilerBug
from jitney.kernels.triton.expressions import TYPES, index_text, literal, operation
from jitney.kernels.triton.kernel_source import KernelSource, Parameter
from jitney.kernels.triton.schedule_nest import Schedule, count, power_of_two
from jitney.loops.index import Atom, Axis, Dim, Index, Value, index
from jitney.loops.ir import (
    Const,
    Expr,
    IndexValue,
    Let,
    Load,
    Loop,
    LoopNest,
    Op,
    Reduce,
    Reduction,
    Ref,
    ScalarArg,
    Stmt,
    Store,
)
from jitney.loops.visit import body_exprs

Depends = frozenset[str]
NONE: Depends = frozenset()

_IDENTITY = {"sum": 0, "prod": 1, "any": 0, "all": 1, "xor": 0}
_COMBINE = {
    "prod": "combine_prod",
    "any": "combine_or",
    "all": "combine_and",
    "xor": "combine_xor",
}


def emit_nest(nest: LoopNest, schedule: Schedule) -> KernelSource:
    """The kernel for ``nest``; its parameters are named by position, so that equal nests over
    other buffers give equal source."""
    return NestEmitter(nest, schedule).emit()


class NestEmitter:
    """Writes one kernel; used for one nest and thrown away."""

    def __init__(self, nest: LoopNest, schedule: Schedule) -> None:
        self.nest, self.schedule = nest, schedule
        self.lines: list[str] = []
        self.indent = 1
        self.fresh = 0
        self.memo: list[dict[str, tuple[str, Depends]]] = [{}]
        self.atoms: dict[Atom, str] = {}
        self.depends: dict[Atom, Depends] = {}
        self.refs: dict[str, tuple[str, Depends]] = {}
        self.masks: dict[str, str] = {}
        self.parameters: dict[str, Parameter] = {}
        self.row_name, self.row_block, self.inside_rows = "r", schedule.r_block, False
        self.has_rows = any(isinstance(s, Reduce | Loop) for s in nest.body)
        self.dims = ("y",) * (schedule.tile_axis is not None) + ("x",) + ("r",) * self.has_rows

    def emit(self) -> KernelSource:
        grid = self._bind_parallel_axes()
        self._statements(self.nest.body)
        return KernelSource(
            name=self.nest.name,
            body="\n".join(self.lines),
            parameters=tuple(self.parameters.values()),
            grid=grid,
            num_warps=self.schedule.num_warps,
        )

    # ------------------------------------------------------------ axes

    def _bind_parallel_axes(self) -> tuple[Index, ...]:
        tile = self.schedule.tile_axis
        flat = tuple(a for a in self.nest.axes if a != tile)
        total = count(flat)
        self._tile("x", "tl.program_id(0)", self.schedule.x_block, total)
        self._unflatten("x", flat)
        grid = [(total + (self.schedule.x_block - 1)) // self.schedule.x_block]
        if tile is not None:
            self._tile("y", "tl.program_id(1)", self.schedule.y_block, tile.extent)
            self.atoms[tile], self.depends[tile] = "y", frozenset("y")
            grid.append((tile.extent + (self.schedule.y_block - 1)) // self.schedule.y_block)
        return tuple(grid)

    def _tile(self, dim: str, program: str, block: int, total: Index) -> None:
        wide = total.bounds()[1] is None or total.bounds()[1] >= 2**31  # type: ignore[operator]
        start = f"{program}.to(tl.int64)" if wide else program
        self._line(f"{dim} = {start} * {block} + tl.arange(0, {block}){self._expand(dim)}")
        if not (total.is_const and total.const % block == 0):
            self._line(f"{dim}mask = {dim} < {self._index(total)[0]}")
            self.masks[dim] = f"{dim}mask"

    def _expand(self, dim: str) -> str:
        if len(self.dims) == 1:
            return ""
        return "[" + ", ".join(":" if d == dim else "None" for d in self.dims) + "]"

    def _unflatten(self, name: str, axes: tuple[Axis, ...], dim: str | None = None) -> None:
        stride, on = index(1), frozenset(dim or name)
        for position, axis in reversed(list(enumerate(axes))):
            text = name
            if stride != index(1):
                text = f"({text} // ({self._index(stride)[0]}))"
            if position and axis.extent != index(1):
                text = f"({text} % ({self._index(axis.extent)[0]}))"
            self.atoms[axis] = "0" if axis.extent == index(1) else self._bind(text, on)[0]
            self.depends[axis] = NONE if axis.extent == index(1) else on
            stride = stride * axis.extent

    # ------------------------------------------------------------ statements

    def _statements(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, Let):
                self.refs[stmt.name] = self._expr(stmt.value)
                self._name_value(stmt.name)
            elif isinstance(stmt, Store):
                self._store(stmt)
            elif self.inside_rows:
                self._one_by_one(stmt)
            elif isinstance(stmt, Loop):
                with self._rows(stmt.axes):
                    self._statements(stmt.body)
            else:
                self._reduce(stmt)

    def _one_by_one(self, stmt: Loop | Reduce) -> None:
        """A loop inside a row: there is no tile dimension left, so its points run in turn."""
        partials: list[str] = []
        if isinstance(stmt, Reduce):
            for result in stmt.results:
                if result.op == "welford" or result.op.startswith("arg"):
                    raise CompilerBug(f"a nested {result.op} reached the Triton backend")
                partials.append(self._name("acc"))
                start = f"{self._identity(result)}, {TYPES[result.value.dtype]}"
                shape = self._shape(frozenset(self.dims))
                self._line(f"{partials[-1]} = tl.full({shape}, {start})")
        for axis in stmt.axes:
            name = self.atoms[axis] = self._name("i")
            self._line(f"for {name} in range(0, {self._index(axis.extent)[0]}):")
            self.depends[axis] = NONE
            self.indent += 1
        self.memo.append({})
        self._statements(stmt.body)
        if isinstance(stmt, Reduce):
            for result, acc in zip(stmt.results, partials, strict=True):
                self._line(f"{acc} = {self._combined(result, acc, self._expr(result.value)[0])}")
        self.memo.pop()
        self.indent -= len(stmt.axes)
        if isinstance(stmt, Reduce):
            for result, acc in zip(stmt.results, partials, strict=True):
                self._bind_results(result.names, (acc,), frozenset(self.dims))

    def _name_value(self, name: str) -> None:
        self.atoms[Value(name)], self.depends[Value(name)] = self.refs[name]

    def _store(self, stmt: Store) -> None:
        value, value_on = self._expr(stmt.value)
        where, where_on = self._index(stmt.index)
        mask, mask_on = self._mask(stmt.mask, self._everywhere(where_on | value_on))
        pointer = self._address(stmt.buffer, stmt.value.dtype, where, where_on)
        shape = value_on | where_on | mask_on
        pointer = self._spread(pointer, where_on, shape)
        value = self._spread(value, value_on, shape)
        suffix = f", mask={mask}" if mask else ""
        call = "tl.atomic_add" if stmt.mode == "add" else "tl.store"
        if stmt.mode == "add":
            suffix += ', sem="relaxed"'
        self._line(f"{call}({pointer}, {value}{suffix})")
        self._forget_loads(self._pointer(stmt.buffer, stmt.value.dtype))

    def _everywhere(self, on: Depends) -> Depends:
        """A store inside a tile writes once for each parallel point, whatever it depends on."""
        return on | frozenset(d for d in ("y", "x") if d in self.dims)

    @contextmanager
    def _rows(self, axes: tuple[Axis, ...]) -> Iterator[None]:
        """Binds inner axes to the ``r`` dimension: one tile, or a loop of tiles."""
        total = count(axes)
        whole = total.is_const and total.const <= self.schedule.row_limit
        outer_mask = self.masks.pop("r", None)
        block = power_of_two(total.const) if whole else self.schedule.r_block
        if whole:
            name, _ = self._bind(f"tl.arange(0, {block}){self._expand('r')}", frozenset("r"))
            exact = block == total.const
        else:
            self.fresh += 1
            start, name = f"r{self.fresh}_start", f"r{self.fresh}"
            self._line(f"for {start} in range(0, {self._index(total)[0]}, {block}):")
            self.indent += 1
            self.memo.append({})
            self._line(f"{name} = {start} + tl.arange(0, {block}){self._expand('r')}")
            exact = total.is_const and total.const % block == 0
        if not exact:
            text = f"{name} < {self._index(total)[0]}"
            self.masks["r"] = self._bind(text, frozenset("r"))[0]
        self.row_name, self.row_block = name, block
        self._unflatten(name, axes, "r")
        self.inside_rows = True
        yield
        self.inside_rows = False
        if not whole:
            self.memo.pop()
            self.indent -= 1
        self.masks.pop("r", None)
        if outer_mask is not None:
            self.masks["r"] = outer_mask

    def _reduce(self, stmt: Reduce) -> None:
        total = count(stmt.axes)
        if total.is_const and total.const <= self.schedule.row_limit:
            with self._rows(stmt.axes):
                self._statements(stmt.body)
                for result in stmt.results:
                    self._reduce_tile(result)
        else:
            varies = self._varies(stmt)
            partials = [self._accumulators(r, varies) for r in stmt.results]
            with self._rows(stmt.axes):
                self._statements(stmt.body)
                for result, names in zip(stmt.results, partials, strict=True):
                    self._accumulate(result, names)
            for result, names in zip(stmt.results, partials, strict=True):
                self._finish(result, names, varies)

    def _varies(self, stmt: Reduce) -> Depends:
        """The tile dimensions the results' partial values need: a row shared by all of ``x``
        (a norm before a matrix product) is reduced once, not once for each point."""
        inner = dict.fromkeys(stmt.axes, frozenset("r"))
        on = frozenset("r")
        for expr in body_exprs((stmt,)):
            if isinstance(expr, Load | IndexValue):
                for atom in expr.index.atoms():
                    on |= inner.get(atom) or self.depends.get(atom, NONE)  # type: ignore[arg-type]
            elif isinstance(expr, Ref) and expr.name in self.refs:
                on |= self.refs[expr.name][1]
        return on

    # ------------------------------------------------------------ reductions

    def _reduce_tile(self, result: Reduction) -> None:
        value, on = self._expr(result.value)
        every = on | {"r"}
        value = self._spread(value, on, every)
        if result.op == "welford":
            self._welford_tile(result, value, every)
            return
        if "r" in self.masks:
            value = f"tl.where({self.masks['r']}, {value}, {self._identity(result)})"
        value = self._bind(value, every)[0]
        if result.op.startswith("arg"):
            position = self._spread(f"{self.row_name}.to(tl.int64)", frozenset("r"), every)
            self._finish(result, (value, position), every)
        else:
            self._finish(result, (value,), every)

    def _welford_tile(self, result: Reduction, value: str, every: Depends) -> None:
        """Two passes over registers: exact mean first, then squared distances from it."""
        kept = every - {"r"}
        axis = self.dims.index("r")
        inside = self.masks.get("r")
        clean = f"tl.where({inside}, {value}, 0.0)" if inside else value
        n = self._row_count()
        mean = self._bind(f"(tl.sum({clean}, {axis}) / {n}){self._keep()}", kept)[0]
        apart = f"tl.where({inside}, {value} - {mean}, 0.0)" if inside else f"{value} - {mean}"
        apart = self._bind(apart, every)[0]
        m2 = self._bind(f"tl.sum({apart} * {apart}, {axis}){self._keep()}", kept)[0]
        self._bind_results(result.names, (mean, m2, f"({n})"), kept)

    def _row_count(self) -> str:
        inside = self.masks.get("r")
        if inside is None:
            return f"{self.row_block}.0"
        return f"tl.sum({inside}.to(tl.float32))"

    def _accumulators(self, result: Reduction, on: Depends) -> tuple[str, ...]:
        shape = self._shape(on, self.schedule.r_block)
        kinds = {"welford": ("0.0", "0.0", "0.0")}.get(result.op, (self._identity(result),))
        names = []
        for kind in kinds:
            names.append(self._name("acc"))
            self._line(f"{names[-1]} = tl.full({shape}, {kind}, {TYPES[result.value.dtype]})")
        if result.op.startswith("arg"):
            names.append(self._name("pos"))
            self._line(f"{names[-1]} = tl.full({shape}, {2**62}, tl.int64)")
        return tuple(names)

    def _accumulate(self, result: Reduction, names: tuple[str, ...]) -> None:
        value, _ = self._expr(result.value)
        inside = self.masks.get("r")
        if result.op == "welford":
            step = f"dm.welford_step({', '.join(names)}, {value}, {inside or 'True'})"
            self._line(f"{', '.join(names)} = {step}")
            return
        if result.op.startswith("arg"):
            self._accumulate_position(result, names, value, inside)
            return
        acc = names[0]
        new = self._combined(result, acc, value)
        self._line(f"{acc} = tl.where({inside}, {new}, {acc})" if inside else f"{acc} = {new}")

    def _combined(self, result: Reduction, acc: str, value: str) -> str:
        if result.op == "sum":
            return f"{acc} + {value}"
        return f"dm.{self._combine(result)}({acc}, {value})"

    def _accumulate_position(
        self, result: Reduction, names: tuple[str, ...], value: str, inside: str | None
    ) -> None:
        best, position = names
        new_best, new_position = self._name("best"), self._name("at")
        there = f"{self.row_name}.to(tl.int64)"
        combined = f"dm.combine_{result.op}({best}, {position}, {value}, {there})"
        self._line(f"{new_best}, {new_position} = {combined}")
        for name, new in ((best, new_best), (position, new_position)):
            self._line(
                f"{name} = tl.where({inside}, {new}, {name})" if inside else f"{name} = {new}"
            )

    def _finish(self, result: Reduction, names: tuple[str, ...], on: Depends) -> None:
        """Reduces accumulators (or a whole row's tile) along ``r``."""
        axis = self.dims.index("r")
        kept = on - {"r"}
        if result.op == "sum":
            value = self._bind(f"tl.sum({names[0]}, {axis}){self._keep()}", kept)[0]
            self._bind_results(result.names, (value,), kept)
        elif result.op == "welford" or result.op.startswith("arg"):
            outs = [self._name("red") for _ in names]
            combine = f"dm.combine_{result.op}"
            self._line(f"{', '.join(outs)} = tl.reduce(({', '.join(names)}), {axis}, {combine})")
            values = tuple(self._bind(f"{o}{self._keep()}", kept)[0] for o in outs)
            self._bind_results(result.names, values[-1:] if len(outs) == 2 else values, kept)
        else:
            reduced = f"tl.reduce({names[0]}, {axis}, dm.{self._combine(result)}){self._keep()}"
            self._bind_results(result.names, (self._bind(reduced, kept)[0],), kept)

    def _bind_results(self, names: tuple[str, ...], values: tuple[str, ...], on: Depends) -> None:
        for name, value in zip(names, values, strict=True):
            self.refs[name] = (value, on)
            self._name_value(name)

    def _combine(self, result: Reduction) -> str:
        if result.op in ("max", "min"):
            floats = result.value.dtype.is_floating_point
            return f"combine_{result.op}" + ("" if floats else "_int")
        return _COMBINE[result.op]

    def _identity(self, result: Reduction) -> str:
        dtype = result.value.dtype
        if result.op in _IDENTITY:
            return literal(_IDENTITY[result.op], dtype)
        low = result.op.endswith("max")
        if dtype.is_floating_point:
            return 'float("-inf")' if low else 'float("inf")'
        if dtype == torch.bool:
            return "0" if low else "1"
        info = torch.iinfo(dtype)
        return str(info.min if low else info.max)

    # ------------------------------------------------------------ expressions

    def _expr(self, expr: Expr) -> tuple[str, Depends]:
        """The variable that holds ``expr``, and the tile dimensions it varies along."""
        if isinstance(expr, Ref):
            return self.refs[expr.name]
        if isinstance(expr, Const):
            ones = ", ".join("1" for _ in self.dims)
            text = literal(expr.value, expr.dtype)
            return self._bind(f"tl.full([{ones}], {text}, {TYPES[expr.dtype]})", NONE)
        if isinstance(expr, Load):
            return self._load(expr)
        if isinstance(expr, IndexValue):
            text, on = self._index(expr.index)
            ones = ", ".join("1" for _ in self.dims)
            zero = self._bind(f"tl.full([{ones}], 0, tl.int64)", NONE)[0]
            return self._bind(f"({zero} + {text}).to({TYPES[expr.dtype]})", on)
        if isinstance(expr, ScalarArg):
            return self._scalar(expr), NONE
        return self._operation(expr)

    def _operation(self, expr: Op) -> tuple[str, Depends]:
        parts = [self._expr(arg) for arg in expr.args]
        on = frozenset[str]().union(*(p[1] for p in parts))
        operand = expr.args[-1].dtype
        if expr.op == "cast" and operand == expr.dtype:
            return parts[0]
        return self._bind(operation(expr.op, [p[0] for p in parts], operand, expr.dtype), on)

    def _load(self, expr: Load) -> tuple[str, Depends]:
        where, on = self._index(expr.index)
        mask, mask_on = self._mask(expr.mask, on)
        pointer = self._address(expr.buffer, expr.dtype, where, on)
        shape = on | mask_on
        if mask:
            pointer = self._spread(pointer, on, shape)
            other = literal(expr.other, expr.dtype)
            return self._bind(f"tl.load({pointer}, mask={mask}, other={other})", shape)
        return self._bind(f"tl.load({pointer})", on)

    def _address(self, buffer: str, dtype: torch.dtype, where: str, on: Depends) -> str:
        """A tile of addresses, also where the index is one number."""
        if not on:
            ones = ", ".join("1" for _ in self.dims)
            where = f"({self._bind(f'tl.full([{ones}], 0, tl.int32)', NONE)[0]} + {where})"
        return f"{self._pointer(buffer, dtype)} + {where}"

    def _mask(self, own: Expr | None, on: Depends) -> tuple[str, Depends]:
        """The text of all masks that apply to an access varying along ``on``."""
        parts: list[tuple[str, Depends]] = []
        if own is not None:
            parts.append(self._expr(own))
            on = on | parts[0][1]
        parts += [(self.masks[d], frozenset(d)) for d in self.dims if d in on and d in self.masks]
        text = " & ".join(p[0] for p in parts)
        return text, frozenset[str]().union(*(p[1] for p in parts))

    def _index(self, value: Index) -> tuple[str, Depends]:
        for atom in value.atoms():
            if isinstance(atom, Dim) and atom not in self.atoms:
                self.atoms[atom] = self._parameter(atom.name, "dim", torch.int64)
                self.depends[atom] = NONE
        on = frozenset[str]().union(*(self.depends.get(a, NONE) for a in value.atoms()))
        return f"({index_text(value, self.atoms)})", on

    # ------------------------------------------------------------ text

    def _spread(self, text: str, has: Depends, needs: Depends) -> str:
        """``text`` repeated along the tile dimensions it lacks."""
        if needs <= has:
            return text
        return f"tl.broadcast_to({text}, {self._shape(needs)})"

    def _shape(self, on: Depends, row_block: int | None = None) -> str:
        sizes = {"x": self.schedule.x_block, "y": self.schedule.y_block}
        sizes["r"] = row_block or self.row_block
        shape = [str(sizes[d]) if d in on else "1" for d in self.dims]
        return "[" + ", ".join(shape) + "]"

    def _keep(self) -> str:
        """Puts a reduced ``r`` dimension back with size one."""
        return "[" + ", ".join("None" if d == "r" else ":" for d in self.dims) + "]"

    def _bind(self, text: str, on: Depends) -> tuple[str, Depends]:
        for known in self.memo:
            if text in known:
                return known[text]
        name = self._name("t")
        self._line(f"{name} = {text}")
        self.memo[-1][text] = (name, on)
        return name, on

    def _forget_loads(self, pointer: str) -> None:
        for known in self.memo:
            for text in [t for t in known if t.startswith(f"tl.load({pointer} ")]:
                del known[text]

    def _name(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}{self.fresh}"

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def _pointer(self, buffer: str, dtype: torch.dtype) -> str:
        return self._parameter(buffer, "pointer", dtype)

    def _scalar(self, expr: ScalarArg) -> str:
        return self._parameter(expr.name, "scalar", expr.dtype)

    def _parameter(self, name: str, kind: str, dtype: torch.dtype) -> str:
        known = self.parameters.get(name)
        if known is None:
            label = f"{kind[0]}{len(self.parameters)}"
            known = self.parameters[name] = Parameter(name, kind, dtype, label)
        elif known.kind != kind:
            raise CompilerBug(f"{name} is both a {known.kind} and a {kind}")
        return known.label
