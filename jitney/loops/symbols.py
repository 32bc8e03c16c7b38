"""torch's symbolic sizes as `Index`: a one-way translation that keeps what is known of ranges."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.loops.index import Dim, Index, bare_dim, floor_div, index, modulo
from jitney.loops.ir import Assumption

#: What was translated of each ShapeEnv. A symbol keeps the range it was first seen with, so that
#: equal sizes stay equal values (a range can only narrow: the first one stays true).
_tables: WeakKeyDictionary[Any, dict[Any, Index]] = WeakKeyDictionary()

#: Ways to make a quotient whole; whether it is rounded up. (The last one is up below zero.)
_ROUNDED = {"CeilToInt": 1, "FloorToInt": 0, "TruncToInt": 0}
_FEW = 1 << 10  # times a size an integer that float64 holds


def to_index(value: int | torch.SymInt) -> Index:
    """A size as an `Index`: symbols become `Dim`s with the range and hint ShapeEnv knows, and what
    a guard keeps at one is one, so that it broadcasts.

    Raises Unsupported where the expression has no counterpart (a maximum, a float).
    """
    if not isinstance(value, torch.SymInt):
        return index(int(value))
    known, expr, shape_env = torch_api.symbolic_expression(value)
    if known is not None:
        return index(known)
    return _translated(expr, shape_env, _tables.setdefault(shape_env, {}))


def assumptions_of(shape_env: Any) -> tuple[Assumption, ...]:
    """What its guards say of single symbols that were translated: their ranges, where these are
    narrower than they were then, and comparisons of what is computed from one."""
    symbols = {e: size for e, size in _tables.get(shape_env, {}).items() if e.is_Symbol}
    found: dict[Assumption, None] = {}
    for symbol, size in symbols.items():
        dim, (low, high, _) = bare_dim(size), torch_api.symbol_range(symbol, shape_env)
        if dim is not None and (dim.low, dim.high) != (low, high):
            found[Assumption(size, low, high)] = None
    for left, right, low, high in torch_api.guarded_comparisons(shape_env):
        if left.free_symbols | right.free_symbols <= symbols.keys():
            table = dict(symbols)  # in which no size is one because a guard says so
            try:
                gap = _translated(left, None, table) - _translated(right, None, table)
            except Unsupported:
                continue
            found[Assumption(gap, low, high)] = None
    return tuple(found)


def _translated(expr: Any, shape_env: Any, table: dict[Any, Index]) -> Index:
    found = table.get(expr)
    if found is None:
        found = table[expr] = _translate(expr, shape_env, table)
    return found


def _translate(expr: Any, shape_env: Any, table: dict[Any, Index]) -> Index:
    """Without a ``shape_env``, ``table`` holds its symbols, and no guard is asked or added."""
    if expr.is_Symbol and shape_env is not None:
        low, high, hint = torch_api.symbol_range(expr, shape_env)
        low = -(1 << 62) if low is None else low
        return index(Dim(expr.name, low, high, 64 if hint is None else hint))
    if expr.is_Integer:
        return index(int(expr))
    kept = None if shape_env is None else torch_api.kept_at(expr, shape_env)
    if kept is not None:
        return index(kept)
    kind = type(expr).__name__
    if kind == "Pow":
        base, power = expr.args
        if not power.is_Integer or int(power) < 0:
            raise _no_counterpart(expr)
        result = index(1)
        for _ in range(int(power)):
            result = result * _translated(base, shape_env, table)
        return result
    if kind in _ROUNDED:
        return _made_whole(expr, shape_env, table)
    parts = [_translated(arg, shape_env, table) for arg in expr.args]
    if kind == "Add":
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    if kind == "Mul":
        product = parts[0]
        for part in parts[1:]:
            product = product * part
        return product
    if kind in ("FloorDiv", "CleanDiv"):
        return floor_div(*parts)
    if kind in ("Mod", "PythonMod"):
        return modulo(*parts)
    if kind == "ModularIndexing":
        return modulo(floor_div(parts[0], parts[1]), parts[2])
    if kind in ("Max", "Min"):
        sign = 1 if kind == "Max" else -1
        extreme = _known_extreme(parts, sign)
        if extreme is None and shape_env is not None:
            extreme = _assumed_extreme(expr.args, parts, sign, shape_env)
        if extreme is not None:
            return extreme
    raise _no_counterpart(expr)


def _made_whole(expr: Any, shape_env: Any, table: dict[Any, Index]) -> Index:
    kind = type(expr).__name__
    top, bottom = _quotient(expr.args[0], shape_env, table)
    low, _ = top.bounds()
    if bottom > 0 and (kind != "TruncToInt" or (low is not None and low >= 0)):
        return floor_div(top + _ROUNDED[kind] * (bottom - 1), index(bottom))
    raise _no_counterpart(expr)


def _quotient(expr: Any, shape_env: Any, table: dict[Any, Index]) -> tuple[Index, int]:
    """A float as (top, bottom) of a quotient of integers, where it is one, or as (0, 0): a size by
    a number, or times one of few bits (``scale_factor=1.5``)."""
    kind, parts = type(expr).__name__, expr.args
    if kind == "IntTrueDiv":
        top, bottom = (_translated(part, shape_env, table) for part in parts)
        return (top, int(bottom.const)) if bottom.is_const else (index(0), 0)
    if kind == "Mul" and len(parts) == 2 and parts[0].is_Float:
        factor, divisor = float(parts[0]).as_integer_ratio()
        if type(parts[1]).__name__ == "ToFloat" and 0 < factor < _FEW:
            return _translated(parts[1].args[0], shape_env, table) * factor, divisor
    return index(0), 0


def _known_extreme(parts: list[Index], sign: int) -> Index | None:
    """The greatest (``sign`` 1) or least (-1) of ``parts`` where ranges tell which it is."""
    for part in parts:
        gaps = [((part - other) * sign).bounds()[0] for other in parts if other is not part]
        if all(gap is not None and gap >= 0 for gap in gaps):
            return part
    return None


def _assumed_extreme(args: Any, parts: list[Index], sign: int, shape_env: Any) -> Index | None:
    """The greatest or least of ``parts`` for the sizes at hand, which a guard then keeps: what is
    ``max(1, size)``, as in a stride, is the size until an empty tensor comes."""
    chosen = 0
    for i in range(1, len(args)):
        less, more = (args[chosen], args[i])[::sign]
        if torch_api.assumes_order(less, more, shape_env):
            chosen = i
        elif not torch_api.assumes_order(more, less, shape_env):
            return None
    return parts[chosen]


def _no_counterpart(expr: Any) -> Unsupported:
    return Unsupported(
        "symbolic-size",
        f"the size {expr} depends on symbolic sizes in a way loop nests cannot express",
        "mark this size static, or compute it outside the compiled region",
    )
