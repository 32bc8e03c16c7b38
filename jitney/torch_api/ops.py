"""ATen ops and the graphs of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.distributions import Distribution, distribution
from torch.fx._lazy_graph_module import _LazyGraphModule

OP_TYPES = (OpOverload, OpOverloadPacket)  # what attributes of ``torch.ops.…`` are

#: Code of `torch.distributions` in which a branch asks whether all values are valid.
VALIDATIONS = tuple(
    function.__code__
    for function in (
        Distribution.__init__,
        Distribution._validate_sample,
        getattr(distribution, "_all_true_or_runtime_assert", None),  # torch >= 2.15
    )
    if function is not None
)


def op_name(op: Any) -> str:
    """What ATen calls an op, its overload left out: "add_" of ``aten.add_.Tensor``; "" of what is
    no overload."""
    name: str = getattr(op, "_opname", "")
    return name


def overload_name(op: OpOverload) -> str:
    """Which overload it is: "Tensor" of ``aten.add_.Tensor``."""
    return op._overloadname


def schema_of(op: OpOverload) -> torch.FunctionSchema:
    """An overload's arguments and returns, and which of them share memory or are written to."""
    return op._schema


def raised_by_formula(error: Exception) -> bool:
    """Whether the program's own code raised it that `register_autograd` was given."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    of_traces = modules[-1].split(".")[0] in ("jitney", "torch", "sympy")
    return "torch._library.autograd" in modules and not of_traces


def overload_of(definition: torch.library.CustomOpDef) -> OpOverload:
    """The op that `torch.library.custom_op` defined."""
    return definition._opoverload


def is_composite(op: Any) -> bool:
    """Whether torch itself decomposes ``op`` into other ops (CompositeImplicitAutograd), or knows
    it in TorchScript alone (aten::size, which torch 2.11 asks a mode for)."""
    name, has_kernel = op.name(), torch._C._dispatch_has_kernel_for_dispatch_key
    known = torch._C._dispatch_has_kernel(name)
    return not known or bool(has_kernel(name, "CompositeImplicitAutograd"))


def has_autograd_kernel(op: Any) -> bool:
    """Whether autograd has a kernel for ``op``, so that it sees none of what it does inside."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "Autograd"))


@lru_cache(maxsize=4096)
def is_data_dependent(op: Any) -> bool:
    """Whether what a result looks like depends on values."""
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return not tags.isdisjoint(op.tags)


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of ATen ops into core ATen: overload -> function.

    Without ops that are composite for autograd (looking those up takes a tenth of a second).
    """
    import torch._decomp

    return torch._decomp._core_aten_decompositions_post_autograd()


def decomposition_of(op: Any) -> Callable[..., Any]:
    """torch's own decomposition of an overload, core ATen or not; KeyError without one."""
    import torch._decomp

    found: Callable[..., Any] = torch._decomp.decomposition_table[op]
    return found


class _Region(_LazyGraphModule):
    """A graph module whose Python code is written when it is first called or read.

    Its ``forward`` is that code alone: torch's `GraphModule.__call__`, which the base class calls,
    prints a traceback of its own where the code raises.
    """

    def _lazy_forward(self, *args: Any, **kwargs: Any) -> Any:
        self.real_recompile()
        return self.forward(*args, **kwargs)

    forward = _lazy_forward


def graph_module(root: dict[str, Any], graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A `torch.fx.GraphModule` of ``graph`` that is lazy."""
    return _Region(root, graph, "Region")


def has_side_effects(op: Any) -> bool:
    """Whether an op must not be dropped though nothing reads its value (asserts, prints)."""
    return op in torch.fx.node._side_effectful_functions or is_assertion(op)


def is_assertion(op: Any) -> bool:
    """Whether an op gives nothing, and raises for some values of the tensor it is given."""
    packet = torch.ops.aten._assert_async
    factored = torch.ops.aten._linalg_check_errors.default
    return op in (torch._assert_async, packet.default, packet.msg, factored)


def find_op(name: str) -> Any:
    """The overload called "aten.view.default"."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


#: Ops that a function of torch's with the same arguments reaches sooner (mm 0.7 µs, a convolution
#: 20 µs): it parses lists and numbers itself, an overload asks the schema.
_DIRECT = ("convolution", "mm", "addmm", "bmm", "baddbmm")


def direct_function(op: Any) -> Callable[..., Any] | None:
    """The function of torch's that calls ``op`` for its arguments, where that is faster than the
    dispatcher."""
    for name in _DIRECT:
        if op == getattr(torch.ops.aten, name).default:
            return getattr(torch, name)
    return None
