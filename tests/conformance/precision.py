"""The precisions in which a program is judged, and the wider run that is its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.conformance.noise import CANCELLED

FAR = 1e-2  # a float64 run further off than this took another way: it is no reference


@dataclass(frozen=True)
class Precision:
    """Every float that a program begins with is of ``dtype``; with ``autocast`` it stays float32,
    and what was compiled is called under autocast to ``dtype``."""

    dtype: torch.dtype = torch.float32
    autocast: bool = False

    @property
    def is_short(self) -> bool:
        """Whether programs round to 16 bits."""
        return self.dtype.itemsize < 4

    @property
    def eps(self) -> float:
        """The relative size of a rounding."""
        return torch.finfo(self.dtype).eps

    @property
    def far(self) -> float:
        """The share of a tensor's scale that is more than rounding."""
        return max(FAR, 16 * self.eps)

    @property
    def cancelled(self) -> float:
        """The share of a result's scale below which rounding may make up a tensor."""
        return max(CANCELLED, 8 * self.eps)

    @property
    def wider(self) -> tuple[torch.dtype, ...]:
        """What a reference runs in, the best first."""
        return (torch.float64, torch.float32) if self.is_short else (torch.float64,)

    def given(self, value: Any) -> Any:
        """What a program begins with, in this precision."""
        return in_dtype(self.dtype, value) if self.is_short and not self.autocast else value

    def called(self, compiled: Any) -> Any:
        """What was compiled, called in this precision."""
        if not self.autocast:
            return compiled

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves = tree_leaves((args, kwargs))
            devices = [leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)]
            with torch.autocast(devices[0] if devices else "cpu", self.dtype):
                return compiled(*args, **kwargs)

        return call

    def reference(self, run: Callable[[Callable[[Any], Any]], Any]) -> Any:
        """What ``run`` gives, in eager on floats that went through the function it is given, in the
        widest dtype that it takes; None where it takes none: no kernel, or types do not mix."""
        for dtype in self.wider:
            try:
                with Widened(self.dtype):
                    made = run(lambda value, dtype=dtype: in_dtype(dtype, value))
            except Exception:  # noqa: BLE001 - what no wide run can do is no matter
                continue
            # float32 within a program is exact to one of 16 bits
            return tree_map(detached_doubles, made) if self.is_short else made
        return None


PRECISIONS = {
    "float32": Precision(),
    "bfloat16": Precision(torch.bfloat16),
    "float16": Precision(torch.float16),
    "autocast": Precision(torch.bfloat16, autocast=True),
}


class Widened(TorchFunctionMode):
    """Gives a run in doubles the random numbers that one in ``dtype`` draws, and to
    `torch.grouped_mm`, which experts call, the doubles that it refuses."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("rand", "randn", "rand_like", "randn_like"):
            like = getattr(args[0], "dtype", None) if args else None
            if kwargs.get("dtype", like) is torch.float64:
                return func(*args, **kwargs | {"dtype": self.dtype}).double()
        if name in ("grouped_mm", "_grouped_mm") and args[0].dtype is torch.float64:
            if args[0].dim() == 2 and args[1].dim() == 3:
                return grouped_product(*args, **kwargs)
        return func(*args, **kwargs)


def grouped_product(
    rows: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor, **nothing: None
) -> torch.Tensor:
    """Rows (m, k) up to each of ``offs`` (g,) by the weights (g, k, n) of their group: (m, n), with
    zeros for rows after the last."""
    ends = offs.tolist()
    starts = [0, *ends[:-1]]
    parts = [rows[a:b] @ weight for a, b, weight in zip(starts, ends, weights, strict=True)]
    rest = rows.new_zeros(len(rows) - ends[-1], weights.shape[-1])
    return torch.cat([*parts, rest])


def in_dtype(dtype: torch.dtype, value: Any) -> Any:
    """A tensor of floats as a leaf of ``dtype``; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def detached_doubles(value: Any) -> Any:
    """A tensor of floats in double precision, out of any graph, asking for gradients as before."""
    return in_dtype(torch.float64, value)
