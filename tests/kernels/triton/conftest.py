"""Two things that Triton 3.6's interpreter asks of NumPy and NumPy 2.5 refuses."""

from __future__ import annotations

import importlib.util
from typing import Any


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


if importlib.util.find_spec("triton") is not None:
    _mend_interpreter()
