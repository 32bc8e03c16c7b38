"""What a torch-level graph means, as a digest: equal digests compile to equal regions.

Everything that tracing may look at goes in: operations, arguments, the inputs' metadata and
aliasing, and the state of the process that torch's ops read. What cannot be told apart by its
text (a user's function, a symbolic size, a tensor the graph owns) has no fingerprint.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.torch_api import names


class Unidentified(Exception):
    """The graph has no fingerprint; the message says why."""


_PLAIN = (int, bool, str, float, complex, type(None), type(Ellipsis))
_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_MODULES = {"torch", "_operator", "operator", "math", "builtins", "jitney"}
_OPS = {"aten", "prim", "prims"}
_PLACES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft")


def fingerprint(gm: fx.GraphModule, example_inputs: Sequence[Any] = ()) -> str:
    """A digest of ``gm``, its inputs' metadata and torch's state; Unidentified if there is none."""
    numbers = {node: position for position, node in enumerate(gm.graph.nodes)}
    storages: dict[int, int] = {}
    rows = [repr(_state())]
    inputs = 0
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            given = example_inputs[inputs] if inputs < len(example_inputs) else None
            value = node.meta.get("example_value", node.meta.get("val", given))
            said = node.meta.get("static"), node.meta.get("apart")
            rows.append(f"in {_input(value, storages)} {said!r}")
            inputs += 1
            continue
        arguments = f"{_value(node.args, numbers)} {_value(node.kwargs, numbers)}"
        rows.append(f"{node.op} {_target(node)} {arguments} {node.meta.get('checkpoint')!r}")
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _state() -> tuple[Any, ...]:
    """What ops and their decompositions read of the process's state."""
    if torch_api.functorch_is_active():
        raise Unidentified("a functorch transform is active")
    named = tuple(
        (name, torch_api.read_state(name)) for name in (*torch_api.state_names(), "cuda_device")
    )
    return (
        *named,
        torch.get_num_threads(),
        torch_api.float32_precisions(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        tuple(repr(torch_api.read_state(name)) for name in names.SETTERS.values()),
        torch.backends.mkldnn.enabled,
        torch.backends.mha.get_fastpath_enabled(),
    )


def _input(value: Any, storages: dict[int, int]) -> str:
    if not isinstance(value, torch.Tensor):
        return _value(value, {})
    kind = "parameter" if isinstance(value, torch.nn.Parameter) else "tensor"
    if torch_api.is_tensor_subclass(value) or value.layout is not torch.strided:
        raise Unidentified(f"an input of type {type(value).__name__}, layout {value.layout}")
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    if any(torch_api.is_symbolic(size) for size in sizes):
        raise Unidentified("a symbolic size")
    storage = storages.setdefault(torch_api.memory_of(value), len(storages))
    facts = (
        tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, str(value.device),
        value.requires_grad, value.is_leaf, value.is_inference(), torch_api.is_view(value),
        value.is_conj(), value.is_neg(), storage,
        torch_api.was_symbolic(value),  # torch decomposes some ops otherwise then
    )  # fmt: skip
    return f"{kind} {facts!r}"


def _target(node: fx.Node) -> str:
    target = node.target
    if node.op in ("call_method", "output"):
        return str(target)
    if node.op != "call_function":
        raise Unidentified(f"a node of kind {node.op}")
    if isinstance(target, torch_api.OP_TYPES):
        name = str(target)
        if name.split(".")[0] not in _OPS:
            raise Unidentified(f"the operator {name} is not torch's own")
        return name
    return _function_name(target)


def _function_name(target: Any) -> str:
    """Where a function is found by name; the name must lead back to the very object."""
    name = getattr(target, "__name__", "")
    own = str(getattr(target, "__module__", None) or "")
    for place in (own, *_PLACES):
        if place.split(".")[0] in _MODULES and place in sys.modules:
            found = getattr(sys.modules[place], name, None)
            if found is target:
                return f"{place}.{name}"
    raise Unidentified(f"the function {name or target!r} is not torch's own")


def _value(value: Any, numbers: dict[fx.Node, int]) -> str:
    """An argument as text that tells types apart."""
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    cls = type(value)
    if cls in _PLAIN:
        return f"{cls.__name__}({value!r})"
    if isinstance(value, _TORCH):
        return f"{value!r}"
    if isinstance(value, tuple | list):
        items = ",".join(_value(item, numbers) for item in value)
        return f"{cls.__module__}.{cls.__qualname__}[{items}]"
    if isinstance(value, dict):
        items = ",".join(f"{_value(k, numbers)}:{_value(v, numbers)}" for k, v in value.items())
        return f"{{{items}}}"
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return f"slice{_value(parts, numbers)}"
    if isinstance(value, Enum) and cls.__module__.split(".")[0] == "torch":
        return f"{cls.__qualname__}({value.value!r})"
    raise Unidentified(f"an argument of type {cls.__name__}")
