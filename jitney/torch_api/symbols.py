"""Symbolic sizes and numbers: what a SymInt is, what a ShapeEnv assumed of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

from jitney.errors import UserError

LARGEST_WORD = (1 << 63) - (1 << 40)  # with room for what is added to it


def symbolic_expression(value: torch.SymInt) -> tuple[int | None, Any, Any]:
    """(the integer if it is one, else None; the sympy expression; the ShapeEnv) of a SymInt."""
    node: Any = value.node
    known = node.maybe_as_int()
    if known is not None:
        return int(known), None, None
    return None, node.expr, node.shape_env


def symbol_range(symbol: Any, shape_env: Any) -> tuple[int | None, int | None, int | None]:
    """(least, greatest, example) value of a ShapeEnv symbol, None where unknown."""
    known = shape_env.var_to_range.get(symbol)
    low = high = None
    if known is not None:
        low = int(known.lower) if known.lower.is_Integer else None
        high = int(known.upper) if known.upper.is_Integer else None
    hint = symbol_hint(symbol, shape_env)
    return low, high, None if hint is None else int(hint)


def symbol_hint(symbol: Any, shape_env: Any) -> Any:
    """The number (sympy's) that a ShapeEnv's symbol stands for now; None where none is known."""
    values = getattr(shape_env, "backed_var_to_val", None)  # torch >= 2.12
    if values is None:
        values = shape_env.var_to_val
    return values.get(symbol)


def assumes_order(least: Any, most: Any, shape_env: Any) -> bool:
    """Whether ``least <= most`` (sympy expressions) holds of the sizes that symbols stand for now:
    the ShapeEnv keeps the answer as a guard unless it follows from what it knows. False, and no
    guard, where sizes come from data, or guards can no longer be added."""
    import sympy

    expression = sympy.Le(least, most)
    from_data = any(symbol_range(s, shape_env)[2] is None for s in expression.free_symbols)
    if from_data or shape_env.frozen:
        return False
    return bool(shape_env.evaluate_expr(expression))


def kept_at(expression: Any, shape_env: Any) -> int | None:
    """The integer at which guards that the ShapeEnv has keep a composed size, None where they do
    not: one, where a tensor of that size was found to broadcast, and what a quotient was compared
    with, as in a loop over the parts of a row."""
    import sympy

    values = {s: symbol_hint(s, shape_env) for s in expression.free_symbols}
    value = sympy.S.One if None in values.values() else expression.xreplace(values)
    if value != 1 and type(expression).__name__ != "FloorDiv":
        return None
    kept = shape_env._maybe_evaluate_static(sympy.Eq(expression, value)) is sympy.true
    return int(value) if kept else None


def guarded_comparisons(shape_env: Any) -> list[tuple[Any, Any, int | None, int | None]]:
    """(left, right, least, most): guards keep the difference of two integer expressions of one
    symbol between ``least`` and ``most`` (None: no bound). Others that they keep at a number count
    as that: ``i < s`` says of ``i`` what it says with the size in the place of ``s``."""
    import sympy

    orders = {
        sympy.Eq: (0, 0),
        sympy.Le: (None, 0),
        sympy.Lt: (None, -1),
        sympy.Ge: (0, None),
        sympy.Gt: (1, None),
    }
    found = {}
    fixed = {s: e for s in shape_env.replacements if (e := shape_env.replace(s)).is_Integer}
    given = [guard.expr for guard in list(shape_env.guards)]
    for guard in dict.fromkeys((*given, *(guard.xreplace(fixed) for guard in given))):
        for part in sympy.And.make_args(guard):
            bounds = orders.get(type(part))
            symbols = part.free_symbols
            if bounds and len(symbols) == 1 and all(side.is_integer for side in part.args):
                found[part] = (*part.args, *bounds)
    return list(found.values())


def fits_a_word(expression: Any, shape_env: Any) -> bool:
    """Whether an integer expression is assumed to be less than `LARGEST_WORD`. If it depends on no
    Python int, this is known: it consists of sizes, and memory is not larger."""
    if not expression.is_integer or all(s.is_nonnegative for s in expression.free_symbols):
        return True
    if not assumes_order(-LARGEST_WORD, expression, shape_env):
        return False
    return assumes_order(expression, LARGEST_WORD, shape_env)


def symbol_expression(value: Any) -> Any:
    """The sympy expression of a SymInt, SymFloat or SymBool (a sympy number if it is constant)."""
    return value.node.expr


def shape_expression_names() -> dict[str, Any]:
    """What the text of a ShapeEnv guard may name besides its symbols."""
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    return {**SYMPY_INTERP, "math": math, "torch": torch}


def symbol_name(value: Any) -> str | None:
    """The name of the symbol a SymInt or SymFloat is; None if it is a number or an expression."""
    expression = value.node.expr
    return str(expression) if expression.is_Symbol else None


def expression_text(value: Any) -> tuple[str, tuple[str, ...]]:
    """(Python text of a symbolic scalar, names of the symbols in it)."""
    return _python_text(value.node.expr)


def _python_text(expression: Any) -> tuple[str, tuple[str, ...]]:
    from torch.utils._sympy.printers import PythonPrinter

    names = tuple(sorted(str(s) for s in expression.free_symbols))
    return PythonPrinter().doprint(expression), names


def shape_assumptions(
    shape_env: Any, symbols: Any, limit: float
) -> list[tuple[str, tuple[str, ...], str]]:
    """(Python text, names of symbols in it, where it was assumed) of a ShapeEnv's guards and of
    the ranges of the ``symbols`` (names) that inputs give. Floats are less than ``limit`` from
    zero: sympy takes its symbols for numbers, equal to themselves and less than infinity."""
    found = []
    for guard in list(shape_env.guards):
        expression = shape_env.simplify(guard.expr)
        while expression.free_symbols & shape_env.replacements.keys():
            # torch's cache may know less: other threads' ShapeEnvs share it, and its one count
            expression = expression.xreplace(shape_env.replacements)
        if str(expression) != "True":
            text, names = _python_text(expression)
            found.append((text, names, str(getattr(guard.sloc, "user_loc", "") or "")))
    for symbol, bounds in shape_env.var_to_range.items():
        if str(symbol) in symbols and symbol not in shape_env.replacements:
            if not symbol.is_integer:
                found.append((f"-{limit!r} < {symbol}", (str(symbol),), "range"))
                found.append((f"{symbol} < {limit!r}", (str(symbol),), "range"))
                continue
            low, high = bounds.lower, bounds.upper
            if low.is_Integer and (low > 0 or not symbol.is_nonnegative):
                found.append((f"{low} <= {symbol}", (str(symbol),), "range"))
            if high.is_Integer and high < 2**62:
                found.append((f"{symbol} <= {high}", (str(symbol),), "range"))
    return found


def _symbol_source(text: str) -> Any:
    """A torch Source that is only a name: ours know how to fetch."""
    from torch._guards import GuardSource, Source

    class Named(Source):
        name = _name_template = text
        guard_source = GuardSource.LOCAL

        def __hash__(self) -> int:
            return hash(text)

        def __eq__(self, other: object) -> bool:
            return self is other

    return Named()


def symbolic_fake_of(
    mode: Any, tensor: torch.Tensor, name: str, dynamic: frozenset[int], marked: frozenset[int]
) -> Any:
    """A FakeTensor whose sizes in ``dynamic`` are symbols; equal sizes share one, except
    ``marked`` ones. ``name``: how errors and symbols call the tensor. UserError: a size outside
    the ``min`` and ``max`` of its mark."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    unmarked = [DimDynamic.DUCK if d in dynamic else DimDynamic.STATIC for d in range(tensor.dim())]
    kinds = [DimDynamic.DYNAMIC if d in marked else kind for d, kind in enumerate(unmarked)]
    ranges = [_marked_range(tensor, d, name) if d in marked else None for d in range(tensor.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds, constraint_sizes=ranges)
    if tensor._is_view() and not tensor.requires_grad:
        # The same memory, not a view: a base of fixed size would specialise.
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            place = (tensor.storage_offset(), tensor.size(), tensor.stride())
            alone = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            tensor = alone.set_(tensor.untyped_storage(), *place)
    return mode.from_tensor(
        tensor, static_shapes=False, source=_symbol_source(name), symbolic_context=context
    )


def _marked_range(tensor: torch.Tensor, dim: int, name: str) -> Any:
    """What the ``min`` and ``max`` of ``mark_dynamic`` let the size be, None without either."""
    from torch.fx.experimental.symbolic_shapes import StrictMinMaxConstraint
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    ranges = [r for r in getattr(tensor, "_dynamo_dynamic_range", ()) if r.dim == dim]
    low = max((r.min for r in ranges if r.min is not None), default=0)
    high = min((r.max for r in ranges if r.max is not None), default=int_oo)
    if not low <= tensor.shape[dim] <= high:
        raise UserError(
            f"dimension {dim} of {name} is {tensor.shape[dim]}, but the min and max given to "
            f"mark_dynamic allow {low} to {high}"
        )
    if not low and high is int_oo:
        return None
    return StrictMinMaxConstraint(vr=ValueRanges(low, high), warn_only=False)


def symbolic_number(shape_env: Any, value: int | float, name: str, limit: int) -> Any:
    """A SymInt or SymFloat for a Python number; of an int it is assumed that it is no further
    from zero than ``limit``."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StrictMinMaxConstraint
    from torch.utils._sympy.value_ranges import ValueRanges

    source = _symbol_source(name)
    bounds = StrictMinMaxConstraint(vr=ValueRanges(-limit, limit), warn_only=False)
    symbol = shape_env.create_unspecified_symbol(
        value,
        source=source,
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=bounds if isinstance(value, int) else None,
    )
    if isinstance(value, int):
        return shape_env.create_symintnode(symbol, hint=value, source=source)
    return shape_env.create_symfloatnode(symbol, hint=value, source=source)


def has_symbols(shape_env: Any) -> bool:
    """Whether any size or number is symbolic."""
    return bool(shape_env.var_to_range)


def free_symbols(value: Any) -> frozenset[Any]:
    """The sympy symbols in a SymInt, SymFloat or SymBool."""
    return frozenset(getattr(value.node.expr, "free_symbols", ()))


def has_numbers(value: Any) -> bool:
    """Whether a SymInt depends on a Python int, not on sizes of tensors alone."""
    return any(symbol.is_nonnegative is None for symbol in free_symbols(value))


def constant_of(value: Any) -> Any:
    """The number that a SymInt, SymFloat or SymBool is known to be, else None."""
    expr = value.node.expr
    if getattr(expr, "free_symbols", None):
        return None
    if isinstance(value, torch.SymInt):
        return int(expr)
    return number_of(value) if isinstance(value, torch.SymFloat) else bool(expr)


def number_of(value: torch.SymFloat) -> float:
    """The number that a SymFloat is now, which becomes a guard. Sympy has no -0.0, and a guard
    would take it for 0.0: so for a zero the symbols from which it was computed are guarded."""
    import sympy

    node: Any = value.node
    if type(node.hint) is not float or node.hint != 0:
        return float(value)
    for symbol in node._expr.free_symbols:
        hint = symbol_hint(symbol, node.shape_env)
        node.shape_env.evaluate_expr(sympy.Eq(symbol, hint))
    return node.hint


def is_one_step(result: Any, left: Any, right: Any) -> bool:
    """Whether the expression of a SymFloat is, and stays, just the sum, the difference or the
    product that it was made as, of ``left`` and ``right``. Sympy adds constants up, multiplies
    sums out (in guards, too) and orders terms anew; each of Python's steps is rounded."""
    import sympy

    if not isinstance(result, torch.SymFloat):
        return True
    made = result.node.expr
    parts = [_float_expression(v) for v in (left, right)]
    if made in parts:
        return any(part.is_number for part in parts)
    if isinstance(made, sympy.Add):
        found = set(map(_as_float, made.args))
        return len(made.args) == 2 and any({parts[0], s * parts[1]} == found for s in (1, -1))
    if any(isinstance(p, sympy.Add) for p in parts):
        return False
    square = isinstance(made, sympy.Pow) and made.args[0] == parts[0] == parts[1]
    return square or (len(made.args) == 2 and set(parts) == set(map(_as_float, made.args)))


def _float_expression(value: Any) -> Any:
    """The expression of a number of Python's or a symbol in an expression of floats."""
    if isinstance(value, torch.SymInt):
        value = torch.sym_float(value)
    return _as_float(value.node.expr if isinstance(value, torch.SymFloat) else value)


def _as_float(expression: Any) -> Any:
    import sympy

    number = isinstance(expression, int | float) or expression.is_number
    return sympy.Float(float(expression)) if number else expression


def as_one_term(value: Any) -> Any:
    """A SymFloat of the same value whose expression sympy does not look into."""
    plain = not isinstance(value, torch.SymFloat) or not value.node.expr.args
    return value if plain or type(value.node.expr).__name__ == "FloatTrueDiv" else value / 1.0


#: What lowering can compute of floats: `jitney.loops.evaluate_scalar` and the kernels agree.
_FLOAT_STEPS = ("Add", "Mul", "FloatTrueDiv", "IntTrueDiv", "FloatPow", "ToFloat")


def can_build(value: Any) -> bool:
    """Whether a graph can compute a symbol's expression: sizes by any integer arithmetic, floats
    by the four operations and powers."""
    return isinstance(value, torch.SymBool) or _can_build(value.node.expr)


def _can_build(expression: Any) -> bool:
    if expression.is_Symbol or expression.is_number:
        return True
    if expression.is_integer:
        return all(symbol.is_integer for symbol in expression.free_symbols)
    return type(expression).__name__ in _FLOAT_STEPS and all(map(_can_build, expression.args))


def build_expression(graph: Any, value: Any, nodes: dict[Any, Any]) -> Any:
    """A node that computes a symbol's expression from its symbols' ``nodes``, added to the end."""
    from torch.fx.proxy import GraphAppendingTracer, Proxy
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = GraphAppendingTracer(graph)
    proxies = {symbol: Proxy(node, tracer) for symbol, node in nodes.items()}

    def recorded(function: Any, operands: int) -> Any:
        return staticmethod(
            lambda *args: tracer.create_proxy("call_function", function, args[:operands], {})
        )

    class Analysis(PythonReferenceAnalysis):
        trunc_to_int = recorded(math.trunc, 1)
        floor_to_int = recorded(math.floor, 1)
        ceil_to_int = recorded(math.ceil, 1)
        round_to_int = recorded(round, 1)
        round_decimal = recorded(round, 2)
        int_truediv = recorded(operator.truediv, 2)

    return sympy_interp(Analysis, proxies, value.node.expr).node


def is_symbolic(value: Any) -> bool:
    """A SymInt, SymFloat or SymBool that is not a constant, or a tensor with such a size."""
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        return any(type(size) is not int and is_symbolic(size) for size in sizes)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return not value.node.expr.is_number
    return False


def was_symbolic(value: Any) -> bool:
    """Whether a number, or a size of a tensor, is symbolic or was before a guard made it constant:
    so long as it was not made anew, torch's C++ code takes it for symbolic."""
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride(), value.storage_offset())
        return any(type(size) is not int for size in sizes)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def ask_anew(values: Iterable[Any]) -> Callable[[], bool]:
    """From now on torch tells all that follows from guards on the sizes among ``values``: of itself
    it repeats what it could not tell before a guard was made. Returns whether there are more
    guards since."""
    env = _shape_env(values)
    if env is None:
        return lambda: False
    env._version_counter += 1  # clears its caches
    known = len(env.guards)
    return lambda: len(env.guards) > known


def _shape_env(values: Iterable[Any]) -> Any:
    """That of the first symbol among ``values`` and their sizes; None where nothing is symbolic."""
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
                return size.node.shape_env
    return None


def hint_of(size: Any) -> int:
    """A likely value of a size that may be symbolic (4096 where nothing is known)."""
    if isinstance(size, int):
        return size
    if size.node.has_hint():
        return int(size.node.hint)
    return 4096


def number_now(value: Any) -> Any:
    """The number that a symbol is now, without a guard (if that is not known, one of its kind);
    anything else as it is."""
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        return value
    kind = int if isinstance(value, torch.SymInt) else float
    return kind(value.node.hint if value.node.has_hint() else 1)


def surely_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever their symbols are; adds no guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if is_symbolic(a) and is_symbolic(b):
        return bool(a.node.expr == b.node.expr)
    return False


def surely_positive(size: Any) -> bool:
    """Whether a size is at least 1 whatever its symbols are; adds no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(size > 0))


def is_symbolic_value(node: torch.fx.Node) -> bool:
    """Whether a graph node's value, or an operand's, has a symbolic size."""
    return any(
        isinstance(value, torch.Tensor) and is_symbolic(value)
        for value in (node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes))
    )
