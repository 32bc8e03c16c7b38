"""``tensor[index]`` with symbolic numbers in the index (``table[t]``, ``cache[:, position] =
key``): torch would make constants of them, and each other number would be compiled again."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.lookups import guard_tensor_operator

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_WHOLE = slice(None)


def get_tensor(vm: Interpreter, tensor: torch.Tensor, index: Any) -> Any:
    """``tensor[index]``, recorded."""
    guard_tensor_operator(vm, tensor, "__getitem__")
    if vm.recorder.gathers and _is_of_positions(index):
        return _gathered(vm, tensor, index)
    view = _selected(vm, tensor, index)
    return vm.torch_call(operator.getitem, tensor, index) if view is None else view


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
    if view is None:
        vm.torch_call(operator.setitem, tensor, index, value)
    else:
        vm.torch_call(operator.setitem, view, ..., value)


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
