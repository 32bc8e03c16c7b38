"""What a workload is: something to compile and a way to call it once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

Size = Literal["small", "base"]


def nothing() -> None:
    """The default `Task.reset`."""


@dataclass(frozen=True)
class Task:
    """A model ready to run.

    ``module`` is what gets compiled; ``step(fn)`` makes one step with ``fn`` in its place and
    returns what is compared with eager (for training: the loss and every gradient). ``reset``
    puts back state that a step moves on (a cache's length), so that steps can be repeated.
    """

    module: Callable[..., Any]
    step: Callable[[Callable[..., Any]], Any]
    reset: Callable[[], None] = nothing
    training: bool = False


@dataclass(frozen=True)
class Workload:
    """A named builder. ``make(size, dtype)`` builds in float32 from a seed, then casts."""

    name: str
    about: str
    make: Callable[[Size, torch.dtype], Task]

    def build(
        self,
        size: Size = "base",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        device: str = "cpu",
    ) -> Task:
        """A fresh task; weights and inputs depend on name, size, seed and device only."""
        elsewhere = [] if device == "cpu" else [torch.device(device)]
        place = elsewhere[0] if elsewhere else nullcontext()
        with torch.random.fork_rng(devices=elsewhere), place:
            torch.manual_seed(seed)
            return self.make(size, dtype)


def inference(module: Callable[..., Any], dtype: torch.dtype, *args: Any, **kwargs: Any) -> Task:
    """A task that calls ``module`` (in eval mode) or a function without gradients; what is of
    floats is cast."""
    if isinstance(module, torch.nn.Module):
        module = module.eval().to(dtype)
    arguments = tuple(cast(a, dtype) for a in args)
    keywords = {k: cast(v, dtype) for k, v in kwargs.items()}

    def step(fn: Callable[..., Any]) -> Any:
        with torch.no_grad():
            return fn(*arguments, **keywords)

    return Task(module, step)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """``value`` in ``dtype`` if it is a floating-point tensor, else unchanged."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


def settle_batch_norms(module: torch.nn.Module) -> torch.nn.Module:
    """Gives running statistics and affine weights values that are not the identity."""
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d) and part.running_mean is not None:
            part.running_mean.normal_(std=0.1)
            assert part.running_var is not None
            part.running_var.uniform_(0.5, 1.5)
            torch.nn.init.uniform_(part.weight, 0.5, 1.5)
    return module
