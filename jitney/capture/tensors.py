"""Input tensors: their fakes, their placeholders, and what is assumed of them."""

from __future__ import annotations

from typing import Any

import torch

from jitney import torch_api
from jitney.capture.frame import BreakCapture
from jitney.capture.guard import TensorFacts
from jitney.capture.record import Recorder
from jitney.capture.source import Source

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Tensors:
    """The tensors one capture has let in, real and fake."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.real: dict[int, tuple[Any, torch.Tensor, Source]] = {}  # by id(fake)

    def enter(self, real: torch.Tensor, source: Source) -> tuple[Any, TensorFacts]:
        """(its fake, already a placeholder of the graph; what the graph assumes of it)."""
        if torch_api.is_fake(real):
            raise BreakCapture("fake-input", "a FakeTensor is among the inputs")
        cls = type(real)
        if cls not in PLAIN_TENSORS:
            raise BreakCapture("tensor-subclass", f"{source} is a {cls.__name__}")
        if real.layout != torch.strided or real.is_quantized or real.is_nested:
            raise BreakCapture("tensor-layout", f"{source} is not a dense strided tensor")
        fake = torch_api.fake_of(self.recorder.fake_mode, real)
        static = isinstance(real, torch.nn.Parameter) or bool(torch_api.mark_of(real, "address"))
        self.recorder.placeholder(fake, source, static)
        self.real[id(fake)] = (fake, real, source)
        facts = TensorFacts(
            cls,
            real.dtype,
            real.device,
            tuple(real.shape),
            tuple(real.stride()),
            real.requires_grad,
            is_conj=real.is_conj(),
            is_neg=real.is_neg(),
            is_inference=real.is_inference(),
        )
        return fake, facts

    def symbolic_scalar(self, value: Any, source: Source) -> Any:
        """A SymInt or SymFloat for a scalar input that is dynamic, else None."""
        return None
