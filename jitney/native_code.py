"""LLVM IR as code of this process, and its functions as Python's.

For the few functions that a process makes for itself. The functions of graphs, which stay on disk
and run at the target's full width, are `kernels/llvm/machine_code`'s.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from llvmlite import binding

Made = TypeVar("Made")


def once(make: Callable[[], Made]) -> Callable[[], Made]:
    """``make`` called when somebody first asks, and never again: threads that ask meanwhile wait.

    What is made stays with the process. `functools.cache` gives a thread that came second what it
    made itself and keeps nothing of it: code would be freed that is in use.
    """
    made: list[Made] = []
    lock = threading.RLock()

    @functools.wraps(make)
    def get() -> Made:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0]

    return get


class Calls(enum.IntEnum):
    """How CPython calls a C function: the ``METH_`` flags."""

    WITH_ONE = 0x8  # f(self, argument)
    WITH_MANY = 0x80  # f(self, arguments, count)


class NativeCode:
    """The functions of one module of LLVM IR, in memory as long as this lives.

    ``symbols``: addresses of the functions it declares; ``machine``: a code generator other than
    for the processor at large.
    """

    def __init__(
        self, text: str, symbols: Mapping[str, int | None] | None = None, machine: Any = None
    ) -> None:
        initialize()
        if machine is None:
            machine = binding.Target.from_default_triple().create_target_machine(opt=2)
        module = binding.parse_assembly(text)
        module.verify()
        self._engine = binding.create_mcjit_compiler(module, machine)
        for name, address in (symbols or {}).items():
            self._engine.add_global_mapping(module.get_function(name), address)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where a function of the module begins."""
        return int(self._engine.get_function_address(name))


def initialize() -> None:
    """Makes LLVM ready to generate code for this processor."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


def python_function(
    name: str, address: int, calls: Calls, this: Any, keep: Any = None
) -> Callable[..., Any]:
    """A builtin function of the C code at ``address``, called with ``this`` as its ``self``;
    ``keep`` lives as long.

    CPython reads the definition once more when the function dies. Of a function in a cycle the
    collector has emptied all it can by then, objects of ctypes too: bytes it cannot.
    """
    text = name.encode()
    definition = bytes(_MethodDef(text, address, calls, None))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_char_p, ctypes.py_object, ctypes.py_object]
    function: Callable[..., Any] = make(definition, this, (definition, text, keep))
    return function


def read_word(address: int) -> int:
    """The 8 bytes at ``address`` as an unsigned integer."""
    value: int = ctypes.c_uint64.from_address(address).value
    return value


def address_in_python(name: str) -> int | None:
    """Where a function of CPython's C interface is."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value


class _MethodDef(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )
