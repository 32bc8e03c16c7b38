"""What the code of `torch.optim` asks where it is compiled."""

from __future__ import annotations

import types
from typing import Any

import torch

_INIT = torch.optim.Optimizer.__init__.__code__
#: Functions that do a whole step for lists of tensors, by the names of optimizers.
FUSED: dict[Any, str] = {
    torch._fused_adam_: "Adam",
    torch._fused_adamw_: "AdamW",
    torch._fused_sgd_: "SGD",
    torch._fused_adagrad_: "Adagrad",
}


def fused_step(function: Any) -> str | None:
    """The name of the optimizer whose step for lists of tensors a function is; None if it is
    none."""
    return FUSED.get(function) if type(function) is types.BuiltinFunctionType else None


def number_of_step(x: torch.Tensor | float) -> torch.Tensor | float:
    """What `torch.optim.optimizer._get_value` gives: in eager a Python number, from which the sizes
    of steps are computed in 64 bits (``1 - 0.999**step`` is 6e-5 off in 32). ``x`` has one element.
    """
    return x.double() if isinstance(x, torch.Tensor) else x


def group_tensors(lists: list[list[Any]], with_indices: bool = False) -> Any:
    """What `torch.utils._foreach_utils._group_tensors_by_device_and_dtype` gives, as Python where
    all of the first list are of one kind: several groups come in the order of C++'s table."""
    alike = bool(lists) and all(type(ts) is list and len(ts) == len(lists[0]) for ts in lists)
    alike = alike and all(isinstance(t, torch.Tensor) for t in lists[0])
    kinds = {(t.device, t.dtype) for t in lists[0]} if alike else ()
    if len(kinds) != 1:
        return torch._C._group_tensors_by_device_and_dtype(lists, with_indices)
    (kind,) = kinds
    return {kind: ([list(ts) for ts in lists], list(range(len(lists[0]))) if with_indices else [])}


def is_of_optimizers(code: types.CodeType) -> bool:
    """Whether a function is defined in the file of `torch.optim.Optimizer`."""
    return code.co_filename == _INIT.co_filename


def is_step(function: types.FunctionType) -> bool:
    """Whether it is a step for lists of tensors that is also to be called by itself."""
    return function.__module__ == f"torch.optim.{function.__name__}"


def is_part_of_step(function: types.FunctionType) -> bool:
    """Whether it is one of those that torch's compiler, once it was used, marks to run eager."""
    package, _, module = str(function.__module__).rpartition(".")
    name = function.__qualname__.rpartition(".")[2]
    marked = {"_init_group", f"_fused_{module}"}
    if module in ("lbfgs", "sparse_adam"):
        marked.add("step")
    return package == "torch.optim" and name in marked


def is_schedulers_step(function: Any) -> bool:
    """Whether a scheduler of learning rates has put it in place of an optimizer's step, whose name
    it has: it notes that the step was called, and calls it."""
    return bool(getattr(function, "_wrapped_by_lr_sched", False))


def is_capturable(optimizer: Any) -> bool:
    """Whether all steps of an optimizer are made of tensors only, as CUDA graphs need it."""
    groups = getattr(optimizer, "param_groups", ())
    return bool(groups) and all(group.get("capturable") for group in groups)
