"""What to do with a callable: interpret, record, call for real, put off, or break."""

from __future__ import annotations

import abc
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from jitney import torch_api
from jitney.capture import (
    answer_calls,
    break_at_calls,
    call_natively,
    function_calls,
    jacobians,
    put_off_logging,
)
from jitney.capture.class_flags import is_heap_type
from jitney.capture.policy_table import (
    ANSWERS,
    BREAKS,
    DEFERRED,
    EAGER_MODULES,
    FORGETFUL,
    IMPURE,
    INLINED,
    INSTALLING,
    LOOKS_AT_CALLERS,
    NATIVE_CLASSES,
    NATIVE_FUNCTIONS,
    NOT_LEAVES,
    OF_GPUS,
    PURE_BUILTINS,
    PURE_MODULES,
    PURE_OBJECT,
    PURE_TYPES,
    QUESTIONS,
)  # fmt: skip
from jitney.torch_api import names

_TOLD_APART = {*ANSWERS, *QUESTIONS, *NATIVE_FUNCTIONS, *DEFERRED, *BREAKS}
_PURE_TYPES = frozenset(PURE_TYPES)


def name_of(function: Any) -> str:
    """ "module.qualname" of a callable, as the table spells it."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    owner = getattr(function, "__objclass__", None)
    if owner is None:
        bound = getattr(function, "__self__", None)
        if bound is not None and not isinstance(bound, types.ModuleType):
            owner = bound if isinstance(bound, type) else type(bound)
            return f"{owner.__module__}.{name}"
    module = owner.__module__ if owner is not None else getattr(function, "__module__", None)
    return f"{module}.{name}"


def special_function(function: types.FunctionType) -> Callable[..., Any] | None:
    """A handler for a Python function that is not simply interpreted, or None."""
    return _special(function.__code__, f"{function.__module__}.{function.__qualname__}")


@functools.lru_cache(maxsize=65536)
def _special(code: types.CodeType, name: str) -> Callable[..., Any] | None:
    if torch_api.jacobian_of(code) is not None:
        return jacobians.call_jacobian
    if not LOOKS_AT_CALLERS.isdisjoint(code.co_names) and name not in _TOLD_APART:
        return break_at_calls.break_where_called
    if name in QUESTIONS:
        return answer_calls.answer_compiling_here
    if name in ANSWERS:
        return answer_calls.answering(ANSWERS[name])
    if name in NATIVE_FUNCTIONS:
        return call_natively.call_native
    if name in OF_GPUS:
        return call_natively.call_of_gpus
    if name in DEFERRED:
        return put_off_logging.put_off
    if name in INSTALLING and INSTALLING[name] in code.co_consts:
        return break_at_calls.installing(INSTALLING[name])
    if name in BREAKS:
        return break_at_calls.breaking(*BREAKS[name])
    handler = function_calls.HANDLERS.get(name)
    if handler is None and torch_api.is_disabling(code):
        return break_at_calls.break_unless_fused
    is_eager = name.startswith(EAGER_MODULES) and not name.startswith(INLINED)
    if handler is None and is_eager:
        return break_at_calls.breaking("eager-module", f"{name} runs eager")
    return handler


def is_installing(function: types.FunctionType) -> bool:
    """Whether it runs eager as a whole, with all that it calls."""
    return f"{function.__module__}.{function.__qualname__}" in INSTALLING


def is_transform(function: types.FunctionType) -> bool:
    """Whether a call of it becomes nodes of the graph (`transforms`). As a frame of its own,
    nothing of it would be captured."""
    return special_function(function) in _TRANSFORMS


_TRANSFORMS = (jacobians.call_jacobian, jacobians.call_jvp, jacobians.call_vjp)


def is_torch_leaf(function: types.FunctionType) -> bool:
    """Whether a Python function of torch offers itself whole to modes: it becomes one node."""
    module, code = function.__module__, function.__code__
    if not isinstance(module, str) or module.split(".")[0] != "torch":
        return False
    if code.co_name in FORGETFUL and not torch_api.function_modes():
        return False
    return _leaf_code(code, module)


@functools.lru_cache(maxsize=65536)
def _leaf_code(code: types.CodeType, module: str) -> bool:
    if module in (names.TENSOR_METHODS, "torch.functional", "torch.nn.functional"):
        handled = "handle_torch_function" in code.co_names and code.co_name not in NOT_LEAVES
        return handled or (module == names.TENSOR_METHODS and code.co_name == "wrapped")
    return False


def is_pure(function: Any) -> bool:
    """Whether a C function does nothing but look at its arguments, or change them."""
    owner = getattr(function, "__objclass__", None)
    bound = getattr(function, "__self__", None)
    if function.__name__ in ("__enter__", "__exit__"):  # of a device: the default device
        return False
    if owner is object:
        return function.__name__ in PURE_OBJECT
    if owner is not None:
        return _pure_type(owner) or _is_c_exception(owner)
    if bound is not None and not isinstance(bound, types.ModuleType):
        if isinstance(bound, type):
            return _pure_type(bound) and name_of(function) not in IMPURE
        return _pure_method(type(bound), function.__name__)
    module, name = function.__module__, function.__name__
    if module == "builtins":
        return name in PURE_BUILTINS
    return module in PURE_MODULES and f"{module}.{name}" not in IMPURE


def _pure_type(cls: type) -> bool:
    return f"{cls.__module__}.{cls.__qualname__}" in _PURE_TYPES


def _pure_method(cls: type, name: str) -> bool:
    """A bound C method: judged by the class in the MRO that defines it."""
    for base in cls.__mro__:
        if name in base.__dict__ and type(base.__dict__[name]) is not types.FunctionType:
            if base is object:
                return name in PURE_OBJECT
            return (
                _pure_type(base)
                or base.__module__ == "itertools"
                or issubclass(base, BaseException)
            )
    return False


def copies_state(function: Any) -> bool:
    """Whether it is C code's own way to copy or pickle an object, without Python code."""
    hooks = ("__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
    if getattr(function, "__name__", "") not in ("__reduce_ex__", *hooks):
        return False
    return not any(
        isinstance(getattr(type(function.__self__), h, None), types.FunctionType) for h in hooks
    )


def is_pure_new(new: Any) -> bool:
    """Whether a C ``__new__`` makes a value, a container or an exception."""
    owner = getattr(new, "__self__", None)
    return isinstance(owner, type) and (
        _pure_type(owner) or issubclass(owner, BaseException) or owner is torch.Size
    )


def is_native_class(cls: type) -> bool:
    """Whether constructing it is C code without effects."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    return name in NATIVE_CLASSES or _is_c_exception(cls)


def _is_c_exception(cls: type) -> bool:
    return issubclass(cls, BaseException) and not is_heap_type(cls)


def is_pure_callable(owner: Any) -> bool:
    """An object of C code that is called without effects."""
    return isinstance(owner, types.GenericAlias)


def is_plain_metaclass(meta: type) -> bool:
    """A metaclass whose ``__call__`` adds nothing to what `type` does."""
    return meta in (type, abc.ABCMeta) and not issubclass(meta, enum.EnumMeta)
