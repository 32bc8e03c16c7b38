"""Addresses and numbers for native code that calls torch's C and C++ functions itself."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch

from jitney.native_code import read_word
from jitney.torch_api.state import active_modes


@lru_cache(maxsize=64)
def c_symbol(name: str) -> int:
    """Address of a function that torch's libraries export; LookupError if none does."""
    for library in ("libtorch_cpu.so", "libc10.so"):
        try:
            handle = ctypes.CDLL(f"{torch.__path__[0]}/lib/{library}")
            address = ctypes.cast(getattr(handle, name), ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
        if address:
            return address
    raise LookupError(name)


def impl_address(tensor: torch.Tensor) -> int:
    """Address of the C++ tensor's implementation object."""
    return int(tensor._cdata)


def raw_key_set(tensor: torch.Tensor) -> int:
    """A tensor's dispatch keys as one 64-bit word."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def native_state(name: str, expected: Any) -> list[tuple[int, int, int, int]] | None:
    """C calls that tell the state, (function, argument, mask, value): it is ``expected`` if
    ``function(argument) & mask`` is ``value`` for each. None if C cannot tell, or this torch does
    not export such a function."""
    try:
        return _native_calls(name, expected)
    except LookupError:
        return None


def _native_calls(name: str, expected: Any) -> list[tuple[int, int, int, int]] | None:
    byte, full = 0xFF, (1 << 64) - 1
    flags = {
        "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
        "inference_mode": "_ZN3c1013InferenceMode10is_enabledEv",
    }
    context_flags = {
        "deterministic": "_ZNK2at7Context23deterministicAlgorithmsEv",
        "filled_memory": "_ZNK2at7Context36deterministicFillUninitializedMemoryEv",
    }
    functions = "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"
    if name in flags:
        return [(c_symbol(flags[name]), 0, byte, int(expected))]
    if name == "default_dtype":
        address = c_symbol("_ZN3c1031get_default_dtype_as_scalartypeEv")
        return [(address, 0, byte, scalar_type(expected))]
    if name in context_flags:
        context = _call(c_symbol("_ZN2at13globalContextEv"))
        return [(c_symbol(context_flags[name]), context, byte, int(expected))]
    if name == "modes":
        dispatches = "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"
        return [
            (c_symbol(functions), 0, full, expected[0]),
            (c_symbol(dispatches), 0, full, expected[1]),
        ]
    if name == "transforms":
        included = c_symbol("_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE")
        keys = map(torch._C._parse_dispatch_key, ("FuncTorchDynamicLayerFrontMode", "Tracer"))
        return [(included, int(key), byte, int(on)) for key, on in zip(keys, expected)]  # type: ignore[call-overload]
    if name == "default_device" and expected is None and active_modes()[0] == 0:
        return [(c_symbol(functions), 0, full, 0)]
    return _native_autocast(expected) if name == "autocast" else None


def _native_autocast(expected: tuple[Any, ...]) -> list[tuple[int, int, int, int]]:
    *per_device, cache = expected
    enabled_of = c_symbol("_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE")
    dtype_of = c_symbol("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE")
    calls = []
    for device_type, (enabled, dtype) in enumerate(per_device):  # c10: CPU is 0, CUDA is 1
        calls.append((enabled_of, device_type, 0xFF, int(enabled)))
        calls.append((dtype_of, device_type, 0xFF, scalar_type(dtype)))
    calls.append((c_symbol("_ZN2at8autocast25is_autocast_cache_enabledEv"), 0, 0xFF, int(cache)))
    return calls


def _call(address: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_uint64)(address)())


def raw_cuda_stream(device: torch.device) -> int:
    """The handle of torch's current CUDA stream on ``device``."""
    number = device.index if device.index is not None else torch.cuda.current_device()
    return int(torch._C._cuda_getCurrentRawStream(number))


def is_other_gpu(device: torch.device) -> bool:
    """Whether ``device`` is a GPU, but not the one that CUDA calls of this thread go to."""
    return device.index is not None and device.index != torch._C._cuda_getDevice()


@lru_cache(maxsize=1)
def tensor_handle_offset() -> int:
    """Bytes from a Python tensor object to the ``at::Tensor`` in it, which torch's C interface
    takes the address of; found by looking for the TensorImpl's address. RuntimeError if hidden."""
    probe = torch.empty(1)
    for offset in range(16, type(probe).__basicsize__, 8):
        if read_word(id(probe) + offset) == probe._cdata:
            return offset
    raise RuntimeError("this torch does not keep the tensor inside its Python object")


def tensor_wrap_symbol() -> str:
    """The C++ function ``PyObject* THPVariable_Wrap(const at::TensorBase&)``: a new reference."""
    return "_Z16THPVariable_WrapRKN2at10TensorBaseE"


def scalar_type(dtype: torch.dtype) -> int:
    """The number of a dtype in torch's C interface (``c10::ScalarType``)."""
    return _SCALAR_TYPES[dtype]


#: In the order of the C++ enum; an older torch lacks the last ones.
_IN_ORDER = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool "
    "qint8 quint8 qint32 bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 "
    "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64 "
    "uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7 "
    "float8_e8m0fnu float4_e2m1fn_x2 bcomplex32"
)
_SCALAR_TYPES = {
    getattr(torch, name): number
    for number, name in enumerate(_IN_ORDER.split())
    if hasattr(torch, name)
}
