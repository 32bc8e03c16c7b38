"""The modes a trace depends on, to trace again later as at first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from jitney import torch_api


@dataclass(frozen=True)
class Ambient:
    """Autocast of each device kind (on, dtype), grad mode, default dtype and default device (None
    if none is set) of a thread."""

    autocast: torch_api.AutocastModes
    grad: bool
    default: torch.dtype
    device: torch.device | None

    @staticmethod
    def now() -> Ambient:
        """The calling thread's."""
        device = torch_api.read_state("default_device")
        grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
        return Ambient(torch_api.autocast_modes(), grad, dtype, device)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A scope, in a backward pass, in which the modes are these. (Autograd runs those without
        a default device.)"""
        before = Ambient.now()
        self._set()
        try:
            with torch_api.preserved_modes(), self.device or nullcontext():
                yield
        finally:
            before._set()

    def _set(self) -> None:
        torch_api.set_autocast_modes(self.autocast)
        torch.set_grad_enabled(self.grad)
        torch.set_default_dtype(self.default)
