"""Tensors made of numbers of which some are symbols: torch's functions would read those."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_WHOLE = (int, torch.SymInt)
_REAL = (float, torch.SymFloat)
_LISTS = (list, tuple, torch.Size)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MAKING = (torch.tensor, torch.as_tensor)
_MOST = 64  # numbers, each of which is a node of its own


def tensor_of(
    interpreter: Interpreter, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """What ``torch.tensor``, ``as_tensor`` or ``new_tensor`` make of numbers among which there are
    symbols, which stay symbols. None for other calls, and for what is left to torch."""
    made = _asked(function, args, kwargs)
    if made is None or interpreter.recorder.graph is not interpreter.recorder.main:
        return None
    data, dtype, device = made
    numbers = _numbers(data)
    if numbers is None or not any(isinstance(n, torch.SymInt | torch.SymFloat) for n in numbers):
        return None
    if dtype is None:
        real = any(type(n) in _REAL for n in numbers)
        dtype = torch.get_default_dtype() if real else torch.int64
    if len(numbers) > _MOST or not all(_holds(dtype, n) for n in numbers):
        return None
    options = {"dtype": dtype} if device is None else {"dtype": dtype, "device": device}
    return _made(interpreter, data, options)


def _asked(
    function: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, torch.dtype | None, Any] | None:
    """(the data, the dtype, the device) that a call names. None if it is none of these calls, or
    asks for more."""
    like = None
    if function in _MAKING:
        given = args
    elif getattr(function, "__name__", "") == "new_tensor":
        like, *given = [*_owner_of(function), *args] or [None]
        if not isinstance(like, torch.Tensor):
            return None
    else:
        return None
    options = {"dtype": None, "device": None, **kwargs}
    if like is not None:
        options["dtype"] = like.dtype if options["dtype"] is None else options["dtype"]
        options["device"] = like.device if options["device"] is None else options["device"]
    for name in ("requires_grad", "pin_memory"):
        if options.pop(name, False) is not False:
            return None
    if "data" in options:
        given = [*given, options.pop("data")]
    if len(given) != 1 or options.keys() != {"dtype", "device"}:
        return None
    dtype = options["dtype"]
    return (given[0], dtype, options["device"]) if _is_dtype(dtype) else None


def _owner_of(function: Any) -> list[torch.Tensor]:
    owner = getattr(function, "__self__", None)
    return [owner] if isinstance(owner, torch.Tensor) else []


def _is_dtype(dtype: Any) -> bool:
    return dtype is None or dtype in _FLOATS or dtype in _INTS


def _numbers(data: Any) -> list[Any] | None:
    """The numbers in a rectangle of nested lists; None where it is none, or holds anything else."""
    if type(data) in (*_WHOLE, *_REAL, bool):
        return [data]
    if type(data) not in _LISTS or not data or len({_shape(item) for item in data}) != 1:
        return None
    parts = [_numbers(item) for item in data]
    return None if None in parts else [n for part in parts for n in part or ()]


def _shape(data: Any) -> tuple[int, ...]:
    if type(data) not in _LISTS:
        return ()
    return (len(data), *(_shape(data[0]) if data else ()))


def _holds(dtype: torch.dtype, number: Any) -> bool:
    """Whether a dtype holds a number as it is but for rounding: torch makes infinities of others,
    or raises. For a symbol this is guarded."""
    if dtype in _INTS and type(number) in _REAL:
        return False
    if type(number) not in (torch.SymInt, torch.SymFloat) or dtype is torch.int64:
        return True
    if dtype in _INTS:
        return bool(number >= torch.iinfo(dtype).min) and bool(number <= torch.iinfo(dtype).max)
    largest = torch.finfo(dtype).max
    return bool(number <= largest) and bool(number >= -largest)


def _made(interpreter: Interpreter, data: Any, options: dict[str, Any]) -> torch.Tensor:
    call = interpreter.torch_call
    if type(data) in _LISTS:
        made: torch.Tensor = call(torch.stack, [_made(interpreter, d, options) for d in data])
    elif type(data) not in (torch.SymInt, torch.SymFloat):
        made = call(torch.tensor, data, **options)
    else:
        if options["dtype"] in _FLOATS:  # of an int torch takes the double first
            data = torch.sym_float(data)
        made = call(torch.full, (), data, **options)
    return made
