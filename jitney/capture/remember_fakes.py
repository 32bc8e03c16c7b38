"""What torch calls on fakes give is remembered while a frame is captured: layers repeat."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from jitney import torch_api

_DEVICE = torch.ops.prim.device.default


class RememberedFakes(torch_api.dispatch_mode_class()):  # type: ignore[misc]
    """Answers ATen calls like ones before it; others go on to the fake mode, entered below."""

    supports_higher_order_operators = True

    def __init__(self, fake_mode: Any) -> None:
        super().__init__()
        self._results = torch_api.FakeResults(fake_mode)
        self.named_gpu = False  # whether a call meant the current one

    @classmethod
    def is_infra_mode(cls) -> bool:
        """What torch asks: whether the mode is no user's."""
        return True  # nothing of the user's: torch must not see another mode than it does

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # called a thousand times a capture: no wrapper that switches Dynamo off

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, kwargs = kwargs, torch_api.naming_gpu(kwargs or {})
        self.named_gpu |= bool(given) and kwargs is not given
        if func is _DEVICE and torch_api.is_fake(args[0]):
            return args[0].fake_device  # asked for several times a call
        if not isinstance(func, torch_api.OpOverload):
            return func(*args, **kwargs)
        torch_api.refuse(func, args, kwargs)
        if not _makes_its_own(func):
            return func(*args, **kwargs)
        if not _can_remember(func):
            return torch_api.forecast(func, args, kwargs)
        return self._results.call(func, args, kwargs, _is_view(func))


@lru_cache(maxsize=4096)
def _makes_its_own(op: torch_api.OpOverload) -> bool:
    """Whether it is one of torch's kernels, and its results are none of the tensors it writes."""
    if op.namespace != "aten" or torch_api.is_composite(op):
        return False
    infos = [result.alias_info for result in torch_api.schema_of(op).returns]
    return not any(info is not None and info.is_write for info in infos)


@lru_cache(maxsize=4096)
def _can_remember(op: torch_api.OpOverload) -> bool:
    """Whether a result's looks follow from the operands', and making it does nothing else."""
    infos = [argument.alias_info for argument in torch_api.schema_of(op).arguments]
    writes = any(info is not None and info.is_write for info in infos)
    return not writes and not torch_api.is_data_dependent(op)


@lru_cache(maxsize=4096)
def _is_view(op: torch_api.OpOverload) -> bool:
    return any(result.alias_info is not None for result in torch_api.schema_of(op).returns)
