"""Micro-benchmarks: one small function each, as tasks that `jitney bench` understands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from jitney.cli.workloads import Size, Task, Workload

ROWS, COLUMNS = 1024, 1024


def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x * y + 1.0) * torch.sigmoid(y)


def small_pointwise(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x[:8] + y[:8]) * 2.0


def layer_norm(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x + y, (COLUMNS,))


def rms_norm(x: Tensor, y: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * y[0]


def softmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x * 0.125 + y, -1)


def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y[:, 0].abs().long() % COLUMNS)


def rotary(x: Tensor, y: Tensor) -> Tensor:
    half = COLUMNS // 2
    rotated = torch.cat((-x[:, half:], x[:, :half]), -1)
    return x * torch.cos(y) + rotated * torch.sin(y)


def transpose(x: Tensor, y: Tensor) -> Tensor:
    return (x.t() + y).contiguous()


def column_sum(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(0)


FUNCTIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    pointwise, small_pointwise, layer_norm, rms_norm, softmax, cross_entropy, rotary, transpose,
    column_sum,
)  # fmt: skip


def workload(function: Callable[[Tensor, Tensor], Tensor]) -> Workload:
    """Two inputs of 1024x1024."""

    def make(size: Size, dtype: torch.dtype) -> Task:
        x, y = (torch.randn(ROWS, COLUMNS).to(dtype) for _ in range(2))

        def step(fn: Callable[..., Any]) -> Any:
            with torch.no_grad():
                return fn(x, y)

        return Task(function, step)

    return Workload(function.__name__, "two inputs of 1024x1024", make)


MICRO = {f.__name__: workload(f) for f in FUNCTIONS}


def __getattr__(name: str) -> Workload:
    """``benchmarks.micro:softmax_case``: what `jitney bench` looks up."""
    function = name.removesuffix("_case")
    if function == name or function not in MICRO:
        raise AttributeError(name)
    return MICRO[function]
