"""A builder of one LLVM function's text that places code well by construction.

No mid-level pass runs on what it writes, so it numbers values (an instruction written twice
exists once) and puts every pure instruction into the outermost loop whose values it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from jitney.kernels.llvm.isa import DEFAULT_ISA, Isa
from jitney.kernels.llvm.ssa import Ssa

_NAMES = re.compile(r"%[\w.]+")


@dataclass
class _Region:
    """Straight-line code of a loop level, already closed inner loops included."""

    label: str
    skippable: bool = False  # may run zero times: code that can fault stays inside
    barrier: bool = False  # nothing at all moves out
    lines: list[str] = field(default_factory=list)
    numbered: dict[str, str] = field(default_factory=dict)


@dataclass
class Loop:
    """An open loop: its counter, the carried values at the top; set ``next`` before it closes.

    ``results`` are the carried values after the loop, once it is closed.
    """

    index: str
    carried: tuple[Ssa, ...]
    next: tuple[Ssa, ...] = ()
    results: tuple[Ssa, ...] = ()


class FunctionText:
    """Writes ``define void @name(parameters)``; `finish` gives the text."""

    def __init__(
        self, name: str, parameters: Sequence[str], isa: Isa = DEFAULT_ISA, returns: str = "void"
    ) -> None:
        self.name, self.parameters, self.returns = name, tuple(parameters), returns
        self.isa = isa
        self.declarations: set[str] = set()
        self._regions = [_Region("entry")]
        self._level: dict[str, int] = {}
        self._allocas: list[str] = []
        self._count = 0

    # ---------------------------------------------------------------- instructions

    def fresh(self, prefix: str = "v") -> str:
        """A name not used so far, with its %."""
        self._count += 1
        return f"%{prefix}{self._count}"

    def pure(self, code: str, prefix: str = "v") -> str:
        """The name of an instruction without effect; it may move out of loops and be shared."""
        return self._place(code, prefix, self._barrier())

    def read(self, code: str, prefix: str = "m") -> str:
        """As `pure`, for a load from memory nothing in this function writes: it moves out of
        loops that certainly run."""
        floor = len(self._regions) - 1
        while floor and not self._regions[floor].skippable and not self._regions[floor].barrier:
            floor -= 1
        return self._place(code, prefix, floor)

    def emit(self, code: str, prefix: str = "e") -> str:
        """The name of an instruction that stays where it is (loads of written memory, calls)."""
        name = self.fresh(prefix)
        self._regions[-1].lines.append(f"  {name} = {code}")
        self._level[name] = len(self._regions) - 1
        return name

    def do(self, code: str) -> None:
        """An instruction without a result (store, call void)."""
        self._regions[-1].lines.append(f"  {code}")

    def declare(self, line: str) -> None:
        """A ``declare`` or global the module must hold (once)."""
        self.declarations.add(line)

    def call(self, returns: str, callee: str, *arguments: str) -> str:
        """A call of a function without side effects, declared by its argument types."""
        types = ", ".join(_type_of(a) for a in arguments)
        self.declare(f"declare {returns} @{callee}({types})")
        return self.pure(f"call {returns} @{callee}({', '.join(arguments)})", "c")

    def smaller(self, a: str, b: str) -> str:
        """The lesser of two i64."""
        return self.call("i64", "llvm.smin.i64", f"i64 {a}", f"i64 {b}")

    def larger(self, a: str, b: str) -> str:
        """The greater of two i64."""
        return self.call("i64", "llvm.smax.i64", f"i64 {a}", f"i64 {b}")

    def allocate(self, size: int, align: int = 64) -> str:
        """A stack array of ``size`` bytes."""
        name = self.fresh("stack")
        self._allocas.append(f"  {name} = alloca [{size} x i8], align {align}")
        self._level[name] = 0
        return name

    def level(self, name: str) -> int:
        """The loop depth at which a value is computed; 0 for literals and parameters."""
        return self._level.get(name, 0)

    def _barrier(self) -> int:
        for level in range(len(self._regions) - 1, 0, -1):
            if self._regions[level].barrier:
                return level
        return 0

    def _place(self, code: str, prefix: str, floor: int) -> str:
        level = floor
        for name in _NAMES.findall(code):
            level = max(level, self._level.get(name, 0))
        region = self._regions[level]
        known = region.numbered.get(code)
        if known is None:
            known = region.numbered[code] = self.fresh(prefix)
            region.lines.append(f"  {known} = {code}")
            self._level[known] = level
        return known

    # ---------------------------------------------------------------- control flow

    @contextmanager
    def loop(
        self,
        begin: str,
        end: str,
        step: int | str = 1,
        carried: Sequence[Ssa] = (),
        nonempty: bool = False,
    ) -> Iterator[Loop]:
        """``for (index = begin; index < end; index += step)`` with values carried round.

        ``nonempty`` promises ``begin < end``, which spares the test before it.
        """
        level = len(self._regions)
        head, after = self.fresh("loop")[1:], self.fresh("after")[1:]
        counter = self.fresh("i")
        phis = tuple(Ssa(self.fresh("phi"), c.dtype, c.lanes) for c in carried)
        for name in (counter, *(p.name for p in phis)):
            self._level[name] = level
        self._regions.append(_Region(head, skippable=not nonempty))
        handle = Loop(counter, phis)
        yield handle
        following = self.emit(f"add nsw i64 {counter}, {step}")
        more = self.emit(f"icmp slt i64 {following}, {end}")
        region, parent = self._regions.pop(), self._regions[-1]
        if nonempty:
            parent.lines.append(f"  br label %{head}")
        else:
            some = self.fresh("some")
            parent.lines.append(f"  {some} = icmp slt i64 {begin}, {end}")
            parent.lines.append(f"  br i1 {some}, label %{head}, label %{after}")
        entry, latch, lines = parent.label, region.label, parent.lines
        lines.append(f"{head}:")
        lines.append(f"  {counter} = phi i64 [ {begin}, %{entry} ], [ {following}, %{latch} ]")
        for phi, first, last in zip(phis, carried, handle.next, strict=True):
            lines.append(
                f"  {phi.name} = phi {phi.type} [ {first.name}, %{entry} ], "
                f"[ {last.name}, %{latch} ]"
            )
        lines.extend(region.lines)
        lines.append(f"  br i1 {more}, label %{head}, label %{after}")
        lines.append(f"{after}:")
        parent.label = after
        handle.results = self._loop_results(carried, handle.next, entry, latch, nonempty)

    def _loop_results(
        self, first: Sequence[Ssa], last: Sequence[Ssa], entry: str, latch: str, nonempty: bool
    ) -> tuple[Ssa, ...]:
        results = []
        for a, b in zip(first, last, strict=True):
            name = self.fresh("out")
            sources = f"[ {b.name}, %{latch} ]"
            if not nonempty:
                sources = f"[ {a.name}, %{entry} ], {sources}"
            self._regions[-1].lines.append(f"  {name} = phi {b.type} {sources}")
            self._level[name] = len(self._regions) - 1
            results.append(Ssa(name, b.dtype, b.lanes))
        return tuple(results)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Runs what is written inside only if ``condition`` (an i1) holds."""
        then, after = self.fresh("then")[1:], self.fresh("after")[1:]
        self._regions.append(_Region(then, skippable=True, barrier=True))
        yield
        region, parent = self._regions.pop(), self._regions[-1]
        parent.lines.append(f"  br i1 {condition}, label %{then}, label %{after}")
        parent.lines.append(f"{then}:")
        parent.lines.extend(region.lines)
        parent.lines.append(f"  br label %{after}")
        parent.lines.append(f"{after}:")
        parent.label = after

    def open_block(self) -> None:
        """Starts a block after a terminator that was written by hand."""
        label = self.fresh("next")[1:]
        self._regions[-1].lines.append(f"{label}:")
        self._regions[-1].label = label

    def finish(self, linkage: str = "") -> str:
        """The function's whole text."""
        head = f"define {linkage} {self.returns} @{self.name}({', '.join(self.parameters)})"
        lines = [f"{head} nounwind {{", "entry:", *self._allocas, *self._regions[0].lines]
        last = ["  ret void"] if self.returns == "void" else []
        return "\n".join([*lines, *last, "}", ""])


def _type_of(argument: str) -> str:
    """The type of a typed operand: what stands before its name or literal."""
    if argument.startswith("<"):
        return argument[: argument.index(">") + 1]
    return argument.split(" ", 1)[0]
