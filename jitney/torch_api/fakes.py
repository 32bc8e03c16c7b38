"""Fake tensors: their modes, how they are made, what they refuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from jitney.torch_api.generators import note_generators
from jitney.torch_api.modes import dispatch_modes_off


@lru_cache(maxsize=1)
def _mode_class() -> type[Any]:
    """torch's FakeTensorMode, which draws no numbers: where an op tells its result's shape by
    running alone (`aten.binomial`), it is run on zeros, and on a GPU that moves the generator. It
    follows the rules that operators of higher order have for its base."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    class QuietFakeTensorMode(FakeTensorMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            rule = isinstance(func, HigherOrderOperator) and _rule_of(func, FakeTensorMode)
            if rule:
                return rule(self, *args, **(kwargs or {}))
            if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
                return super().__torch_dispatch__(func, types, args, kwargs)
            put_back = note_generators()
            try:
                return super().__torch_dispatch__(func, types, args, kwargs)
            finally:
                put_back()

    return QuietFakeTensorMode


def _rule_of(func: HigherOrderOperator, mode_class: type) -> Any:
    """Its rule for modes of ``mode_class``, if that leads to no function that these call
    themselves."""
    from torch._higher_order_ops.utils import registered_hop_fake_fns

    return None if func in registered_hop_fake_fns else func.python_key_table.get(mode_class)


def new_fake_mode(values: Iterable[Any] = ()) -> Any:
    """A FakeTensorMode of its own, with the ShapeEnv that knows the symbols among ``values``."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    nodes = [v.node for v in values if isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool)]
    known = [n.shape_env for n in nodes if getattr(n, "shape_env", None) is not None]
    return _mode_class()(shape_env=known[0] if known else ShapeEnv(), static_shapes=True)


def fake_mode_of(value: Any) -> Any:
    """The FakeTensorMode a tensor belongs to; None for a real one."""
    return getattr(value, "fake_mode", None)


@contextmanager
def tracing(context: Any) -> Iterator[None]:
    """A scope in which backends find the capture's TracingContext (and so its FakeTensorMode).

    A backend may run the graph, which may set the grad mode: it is put back.
    """
    from torch._guards import tracing as scope

    grad_mode = torch.is_grad_enabled()
    try:
        with nullcontext() if context is None else scope(context):
            yield
    finally:
        torch.set_grad_enabled(grad_mode)


def forget_real_tensors(mode: Any) -> None:
    """Drops the weak references by which ``mode`` knows the tensors that its fakes stand for: while
    they exist, a tensor cannot be swapped (`torch.utils.swap_tensors`)."""
    converter = mode.fake_tensor_converter.meta_converter
    converter.describer.lookup_tensor.clear()
    converter.describer.lookup_storage.clear()


def new_capture_mode() -> tuple[Any, Any]:
    """(FakeTensorMode, ShapeEnv) for one capture: data-dependent sizes and scalars raise."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    return _mode_class()(shape_env=shape_env, static_shapes=True), shape_env


def new_tracing_context(fake_mode: Any) -> Any:
    """The context that torch backends expect to find around them."""
    from torch._guards import TracingContext

    return TracingContext(fake_mode)


def is_fake_class(cls: Any) -> bool:
    """Whether it is the class FakeTensor."""
    return cls is fake_tensor_class()


def is_fake(value: Any) -> bool:
    """Whether it is a FakeTensor."""
    return isinstance(value, fake_tensor_class())


def fake_of(mode: Any, tensor: torch.Tensor) -> Any:
    """A FakeTensor with the static sizes of ``tensor``."""
    return mode.from_tensor(tensor, static_shapes=True)


def known_fake_of(mode: Any, tensor: torch.Tensor) -> Any:
    """The FakeTensor that backends get from ``mode`` for ``tensor``, if it has made one already."""
    return mode.fake_tensor_converter._get_memo(tensor)


def unsupported_by_fakes() -> tuple[type[BaseException], ...]:
    """The errors that FakeTensors raise where an answer depends on data."""
    from torch._subclasses import fake_tensor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
        GuardOnDataDependentSymNode,
    )


@contextmanager
def quiet_fakes() -> Iterator[None]:
    """A scope in which FakeTensor does not log the errors it raises: eager will raise them."""
    import logging

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def fake_tangent(fake_mode: Any, result: torch.Tensor) -> torch.Tensor:
    """A fake gradient of ``result``: its sizes and strides, row-major where it overlaps itself."""
    with dispatch_modes_off(), fake_mode, torch.no_grad():
        return torch.empty_like(result)


def fake_in_format(fake: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """A fake tensor like ``fake``, dense in ``memory_format``."""
    with dispatch_modes_off(), fake_mode_of(fake), torch.no_grad():
        return torch.empty_like(fake, memory_format=memory_format)


def fake_tensor_class() -> Any:
    """torch's FakeTensor: ``FakeTensor(mode, meta tensor, device)`` makes one."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


@contextmanager
def below_fakes(fake_mode: Any) -> Iterator[None]:
    """A context in which ops on fake tensors of ``fake_mode`` run meta kernels and give meta
    tensors."""
    with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
        fake_mode.in_kernel_invocation = True
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            yield
        finally:
            fake_mode.in_kernel_invocation = False


def is_data_dependent_error(error: BaseException) -> bool:
    """Whether fake tensors refused an op because its result depends on values."""
    return isinstance(error, unsupported_by_fakes())
