"""How functorch's transforms prepare their arguments before they call a function."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import _broadcast_to_and_flatten, tree_flatten


def batched_inputs(
    function: Callable[..., Any], in_dims: Any, args: tuple[Any, ...]
) -> tuple[list[int | None], list[Any], Any]:
    """(dimension of each leaf or None, leaves, spec) of what `torch.vmap` is called with."""
    from torch._functorch.vmap import _process_batched_inputs

    _, dims, leaves, spec = _process_batched_inputs(in_dims, args, function)
    return dims, leaves, spec


def flat_out_dims(out_dims: Any, results: Any) -> tuple[Any, ...] | None:
    """``out_dims`` of `torch.vmap` for each leaf of ``results``; None if they do not fit."""
    if isinstance(results, torch.Tensor):
        if isinstance(out_dims, int):
            return (out_dims,)
        return out_dims if isinstance(out_dims, tuple) and len(out_dims) == 1 else None
    found = _broadcast_to_and_flatten(out_dims, tree_flatten(results)[1])
    return None if found is None else tuple(found)


def differentiated_arguments(args: tuple[Any, ...], argnums: Any) -> Any:
    """Those of ``args`` that `torch.func.grad` differentiates by, as it returns gradients."""
    from torch._functorch.eager_transforms import _slice_argnums

    return _slice_argnums(args, argnums, as_tuple=False)


def jacobian_of(code: types.CodeType) -> Callable[..., Any] | None:
    """`torch.func.jacrev` or `jacfwd` where ``code`` is of what it makes, which bears the name of
    the function that it was made of."""
    return _JACOBIANS.get(code)


_JACOBIANS: dict[types.CodeType, Callable[..., Any]] = {
    part: transform
    for transform in (torch.func.jacrev, torch.func.jacfwd)
    for part in transform.__code__.co_consts
    if isinstance(part, types.CodeType) and part.co_name == "wrapper_fn"
}
