"""Process and thread state: grad mode, autocast, defaults, modes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import torch

from jitney.errors import CompilerBug
from jitney.torch_api import names
from jitney.torch_api.collectives import default_group_facts
from jitney.torch_api.modes import function_modes

#: What torch says of a device: its memory, its processors. Never changed.
DEVICE_PROPERTIES: tuple[type, ...] = tuple(
    getattr(torch._C, name)
    for name in ("_CudaDeviceProperties", "_XpuDeviceProperties")
    if hasattr(torch._C, name)
)
AutocastModes = tuple[tuple[bool, torch.dtype], ...]  # of each of `_KINDS`: whether, and to what
_KINDS = ("cpu", "cuda")


@contextmanager
def autocast_cache_off() -> Iterator[None]:
    """A context in which autocast does not keep casts of parameters (they would be fakes)."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


#: Whether autocast is on, for any device.
autocast_is_on: Callable[[], bool] = torch._C._is_any_autocast_enabled
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def no_casts() -> Any:
    """A context in which ops take what they are given, whatever autocast is on."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST)


@contextmanager
def preserved_modes() -> Iterator[None]:
    """Grad mode, CPU/CUDA autocast, its open scopes and the settings that graphs may change are put
    back as they were, and open transforms (``vmap``) ended, whatever ran inside."""
    transforms = torch._C._functorch.get_dynamic_layer_stack_depth()
    grad, casts, scopes = torch.is_grad_enabled(), autocast_modes(), autocast_scopes()
    settings = [(name, read_state(name)) for name in _SETTER_OF]
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(transforms)
        torch.set_grad_enabled(grad)
        if autocast_modes() != casts:
            set_autocast_modes(casts)
        open_scopes(scopes - autocast_scopes())
        for name, value in settings:
            if read_state(name) != value:
                set_state(name, value)


def autocast_scopes() -> int:
    """How many are open: eager keeps casts of parameters until the last one is over."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def open_scopes(count: int) -> None:
    """Begins ``count`` scopes of autocast; ends as many if it is negative."""
    for _ in range(count):
        torch.autocast_increment_nesting()
    for _ in range(-count):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def is_setting(function: object) -> bool:
    """Whether it is one of the torch functions by which graphs change modes or settings."""
    return any(function is changes for changes in _CHANGES)


@contextmanager
def modes_of_backward() -> Iterator[None]:
    """A scope with the modes that ``backward()`` usually runs a custom backward in: no gradients,
    no autocast."""
    with preserved_modes():
        torch.set_grad_enabled(False)
        autocast_off()
        yield


def autocast_off() -> None:
    """Switches autocast off on a CPU and on GPUs."""
    for kind in _KINDS:
        torch.set_autocast_enabled(kind, False)


@contextmanager
def saved_hooks_off() -> Iterator[None]:
    """A scope in which users' saved-tensor hooks are not called: what is saved are fakes."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        yield


def _itself(value: Any) -> Any:
    return value


def autocast_modes() -> AutocastModes:
    """Autocast on a CPU and on GPUs."""
    return tuple((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in _KINDS)


def set_autocast_modes(modes: AutocastModes) -> None:
    """Makes autocast what `autocast_modes` gave."""
    for kind, (enabled, dtype) in zip(_KINDS, modes, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _autocast_state() -> tuple[Any, ...]:
    return (*autocast_modes(), torch.is_autocast_cache_enabled())


def _set_autocast_state(state: tuple[Any, ...]) -> None:
    *modes, cache = state
    set_autocast_modes(tuple(modes))
    torch.set_autocast_cache_enabled(cache)


def _default_device() -> Any:
    from torch.utils._device import DeviceContext

    for mode in reversed(function_modes()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def _set_inference_mode(enabled: bool) -> None:
    raise CompilerBug("inference mode is a scope: it cannot be left changed by a frame")


def _set_modes(counts: Any) -> None:
    raise CompilerBug("modes are scopes: they cannot be left changed by a frame")


def _transforms() -> tuple[bool, bool]:
    """Whether functorch transforms and ``torch.jit.trace`` surround us."""
    return torch._C._are_functorch_transforms_active(), torch._C._is_tracing()


def _cuda_device() -> int:
    """The GPU that ``"cuda"`` means in this thread: the first one before any was asked for."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def naming_gpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs`` in which a GPU without a number is named by its present number: fakes remember
    results by arguments, whichever GPU is the current one."""
    device = kwargs.get("device")
    if type(device) is torch.device and device.type == "cuda" and device.index is None:
        return {**kwargs, "device": torch.device("cuda", _cuda_device())}
    return kwargs


def active_modes() -> tuple[int, int]:
    """How many torch function modes and dispatch modes are active in this thread."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "grad_enabled": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "inference_mode": (torch.is_inference_mode_enabled, _set_inference_mode),
    "autocast": (_autocast_state, _set_autocast_state),
    "modes": (active_modes, _set_modes),
    "transforms": (_transforms, _set_modes),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (_default_device, torch.set_default_device),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "filled_memory": (
        torch._C._get_deterministic_fill_uninitialized_memory,
        torch._C._set_deterministic_fill_uninitialized_memory,
    ),
}
_CHANGES: tuple[object, ...] = tuple(
    operator.attrgetter(name.removeprefix("torch."))(torch)
    for name in (*names.MODE_CHANGES, *names.SETTERS)
)
_SETTER_OF = {reader: setter for setter, reader in names.SETTERS.items()}
#: What is only read, and where it matters alone: a forked process must not ask for its GPU.
_ASKED: dict[str, Callable[[], Any]] = {
    "cuda_device": _cuda_device,
    names.DEFAULT_GROUP: default_group_facts,
}


def fills_memory() -> bool:
    """Whether what ``torch.empty`` leaves unset is NaN and the largest integers."""
    return (
        torch.are_deterministic_algorithms_enabled()
        and torch._C._get_deterministic_fill_uninitialized_memory()
    )


def state_names() -> tuple[str, ...]:
    """What a ``SetState`` effect may name, and every capture guards. A ``STATE`` guard may also
    name "cuda_device", the GPU that ``"cuda"`` means, "default_group", of all processes, and any
    function of torch's that reads a setting, "torch.get_num_threads"."""
    return tuple(_STATE)


@cache
def state_reader(name: str) -> Callable[[], Any]:
    """The function that reads a piece of process or thread state."""
    if name in _STATE:
        return _STATE[name][0]
    if name in _ASKED:
        return _ASKED[name]
    found: Callable[[], Any] = operator.attrgetter(name.removeprefix("torch."))(torch)
    return found


def state_setter(name: str) -> Callable[[Any], None]:
    """The function that changes it: a piece of state, or one of the settings with a setter."""
    if name in _STATE:
        return _STATE[name][1]
    setter: Any = state_reader(_SETTER_OF[name])
    return cast(Callable[[Any], None], setter)


def float32_precisions() -> tuple[str, ...]:
    """How exact products, convolutions and recurrent layers of float32 are to be, of each library;
    `torch.get_float32_matmul_precision` raises where a program has set one of these."""
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    of_cudnn = (getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None))
    of_mkldnn = tuple(getattr(mkldnn, name, None) for name in ("matmul", "conv", "rnn"))
    places = (torch.backends, torch.backends.cuda.matmul, cudnn, mkldnn, *of_cudnn, *of_mkldnn)
    return tuple(str(getattr(place, "fp32_precision", None)) for place in places)


def read_state(name: str) -> Any:
    """The state now, in a form that compares by value."""
    return state_reader(name)()


def set_state(name: str, value: Any) -> None:
    """Makes the state what `read_state` gave."""
    state_setter(name)(value)
