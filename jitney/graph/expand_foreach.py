"""``torch._foreach_*``: what optimizers call is the plain op on each tensor of the lists."""

from __future__ import annotations

from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.torch_api import OpOverload

_PREFIX = "_foreach_"
_PLAIN_NAMES = {"norm": "linalg_vector_norm"}
# Of two tensors or of a tensor and a number, which the plain op does not take.
_OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}


def is_foreach(op: OpOverload) -> bool:
    """Whether ``op`` is a plain op on lists."""
    return op.namespace == "aten" and torch_api.op_name(op).startswith(_PREFIX)


def expand_foreach(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the plain op on each tensor; a list of results, or None for an op in place.

    Raises Unsupported for numbers that are given as a tensor.
    """
    name = torch_api.op_name(op).removeprefix(_PREFIX)
    in_place = name.endswith("_")
    name = name.removesuffix("_")
    if torch_api.overload_name(op) in ("Scalar", "ScalarList"):
        name = _OF_NUMBERS.get(name, name)
    name = _PLAIN_NAMES.get(name, name)
    plain = getattr(torch.ops.aten, name, None)
    arguments = torch_api.schema_of(op).arguments
    given = dict(zip([a.name for a in arguments], args, strict=False)) | kwargs
    if plain is None or isinstance(given.get("scalars"), torch.Tensor):
        raise Unsupported("foreach", f"{op} is not taken apart")
    writing = getattr(torch.ops.aten, f"{name}_", None) if in_place else None
    kinds = {a.name: str(a.type) for a in arguments}
    count = next(len(value) for key, value in given.items() if kinds[key] == "List[Tensor]")
    results = []
    for at in range(count):
        positional, named = _arguments_at(op, given, kinds, at)
        if writing is not None:
            writing(*positional, **named)
            continue
        results.append(plain(*positional, **named))
        if in_place:
            positional[0].copy_(results[-1])
    if in_place:  # as the kernels for lists do, which autograd leaves it to
        torch_api.bump_versions(tuple(given["self"]))
    return None if in_place else results


def _arguments_at(
    op: OpOverload, given: dict[str, Any], kinds: dict[str, str], at: int
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of the plain op, which takes some by name alone."""
    positional, named = [], {}
    for key, value in given.items():
        item = value[at] if kinds[key] in ("List[Tensor]", "List[number]") else value
        if key == "scalars" and "addc" in torch_api.op_name(op):
            key = "value"
        if key not in ("alpha", "value", "dtype", "memory_format"):
            positional.append(item)
        elif item is not None:
            named[key] = item
    return positional, named
