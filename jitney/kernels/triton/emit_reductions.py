"""Reductions along the ``r`` dimension of a tile: in one go, or through accumulators."""

from __future__ import annotations

import math

import torch

from jitney.errors import CompilerBug
from jitney.kernels.triton.emit_tile import Depends, TileEmitter
from jitney.kernels.triton.expressions import TYPES, literal
from jitney.loops.ir import OF_SEVERAL_VALUES, POSITIONAL, RUNNING, Loop, Op, Reduction
from jitney.loops.visit import body_exprs

_IDENTITY = {"sum": 0, "welford": 0, "prod": 1, "any": 0, "all": 1, "xor": 0}
_COMBINE = {
    "prod": "combine_prod",
    "any": "combine_or",
    "all": "combine_and",
    "xor": "combine_xor",
}
#: `tl.sum` gives sums of these as 32-bit integers, which have not wrapped.
_SUMMED_WIDER = {torch.uint8, torch.int8, torch.uint16, torch.int16}


_RUN_FROM = {"running_sum": 0, "running_prod": 1, "running_logaddexp": -math.inf}


def _run_from(expr: Op) -> str:
    """The state of a running reduction before its first value."""
    return literal(_RUN_FROM[expr.op], expr.dtype)


class ReductionEmitter(TileEmitter):
    """A tile emitter whose last dimension ``r`` is reduced; ``row_name`` holds positions in it."""

    row_name = "r"

    def __init__(self, dims: tuple[str, ...], sizes: dict[str, int]) -> None:
        super().__init__(dims, sizes)
        self.carried: dict[Op, str] = {}

    def _operation(self, expr: Op) -> tuple[str, Depends]:
        return self._running(expr) if expr.op in RUNNING else super()._operation(expr)

    def _begin_running(self, stmt: Loop) -> None:
        """What the tiles of a long row hand on: the reduction of all before."""
        for expr in body_exprs((stmt,)):
            if isinstance(expr, Op) and expr.op in RUNNING:
                name = self.carried[expr] = self._name("carry")
                shape = self._shape(frozenset(self.dims), "r", 1)
                start = f"{_run_from(expr)}, {TYPES[expr.dtype]}"
                self._line(f"{name} = tl.full({shape}, {start})")

    def _running(self, expr: Op) -> tuple[str, Depends]:
        """A reduction of the row up to each position."""
        key = f"running {id(expr)}"  # its text depends on what was carried so far
        for known in self.memo:
            if key in known:
                return known[key]
        value, on = self._expr(expr.args[0])
        every, axis = frozenset(self.dims), self.dims.index("r")
        value = self._spread(value, on, every)
        if "r" in self.masks:
            value = f"tl.where({self.masks['r']}, {value}, {_run_from(expr)})"
        value = self._bind(value, every)[0]
        combine = f"dm.combine_{expr.op.removeprefix('running_')}"
        found = self._bind(f"tl.associative_scan({value}, {axis}, {combine})", every)
        carry = self.carried.get(expr)
        if carry is not None:
            found = self._bind(f"{combine}({carry}, {found[0]})", every)
            whole = f"tl.reduce({value}, {axis}, {combine}){self._keep()}"
            self._line(f"{carry} = {combine}({carry}, {whole})")
        self.memo[-1][key] = found
        return found

    def _reduce_tile(self, result: Reduction) -> None:
        value, on = self._expr(result.value)
        every = on | {"r"}
        value = self._spread(value, on, every)
        if result.op == "welford":
            self._welford_tile(result, value, every)
            return
        if result.op == "softmax":
            raise CompilerBug("a softmax over a row that fits one tile takes two reductions")
        if "r" in self.masks:
            value = f"tl.where({self.masks['r']}, {value}, {self._identity(result)})"
        value = self._bind(value, every)[0]
        if result.op in POSITIONAL:
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
            return f"{self.sizes['r']}.0"
        return f"tl.sum({inside}.to(tl.float32))"

    def _accumulators(self, result: Reduction, on: Depends) -> tuple[str, ...]:
        shape = self._shape(on)
        kinds = [(self._identity(result), shape)]
        if result.op == "welford":  # the count is the same for all rows of the tile
            kinds = [("0.0", shape), ("0.0", shape), ("0.0", self._shape(frozenset("r")))]
        if result.op == "softmax":
            lanes = self._shape(on, "r", self.sizes["r"] // self._side_by_side())
            kinds = [('float("-inf")', lanes), ("0.0", lanes)]
        names = []
        for kind, size in kinds:
            names.append(self._name("acc"))
            self._line(f"{names[-1]} = tl.full({size}, {kind}, {TYPES[result.value.dtype]})")
        if result.op in POSITIONAL:
            names.append(self._name("pos"))
            self._line(f"{names[-1]} = tl.full({shape}, {2**62}, tl.int64)")
        return tuple(names)

    def _accumulate(self, result: Reduction, names: tuple[str, ...]) -> None:
        value, on = self._expr(result.value)
        inside = self.masks.get("r")
        if result.op == "welford":
            step = f"dm.welford_step({', '.join(names)}, {value}, {inside or 'True'})"
            self._line(f"{', '.join(names)} = {step}")
            return
        if result.op == "softmax":
            self._accumulate_softmax(names, value, on, inside)
            return
        if result.op in POSITIONAL:
            self._accumulate_position(result, names, value, inside)
            return
        acc = names[0]
        new = self._combined(result, acc, value)
        self._line(f"{acc} = tl.where({inside}, {new}, {acc})" if inside else f"{acc} = {new}")

    def _side_by_side(self) -> int:
        """Values of a row that one thread takes at once in a softmax."""
        return min(8, self.sizes["r"])

    def _accumulate_softmax(
        self, names: tuple[str, ...], value: str, on: Depends, inside: str | None
    ) -> None:
        if inside:
            value = f'tl.where({inside}, {value}, float("-inf"))'
        many = self._side_by_side()
        lanes = self._shape(on | {"r"}, "r", self.sizes["r"] // many)[:-1]
        chunks = f"tl.reshape({value}, {lanes}, {many}])"
        step = f"dm.softmax_step({', '.join(names)}, {chunks}, {len(self.dims)})"
        self._line(f"{', '.join(names)} = {step}")

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
            total = f"tl.sum({names[0]}, {axis}){self._keep()}"
            if result.value.dtype in _SUMMED_WIDER:
                total += f".to({TYPES[result.value.dtype]})"
            self._bind_results(result.names, (self._bind(total, kept)[0],), kept)
        elif result.op in OF_SEVERAL_VALUES:
            outs = [self._name("red") for _ in names]
            if result.op == "welford":
                names = (*names[:2], self._spread(names[2], frozenset("r"), on))
            combine = f"dm.combine_{result.op}"
            self._line(f"{', '.join(outs)} = tl.reduce(({', '.join(names)}), {axis}, {combine})")
            values = tuple(self._bind(f"{o}{self._keep()}", kept)[0] for o in outs)
            if result.op == "softmax":  # of an infinite maximum eager's sum is NaN
                top, total = values
                values = top, self._bind(f"{total} + ({top} - {top})", kept)[0]
            self._bind_results(result.names, values[-len(result.names) :], kept)
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
        if dtype == torch.bool:  # in words: beside a number `tl.where` makes numbers of them
            return str(result.op in ("all", "min", "argmin", "prod"))
        if result.op in _IDENTITY:
            return literal(_IDENTITY[result.op], dtype)
        low = result.op.endswith("max")
        if dtype.is_floating_point:
            return 'float("-inf")' if low else 'float("inf")'
        info = torch.iinfo(dtype)
        return str(info.min if low else info.max)

    def _keep(self, reduced: str = "r") -> str:
        """Puts a reduced dimension back with size one."""
        return "[" + ", ".join("None" if d == reduced else ":" for d in self.dims) + "]"
