"""Running an `Extern` node: recorded arguments become tensors and ints, then torch is called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import CompilerBug, LeftToEager, WrongForecast
from jitney.kernels import (
    paired_product,  # noqa: F401  (defines an op that programs name)
    philox_state,
)
from jitney.loops.evaluate_scalar import evaluate_scalar
from jitney.loops.index import Atom, Index
from jitney.loops.ir import BufferView, Expr, Extern
from jitney.torch_api.triton_kernels import launching_function

#: Makes the tensor a view stands for, given the sizes of this call.
ViewTensor = Callable[[BufferView], torch.Tensor]


class ExternCall:
    """An extern node prepared for calls: the overload is looked up once, the arguments are read at
    each call. ``returned``: the buffers that results of the program lie in."""

    def __init__(self, node: Extern, returned: Collection[str] = ()) -> None:
        self.node = node
        self._returned = returned
        overload = torch_api.find_op(node.target)
        direct = torch_api.direct_function(overload) or launching_function(overload)
        self.function = direct or overload
        self._args = [_known(a) for a in node.args]
        self._kwargs = [(name, _known(a)) for name, a in node.kwargs]
        self.decides_shape = torch.Tag.dynamic_output_shape in overload.tags
        if node.target == philox_state.NAME:  # by the dispatcher it takes twice the time
            self.function = philox_state.philox_state

    def run(
        self, view: ViewTensor, sizes: Mapping[Atom, int], scalars: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Calls the op; returns one value per entry of ``node.outputs``."""
        # What no call changes was read off once: reading takes longer than a small op itself.
        args = [v if known else _value(v, view, sizes, scalars) for known, v in self._args]
        kwargs = {
            name: v if known else _value(v, view, sizes, scalars)
            for name, (known, v) in self._kwargs
        }
        try:
            if torch_api.autocast_is_on():  # the graph has its casts, those of the program
                with torch_api.no_casts():
                    result = self.function(*args, **kwargs)
            else:
                result = self.function(*args, **kwargs)
        except RuntimeError as error:
            error.add_note(f"in {self.node.target}")
            raise
        if not self.node.outputs:
            return ()
        results = tuple(result) if isinstance(result, list | tuple) else (result,)
        if len(results) < len(self.node.outputs):
            raise CompilerBug(f"{self.node.target} gave {len(results)} results")
        return results

    def left_undefined(self, name: str | None) -> None:
        """Raises where the op left the result ``name`` undefined (None in Python) although torch
        predicted a tensor, and the program returns it to its caller."""
        if name in self._returned:
            raise LeftToEager(f"{self.node.target} leaves a result undefined")

    def check(self, result: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Raises where ``shape`` and ``dtype``, torch's own forecast of a result, were wrong:
        kernels read by them. What a call decides by values has no forecast of its shape; nothing
        reads its size."""
        given = result.dtype, list(result.shape)
        foreseen = dtype, given[1] if self.decides_shape else list(shape)
        if given != foreseen:
            message = f"{self.node.target} gave {given}, not {foreseen} as torch foresaw"
            raise WrongForecast(message)


def _known(arg: Any) -> tuple[bool, Any]:
    """(True, its value) for an argument that is the same in every call; (False, the argument
    itself) for others."""
    if isinstance(arg, Index):
        return (True, int(arg)) if arg.is_const else (False, arg)
    if isinstance(arg, list | tuple):
        parts = [_known(a) for a in arg]
        known = all(k for k, _ in parts)
        return (True, [v for _, v in parts]) if known else (False, arg)
    return not isinstance(arg, BufferView | Expr), arg


def _value(
    arg: Any, view: ViewTensor, sizes: Mapping[Atom, int], scalars: Mapping[str, Any]
) -> Any:
    """An argument of this call. (A function of its own: as a closure that calls itself it would
    be a reference cycle and keep every tensor of the call until the next garbage collection.)"""
    if isinstance(arg, BufferView):
        return view(arg)
    if isinstance(arg, Index):
        return int(arg) if arg.is_const else arg.evaluate(sizes)
    if isinstance(arg, list | tuple):
        return [_value(a, view, sizes, scalars) for a in arg]
    return evaluate_scalar(arg, scalars, sizes)
