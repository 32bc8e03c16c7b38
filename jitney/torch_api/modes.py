"""Dispatch modes, functionalization, functorch: what stands between a call and its kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch


def dispatch_mode_class() -> type:
    """``TorchDispatchMode``: a mode that sees every ATen call below autograd."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def without_torch_function() -> Any:
    """A scope in which subclasses' ``__torch_function__`` is not called."""
    return torch._C.DisableTorchFunctionSubclass()


def without_function_modes() -> Any:
    """A scope in which neither modes nor subclasses see torch calls."""
    return torch._C.DisableTorchFunction()


def python_dispatcher() -> Any:
    """torch's Python dispatcher: Python kernels of composite ops, which keep sizes symbolic."""
    from torch._dispatch.python import enable_python_dispatcher

    _correct_python_kernels()
    return enable_python_dispatcher()


def python_dispatcher_is_on() -> bool:
    """Whether this is in the scope of `python_dispatcher`."""
    key = torch._C.DispatchKey.PythonDispatcher
    return bool(torch._C._dispatch_tls_is_dispatch_key_included(key))


@cache
def _correct_python_kernels() -> None:
    """Replaces Python kernels that differ from the C++ ones: dropout copies what it does not
    change, a loss counts labels behind the end of a row, gradients differ at a hinge or beside
    infinity."""
    key = torch._C.DispatchKey
    dropout = torch.ops.aten.dropout.default
    for at in (key.Autograd, key.CompositeImplicitAutograd):
        dropout.py_kernels[at] = _dropout
    dropout._dispatch_cache.clear()
    aten = torch.ops.aten
    losses = (aten.multilabel_margin_loss_forward, aten.multi_margin_loss)
    shrinks = (aten.hardshrink, aten.softshrink)
    for packet in (*losses, *shrinks):
        packet.default.py_kernels.pop(key.Autograd, None)
        packet.default._dispatch_cache.clear()
    for packet in (aten.hardshrink_backward, aten.softshrink_backward):
        packet.default.py_kernels[key.Meta] = _like_a_product  # C++'s takes no symbols
        packet.default._dispatch_cache.clear()


def _like_a_product(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> torch.Tensor:
    return grad * x


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
    size = x.numel()
    if not train or p == 0 or type(size) is int and size == 0:
        return x
    if p == 1:  # draws nothing
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    kept: torch.Tensor = torch.ops.aten.native_dropout(x, p, train)[0]
    return kept


def dispatch_modes() -> list[Any]:
    """The active dispatch modes, outermost first."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return _get_current_dispatch_mode_stack() if torch._C._len_torch_dispatch_stack() else []


def function_modes() -> list[Any]:
    """The active function modes, outermost first."""
    from torch.overrides import _get_current_function_mode_stack

    return _get_current_function_mode_stack() if torch._C._len_torch_function_stack() else []


@contextmanager
def function_modes_off() -> Iterator[None]:
    """A scope in which no function mode is active; the classes of tensors are asked."""
    from torch.overrides import _pop_mode_temporarily

    with ExitStack() as modes:
        for _ in function_modes():
            modes.enter_context(_pop_mode_temporarily())
        yield


def is_default_device(mode: Any) -> bool:
    """Whether a function mode is just the one that ``with torch.device(…)`` enters."""
    from torch.utils._device import DeviceContext

    return type(mode) is DeviceContext


def dispatch_modes_off() -> Any:
    """A context without any dispatch mode (function modes stay)."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


@cache
def rounds_shrinkage() -> bool:
    """Whether `softshrink` of 16 bits on a CPU rounds its bound to them first: not up to torch
    2.13."""
    with dispatch_modes_off(), without_function_modes():
        third = torch.tensor(0.3, dtype=torch.bfloat16, device="cpu")
        return not torch.nn.functional.softshrink(third, 0.3).item()


def functional_mode(replace: Callable[..., Any], notice: Callable[..., None]) -> Any:
    """torch's functionalization as a dispatch mode. ``replace(op, args, kwargs)`` gives (what a
    call shall give) in its place, made by other calls, or None; ``notice(op, args, kwargs,
    result)`` is told of each that was not replaced."""
    return _functional_mode_class()(replace, notice)


@cache
def _functional_mode_class() -> Any:
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    checked = torch.ops.aten._linalg_check_errors.default

    class Functionalization(FunctionalTensorMode):
        """Without torch's tokens, which order effects, for an assertion: a graph of ours keeps it
        in its place."""

        def __init__(self, replace: Callable[..., Any], notice: Callable[..., None]) -> None:
            super().__init__()
            self._replace, self._notice = replace, notice

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is checked:
                return func(*map(from_functional, args), **kwargs)
            with self:
                found = self._replace(func, args, kwargs)
            if found is not None:
                return found[0]
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self._notice(func, args, kwargs, result)
            return result

    return Functionalization


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` wrapped for functionalization; requires_grad and leafness kept."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    wrapped: torch.Tensor = FunctionalTensor.to_functional(tensor)
    return wrapped


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The current value of a functional tensor, pending mutations applied."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    if not isinstance(tensor, FunctionalTensor):
        return tensor
    torch._sync(tensor)
    inner: torch.Tensor = torch._from_functional_tensor(tensor.elem)
    return inner


def replace_functional(tensor: Any, value: torch.Tensor) -> None:
    """Gives a functional tensor, and all views of it, the value of another one, as a write does."""
    tensor.replace_(from_functional(value))
    tensor.commit_update()
    tensor.sync()


def make_infra_mode(mode: Any, node_of: Callable[[torch.Tensor], Any]) -> None:
    """Gives a dispatch mode the tracer's place: below functionalization, above fake tensors.

    ``node_of``: the graph node of a tensor, KeyError if there is none (torch annotates nodes).
    """
    mode._mode_key = torch._C._TorchDispatchModeKey.PROXY
    mode.tracer = SimpleNamespace(tensor_tracker=_TensorTracker(node_of))


class _TensorTracker:
    """What torch's functionalization reads of its own tracer."""

    def __init__(self, node_of: Callable[[torch.Tensor], Any]) -> None:
        self._node_of = node_of

    def __getitem__(self, tensor: torch.Tensor) -> Any:
        return SimpleNamespace(proxy=SimpleNamespace(node=self._node_of(tensor)))


def functorch_is_active() -> bool:
    """Whether a functorch transform (grad, vmap) surrounds the call."""
    return bool(torch._C._are_functorch_transforms_active())


def what_must_see_calls() -> str | None:
    """What surrounds us that acts upon every torch call, so that none may be compiled away: a
    functorch transform, forward-mode differentiation, ``torch.jit.trace``, a function mode other
    than a default device, a dispatch mode (a tracer of torch's, or one that does not declare that
    it ignores what is compiled); or what keeps us from seeing them."""
    if functorch_is_active() or forward_level() >= 0 or torch.jit.is_tracing():
        return "it is called inside a transform"
    for mode in function_modes():
        if not is_default_device(mode):
            return f"a {type(mode).__name__} is active and is to see every call"
    for mode in dispatch_modes():
        if mode.is_infra_mode() or not mode.ignore_compile_internals():
            return f"a {type(mode).__name__} is active and is to see every operation"
    if torch._C._is_torch_function_all_disabled():
        return "__torch_function__ is disabled, by which calls are captured"
    return None


FORWARD_LEVEL = ("torch.autograd.forward_ad", "_current_level")  # the module, its global


def forward_level() -> int:
    """How deep ``forward_ad.dual_level`` is nested, from 0; -1 outside."""
    return torch.autograd.forward_ad._current_level


@contextmanager
def outside_of_transforms() -> Iterator[None]:
    """As outside of functorch's transforms, and of the ``vmap`` that takes gradients many at a
    time, which refuses random numbers."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as cleared

    nesting = torch._C._vmapmode_increment_nesting()
    for _ in range(nesting):
        torch._C._vmapmode_decrement_nesting()
    try:
        with cleared() if functorch_is_active() else nullcontext():
            yield
    finally:
        for _ in range(nesting - 1):
            torch._C._vmapmode_increment_nesting()
