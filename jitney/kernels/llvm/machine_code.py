"""LLVM text to machine code and into the process, by llvmlite."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm
import torch

from jitney.errors import CompilerBug
from jitney.loops.target import Target
from jitney.native_code import initialize

_LOCK = threading.Lock()
# A child of a fork must not find it held by a thread that it does not have.
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


@lru_cache(maxsize=8)
def _machine(name: str, features: str) -> llvm.TargetMachine:
    initialize()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=1, reloc="pic", codemodel="small"
    )


def machine_of(target: Target) -> llvm.TargetMachine:
    """The code generator for a target: its features and no others of the host's."""
    every = llvm.get_host_cpu_features()
    listed = (("+" if f in target.features else "-") + f for f in sorted(every))
    return _machine(target.name, ",".join(listed))


def compile_text(text: str, target: Target) -> bytes:
    """The object file of a module; CompilerBug with the offending lines if LLVM refuses it."""
    with _LOCK:
        try:
            module = llvm.parse_assembly(text)
        except RuntimeError as error:
            raise CompilerBug(f"invalid LLVM text: {error}") from error
        return machine_of(target).emit_object(module)


class LoadedObject:
    """An object file linked into the process; it stays while this lives."""

    def __init__(self, data: bytes, functions: Iterable[str], imports: Iterable[str]) -> None:
        with _LOCK:
            builder = llvm.JITLibraryBuilder()
            builder.add_object_img(data)
            for name in imports:
                builder.import_symbol(name, symbol_address(name))
            for name in functions:
                builder.export_symbol(name)
            self._tracker = builder.link(_linker(), f"jitney{next(_numbers)}")
            self.addresses: Mapping[str, int] = {name: self._tracker[name] for name in functions}


_numbers = itertools.count()


@lru_cache(maxsize=1)
def _linker() -> llvm.LLJIT:
    initialize()
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=1, reloc="pic", codemodel="small"
    )
    return llvm.create_lljit_compiler(machine, use_jit_link=True)


#: Symbols Jitney provides itself: name -> the memory (kept alive here).
_PROVIDED: dict[str, ctypes.c_int64] = {}


def provide_cell(name: str) -> ctypes.c_int64:
    """A 64-bit cell, 0 at first, that code reaches by ``name``; the same one every time."""
    with _LOCK:
        return _PROVIDED.setdefault(name, ctypes.c_int64(0))


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    folder = Path(torch.__file__).parent / "lib"
    files = [folder / n for n in ("libtorch_cpu.so", "libtorch_python.so")]
    files += sorted(folder.glob("libgomp*")) + sorted(
        folder.parent.parent.glob("torch.libs/libgomp*")
    )
    return (ctypes.pythonapi, *(ctypes.CDLL(str(f)) for f in files if f.exists()))


@lru_cache(maxsize=4096)
def _library_address(name: str) -> int | None:
    for library in (*_libraries(), ctypes.CDLL(None)):
        found = getattr(library, name, None)
        if found is not None:
            return ctypes.cast(found, ctypes.c_void_p).value
    return None


def symbol_address(name: str) -> int:
    """Where a symbol lives: ours, Python's, torch's, libgomp's, libm's; CompilerBug if nowhere."""
    cell = _PROVIDED.get(name)
    address = ctypes.addressof(cell) if cell is not None else _library_address(name)
    if address is None:
        raise CompilerBug(f"no library of this process exports {name}")
    return address
