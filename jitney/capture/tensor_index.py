"""``tensor[index]`` with symbolic numbers in the index (``table[t]``, ``cache[:, position] =
key``): torch would make constants of them, and each other number would be compiled again. And
``tensor[index] = value`` with a number that is a tensor, which torch would ask for its value."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.frame import BreakCapture
from jitney.capture.lookups import guard_tensor_operator

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_WHOLE = slice(None)
_COPY = "take a copy: x.index_select(dim, t.view(1)).squeeze(dim)"


def get_tensor(vm: Interpreter, tensor: torch.Tensor, index: Any) -> Any:
    """``tensor[index]``, recorded."""
    guard_tensor_operator(vm, tensor, "__getitem__")
    if vm.recorder.gathers and _is_of_positions(index):
        return _gathered(vm, tensor, index)
    view = _selected(vm, tensor, index)
    if view is not None:
        return view
    try:
        return vm.torch_call(operator.getitem, tensor, index)
    except BreakCapture as cause:
        parts = index if type(index) is tuple else (index,)
        if cause.kind != "data-dependent" or not any(_is_place(vm, tensor, p) for p in parts):
            raise
        raise BreakCapture(cause.kind, "a view at a place that a tensor tells", _COPY) from cause


def _is_place(vm: Interpreter, tensor: torch.Tensor, part: Any) -> bool:
    """Whether ``part`` is a whole number that is a tensor, and where ``tensor`` is. (One of uint8
    is a mask.)"""
    return (
        isinstance(part, torch.Tensor)
        and part.dim() == 0
        and part.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
        and part.device == tensor.device
        and tensor.layout is torch.strided
        and not vm.recorder.in_transform
    )


def _is_of_positions(index: Any) -> bool:
    """Whether it is one or several whole numbers that are tensors."""
    parts = index if type(index) is tuple else (index,)
    numbers = [x for x in parts if isinstance(x, torch.Tensor) and x.dtype is not torch.bool]
    return 0 < len(numbers) == len(parts) and not any(x.dim() for x in numbers)


def _gathered(vm: Interpreter, tensor: torch.Tensor, index: Any) -> Any:
    """``tensor[index]`` of tensors without dimensions, which torch by itself would ask for their
    values: a gather of one row, and that row."""
    parts = index if type(index) is tuple else (index,)
    rows = tuple([vm.torch_call(torch.Tensor.unsqueeze, part, 0) for part in parts])
    found = vm.torch_call(operator.getitem, tensor, rows)
    return vm.torch_call(torch.Tensor.squeeze, found, 0)


def set_tensor(vm: Interpreter, tensor: torch.Tensor, index: Any, value: Any) -> None:
    """``tensor[index] = value``, recorded."""
    guard_tensor_operator(vm, tensor, "__setitem__")
    view = _selected(vm, tensor, index)
    if view is not None:
        vm.torch_call(operator.setitem, view, ..., value)
        return
    try:
        vm.torch_call(operator.setitem, tensor, index, value)
    except BreakCapture as cause:
        if cause.kind != "data-dependent" or not _set_row(vm, tensor, index, value):
            raise


def _set_row(vm: Interpreter, tensor: torch.Tensor, index: Any, value: Any) -> bool:
    """Sets the part at ``index``, in which one number is a tensor; whether this could be done. (A
    part without elements has nothing that would be found to be out of range.)"""
    parts = index if type(index) is tuple else (index,)
    places = [part for part in parts if isinstance(part, torch.Tensor)]
    others = [part for part in parts if not isinstance(part, torch.Tensor)]
    fits = len(places) == 1 and all(map(_is_basic, others))
    if not fits or sum(part is ... for part in others) > 1 or not _is_place(vm, tensor, places[0]):
        return False
    call = vm.torch_call
    whole = tuple([_WHOLE if part is places[0] else part for part in parts])
    view = get_tensor(vm, tensor, whole)
    if not all(map(torch_api.surely_positive, view.shape)):
        return False
    dim = _dim_of(tensor, parts)
    shape = [*view.shape[:dim], *view.shape[dim + 1 :]]
    row = call(torch.Tensor.unsqueeze, call(torch.Tensor.long, places[0]), 0)
    if type(value) in (int, float, bool):
        call(torch.Tensor.index_fill_, view, dim, row, value)
        return True
    if not isinstance(value, torch.Tensor) or value.device != tensor.device:
        return False
    while value.dim() > len(shape) and type(value.shape[0]) is int and value.shape[0] == 1:
        value = call(torch.Tensor.squeeze, value, 0)
    if value.dim() > len(shape):
        return False
    from_end = call(operator.add, row, view.shape[dim])  # where it is negative
    row = call(torch.where, call(operator.lt, row, 0), from_end, row)
    given = call(torch.Tensor.expand, call(torch.Tensor.to, value, tensor.dtype), shape)
    call(torch.Tensor.index_copy_, view, dim, row, call(torch.Tensor.unsqueeze, given, dim))
    return True


def _dim_of(tensor: torch.Tensor, parts: tuple[Any, ...]) -> int:
    """Which dimension of what the other ``parts`` leave the tensor among them chooses from."""
    taken = sum(part is not None and part is not ... for part in parts)
    dim = 0
    for part in parts:
        if isinstance(part, torch.Tensor):
            break
        dim += tensor.dim() - taken if part is ... else type(part) not in (int, torch.SymInt)
    return dim


def _selected(vm: Interpreter, tensor: torch.Tensor, index: Any) -> Any:
    """The view at ``index`` if it holds symbols among numbers and slices alone, else None: what
    the slices leave, then one `torch.select` for each symbol."""
    parts = index if type(index) is tuple else (index,)
    if not any(type(part) is torch.SymInt for part in parts) or not all(map(_is_basic, parts)):
        return None
    taken = sum(part is not None and part is not ... for part in parts)
    if taken > tensor.dim() or sum(part is ... for part in parts) > 1:
        return None  # an error of eager's
    places: list[tuple[int, Any]] = []
    dim = 0
    for part in parts:
        if type(part) is torch.SymInt:
            places.append((dim, part))
        if part is ...:
            dim += tensor.dim() - taken
        elif type(part) is not int:
            dim += 1
    kept = tuple([_WHOLE if type(part) is torch.SymInt else part for part in parts])
    view = tensor
    if any(part is not ... and part != _WHOLE for part in kept):
        view = vm.torch_call(operator.getitem, tensor, kept)
    for dim, symbol in reversed(places):
        view = vm.torch_call(torch.select, view, dim, symbol)
    return view


def _is_basic(part: Any) -> bool:
    return part is None or part is ... or type(part) in (int, torch.SymInt, slice)
