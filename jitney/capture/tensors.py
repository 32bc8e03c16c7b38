"""Input tensors: their fakes, their placeholders, and what is assumed of them."""

from __future__ import annotations

from typing import Any

import torch

from jitney import torch_api
from jitney.capture.frame import BreakCapture
from jitney.capture.guard import TensorFacts
from jitney.capture.options import CaptureOptions
from jitney.capture.record import Recorder
from jitney.capture.source import Source
from jitney.capture.symbols import LARGEST_NUMBER, dynamic_dims, is_dynamic_number
from jitney.errors import UserError

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Tensors:
    """The tensors one capture has let in, real and fake."""

    def __init__(self, recorder: Recorder, options: CaptureOptions) -> None:
        self.recorder, self.options = recorder, options
        self.real: dict[int, tuple[Any, torch.Tensor, Source]] = {}  # by id(fake)

    def enter(self, real: torch.Tensor, source: Source) -> tuple[Any, TensorFacts]:
        """(its fake, already a placeholder of the graph; what the graph assumes of it)."""
        if torch_api.is_fake(real):
            raise BreakCapture("fake-input", "a FakeTensor is among the inputs")
        cls = type(real)
        if cls not in PLAIN_TENSORS:
            raise BreakCapture("tensor-subclass", f"{source} is a {cls.__name__}")
        if torch_api.lacks_memory(real):
            reason = "is a tensor of zeros without memory, or was kept from inside a transform"
            raise BreakCapture("tensor-subclass", f"{source} {reason}")
        if real.layout != torch.strided or real.is_quantized or real.is_nested:
            raise BreakCapture("tensor-layout", f"{source} is not a dense strided tensor")
        if torch_api.is_forbidden(real):
            raise BreakCapture("forbidden-view", f"{source} is a view whose base was written to")
        if torch_api.has_left_its_base(real):
            raise BreakCapture("moved-view", f"{source} is a view of what has other memory by now")
        try:
            fake = self._fake(real, source)
        except (BreakCapture, UserError):
            raise
        except Exception as error:  # of legacy vmap; a view whose base has another shape by now
            reason = f"{source} has no stand-in: {error}"
            raise BreakCapture("tensor-subclass", reason) from error
        static = isinstance(real, torch.nn.Parameter) or bool(torch_api.mark_of(real, "address"))
        self.recorder.placeholder(fake, source, static)
        self.real[id(fake)] = (fake, real, source)
        facts = TensorFacts(
            cls,
            real.dtype,
            real.device,
            tuple([None if isinstance(s, torch.SymInt) else s for s in fake.shape]),
            tuple([None if isinstance(s, torch.SymInt) else s for s in fake.stride()]),
            real.requires_grad,
            is_conj=real.is_conj(),
            is_neg=real.is_neg(),
            is_inference=real.is_inference(),
        )
        return fake, facts

    def symbolic_scalar(self, value: Any, source: Source) -> Any:
        """A SymInt or SymFloat for a scalar input that is dynamic, else None."""
        if not is_dynamic_number(value, source, self.options):
            return None
        environment = self.recorder.shape_env
        symbol = torch_api.symbolic_number(environment, value, str(source), LARGEST_NUMBER)
        if not isinstance(symbol, torch.SymInt | torch.SymFloat):
            return None
        self.recorder.symbols.learn(symbol, source)
        return symbol

    def _fake(self, real: torch.Tensor, source: Source) -> Any:
        dims, marked = dynamic_dims(real, source, self.options)
        mode = self.recorder.fake_mode
        if not dims or real.is_conj() or real.is_neg():  # a symbolic fake would forget that it is
            fake = torch_api.fake_of(mode, real)  # that of a view's base came with the view's
        else:
            fake = torch_api.symbolic_fake_of(mode, real, str(source), dims, marked)
        self.recorder.symbols.learn_tensor(fake, source)
        return fake
