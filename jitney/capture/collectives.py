"""Collectives of `torch.distributed`, as operators in the graph whose results are waited for.

An operator finds its group by name when it runs. Which group that is, this process's rank in it
and its size become constants: a group that the program holds is guarded by identity, that of all
processes by its name, rank and size. What is not captured (``async_op``, gradients of a collective
that writes, groups that this process is not in) runs eager, between graphs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.builtin_calls import ONE, Handler, builtin
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.guard import Kind
from jitney.capture.leaves import name_of
from jitney.capture.source import Fixed, Function, Referent
from jitney.torch_api import collectives, names

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

Given = dict[str, Any]  # the arguments of a call, by name


def default_group(interpreter: Interpreter, *rest: Any) -> Any:
    """``torch.distributed.group.WORLD``."""
    group = collectives.default_group()
    return interpreter.world.read(group, Referent(Fixed(collectives.default_group)))


def rank(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, *_: Any) -> int:
    """``torch.distributed.get_rank``, of the default group alone or of one held by the program."""
    return _group(interpreter, function, _bound(interpreter, function, args, kwargs)).rank


def world_size(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, *_: Any) -> int:
    """``torch.distributed.get_world_size``."""
    return _group(interpreter, function, _bound(interpreter, function, args, kwargs)).size


@builtin(collectives.method_of_groups("rank"), takes=ONE)
def rank_of(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, *_: Any) -> int:
    """``group.rank()``."""
    return _group(interpreter, function, {"group": interpreter.world.force(args[0])}).rank


@builtin(collectives.method_of_groups("size"), takes=ONE)
def size_of(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, *_: Any) -> int:
    """``group.size()``."""
    return _group(interpreter, function, {"group": interpreter.world.force(args[0])}).size


def of_mesh(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, *_: Any) -> Any:
    """A method of a mesh of devices that gives a number or one of its process groups."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    _guard_held(interpreter, function, values[0])
    value = interpreter.native(function, *values, **keywords)
    if not collectives.is_group(value):
        return value
    asked = Referent(Fixed(partial(function, *values, **keywords)))
    return interpreter.world.read(value, asked)


def _guard_held(interpreter: Interpreter, function: Any, group: Any) -> None:
    """Guards which group, or mesh, the program holds."""
    source = interpreter.world.source_of(group)
    if source is None:
        raise _refusal(function, "its group was made in the function")
    interpreter.world.guard(Kind.IS, source, group)


def _bound(interpreter: Interpreter, function: Any, args: Any, kwargs: Any) -> Given:
    """The arguments by name, with the function's own defaults."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    try:
        bound = _signature(function).bind(*values, **keywords)
    except TypeError as error:
        raise BreakCapture("collective", str(error)) from error
    bound.apply_defaults()
    return dict(bound.arguments)


@cache
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def _group(interpreter: Interpreter, function: Any, given: Given) -> collectives.Group:
    """The group that a call is given, guarded."""
    asked, world = given["group"], interpreter.world
    parts = asked if isinstance(asked, tuple) else (asked,)
    try:
        group = collectives.group_of(asked, given.get("tag", ""))
    except Exception as error:  # eager raises it
        raise _refusal(function, f"{type(error).__name__}: {error}") from error
    if not collectives.is_group(group) or group.rank() < 0:
        raise _refusal(function, "this process is in no such group")
    if collectives.is_coalescing(group):
        raise _refusal(function, "it is among others that begin together")
    for part in filter(collectives.is_group, parts):
        _guard_held(interpreter, function, part)
    if not any(map(collectives.is_group, parts)):
        facts = collectives.default_group_facts()
        world.guard(Kind.STATE, Function(), (names.DEFAULT_GROUP, facts), names.DEFAULT_GROUP)
    return collectives.facts_of(group)


def _refusal(function: Any, why: str) -> BreakCapture:
    hint = "it runs between graphs; torch.distributed's other collectives are captured"
    return BreakCapture("collective", f"{name_of(function)} is not captured: {why}", hint)


class _Calls:
    """What the collectives below are written with: calls of operators that go into the graph."""

    def __init__(self, interpreter: Interpreter, function: Any, given: Given) -> None:
        self._interpreter = interpreter
        self._function = function
        self.group = _group(interpreter, function, given)

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._interpreter.torch_call(function, *args)

    def collective(self, name: str, *args: Any) -> torch.Tensor:
        """The result of an operator of `torch.distributed`, waited for."""
        begun = self(collectives.collective(name), *args, self.group.name)
        waited: torch.Tensor = self(collectives.collective("wait_tensor"), begun)
        return waited

    def refusal(self, why: str) -> BreakCapture:
        """A break before the collective, which then runs eager."""
        return _refusal(self._function, why)

    def reduction(self, op: Any, by_name: bool = False) -> str:
        """The name of a reduction, which functional collectives alone take ``by_name``."""
        name = collectives.reduction_named(op)
        if name is None or (isinstance(op, str) and not by_name):
            raise self.refusal(f"the reduction {op} has no operator")
        return name

    def rank_inside(self, group: Any, rank: int) -> int:
        """The rank in a group of the process that has ``rank`` among all."""
        try:
            return collectives.rank_inside(group, rank)
        except ValueError as error:  # eager raises it
            raise self.refusal(str(error)) from error

    def listed(self, tensors: Any) -> list[Any]:
        """``tensors``, which eager takes as a list alone."""
        if type(tensors) is not list:
            raise self.refusal("its tensors are no list")
        return tensors

    def dimension(self, tensor: torch.Tensor, dim: int) -> int:
        """``dim``, one of the tensor's."""
        if not 0 <= dim < tensor.dim():
            raise self.refusal(f"a tensor of {tensor.dim()} dimensions has no dimension {dim}")
        return dim

    def refuse_gradients(self, *tensors: torch.Tensor) -> None:
        """Breaks before a collective that autograd knows no gradient of."""
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise self.refusal("a tensor requires grad, and autograd knows no gradient of it")

    def write(self, value: torch.Tensor, into: torch.Tensor) -> None:
        """Writes a result of the same shape into a tensor of the program."""
        self(torch.Tensor.copy_, into, value)

    def refuse_unusual(self, *tensors: Any) -> None:
        """Breaks before a collective that writes what eager might refuse, or treat in another way:
        anything but tensors in rows, one after the other, of one dtype, without gradients."""
        plain = all(isinstance(x, torch.Tensor) and x.layout is torch.strided for x in tensors)
        if not plain or not all(x.is_contiguous() and x.dim() for x in tensors):
            raise self.refusal("it is given something else than contiguous tensors of rows")
        if len({x.dtype for x in tensors}) > 1 or tensors[0].is_complex():
            raise self.refusal("it is given several dtypes, or complex numbers")
        self.refuse_gradients(*tensors)


Collective = Callable[[_Calls, Given], Any]


def _capturing(collective: Collective) -> Handler:
    def handler(
        interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
    ) -> Any:
        given = _bound(interpreter, function, args, kwargs)
        if given.get("async_op"):
            raise _refusal(function, "it is waited for by the program")
        try:
            return collective(_Calls(interpreter, function, given), given)
        except BreakCapture:
            interpreter.native_broke = True  # it may be in the graph: break before it
            raise

    return handler


def wait(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, *_: Any) -> Any:
    """``wait_tensor`` of torch's functional collectives."""
    given = _bound(interpreter, function, args, kwargs)
    return interpreter.torch_call(collectives.collective("wait_tensor"), given["tensor"])


# ---------------------------------------------------------- of what they are given, into a result


def _reduced(calls: _Calls, given: Given) -> Any:
    reduction = calls.reduction(given["reduceOp"], by_name=True)
    return calls.collective("all_reduce", given["self"], reduction)


def _broadcast(calls: _Calls, given: Given) -> Any:
    calls.refuse_gradients(given["self"])
    return calls.collective("broadcast", given["self"], given["src"])


def _gathered(calls: _Calls, given: Given) -> Any:
    dim = calls.dimension(given["self"], given["gather_dim"])
    if not given["self"].is_contiguous():  # torch 2.11 raises
        raise calls.refusal("it is given a tensor that is not contiguous")
    whole = calls.collective("all_gather_into_tensor", given["self"], calls.group.size)
    return whole if dim == 0 else calls(torch.cat, calls(torch.chunk, whole, calls.group.size), dim)


def _scattered(calls: _Calls, given: Given) -> Any:
    whole, size = given["self"], calls.group.size
    dim = calls.dimension(whole, given["scatter_dim"])
    if whole.shape[dim] % size:
        raise calls.refusal(f"{whole.shape[dim]} rows are not {size} equal parts")
    if dim != 0:
        whole = calls(torch.cat, calls(torch.chunk, whole, size, dim))
    reduction = calls.reduction(given["reduceOp"], by_name=True)
    return calls.collective("reduce_scatter_tensor", whole, reduction, size)


def _exchanged(calls: _Calls, given: Given) -> Any:
    rows = given["self"]
    return calls.collective("all_to_all_single", rows, *_parts(calls, rows, given))


def _parts(calls: _Calls, rows: torch.Tensor, given: Given) -> tuple[list[int], list[int]]:
    """How many rows each process sends to each, received and sent: as given, or equal parts."""
    received, sent = given["output_split_sizes"], given["input_split_sizes"]
    calls.dimension(rows, 0)
    size = calls.group.size
    if (received is None) != (sent is None) or rows.shape[0] % size and sent is None:
        raise calls.refusal("its parts are not equal, and not told both ways")
    parts = [rows.shape[0] // size] * size
    return (parts, parts) if sent is None else (list(received), list(sent))


# --------------------------------------------------- of what they are given, into another of these


def _reduce(calls: _Calls, given: Given) -> None:
    tensor = given["tensor"]
    calls.refuse_unusual(tensor)
    calls.write(calls.collective("all_reduce", tensor, calls.reduction(given["op"])), tensor)


def _broadcast_to(calls: _Calls, given: Given) -> None:
    tensor, source = given["tensor"], given.get("group_src")
    calls.refuse_unusual(tensor)
    if source is None:
        source = calls.rank_inside(given["group"], given["src"])
    elif given["src"] is not None:
        raise calls.refusal("its source is given twice")
    calls.write(calls.collective("broadcast", tensor, source), tensor)


def _gather_into(calls: _Calls, given: Given) -> None:
    output, part, size = given["output_tensor"], given["input_tensor"], calls.group.size
    calls.refuse_unusual(output, part)
    if tuple(output.shape) != (part.shape[0] * size, *part.shape[1:]):  # some backends stack them
        raise calls.refusal(f"{tuple(output.shape)} is not {size} of {tuple(part.shape)}")
    calls.write(calls.collective("all_gather_into_tensor", part, size), output)


def _gather(calls: _Calls, given: Given) -> None:
    outputs, part, size = given["tensor_list"], given["tensor"], calls.group.size
    calls.refuse_unusual(*calls.listed(outputs), part)
    if len(outputs) != size or any(output.shape != part.shape for output in outputs):
        raise calls.refusal(f"it is not given {size} tensors of {tuple(part.shape)}")
    whole = calls.collective("all_gather_into_tensor", part, size)
    for index, output in enumerate(outputs):
        rows = part.shape[0]
        calls.write(calls(torch.narrow, whole, 0, index * rows, rows), output)


def _scatter_into(calls: _Calls, given: Given) -> None:
    whole, output, size = given["input"], given["output"], calls.group.size
    calls.refuse_unusual(whole, output)
    if tuple(whole.shape) != (output.shape[0] * size, *output.shape[1:]):
        raise calls.refusal(f"{tuple(whole.shape)} is not {size} of {tuple(output.shape)}")
    reduction = calls.reduction(given["op"])
    calls.write(calls.collective("reduce_scatter_tensor", whole, reduction, size), output)


def _scatter(calls: _Calls, given: Given) -> None:
    parts, output, size = given["input_list"], given["output"], calls.group.size
    calls.refuse_unusual(*calls.listed(parts), output)
    if not output.is_cuda:  # another process may run eager: Gloo sends lists in other messages
        raise calls.refusal("its parts are a list, on a CPU")
    if len(parts) != size or any(part.shape != output.shape for part in parts):
        raise calls.refusal(f"it is not given {size} tensors of {tuple(output.shape)}")
    reduction, whole = calls.reduction(given["op"]), calls(torch.cat, tuple(parts))
    calls.write(calls.collective("reduce_scatter_tensor", whole, reduction, size), output)


def _exchange_into(calls: _Calls, given: Given) -> None:
    output, rows = given["output"], given["input"]
    calls.refuse_unusual(output, rows)
    received, sent = _parts(calls, rows, given)
    shape = (sum(received), *rows.shape[1:])
    if tuple(output.shape) != shape:  # before the collective: eager runs it then
        raise calls.refusal(f"{tuple(output.shape)} does not hold {shape}")
    calls.write(calls.collective("all_to_all_single", rows, received, sent), output)


_C10D = "torch.distributed.distributed_c10d."
_FUNCTIONAL = "torch.distributed._functional_collectives."
_WRITING: dict[str, Collective] = {
    "all_reduce": _reduce,
    "broadcast": _broadcast_to,
    "all_gather": _gather,
    "all_gather_into_tensor": _gather_into,
    "all_gather_single": _gather_into,
    "reduce_scatter": _scatter,
    "reduce_scatter_tensor": _scatter_into,
    "reduce_scatter_single": _scatter_into,
    "all_to_all_single": _exchange_into,
}
_GIVING: dict[str, Collective] = {
    "all_reduce": _reduced,
    "broadcast": _broadcast,
    **dict.fromkeys(("all_gather_tensor", "all_gather_tensor_autograd"), _gathered),
    **dict.fromkeys(("all_gather_single", "all_gather_single_autograd"), _gathered),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_tensor_autograd"), _scattered),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_single_autograd"), _scattered),
    **dict.fromkeys(("all_to_all_single", "all_to_all_single_autograd"), _exchanged),
}
_OF_MESHES = [
    f"torch.distributed.device_mesh.DeviceMesh.{name}"
    for name in "size get_rank get_local_rank get_group".split()
]
HANDLERS: dict[str, Handler] = {
    _C10D + "get_rank": rank,
    _C10D + "get_world_size": world_size,
    _C10D + "_WorldMeta.WORLD": default_group,
    **dict.fromkeys(_OF_MESHES, of_mesh),
    _FUNCTIONAL + "wait_tensor": wait,
    **{_C10D + name: _capturing(collective) for name, collective in _WRITING.items()},
    **{_FUNCTIONAL + name: _capturing(collective) for name, collective in _GIVING.items()},
}
