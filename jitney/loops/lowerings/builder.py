"""`Builder`: the program under construction, and what every lowering needs from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from jitney.capture.leaves import is_authors
from jitney.graph.effects import draws_random, may_raise
from jitney.loops.index import Axis, Index, IndexLike, Value, index
from jitney.loops.ir import (
    POSITIONAL,
    Buffer,
    Const,
    Expr,
    Extern,
    Let,
    Loop,
    LoopNest,
    Node,
    Reduce,
    Reduction,
    Ref,
    Stmt,
    Store,
)
from jitney.loops.lowerings.atomics import check_atomics
from jitney.loops.lowerings.expressions import apply, cast, const, index_expr
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.points import row_major
from jitney.loops.symbols import to_index
from jitney.loops.target import Target

Position = tuple[Index, ...]


@dataclass(frozen=True)
class Mark:
    """The size of a program at some point, to take back what a refused lowering has emitted
    since."""

    buffers: int
    nodes: int


class Builder:
    """Collects buffers and nodes; ``node`` is the FX node being lowered, ``fake`` its meta value.

    ``may_overwrite``: the storage of the node's first argument is free once the node has run.
    ``frozen``: what is computed from parameters alone is computed once, not in each call.
    ``rerunnable``: a call may be given up at any point, and eager run instead.
    """

    def __init__(self, target: Target, frozen: bool = False, rerunnable: bool = False) -> None:
        self.target, self.frozen, self.rerunnable = target, frozen, rerunnable
        self.buffers: list[Buffer] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.node: fx.Node
        self.fake: Any = None
        self.may_overwrite = False
        #: Range checks made so far, by what they check (`check_range`) -> their buffer.
        self.checks: dict[object, str] = {}
        #: The buffer of eager's random state that the next draw of ours may join.
        self.random_state = ""
        self._taken: set[str] = set()

    # ------------------------------------------------------------ names and buffers

    def fresh(self, hint: str) -> str:
        """A name no buffer, node, Let or Reduction of the program has yet."""
        name, count = hint, 0
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._taken.add(name)
        return name

    def add_buffer(self, name: str, kind: str, fake: torch.Tensor, **fields: Any) -> StridedTensor:
        """Declares a buffer with the shape, strides and dtype of ``fake``."""
        shape = tuple(to_index(size) for size in fake.shape)
        strides = tuple(to_index(stride) for stride in fake.stride())
        name = self.fresh(name)
        device = fake.device
        self.buffers.append(Buffer(name, kind, fake.dtype, device, shape, strides, **fields))
        return StridedTensor(name, fake.dtype, shape, strides)

    def allocate(self, fake: torch.Tensor | None = None) -> StridedTensor:
        """A temporary for a result like ``fake`` (the node's own by default)."""
        return self.add_buffer(self.node.name, "temp", self.fake if fake is None else fake)

    def allocate_as(self, shape: Sequence[Index], dtype: torch.dtype) -> StridedTensor:
        """A row-major temporary that no FX value stands for."""
        name, strides = self.fresh(self.node.name), row_major(shape)
        self.buffers.append(Buffer(name, "temp", dtype, self.device(), tuple(shape), strides))
        return StridedTensor(name, dtype, tuple(shape), strides)

    def check(self) -> str:
        """A new bool that starts out false. Where it is stored true, eager's answer is another
        (`ir.Buffer`)."""
        name = self.fresh(f"{self.node.name}_check")
        self.buffers.append(Buffer(name, "check", torch.bool, torch.device("cpu"), (), ()))
        return name

    def device(self) -> torch.device:
        """The device of the node's (first) result."""
        fake = self.fake
        while isinstance(fake, tuple | list):
            fake = next(x for x in fake if x is not None)
        device: torch.device = fake.device
        return device

    def used(self, result: int) -> bool:
        """Whether anything reads that result of the node."""
        return any(user.args[1] == result and user.users for user in self.node.users)

    def is_parameter(self, buffer: str) -> bool:
        """Whether a buffer is a parameter of the model."""
        return any(x.is_parameter for x in self.buffers if x.name == buffer)

    def mark(self) -> Mark:
        """Remembers the state, for `take_back`."""
        return Mark(len(self.buffers), len(self.nodes))

    def take_back(self, mark: Mark) -> None:
        """Drops what was emitted since ``mark``."""
        del self.buffers[mark.buffers :]
        del self.nodes[mark.nodes :]

    # ------------------------------------------------------------ nests

    def axes(
        self, shape: Sequence[Index], prefix: str = "i", strides: Sequence[Index] | None = None
    ) -> tuple[tuple[Axis, ...], Position]:
        """Axes over ``shape`` (none for size 1), by falling stride, and the position they make."""
        position: list[Index] = []
        made: list[tuple[int, Axis]] = []
        for dim, size in enumerate(shape):
            if size.is_const and size.const == 1:
                position.append(index(0))
                continue
            axis = Axis(f"{prefix}{dim}", size)
            position.append(index(axis))
            made.append((-strides[dim].hint() if strides is not None else dim, axis))
        made.sort(key=lambda item: item[0])
        return tuple(axis for _, axis in made), tuple(position)

    def emit(self, axes: Sequence[Axis], body: Sequence[Stmt]) -> None:
        """Appends a nest; nothing if it has no iterations."""
        check_atomics(self.target, body)
        if any(axis.extent.is_const and axis.extent.const == 0 for axis in axes):
            return
        name = self.fresh(f"{self.node.name}_nest")
        self.nodes.append(LoopNest(name, tuple(axes), tuple(body), (self.node.name,)))

    def emit_in_order(
        self,
        axes: Sequence[Axis],
        serial: Position,
        body: Sequence[Stmt],
        window: Sequence[Axis] = (),
    ) -> None:
        """Appends a nest whose ``body`` runs in order over those of ``axes`` that ``serial`` counts
        by, and ``window`` inside them, in parallel over the others."""
        counted = {atom for at in serial for atom in at.atoms()}
        inner = [axis for axis in axes if axis in counted]
        outer = [axis for axis in axes if axis not in counted]
        self.emit(outer, self.loop((*inner, *window), body))

    def compute(
        self,
        out: StridedTensor,
        value: Callable[[Position], Expr],
    ) -> StridedTensor:
        """Fills ``out`` elementwise: one nest, ``value`` giving the expression at a position."""
        axes, position = self.axes(out.shape, strides=out.strides)
        stored = Store(out.buffer, out.at(position), cast(value(position), out.dtype))
        self.emit(axes, (stored,))
        return out

    def fill(self, out: StridedTensor, value: bool | int | float) -> StridedTensor:
        """Sets every element of ``out``."""
        return self.compute(out, lambda _: const(value, out.dtype))

    def copy(self, out: StridedTensor, source: StridedTensor) -> StridedTensor:
        """Stores ``source`` (broadcast) into ``out``, converting."""
        return self.compute(out, source.load)

    def own(self, base: StridedTensor) -> StridedTensor:
        """The node's result, holding the values of ``base``: base itself where the node may
        overwrite it, else a copy. What the node then stores into it are second writes."""
        strides = tuple(to_index(stride) for stride in self.fake.stride())
        if self.may_overwrite and base.strides == strides and base.dtype == self.fake.dtype:
            return base
        return self.copy(self.allocate(), base)

    # ------------------------------------------------------------ statements

    def let(self, hint: str, value: Expr) -> tuple[Let, Ref]:
        """A name for ``value``: the statement that gives it, and the reference to it."""
        name = self.fresh(f"{self.node.name}_{hint}")
        return Let(name, value), Ref(name, value.dtype)

    def let_place(self, hint: str, value: Expr) -> tuple[Let, Index]:
        """As `let`, of an i64 to index with."""
        statement, _ = self.let(hint, value)
        return statement, index(Value(statement.name))

    def let_index(self, value: Expr, size: IndexLike, hint: str) -> tuple[tuple[Let, ...], Index]:
        """Statements and the `Index` for a loaded position along a dimension of ``size``.

        Negative positions count from the end, as in Python; what is out of range after that is
        held inside, so that no kernel reads or writes outside a tensor (`check_range` tells).
        """
        value = cast(value, torch.int64)
        extent = index_expr(index(size))
        raw = self.fresh(f"{hint}_raw")
        name = self.fresh(hint)
        loaded = Ref(raw, torch.int64)
        zero = const(0, torch.int64)
        wrapped = apply("where", apply("lt", loaded, zero), apply("add", loaded, extent), loaded)
        last = apply("sub", extent, const(1, torch.int64))
        held = apply("max", zero, apply("min", wrapped, last))
        return (Let(raw, value), Let(name, held)), index(Value(name))

    def reduce(self, axes: Sequence[Axis], op: str, value: Expr) -> tuple[Stmt, Ref]:
        """One reduction and the reference to its result (argmax and argmin give i64)."""
        (statement,), (result,) = self.reduce_all(axes, ((op, value),))
        return statement, result

    def reduce_all(
        self, axes: Sequence[Axis], wanted: Sequence[tuple[str, Expr]], lets: Sequence[Let] = ()
    ) -> tuple[tuple[Stmt, ...], tuple[Ref, ...]]:
        """Reductions (op, value) over the same axes; over none, they are the values themselves."""
        results, plain, refs = [], list(lets), []
        for op, value in wanted:
            name = self.fresh(f"{self.node.name}_{op}")
            positional = op in POSITIONAL
            dtype = torch.int64 if positional else value.dtype
            results.append(Reduction((name,), op, value, dtype))
            plain.append(Let(name, const(0, dtype) if positional else value))
            refs.append(Ref(name, dtype))
        if not axes:
            return tuple(plain), tuple(refs)
        return (Reduce(tuple(axes), tuple(lets), tuple(results)),), tuple(refs)

    def loop(self, axes: Sequence[Axis], body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """``body`` over ``axes`` in order; just the body where there are none."""
        return (Loop(tuple(axes), tuple(body)),) if axes else tuple(body)

    # ------------------------------------------------------------ externs

    def extern(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        fakes: Sequence[torch.Tensor | None],
        reason: str,
        mutates: Sequence[StridedTensor] = (),
    ) -> tuple[StridedTensor | None, ...]:
        """Appends an ATen call; one result per fake (None: not a tensor)."""
        results = tuple(
            None if fake is None else self.add_buffer(self.node.name, "extern", fake)
            for fake in fakes
        )
        effectful = draws_random(target, args, kwargs) or is_authors(target)
        if effectful:
            self.random_state = ""  # what is drawn after this begins where it ends
        self.nodes.append(
            Extern(
                self.fresh(f"{self.node.name}_call"),
                str(target),
                tuple(_extern_argument(arg) for arg in args),
                tuple((key, _extern_argument(arg)) for key, arg in kwargs.items()),
                tuple(None if result is None else result.buffer for result in results),
                mutates=tuple(written.buffer for written in mutates),
                effectful=effectful,
                refuses=self.target.kind == "cpu" and may_raise(self.node),
                reason=reason,
                origins=(self.node.name,),
            )
        )
        return results


def _extern_argument(value: Any) -> Any:
    """A lowered argument as `Extern` holds it."""
    if isinstance(value, StridedTensor):
        return value.as_view()
    if isinstance(value, Index):
        return value.const if value.is_const else value
    if isinstance(value, tuple | list):
        return type(value)(_extern_argument(item) for item in value)
    if isinstance(value, Const):
        return value.value
    return value
