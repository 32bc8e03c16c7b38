"""Two things that Triton 3.6's interpreter asks of NumPy and NumPy 2.5 refuses."""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor
_store = interpreter.InterpreterBuilder.create_masked_store


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    """An array of one element is an int."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


def _create_masked_store(self: Any, *operands: Any) -> Any:
    """Arrays that are broadcast may be handed on as arrays to write to."""
    whole = [
        type(o)(o.data.copy(), o.dtype) if isinstance(o, interpreter.TensorHandle) else o
        for o in operands
    ]
    return _store(self, *whole)


interpreter._patch_lang_tensor = _patch_lang_tensor
interpreter.InterpreterBuilder.create_masked_store = _create_masked_store
