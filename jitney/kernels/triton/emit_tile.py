"""What every emitted kernel shares: expressions, loads, stores and indices over tiles.

A kernel works on tiles of up to three dimensions, named in ``dims``. Every value knows which of
them it depends on, so that a load that does not vary along one is not repeated along it. Equal
subexpressions are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from jitney.errors import CompilerBug
from jitney.kernels.triton.access_order import BARRIER, AccessOrder
from jitney.kernels.triton.expressions import (
    TYPES,
    erf_plus_one,
    index_text,
    literal,
    narrow_gelu,
    operation,
    rounded_quotient,
    takes_fours,
)
from jitney.kernels.triton.kernel_source import ASSERT, KernelSource, Parameter
from jitney.kernels.triton.schedule_nest import fits_32_bits
from jitney.loops.index import Atom, Axis, Dim, Index, Value
from jitney.loops.ir import (
    Const,
    Expr,
    IndexValue,
    Let,
    Load,
    Op,
    Ref,
    Scalar,
    ScalarArg,
    Stmt,
    Store,
)

Depends = frozenset[str]
NONE: Depends = frozenset()


def _any_of(parts: Iterable[tuple[str, Depends]]) -> Depends:
    """The tile dimensions that any of several values varies along."""
    return NONE.union(*(on for _, on in parts))


class TileEmitter:
    """Writes one kernel's lines; used for one kernel and thrown away. ``sizes``: tile extents;
    ``rough``: whether all that it stores is rounded to 16 bits."""

    rough = False
    inside_rows = False  # whether what is being written runs for each point of a row

    def __init__(self, dims: tuple[str, ...], sizes: dict[str, int]) -> None:
        self.dims, self.sizes = dims, sizes
        self.lines: list[str] = []
        self.indent = 1
        self.fresh = 0
        self.memo: list[dict[str, tuple[str, Depends]]] = [{}]
        self.atoms: dict[Atom, str] = {}
        self.depends: dict[Atom, Depends] = {}
        self.refs: dict[str, tuple[str, Depends]] = {}
        self.lets: dict[str, Expr] = {}
        self.masks: dict[str, str] = {}
        self.innermost: dict[str, Axis] = {}  # of the axes that run along a tile dimension
        self.parameters: dict[str, Parameter] = {}
        self.order = AccessOrder()
        self.sums: dict[str, str] = {}  # of a walk over rows, by the buffer they end in
        self.given: dict[Load, tuple[str, Depends]] = {}  # tiles loaded before they are met

    # ------------------------------------------------------------ statements

    def _settle(self, stmt: Stmt) -> None:
        """Makes the program's threads wait for each other where ``stmt`` must not come early."""
        if self.order.conflicts(stmt):
            self._wait()

    def _wait(self) -> None:
        self._line(BARRIER)
        self.order.forget()

    def _let(self, stmt: Let) -> None:
        self._settle(stmt)
        self.refs[stmt.name], self.lets[stmt.name] = self._expr(stmt.value), stmt.value
        self.order.note(stmt)
        self._name_value(stmt.name)

    def _name_value(self, name: str) -> None:
        self.atoms[Value(name)], self.depends[Value(name)] = self.refs[name]

    def _store(self, stmt: Store) -> None:
        self._settle(stmt)
        value, value_on = self._expr(stmt.value)
        self.order.note(stmt)
        if stmt.mode == "sum":
            self._line(f"{self.sums[stmt.buffer]} += {value}")
            return
        where, where_on = self._index(stmt.index)
        points = self._points()
        mask, mask_on = self._mask(stmt.mask, where_on | value_on | points)
        if stmt.mode == "assert":
            kept = f"{mask} & " if mask else ""
            self._line(f'{ASSERT}(~({kept}({value} != 0)), "index out of range")')
            return
        pointer = self._address(stmt.buffer, stmt.value.dtype, where, where_on)
        shape = value_on | where_on | mask_on
        if stmt.mode == "add":  # once for each point; other modes may as well store once
            shape |= points
        pointer = self._spread(pointer, where_on, shape)
        value = self._spread(value, value_on, shape)
        if self.order.is_read_apart(stmt, math.prod(self.sizes[d] for d in shape)):
            self._wait()
            self.order.note(stmt)
        suffix = f", mask={mask}" if mask else ""
        call = f"tl.atomic_{stmt.mode}" if stmt.combines else "tl.store"
        if stmt.combines:
            suffix += ', sem="relaxed"'
            if not shape <= value_on:  # Triton's interpreter adds no values that repeat in memory
                every = f"tl.full({self._shape(shape)}, 1, tl.int1)"
                value = f"tl.where({every}, {value}, {value})"
        self._line(f"{call}({pointer}, {value}{suffix})")
        self._forget_loads(self._pointer(stmt.buffer, stmt.value.dtype))
        if stmt.mode == "set" and stmt.mask is None:
            self.memo[-1][self._load_text(pointer, mask, stmt.value.dtype)] = (value, shape)

    def _points(self) -> Depends:
        """The tile dimensions along which a statement's points lie: it is run for each of them,
        also where neither its value nor its place depends on one."""
        return frozenset(d for d in self.dims if d != "r" or self.inside_rows)

    # ------------------------------------------------------------ expressions

    def _expr(self, expr: Expr) -> tuple[str, Depends]:
        """The variable that holds ``expr``, and the tile dimensions it varies along."""
        if isinstance(expr, Ref):
            return self.refs[expr.name]
        if isinstance(expr, Const):
            return self._bind(self._one(literal(expr.value, expr.dtype), TYPES[expr.dtype]), NONE)
        if isinstance(expr, Load):
            return self.given.get(expr) or self._load(expr)
        if isinstance(expr, IndexValue):
            text, on = self._index(expr.index)
            zero = self._bind(self._one("0", "tl.int64"), NONE)[0]
            return self._bind(f"({zero} + {text}).to({TYPES[expr.dtype]})", on)
        if isinstance(expr, ScalarArg):
            return self._scalar(expr), NONE
        return self._operation(expr)

    def _operation(self, expr: Op) -> tuple[str, Depends]:
        if expr.op.startswith("philox_"):
            return self._random(expr)
        x = narrow_gelu(expr)
        if x is not None:
            value, on = self._expr(x)
            one = self._expr(Const(1.0, torch.float32))[0]
            scaled = f"lib.fast_dividef({one}, {one} + 0.37476659 * tl.abs({value}))"
            return self._bind(f"dm.gelu({value}, {scaled}).to({TYPES[expr.dtype]})", on)
        inner = erf_plus_one(expr) if self.rough else None
        if inner is not None:
            value, on = self._expr(inner)
            one = self._expr(Const(1.0, torch.float32))[0]
            scaled = f"lib.fast_dividef({one}, {one} + 0.37 * tl.abs({value}))"
            return self._bind(f"dm.erf_plus_one({value}, {scaled})", on)
        quotient = rounded_quotient(expr, self.lets)
        if quotient is not None:
            parts = [self._exact_quotient(quotient)]
        else:
            parts = [self._expr(arg) for arg in expr.args]
        on = _any_of(parts)
        operand = expr.args[-1].dtype
        if expr.op == "cast" and operand == expr.dtype:
            return parts[0]
        names = [p[0] for p in parts]
        return self._bind(operation(expr.op, names, operand, expr.dtype, self.rough), on)

    def _random(self, expr: Op) -> tuple[str, Depends]:
        """A random number; neighbours in the tile that eager draws together share a draw."""
        parts = [self._expr(arg) for arg in expr.args]
        on = _any_of(parts)
        seed, offset, *places = (p[0] for p in parts)
        if isinstance(expr.args[4], IndexValue) and fits_32_bits(expr.args[4].index):
            places = [f"{place}.to(tl.uint32)" for place in places]
        threads, together, element = places
        if isinstance(expr.args[3], Const):
            together = str(expr.args[3].value)
        kind, last = expr.op.removeprefix("philox_"), self.dims[-1]
        axis = self.innermost.get(last) if last in on and self.sizes[last] >= 4 else None
        if kind == "uniform" and axis is not None and takes_fours(expr, axis):
            shape = self._shape(on)
            fours = f"{self._shape(on, last, self.sizes[last] // 4)[:-1]}, 2, 2]"
            drawn = f"{seed}, {offset}, {threads}, {together}, tl.reshape({element}, {fours})"
            return self._bind(f"tl.reshape(dr.uniform_of_4({drawn}), {shape})", on)
        draw = f"{seed}, {offset}, {threads}, {together}, {element}"
        if kind != "normal":
            return self._bind(f"dr.{kind}({draw})", on)
        radius, angle, odd = (self._name("n") for _ in range(3))
        self._line(f"{radius}, {angle}, {odd} = dr.normal_parts({draw})")
        wave = f"tl.where({odd}, lib.fast_cosf({angle}), lib.fast_sinf({angle}))"
        return self._bind(f"tl.sqrt_rn(-2.0 * lib.log({radius})) * {wave}", on)

    def _exact_quotient(self, expr: Op) -> tuple[str, Depends]:
        (a, a_on), (b, b_on) = (self._expr(arg) for arg in expr.args)
        return self._bind(f"tl.div_rn({a}, {b})", a_on | b_on)

    def _load(self, expr: Load) -> tuple[str, Depends]:
        where, on = self._index(expr.index)
        mask, mask_on = self._mask(expr.mask, on)
        pointer = self._address(expr.buffer, expr.dtype, where, on)
        shape = on | mask_on
        if mask:
            pointer = self._spread(pointer, on, shape)
        text = self._load_text(pointer, mask, expr.dtype, expr.other)
        if self.order.is_written(expr.buffer) and not any(text in known for known in self.memo):
            self._wait()  # what a reduction adds up may be what its own body has just stored
        return self._bind(text, shape)

    def _load_text(self, pointer: str, mask: str, dtype: torch.dtype, other: Scalar = 0) -> str:
        """Also what a store of the same elements leaves known (`_store`): lanes that the mask
        leaves out differ, but nothing they yield is kept."""
        return (
            f"tl.load({pointer}, mask={mask}, other={literal(other, dtype)})"
            if mask
            else (f"tl.load({pointer})")
        )

    def _address(self, buffer: str, dtype: torch.dtype, where: str, on: Depends) -> str:
        """A tile of addresses, also where the index is one number."""
        if not on:
            where = f"({self._bind(self._one('0', 'tl.int32'), NONE)[0]} + {where})"
        return f"{self._pointer(buffer, dtype)} + {where}"

    def _mask(self, own: Expr | None, on: Depends) -> tuple[str, Depends]:
        """The text of all masks that apply to an access varying along ``on``."""
        parts: list[tuple[str, Depends]] = []
        if own is not None:
            parts.append(self._expr(own))
            on = on | parts[0][1]
        parts += [(self.masks[d], frozenset(d)) for d in self.dims if d in on and d in self.masks]
        text = " & ".join(p[0] for p in parts)
        return text, _any_of(parts)

    def _index(self, value: Index) -> tuple[str, Depends]:
        for atom in value.atoms():
            if isinstance(atom, Dim) and atom not in self.atoms:
                self.atoms[atom] = self._parameter(atom.name, "dim", torch.int64)
                self.depends[atom] = NONE
        on = NONE.union(*(self.depends.get(a, NONE) for a in value.atoms()))
        return f"({index_text(value, self.atoms)})", on

    def _kernel(
        self, name: str, grid: tuple[Index, ...], num_warps: int, num_stages: int = 3
    ) -> KernelSource:
        """What has been written, as a kernel."""
        body, parameters = "\n".join(self.lines), tuple(self.parameters.values())
        return KernelSource(name, body, parameters, grid, num_warps, num_stages)

    # ------------------------------------------------------------ text

    def _expand(self, dim: str) -> str:
        if len(self.dims) == 1:
            return ""
        return "[" + ", ".join(":" if d == dim else "None" for d in self.dims) + "]"

    def _spread(self, text: str, has: Depends, needs: Depends) -> str:
        """``text`` repeated along the tile dimensions it lacks."""
        if needs <= has:
            return text
        return f"tl.broadcast_to({text}, {self._shape(needs)})"

    def _one(self, value: str, kind: str) -> str:
        """A tile of one element."""
        return f"tl.full({self._shape(NONE)}, {value}, {kind})"

    def _shape(self, on: Depends, dim: str = "", extent: int = 0) -> str:
        """A tile's shape; ``extent`` along ``dim``, if it is not the tile's own there."""
        sizes = {**self.sizes, dim: extent}
        shape = [str(sizes[d]) if d in on else "1" for d in self.dims]
        return "[" + ", ".join(shape) + "]"

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
            for text in [t for t in known if t.startswith("tl.load(") and f"({pointer} " in t]:
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
