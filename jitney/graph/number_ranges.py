"""The range of a number that changes from call to call: eager raises where the number does not fit
the dtype that it is converted to.

Fakes and decompositions let such numbers wrap or become infinite: a fill of uint8 with 300, a slope
of 1e39 in float32. Eager itself is asked which dtype that is (the tensor's, the one it computes in,
another): the first limit past which it raises becomes a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.graph.ask_eager import is_asked, refusal_of
from jitney.torch_api import OpOverload

#: What a symbol stands for fits (`capture.symbols.LARGEST_FLOAT`), what is computed of it may not.
_HOLD_SYMBOLS = (torch.float32, torch.bfloat16, torch.float64)
_SYMBOLS = (torch.SymInt, torch.SymFloat)
_Takes = Callable[[int | float], bool]


def check_ranges(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Guards the range that eager accepts for each symbolic number in a call of ``op``. (It accepts
    the number as it is now.)"""
    given = (*args, *kwargs.values())
    if not any(isinstance(x, _SYMBOLS) for x in given) or not is_asked(op):
        return
    dtypes = {x.dtype for x in given if isinstance(x, torch.Tensor)}
    dtypes |= {x for x in given if isinstance(x, torch.dtype)}
    for number, call in _numbers(args, kwargs):

        def takes(n: int | float, call: Any = call) -> bool:
            return not refusal_of(op, *call(n))

        _guard(op, number, dtypes, takes)


def _numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each symbolic number of a call, with a function that makes the call's arguments with another
    number in its place."""
    for at, number in enumerate(args):
        if isinstance(number, _SYMBOLS):
            yield number, lambda n, at=at: ((*args[:at], n, *args[at + 1 :]), kwargs)
    for name, number in kwargs.items():
        if isinstance(number, _SYMBOLS):
            yield number, lambda n, name=name: (args, {**kwargs, name: n})


def _furthest(number: Any, dtypes: set[torch.dtype]) -> int | float:
    """The range that a number may have: for an int what a machine's word holds; for a float 32
    bits, where it is an input and nothing is narrower."""
    if isinstance(number, torch.SymInt):
        return 2**62
    given = torch_api.symbol_expression(number).is_symbol and dtypes.issubset(_HOLD_SYMBOLS)
    return 1e38 if given else 1e300


def _guard(op: OpOverload, number: Any, dtypes: set[torch.dtype], takes: _Takes) -> None:
    whole = isinstance(number, torch.SymInt)
    if not takes(0 if whole else 0.0) and not bool(number != 0):
        raise Unsupported("eager-refuses", f"{op}: a zero")
    most, least = _limits(dtypes)
    for limits, sign in ((most, 1), (least, -1)):
        if takes(sign * _furthest(number, dtypes)):
            continue
        limit = next((x for x in limits if not takes(_past(x, sign, whole))), None)
        if limit is None:  # none that we know: the number is assumed
            int(number) if whole else torch_api.number_of(number)
        elif not bool(number * sign <= limit * sign):
            raise Unsupported("eager-refuses", f"{op}: a number past {limit}")


def _limits(dtypes: set[torch.dtype]) -> tuple[list[Any], list[Any]]:
    """The greatest and the least values that the dtypes hold, nearest to zero first. Negative
    numbers may be refused altogether, wrap in unsigned dtypes, or be negated."""
    most: set[float] = set()
    least: set[float] = {0}
    for dtype in {*dtypes, torch.float32}:
        if not dtype.is_complex and dtype is not torch.bool:
            info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
            most |= {info.max, -info.min}
            least |= {info.min, -info.max}
    return sorted(most), sorted(least, reverse=True)


def _past(limit: int | float, sign: int, whole: bool) -> int | float:
    """A number past a limit."""
    past = limit * 2 if abs(limit) >= 2**62 or isinstance(limit, float) else limit + sign
    return int(past) if whole else float(past)
