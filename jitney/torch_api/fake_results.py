"""Fake results of ATen calls, remembered: layers repeat, and so do shapes.

FakeTensorMode spends a quarter of a millisecond on a call, cached or not, most of the time that
capture and tracing take. A call whose operands look the same as before gives a result that looks
the same, so its metadata are kept and a new fake is made from them, a view on the same memory
where the op makes views. Symbolic sizes are never remembered: each call may add guards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from jitney.torch_api.fakes import below_fakes, fake_tensor_class
from jitney.torch_api.forecasts import forecast
from jitney.torch_api.symbols import was_symbolic

_PLAIN = (int, bool, float, str, type(None), torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip
Recipe = tuple[torch.Size, tuple[int, ...], int, torch.dtype, torch.device]


class _NoKey(Exception):
    """An argument that cannot be part of a key."""


class FakeResults:
    """Calls ops on fake tensors of one mode; `call` remembers for as long as this object lives."""

    def __init__(self, fake_mode: Any) -> None:
        self._mode = fake_mode
        self._fake = fake_tensor_class()
        self._known: dict[Any, Recipe | tuple[Recipe, ...]] = {}

    def call(self, op: OpOverload, args: Any, kwargs: Any, view: bool) -> Any:
        """``op(*args, **kwargs)``; ``view``: its results share the first argument's memory."""
        try:
            key = (
                op,
                self._key(args),
                self._key(tuple(kwargs.items())) if kwargs else None,
                torch.get_default_dtype(),
            )
        except _NoKey:
            return forecast(op, args, kwargs)
        known = self._known.get(key)
        if known is not None:
            return self._remake(known, args[0] if view else None)
        out = forecast(op, args, kwargs)
        items = out if isinstance(out, tuple) else (out,)
        if view and not isinstance(args[0], torch.Tensor):
            return out
        kind = args[0].dtype if view else None
        if all(self._can_keep(item, kind) for item in items):
            recipes = tuple(self._recipe(item) for item in items)
            self._known[key] = recipes if isinstance(out, tuple) else recipes[0]
        return out

    def _key(self, value: Any) -> Any:
        kind = type(value)
        if kind is self._fake:
            lazy = value.is_complex() or value.is_neg()  # a complex one may be conjugated
            if value.constant is not None or lazy or value.layout is not torch.strided:
                raise _NoKey
            if was_symbolic(value):
                raise _NoKey
            place = value.stride(), value.storage_offset(), value.fake_device
            return value.dtype, value.shape, *place
        if kind is tuple or kind is list:
            return tuple([self._key(item) for item in value])
        if kind in _PLAIN:
            return kind, value
        raise _NoKey

    def _can_keep(self, item: Any, viewed: torch.dtype | None) -> bool:
        """``viewed``: for a view, the dtype of what it views; it must not reinterpret that."""
        return (
            type(item) is self._fake
            and item.constant is None
            and item.fake_device.type in ("cpu", "cuda")
            and item.layout is torch.strided
            and (item.storage_offset() == 0 if viewed is None else item.dtype == viewed)
            and not (item.is_conj() or item.is_neg() or was_symbolic(item))
        )

    def _recipe(self, item: Any) -> Recipe:
        return item.shape, item.stride(), item.storage_offset(), item.dtype, item.fake_device

    def _remake(self, known: Any, base: torch.Tensor | None) -> Any:
        with below_fakes(self._mode):
            if type(known[0]) is torch.Size:
                return self._fake(self._mode, _meta(known, base), known[4])
            return tuple([self._fake(self._mode, _meta(one, base), one[4]) for one in known])


def _meta(recipe: Recipe, base: torch.Tensor | None) -> torch.Tensor:
    size, stride, offset, dtype, _ = recipe
    if base is None:
        return torch.empty_strided(size, stride, dtype=dtype, device="meta")
    return base.as_strided(size, stride, offset)
