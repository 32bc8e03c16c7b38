"""Calls into torch: leaves of the graph, state that is tracked, and objects of torch's."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import function_calls, leaves, state, tensor_wrappers
from jitney.capture.forced import classes_among, forced, forced_keywords
from jitney.capture.frame import BreakCapture
from jitney.capture.guard import Kind
from jitney.capture.number_tensors import tensor_of
from jitney.capture.source import Function
from jitney.capture.written_ops import refuse_written_op
from jitney.torch_api import names

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_TENSOR_BASES = tuple(c for c in torch.Tensor.__mro__ if c is not object)

# C functions of torch that make no tensor and only look.
LOOKS = names.LOOKS | frozenset(
    f"torch.{name}"
    for name in """is_grad_enabled is_inference_mode_enabled get_default_dtype is_autocast_enabled
    get_autocast_dtype is_autocast_cpu_enabled get_autocast_gpu_dtype get_autocast_cpu_dtype
    is_autocast_cache_enabled promote_types result_type can_cast is_complex
    is_floating_point is_tensor is_distributed is_signed is_same_size is_conj
    is_neg is_inference get_device_module is_vulkan_available numel""".split()
)
#: Those without arguments that read what the program may set.
SETTINGS = names.SETTINGS | frozenset(
    f"torch.{name}"
    for name in (
        "is_anomaly_enabled",
        "is_anomaly_check_nan_enabled",
        "get_num_threads",
        "get_num_interop_threads",
    )
)
_INFERENCE = "torch.is_inference_mode_enabled"


def c_name(function: Any) -> str:
    """ "module.name" of a C function of torch."""
    module = getattr(function, "__module__", None)  # method descriptors have none
    owner = getattr(function, "__self__", None)
    if module is None and isinstance(owner, types.ModuleType):
        module = owner.__name__
    return f"{module or 'torch'}.{function.__name__}"


def is_torch_c(function: Any) -> bool:
    """Whether a C callable is torch's: a function, or a method of a tensor."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.Tensor) or isinstance(owner, types.GetSetDescriptorType):
        return True
    if getattr(function, "__objclass__", None) in _TENSOR_BASES:
        return True
    module = getattr(function, "__module__", None)
    if isinstance(module, str) and module.split(".")[0] == "torch":
        return True
    return isinstance(owner, type) and (
        owner.__name__.startswith("_VariableFunctions")
        or issubclass(owner, torch.autograd.Function)
    )


def call_c(interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls a C function of torch's."""
    name = c_name(function)
    change = state.change_of(name)
    if change is not None:
        values = forced(interpreter, args)
        keywords = forced_keywords(interpreter, kwargs)
        return state.apply(interpreter, change, function, values, keywords)
    if name in names.C_ANSWERS:
        return names.C_ANSWERS[name]
    if name in names.OVERRIDE_TESTS:
        return _overrides(interpreter, args[0] if name == names.OVERRIDE_TEST else args)
    if name in SETTINGS and not args and not kwargs:
        value = interpreter.native(function)
        interpreter.world.guard(Kind.STATE, Function(), (name, value), name)
        return value
    if name in LOOKS:
        values = forced(interpreter, args)
        keywords = forced_keywords(interpreter, kwargs)
        looked = interpreter.native(function, *values, **keywords)
        if looked and interpreter.recorder.in_transform and name == _INFERENCE:
            raise BreakCapture("functorch", "transforms but vmap call without inference mode")
        return looked
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        handler = function_calls.HANDLERS["torch.autograd.function.Function.apply"]
        return handler(interpreter, function, (owner, *args), kwargs, None)
    if (
        (name.startswith(names.C_PACKAGE) or _is_no_op(owner))
        and not isinstance(owner, torch.Tensor)
        and not name.startswith(names.OP_PACKAGES)
        and getattr(function, "__objclass__", None) not in _TENSOR_BASES
    ):
        raise BreakCapture("torch-internal", f"{name} is called")
    return call_leaf(interpreter, function, args, kwargs)


def _is_no_op(owner: Any) -> bool:
    """Whether a C function is none of torch's ops, which belong to nothing or to a module of their
    own: it was made for Python, by hand or by pybind11, and may change the process."""
    if isinstance(owner, types.ModuleType):
        return f"{owner.__name__}." == names.C_PACKAGE
    return type(owner).__module__ == "pybind11_builtins"


def _overrides(interpreter: Interpreter, values: Any) -> bool:
    """Whether an argument has a ``__torch_function__`` of its own; tensors let in are plain, but
    for wrappers.

    To C a default device is an override, too. So a function that asks is not gone on in behind a
    break: what it calls would ask again, and answer to an overridden call."""
    if torch_api.function_modes():
        interpreter.frames[-1].link = None
    force = interpreter.world.force
    found = any(
        (torch_api.is_wrapper(v) or not isinstance(v, torch.Tensor))
        and hasattr(type(v), "__torch_function__")
        for v in [force(v) for v in force(values)]
    )
    return found and not tensor_wrappers.are_off(interpreter)


def overriding(interpreter: Interpreter, args: Any, kwargs: dict[str, Any]) -> type | None:
    """The one class, none of tensors, among those of the arguments, and of the items of lists among
    them, that has a ``__torch_function__``; None also where there are several."""
    found = classes_among(interpreter, args, kwargs, _stands_alone)
    return found.pop() if len(found) == 1 else None


def _stands_alone(value: Any) -> bool:
    """Whether a value that is no tensor has a ``__torch_function__``."""
    return hasattr(type(value), "__torch_function__") and not isinstance(value, torch.Tensor)


def _is_of_tensor(function: Any) -> bool:
    """Whether a C callable is a method of tensors, bound or not."""
    owner = getattr(function, "__self__", None)
    return isinstance(owner, torch.Tensor) or hasattr(function, "__objclass__")


def _call_override(
    interpreter: Interpreter, cls: Any, function: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """What a class's ``__torch_function__`` makes of the call, as torch's C code asks it."""
    handler = interpreter.get_attr(cls, "__torch_function__")
    keywords = (dict(kwargs),) if kwargs else ()
    given = (function, (cls,), tuple(args), *keywords)
    if torch_api.is_wrapper_class(cls):
        given = tensor_wrappers.asked(interpreter, cls, function, args, kwargs)
    interpreter.overrides += 1
    try:
        result = interpreter.world.force(interpreter.call(handler, given, {}, None))
    finally:
        interpreter.overrides -= 1
    if result is NotImplemented:  # eager raises
        interpreter.native_broke = True  # it has been called: break before it
        reason = f"a {cls.__name__} does not handle {leaves.name_of(function)}"
        raise BreakCapture("torch-argument", reason)
    return result


def call_leaf(interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls a torch function as one node of the graph, or what an argument overrides it with."""
    function, args = tensor_wrappers.unbound(function, args)
    wrapper = tensor_wrappers.class_among(interpreter, args, kwargs)
    if wrapper is not None and tensor_wrappers.are_off(interpreter):
        return tensor_wrappers.dispatch(interpreter, wrapper, function, args, kwargs)
    cls = None if _is_of_tensor(function) else overriding(interpreter, args, kwargs)
    if wrapper is not None or cls is not None:
        return _call_override(interpreter, wrapper or cls, function, args, kwargs)
    values = [_truth(v) for v in forced(interpreter, args)]
    keywords = {k: _truth(v) for k, v in forced_keywords(interpreter, kwargs).items()}
    if leaves.writes_unseen(function):
        refuse_written_op(interpreter, function, values, keywords)
    made = tensor_of(interpreter, function, values, keywords)
    if made is not None:
        return made
    combine = _SCALED.get(function.__name__.removesuffix("_").removeprefix(_OF_LISTS))
    if combine is not None:
        if _is_scale(keywords.get("value"), [*values, getattr(function, "__self__", None)]):
            return _scaled_by_tensor(interpreter, function, combine, values, keywords["value"])
        if len(values) == 4 and not keywords and _holds_scales(interpreter, values):
            return _scaled_by_tensors(interpreter, function, combine, values)
    result = interpreter.torch_call(function, *values, **keywords)
    if function is torch.nn.functional.one_hot:  # fakes lie as the indices do, eager's in rows
        result = interpreter.torch_call(torch.Tensor.contiguous, result)
    return result


def _truth(value: Any) -> Any:
    """A comparison of sizes as what it is now, which becomes assumed: where torch's functions take
    a truth value (``is_causal=length > 1``) they take no symbol, nor in lists of numbers."""
    if type(value) in (list, tuple) and _holds_truth(value):
        return type(value)(map(_truth, value))
    return bool(value) if isinstance(value, torch.SymBool) else value


def _holds_truth(values: Any) -> bool:
    return any(
        type(v) is torch.SymBool or type(v) in (list, tuple) and _holds_truth(v) for v in values
    )


# Their ``value`` is a number; eager reads a tensor's (optimizers pass one while compiled).
_SCALED = {"addcdiv": torch.div, "addcmul": torch.mul}
_OF_LISTS = "_foreach_"


def _is_scale(value: Any, others: list[Any]) -> bool:
    """A tensor that is a real number, of floats: it makes of no dtype another one."""
    if not isinstance(value, torch.Tensor) or value.dim() or value.dtype.is_complex:
        return False
    kinds = [x.dtype for x in others if isinstance(x, torch.Tensor)]
    return all(kind.is_floating_point or kind.is_complex for kind in kinds)


def _scaled_by_tensor(
    interpreter: Interpreter, function: Any, combine: Any, values: list[Any], scale: torch.Tensor
) -> Any:
    """``base + scale * combine(first, second)``, without reading ``scale``; as eager computes it:
    on a CPU ``combine(scale * first, second)``, of 16 bits rounded once."""
    owner = getattr(function, "__self__", None)
    given = [owner, *values] if isinstance(owner, torch.Tensor) else values
    call, dtype = interpreter.torch_call, given[0].dtype
    narrow = dtype in (torch.float16, torch.bfloat16) and all(x.dtype is dtype for x in given)
    wide = [call(torch.Tensor.to, x, torch.float32) for x in given] if narrow else given
    base, first, second = wide
    in_place = function.__name__.endswith("_")
    plain = "addcdiv" if combine is torch.div else "addcmul"
    if base.device.type == "cpu":
        operands = [call(torch.mul, first, scale), second]
    else:
        plain = "add"
        operands = [call(torch.mul, call(combine, first, second), scale)]
    result = call(getattr(torch.Tensor, plain + "_" * (in_place and not narrow)), base, *operands)
    if not narrow:
        return result
    if in_place:
        return call(torch.Tensor.copy_, given[0], result)
    return call(torch.Tensor.to, result, dtype)


def _holds_scales(interpreter: Interpreter, values: list[Any]) -> bool:
    """Whether the last of these is a tensor with a number for each item of the lists before it, or
    a list of numbers and tensors, which torch takes of nobody: of what is made for compilers."""
    *lists, scales = values
    if isinstance(scales, torch.Tensor):
        return scales.dim() == 1 and scales.shape[0] == len(lists[0])
    if not interpreter.said_compiling or not isinstance(scales, list | tuple):
        return False
    tensors = [s for s in scales if isinstance(s, torch.Tensor)]
    return bool(tensors) and all(s.dim() == 0 for s in tensors)


def _scaled_by_tensors(
    interpreter: Interpreter, function: Any, combine: Any, values: list[Any]
) -> list[Any] | None:
    """`_scaled_by_tensor` of each item of the lists."""
    *lists, scales = values
    if isinstance(scales, torch.Tensor):
        scales = interpreter.torch_call(torch.unbind, scales)
    in_place = function.__name__.endswith("_")
    plain = torch.Tensor.addcmul_ if in_place else torch.Tensor.addcmul  # for its name
    results = [
        _scaled_by_tensor(interpreter, plain, combine, items, scale)
        for *items, scale in zip(*lists, scales, strict=True)
    ]
    return None if in_place else results


def call_opaque(interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls a function the user allowed in the graph: one node, whatever it does."""
    values = tuple(forced(interpreter, args))
    return interpreter.recorder.call(function, values, forced_keywords(interpreter, kwargs))


def special_object(function: Any) -> Callable[..., Any] | None:
    """The handler for calling an object of torch's that is neither function nor module."""
    return _call_custom_op if isinstance(function, torch.library.CustomOpDef) else None


def _call_custom_op(
    interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any], site: Any
) -> Any:
    return call_leaf(interpreter, torch_api.overload_of(function), args, kwargs)


def call_tensor_class(
    interpreter: Interpreter, cls: type, args: Any, kwargs: dict[str, Any]
) -> Any:
    """``torch.Tensor(…)``, ``torch.LongTensor(…)``, ``nn.Parameter(…)``: no torch function mode
    sees these. Of sizes, or of numbers in lists, the first two are as new functions make them."""
    values = forced(interpreter, args)
    if (cls is torch.Tensor or not issubclass(cls, torch.Tensor)) and not kwargs:
        what: Any = {"dtype": cls.dtype, "device": cls().device}  # type: ignore[attr-defined]
        if cls is torch.Tensor:
            what["dtype"] = torch.get_default_dtype()
        if all(type(v) in (int, torch.SymInt) for v in values):
            return interpreter.torch_call(torch.empty, values or [0], **what)
        if len(values) == 1 and type(values[0]) is torch.Size:
            return interpreter.torch_call(torch.empty, values[0], **what)
        if len(values) == 1 and isinstance(values[0], list | tuple) and _is_numbers(values[0]):
            made = tensor_of(interpreter, torch.tensor, values, what)
            return interpreter.torch_call(torch.tensor, *values, **what) if made is None else made
    raise BreakCapture("tensor-constructor", f"{cls.__name__}(…) is called", "use torch.tensor")


def _is_numbers(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_numbers, value))
    return type(value) in (int, float, bool, torch.SymInt, torch.SymFloat)
