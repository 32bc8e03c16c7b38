"""What stands between the user's tensors and the recorder's: nothing, or functionalization."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from jitney import torch_api
from jitney.graph.recorder import Decompositions, Recorder


class FunctionalRecorder(Recorder):
    """A recorder that stands where torch's own tracer does: under functionalization."""

    def __init__(
        self, decompositions: Decompositions, fake_mode: Any, symbolic: bool = False
    ) -> None:
        super().__init__(decompositions, fake_mode, symbolic)
        torch_api.make_infra_mode(self, self.known_node)

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __sym_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)


class Direct:
    """The graph runs on fakes as they are; the recorder takes simple mutations out itself."""

    def enter(self, stack: ExitStack) -> None:
        """Called once the recorder is entered."""

    def feed(self, fake: torch.Tensor) -> torch.Tensor:
        """The tensor the graph is given for a fake that the recorder knows."""
        return fake

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake that the recorder knows for a tensor of the graph."""
        return tensor

    def clones_inputs(self) -> bool:
        """Whether inputs that require grad are cloned, so that mutating them is differentiable."""
        return False


class Functionalized(Direct):
    """The graph runs on functional tensors, under torch's functionalization mode."""

    def enter(self, stack: ExitStack) -> None:
        stack.enter_context(torch_api.functional_mode())

    def feed(self, fake: torch.Tensor) -> torch.Tensor:
        return torch_api.to_functional(fake)

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch_api.from_functional(tensor)

    def clones_inputs(self) -> bool:
        return True
