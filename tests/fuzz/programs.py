"""Random small torch programs for hypothesis: straight-line code over a few tensors.

A program is data (comparable, printable as Python), so that a failure shrinks to the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

# name → (number of operands, function); every one is total on finite floats
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "exp": lambda x: torch.exp(torch.clamp(x, max=3.0)),
    "log": lambda x: torch.log(x.abs() + 0.5),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.5),
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "sin": torch.sin,
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, 0),
    "sum_last": lambda x: x.sum(-1, keepdim=True),
    "mean_first": lambda x: x.mean(0, keepdim=True),
    "max_last": lambda x: x.amax(-1, keepdim=True),
    "var": lambda x: x.var(-1, unbiased=False, keepdim=True),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "cumsum": lambda x: x.cumsum(0),
    "transpose": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, -1),
    "flatten": lambda x: x.reshape(-1).reshape(x.shape),
    "half": lambda x: x.to(torch.bfloat16).to(x.dtype),
    "double": lambda x: x.double().to(x.dtype),
    "detach": lambda x: x + x.detach(),
    "mask": lambda x: x.masked_fill(x > 0.5, -1.0),
    "tril": torch.tril,
    "clone_add_": lambda x: x.clone().add_(1.0),
    "slice_write": lambda x: write_row(x),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 0))[..., :-1],
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.long)),
    "index": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": lambda a, b: a / (b.abs() + 0.5),
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "cat": lambda a, b: torch.cat([a, b], 0)[a.shape[0] :],
    "stack": lambda a, b: torch.stack([a, b]).sum(0),
    "matmul": lambda a, b: a @ b.transpose(-1, -2) @ b * 0.1,
    "atan2": lambda a, b: torch.atan2(a, b.abs() + 0.5),  # near (0, 0) gradients cancel
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
}


def write_row(x: Tensor) -> Tensor:
    """A copy whose first row is doubled in place."""
    y = x.clone()
    y[0] *= 2
    return y


@dataclass(frozen=True)
class Step:
    """``t[n] = op(t[a], t[b])`` where n is the step's place after the inputs."""

    op: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """Inputs of one broadcastable shape each, steps, and which values are returned."""

    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def __call__(self, *inputs: Tensor) -> Any:
        """Runs the steps on tensors of `shapes`."""
        values = list(inputs)
        for step in self.steps:
            table: dict[str, Any] = UNARY if len(step.operands) == 1 else BINARY
            values.append(table[step.op](*(values[i] for i in step.operands)))
        return tuple(values[i] for i in self.results)

    def inputs(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Random tensors that ask for gradients."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(s, generator=generator).requires_grad_() for s in self.shapes)


@st.composite
def programs(draw: st.DrawFn, largest: int = 10) -> Program:
    """Programs of up to ``largest`` steps over two inputs of shape (n, m) or (b, n, m)."""
    size = st.integers(2, 9) | st.sampled_from([16, 17, 33])
    shape = (*draw(st.sampled_from([(), (2,), (3,)])), draw(size), draw(size))
    steps: list[Step] = []
    full = [0, 1]  # values of the full shape: reductions with keepdim may only broadcast
    for _ in range(draw(st.integers(1, largest))):
        number = 2 + len(steps)
        if draw(st.booleans()):
            op = draw(st.sampled_from(sorted(UNARY)))
            operands = (draw(st.sampled_from(full)),)
            if op in ("sum_last", "mean_first", "max_last", "var"):
                steps.append(Step(op, operands))
                steps.append(Step("add", (draw(st.sampled_from(full)), number)))
                full.append(number + 1)
                continue
        else:
            op = draw(st.sampled_from(sorted(BINARY)))
            operands = (draw(st.sampled_from(full)), draw(st.sampled_from(full)))
        steps.append(Step(op, operands))
        full.append(number)
    results = draw(st.lists(st.sampled_from(full[2:]), min_size=1, max_size=2, unique=True))
    return Program((shape, shape), tuple(steps), tuple(results))
