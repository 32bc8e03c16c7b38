"""Makes a compiled C function a Python callable without a trampoline."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_METH_FASTCALL = 0x0080


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def native_function(
    name: str, address: int, constants: tuple[Any, ...], owner: Any
) -> Callable[..., Any]:
    """A builtin function at ``address`` (``PyObject *f(PyObject *self, PyObject *const *args,
    Py_ssize_t n)``) whose ``self`` is the tuple ``(*constants, …)``; ``owner`` lives as long."""
    method = _MethodDef(name.encode(), address, _METH_FASTCALL, None)
    state = (*constants, method, owner)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function: Callable[..., Any] = make(ctypes.addressof(method), state, None)
    return function
