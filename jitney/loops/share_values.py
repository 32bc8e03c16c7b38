"""Common subexpressions get a name, and what a loop does not change moves out of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jitney.loops import ir, visit
from jitney.loops.index import Axis, Value

Seen = dict[ir.Expr, ir.Expr]


def share_values(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """An equal block where each value is computed once, as far out as it can be.

    Loads of buffers the block writes stay where they are. Order of evaluation and rounding are
    unchanged: only whole subexpressions are named.
    """
    if not body:
        return body
    unsafe = frozenset(s.buffer for s in visit.stores(body))
    sharing = _Sharing(unsafe, set(visit.bound_names(body)))
    return tuple(sharing.block(body, _Level(None, frozenset())))


@dataclass
class _Level:
    """A block being rebuilt: what it has named, what it binds, its axes and the block outside."""

    outer: _Level | None
    axes: frozenset[Axis]
    known: dict[ir.Expr, ir.Ref] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    pending: list[ir.Stmt] = field(default_factory=list)
    uses: dict[int, int] = field(default_factory=dict)


class _Sharing:
    def __init__(self, unsafe: frozenset[str], taken: set[str]) -> None:
        self.unsafe, self.taken = unsafe, taken
        self.canonical: Seen = {}
        self.facts: dict[int, tuple[frozenset[Axis], frozenset[str], bool]] = {}
        self.count = 0

    # -------------------------------------------------------- structure

    def block(
        self, body: tuple[ir.Stmt, ...], level: _Level, after: tuple[ir.Expr, ...] = ()
    ) -> list[ir.Stmt]:
        """The statements rebuilt, with the Lets they need before them.

        ``after``: expressions that will use the block's values once it has run.
        """
        body = tuple(self.interned(s) for s in body)
        level.uses = _uses(body, after)
        out: list[ir.Stmt] = []
        for stmt in body:
            memo: dict[int, ir.Expr] = {}
            if isinstance(stmt, ir.Let):
                new: ir.Stmt | None = self._let(stmt, level, memo)
            elif isinstance(stmt, ir.Store):
                mask = None if stmt.mask is None else self.named(stmt.mask, level, memo)
                value = self.named(stmt.value, level, memo)
                new = ir.Store(stmt.buffer, stmt.index, value, mask, stmt.mode)
            else:
                new = self._inner(stmt, level)
            out.extend(level.pending)
            level.pending.clear()
            if new is not None:
                out.append(new)
        return out

    def _let(self, stmt: ir.Let, level: _Level, memo: dict[int, ir.Expr]) -> ir.Stmt | None:
        home = self._home(stmt.value, level) if self._shareable(stmt.value) else level
        if home is not level:
            value = self.named(stmt.value, home, {})
            home.pending.append(ir.Let(stmt.name, value))
            home.names.add(stmt.name)
            home.known.setdefault(stmt.value, ir.Ref(stmt.name, stmt.value.dtype))
            return None
        value = self.named(stmt.value, level, memo)
        level.names.add(stmt.name)
        if self._shareable(stmt.value):
            level.known.setdefault(stmt.value, ir.Ref(stmt.name, stmt.value.dtype))
        return ir.Let(stmt.name, value)

    def _inner(self, stmt: ir.Loop | ir.Reduce, level: _Level) -> ir.Stmt:
        inner = _Level(level, frozenset(stmt.axes))
        if isinstance(stmt, ir.Loop):
            return ir.Loop(stmt.axes, tuple(self.block(stmt.body, inner)))
        body = self.block(stmt.body, inner, tuple(r.value for r in stmt.results))
        memo: dict[int, ir.Expr] = {}
        results = tuple(replace(r, value=self.named(r.value, inner, memo)) for r in stmt.results)
        body.extend(inner.pending)
        level.names.update(n for r in stmt.results for n in r.names)
        return ir.Reduce(stmt.axes, tuple(body), results)

    def interned(self, stmt: ir.Stmt) -> ir.Stmt:
        """The statement with equal expressions made the same object."""

        def leaf(e: ir.Expr) -> ir.Expr:
            return self.canonical.setdefault(e, e)

        return visit.map_stmt(stmt, leaf)

    # -------------------------------------------------------- expressions

    def named(self, expr: ir.Expr, level: _Level, memo: dict[int, ir.Expr]) -> ir.Expr:
        """The expression with shared and invariant parts replaced by references to Lets."""
        found = memo.get(id(expr))
        if found is None:
            found = memo[id(expr)] = self._named(expr, level, memo)
        return found

    def _named(self, expr: ir.Expr, level: _Level, memo: dict[int, ir.Expr]) -> ir.Expr:
        if isinstance(expr, ir.Const | ir.Ref | ir.ScalarArg | ir.IndexValue):
            return expr
        shareable = self._shareable(expr)
        if shareable:
            ref = self._known(expr, level)
            if ref is not None:
                return ref
            home = self._home(expr, level)
            if home is not level:
                return self._bind(expr, home)
        value = self._rebuilt(expr, level, memo)
        if shareable and level.uses.get(id(expr), 0) > 1:
            return self._bind_value(expr, value, level)
        return value

    def _rebuilt(self, expr: ir.Expr, level: _Level, memo: dict[int, ir.Expr]) -> ir.Expr:
        if isinstance(expr, ir.Op):
            args = tuple(self.named(a, level, memo) for a in expr.args)
            same = all(x is y for x, y in zip(args, expr.args, strict=True))
            return expr if same else ir.Op(expr.op, args, expr.dtype)
        assert isinstance(expr, ir.Load)
        if expr.mask is None:
            return expr
        return replace(expr, mask=self.named(expr.mask, level, memo))

    def _known(self, expr: ir.Expr, level: _Level | None) -> ir.Ref | None:
        while level is not None:
            ref = level.known.get(expr)
            if ref is not None:
                return ref
            level = level.outer
        return None

    def _bind(self, expr: ir.Expr, home: _Level) -> ir.Expr:
        return self._bind_value(expr, self._rebuilt(expr, home, {}), home)

    def _bind_value(self, expr: ir.Expr, value: ir.Expr, home: _Level) -> ir.Ref:
        self.count += 1
        name = f"v{self.count}"
        while name in self.taken:
            self.count += 1
            name = f"v{self.count}"
        self.taken.add(name)
        home.pending.append(ir.Let(name, value))
        home.names.add(name)
        ref = home.known[expr] = ir.Ref(name, expr.dtype)
        return ref

    def _home(self, expr: ir.Expr, level: _Level) -> _Level:
        """The outermost block where all the expression needs is in scope."""
        axes, names, _ = self._facts(expr)
        while level.outer is not None and not axes & level.axes and not names & level.names:
            level = level.outer
        return level

    def _shareable(self, expr: ir.Expr) -> bool:
        if isinstance(expr, ir.Op | ir.Load):
            return self._facts(expr)[2]
        return False

    def _facts(self, expr: ir.Expr) -> tuple[frozenset[Axis], frozenset[str], bool]:
        """(axes it depends on, bound names it uses, whether it may be computed once)."""
        found = self.facts.get(id(expr))
        if found is not None:
            return found
        axes: frozenset[Axis] = frozenset()
        names: frozenset[str] = frozenset()
        safe = True
        if isinstance(expr, ir.Load | ir.IndexValue):
            atoms = expr.index.atoms()
            axes = frozenset(a for a in atoms if isinstance(a, Axis))
            names = frozenset(a.name for a in atoms if isinstance(a, Value))
            safe = not (isinstance(expr, ir.Load) and expr.buffer in self.unsafe)
        elif isinstance(expr, ir.Ref):
            names = frozenset((expr.name,))
        for child in visit.operands(expr):
            more_axes, more_names, more_safe = self._facts(child)
            axes, names, safe = axes | more_axes, names | more_names, safe and more_safe
        found = self.facts[id(expr)] = (axes, names, safe)
        return found


def _uses(body: tuple[ir.Stmt, ...], after: tuple[ir.Expr, ...]) -> dict[int, int]:
    """How many places of a block (inner blocks excluded) use each expression object."""
    roots = [e for s in body if not isinstance(s, ir.Reduce) for e in visit.stmt_exprs(s)]
    stack = [*roots, *after]
    uses: dict[int, int] = {}
    for expr in stack:
        uses[id(expr)] = uses.get(id(expr), 0) + 1
    seen: set[int] = set()
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        for child in visit.operands(expr):
            uses[id(child)] = uses.get(id(child), 0) + 1
            stack.append(child)
    return uses
