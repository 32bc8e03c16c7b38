"""Whether a function that TorchScript has compiled does what its Python source does: decided node
by node of TorchScript's graph, by a list of what is the same in both.

The same are torch's operators, and the little that goes between them: ints that cannot overflow,
floats, bools, and lists of sizes. Errors need not be the same: the interpreter hands a call that
raises to TorchScript.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from typing import Any

import torch

from jitney import torch_api

_MOVES = frozenset(
    f"prim::{name}"
    for name in (
        "ListConstruct", "ListUnpack", "TupleConstruct", "TupleUnpack", "TupleIndex", "TupleSlice",
        "RaiseException", "Uninitialized", "unchecked_cast", "device", "dtype", "CallFunction",
    )
)  # fmt: skip
_OF_INTS = frozenset(("add", "sub", "mul", "neg", "floordiv", "remainder", "abs", "min", "max"))
_OF_FLOATS = frozenset(("add", "sub", "mul", "neg", "div"))
_COMPARE = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_ASK = frozenset(("size", "dim", "numel", "len", "__getitem__", "__not__", "__is__", "__isnot__",
                  "Bool", "is_floating_point"))  # fmt: skip
_OF_SIZES = frozenset(("size", "slice", "add"))
_OF_TEXTS = frozenset(("format", "add"))  # they end in an error's text
_NUMBERS = frozenset(("IntType", "FloatType", "BoolType"))
_RESULTS = frozenset(("TensorType", "FloatType", "BoolType", "NoneType"))
_WHOLE, _EXACT, _GIVEN, _SIZE = 62, 53, 32, 40  # bits: of an int, of a float's, assumed of inputs
_OF_MATH = (math.pi, math.e, math.tau, math.inf)


@functools.lru_cache(maxsize=1024)
def callees(function: torch.jit.ScriptFunction, floats: frozenset[float]) -> frozenset[str] | None:
    """The full names of the functions that it calls; None where it may mean something else than its
    Python does, in which ``floats`` are written."""
    schema: Any = function.schema
    if not all(_is_result(result.type) for result in schema.returns):
        return None
    walk = _Walk(floats)
    for given in function.graph.inputs():
        walk.bits[given.debugName()] = _GIVEN
    if not walk.is_same(function.graph.nodes()):
        return None
    return frozenset(re.findall(r"__torch__(?:\.\w+)+", str(function.code)))


def _is_result(kind: Any) -> bool:
    if kind.kind() == "TupleType":
        return all(map(_is_result, kind.elements()))
    if kind.kind() == "OptionalType":
        return _is_result(kind.getElementType())
    return kind.kind() in _RESULTS  # a dtype would be an int, a torch.Size a list


class _Walk:
    """The nodes of one graph, and how many bits its whole numbers may have."""

    def __init__(self, floats: frozenset[float]) -> None:
        self.bits: dict[str, int] = {}
        self.floats = floats

    def is_same(self, nodes: Iterable[Any]) -> bool:
        """Whether each of them does what Python does."""
        return all(self._node(node, node.kind().partition("::")[2]) for node in nodes)

    def _node(self, node: Any, name: str) -> bool:
        kind = node.kind()
        if kind == "prim::Constant":
            return self._constant(node)
        if kind == "prim::If":
            return self._branches(node)
        if kind == "prim::Loop":
            return self._loop(node)
        if kind == "prim::dtype":  # compared with another: not with the number that it is here
            return all(
                use.user.kind().startswith("aten::") and _results(use.user) != ["BoolType"]
                for use in node.output().uses()
            )
        if kind in _MOVES:
            return True
        if not kind.startswith("aten::") and kind not in ("prim::min", "prim::max", "prim::abs"):
            return False
        return self._operator(node, name)

    def _constant(self, node: Any) -> bool:
        if node.output().type().kind() == "FunctionType":
            return True
        value = node.output().toIValue()
        if type(value) is int:
            self.bits[node.output().debugName()] = value.bit_length()
        if type(value) is float and value not in self.floats and abs(value) not in _OF_MATH:
            return all(_takes_floats(use) for use in node.output().uses())  # 2 ** 2 is 4.0
        return value is None or isinstance(value, int | float | str | torch.device)

    def _branches(self, node: Any) -> bool:
        blocks = list(node.blocks())
        if not all(self.is_same(block.nodes()) for block in blocks):
            return False
        for n, out in enumerate(node.outputs()):
            ends = [list(block.outputs())[n] for block in blocks]
            self.bits[out.debugName()] = max(map(self._bits, ends))
        return True

    def _loop(self, node: Any) -> bool:
        (body,) = node.blocks()
        index, *_ = body.inputs()
        count, *_ = node.inputs()
        self.bits[index.debugName()] = self._bits(count)
        return self.is_same(body.nodes())  # numbers that it carries may be of any size

    def _bits(self, value: Any) -> int:
        return self.bits.get(value.debugName(), _WHOLE + 1)

    def _operator(self, node: Any, name: str) -> bool:
        given = [value.type().kind() for value in node.inputs()]
        results = _results(node)
        if results == ["IntType"]:
            return self._whole(node, name, given)
        if results == ["FloatType"]:
            return name in _OF_FLOATS and self._is_exact(node, given)
        if results == ["BoolType"]:
            exact = set(given) == {"IntType"} or self._is_exact(node, given)
            return name in _ASK or (name in _COMPARE and exact)
        if results == ["StringType"]:
            return name in _OF_TEXTS
        kinds = [out.type().str() for out in node.outputs()]
        if kinds == ["int[]"]:
            return name in _OF_SIZES
        return all(kind in ("Tensor", "Tensor[]") for kind in kinds) and not (
            name.endswith("Implicit") or name == "warn" or not kinds
        )

    def _whole(self, node: Any, name: str, given: list[str]) -> bool:
        out = node.output().debugName()
        if name in _ASK:
            self.bits[out] = _WHOLE if name == "numel" else _SIZE
            return given[0] in ("TensorType", "ListType")
        if name not in _OF_INTS or set(given) != {"IntType"}:
            return False
        bits = [self._bits(value) for value in node.inputs()]
        grown = {"add": max(bits) + 1, "sub": max(bits) + 1, "mul": sum(bits)}
        self.bits[out] = grown.get(name, max(bits))
        return self.bits[out] <= _WHOLE and max(bits) <= _WHOLE

    def _is_exact(self, node: Any, given: list[str]) -> bool:
        if not set(given) <= _NUMBERS:
            return False
        pairs = zip(given, node.inputs())
        return all(kind != "IntType" or self._bits(value) <= _EXACT for kind, value in pairs)


def _results(node: Any) -> list[str]:
    return [out.type().kind() for out in node.outputs()]


def _takes_floats(use: Any) -> bool:
    """Whether an operator takes a float there, so that it would make one of a whole number."""
    schema = use.user.schema()
    if not schema.startswith("aten::"):
        return bool(use.user.kind() == "prim::CallFunction")
    return torch_api.kind_of_argument(schema, use.offset) == "FloatType"
