"""Two things that Triton 3.6's interpreter asks of NumPy and NumPy 2.5 refuses; a check of every
kernel that a test emits."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from jitney.kernels.triton.kernel_source import KernelSource
from tests.kernels.triton.races import races


def _mend_interpreter() -> None:
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    store = interpreter.InterpreterBuilder.create_masked_store

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        """An array of one element is an int."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def create_masked_store(self: Any, *operands: Any) -> Any:
        """Arrays that are broadcast may be handed on as arrays to write to."""
        whole = [
            type(o)(o.data.copy(), o.dtype) if isinstance(o, interpreter.TensorHandle) else o
            for o in operands
        ]
        return store(self, *whole)

    interpreter._patch_lang_tensor = patch_lang_tensor
    interpreter.InterpreterBuilder.create_masked_store = create_masked_store


def _check_order() -> None:
    """Every nest and product that any test emits has its threads wait where they must."""
    from jitney.kernels.triton.emit_nest import NestEmitter
    from jitney.kernels.triton.gemm_tile import GemmEmitter

    for emitter in (NestEmitter, GemmEmitter):
        emitter.emit = _ordered(emitter.emit)  # type: ignore[method-assign]


def _ordered(emit: Callable[..., KernelSource]) -> Callable[..., KernelSource]:
    def checked(self: Any) -> KernelSource:
        source = emit(self)
        found = races(source.body)
        assert not found, f"{source.name} does not wait before {found}:\n{source.body}"
        return source

    return checked


if importlib.util.find_spec("triton") is not None:
    _mend_interpreter()
    _check_order()
