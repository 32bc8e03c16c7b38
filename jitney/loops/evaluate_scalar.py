"""Runtime scalars computed in Python, for calls that need the number itself."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from jitney.errors import CompilerBug
from jitney.loops.index import Atom
from jitney.loops.ir import Const, IndexValue, Op, ScalarArg

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "neg": operator.neg,
    "cast": float,  # of sizes: runtime scalars compute in doubles
}


def evaluate_scalar(value: Any, scalars: Mapping[str, Any], sizes: Mapping[Atom, int]) -> Any:
    """The number that an expression of `ScalarArg`s and sizes is in this call; any other value is
    itself."""
    if isinstance(value, ScalarArg):
        return scalars[value.name]
    if isinstance(value, Const):
        return value.value
    if isinstance(value, IndexValue):
        return value.index.evaluate(sizes)
    if isinstance(value, Op):
        if value.op not in _OPERATORS:
            raise CompilerBug(f"a runtime scalar is computed by {value.op}")
        operands = (evaluate_scalar(a, scalars, sizes) for a in value.args)
        return _OPERATORS[value.op](*operands)
    return value
