"""The modes a trace depends on, to trace again later as at first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from jitney import torch_api

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Ambient:
    """Autocast of each device kind (on, dtype), grad mode and default dtype of a thread."""

    autocast: tuple[tuple[bool, torch.dtype], ...]
    grad: bool
    default: torch.dtype

    @staticmethod
    def now() -> Ambient:
        """The calling thread's."""
        autocast = [(torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in _KINDS]
        return Ambient(tuple(autocast), torch.is_grad_enabled(), torch.get_default_dtype())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A scope in which the modes are these."""
        before = Ambient.now()
        self._set()
        try:
            with torch_api.preserved_modes():
                yield
        finally:
            before._set()

    def _set(self) -> None:
        for kind, (on, dtype) in zip(_KINDS, self.autocast, strict=True):
            torch.set_autocast_enabled(kind, on)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_grad_enabled(self.grad)
        torch.set_default_dtype(self.default)
