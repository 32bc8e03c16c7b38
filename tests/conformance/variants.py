"""The ways in which the operator database runs: dtypes, layouts in memory, options of `compile`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import jitney
from tests.equal import fresh

SEED = 1
_SPECIAL = (math.nan, 1.0, math.inf, -0.0, -math.inf, -1.0, 0.0)


def jitney_compile(
    fn: Callable[..., Any], dynamic: bool | None = None, **options: Any
) -> Callable[..., Any]:
    """A fresh compile: nothing left of earlier samples."""
    jitney.reset()
    checked = {"eager_on_bug": False, "verify": True}
    return jitney.compile(fn, dynamic=dynamic, options=checked | options)


@lru_cache(maxsize=1)
def compile_once(fn: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    """One compiled function for all samples of an op, each of which it has to tell apart."""
    limits = {"recompile_limit": 1000, "accumulated_recompile_limit": 1000}
    return jitney_compile(fn, dynamic=dynamic, **limits)


def compile_frozen(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The answer of a second call, of a module that holds all but a sample's first tensor."""

    def call(value: Any, args: Any, kwargs: Any) -> Any:
        compiled = jitney_compile(Holding(fn, (args, kwargs)), freeze=True)
        held = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        before = fresh(held)
        compiled(fresh(value))
        for leaf, old in zip(held, before, strict=True):
            if not torch.equal(leaf, old):  # running statistics
                leaf.copy_(old)
        torch.manual_seed(SEED)
        return compiled(value)

    return call


class Holding(torch.nn.Module):
    """A function whose operands but the first are a module's parameters and buffers."""

    def __init__(self, fn: Callable[..., Any], operands: Any) -> None:
        super().__init__()
        self.fn = fn
        leaves, self.spec = tree_flatten(operands)
        self.constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        for number, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            floats = leaf.is_floating_point() or leaf.is_complex()
            held = torch.nn.Parameter(leaf, requires_grad=False) if floats else leaf
            setattr(self, f"held_{number}", held)

    def forward(self, value: Any) -> Any:
        """The function of ``value`` and what the module holds."""
        leaves = [getattr(self, f"held_{n}", leaf) for n, leaf in enumerate(self.constants)]
        return self.fn(value, *tree_unflatten(leaves, self.spec))


def as_it_is(sample: Any) -> Iterator[Any]:
    """The sample."""
    yield sample


def noncontiguous(sample: Any) -> Iterator[Any]:
    """Elements two apart in every tensor, NaN between them."""
    if all(tensor.layout is torch.strided for tensor in tensors_of(sample)):
        yield sample.noncontiguous()


def tensors_of(sample: Any) -> list[torch.Tensor]:
    """All of a sample's tensors."""
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def channels_last(sample: Any) -> Iterator[Any]:
    """A sample with images or volumes, whose channels come to stand last in memory."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        order = formats.get(tensor.dim(), torch.preserve_format)
        return tensor.detach().clone(memory_format=order)

    if any(tensor.dim() in formats for tensor in tensors_of(sample)):
        yield with_tensors(sample, laid_out)


def expanded(sample: Any) -> Iterator[Any]:
    """The first element of the last axis everywhere along it, by a stride of zero; the operands
    of other dtypes (indices, masks) stay."""

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        elements = tensor.layout is torch.strided and tensor.dim() and tensor.shape[-1]
        if not elements or not tensor.is_floating_point():
            return tensor
        return tensor.detach()[..., :1].expand(tensor.shape)

    yield with_tensors(sample, spread)


def special(sample: Any) -> Iterator[Any]:
    """Every third or fourth element of a float tensor is the next of `_SPECIAL`."""

    def spotted(tensor: torch.Tensor) -> torch.Tensor:
        dense = tensor.layout is torch.strided and tensor.numel()
        if not dense or not tensor.is_floating_point():
            return tensor
        made = tensor.detach().clone(memory_format=torch.contiguous_format)
        spots = made.view(-1)[:: 3 if made.numel() % 3 else 4]
        spots.copy_(torch.tensor(_SPECIAL).repeat(len(spots))[: len(spots)])
        return made

    yield with_tensors(sample, spotted)


def in_turn(sample: Any) -> Iterator[Any]:
    """The sample with one thing after the other changed: strides, dtype, gradients; then again."""
    yield sample
    yield from noncontiguous(sample)
    if torch.float32 not in tree_leaves((sample.args, sample.kwargs)):
        yield with_tensors(sample, lambda t: t.detach().double() if t.dtype is torch.float32 else t)
    yield with_tensors(sample, torch.Tensor.detach, gradients=False)
    yield sample


def with_tensors(
    sample: Any, change: Callable[[torch.Tensor], torch.Tensor], gradients: bool = True
) -> Any:
    """The sample with its tensors changed, which are leaves that ask for gradients as before."""

    def changed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = change(value)
        if made is value:
            return value
        return made.requires_grad_(gradients and value.requires_grad)

    return type(sample)(
        tree_map(changed, sample.input),
        args=tree_map(changed, tuple(sample.args)),
        kwargs=tree_map(changed, sample.kwargs),
    )


@dataclass(frozen=True)
class Variant:
    """What samples an op runs with, what ``forms`` makes of each, and how it is compiled;
    ``gradients``: whether the samples ask for them."""

    about: str
    dtype: torch.dtype = torch.float32
    forms: Callable[[Any], Iterable[Any]] = as_it_is
    compile_: Callable[[Callable[..., Any]], Callable[..., Any]] = jitney_compile
    gradients: bool = True


DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8",
          "bool", "complex64")  # fmt: skip

VARIANTS = {name: Variant(name, getattr(torch, name)) for name in DTYPES} | {
    "noncontiguous": Variant("float32, elements apart in memory", forms=noncontiguous),
    "channels_last": Variant("float32 images with channels last", forms=channels_last),
    "expanded": Variant("float32 tensors with a stride of zero", forms=expanded),
    "dynamic": Variant(
        "float32, dynamic=True", compile_=partial(jitney_compile, dynamic=True)
    ),
    **{
        f"dynamic_{name}": Variant(
            f"{name}, dynamic=True", getattr(torch, name),
            compile_=partial(jitney_compile, dynamic=True),
        )
        for name in DTYPES[1:]
    },
    "special": Variant(
        "float32 with NaN, infinities and zeros of both signs among the elements (of which eager's "
        "answer may depend on where they stand)", forms=special,
    ),
    "frozen": Variant(
        "float32, operands held by a frozen module", compile_=compile_frozen, gradients=False
    ),
    "avx2": Variant(
        "float32, no AVX-512", compile_=partial(jitney_compile, cpu_features="-avx512")
    ),
    "in_turn": Variant(
        "all samples of an op by one compiled function, each also with other strides, dtype, and "
        "without gradients", forms=in_turn, compile_=compile_once,
    ),
    "dynamic_in_turn": Variant(
        "all samples of an op by one compiled function, dynamic=True",
        compile_=partial(compile_once, dynamic=True),
    ),
}  # fmt: skip
