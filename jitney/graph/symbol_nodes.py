"""Symbolic sizes in a traced graph: which node gives the value of a SymInt.

Expressions of torch's ShapeEnv are rebuilt from the nodes of their symbols with Python's own
operators, once each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.errors import Unsupported

#: sympy class name -> Python operator on evaluated arguments, folded from the left.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": operator.and_,
    "Or": operator.or_,
    "Not": operator.not_,
    "ToFloat": torch.sym_float,
    "FloatPow": operator.pow,
    "TruncToInt": torch.sym_int,
}


#: What reads the sizes and strides of a tensor, and what they are. Sizes come first.
_READS: dict[Any, Callable[[torch.Tensor], Any]] = {
    torch.ops.aten.sym_size.int: torch.Tensor.size,
    torch.ops.aten.sym_stride.int: torch.Tensor.stride,
}


class SymbolNodes:
    """Maps symbolic expressions to nodes of ``graph``, adding arithmetic nodes where needed."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._nodes: dict[Any, fx.Node] = {}
        self._sizes: dict[Any, tuple[Any, fx.Node, int]] = {}  # the op that reads it, of what
        self._values: dict[Any, Any] = {}
        self._environment: Any = None

    def define(self, value: Any, node: fx.Node) -> None:
        """Notes that ``node`` computes the symbolic ``value``."""
        expression = torch_api.symbol_expression(value)
        self._nodes.setdefault(expression, node)
        self._values.setdefault(expression, value)

    def define_sizes(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Notes the symbols that are sizes or strides of this input: they can be read from it."""
        for op, sizes in _READS.items():
            for dim, size in enumerate(sizes(tensor)):
                if isinstance(size, torch.SymInt):
                    expression = torch_api.symbol_expression(size)
                    if expression.is_Symbol:
                        self._sizes.setdefault(expression, (op, node, dim))
                        self._values.setdefault(expression, size)

    def knows(self, value: Any) -> bool:
        """Whether `node_of` can give the value from nodes that exist."""
        expression = torch_api.symbol_expression(value)
        if expression.is_number:
            return True
        known = self._nodes.keys() | self._sizes.keys()
        return expression in known or all(s in known for s in expression.free_symbols)

    def node_of(self, value: Any) -> Any:
        """A node (or a plain number) that has the symbolic ``value`` at run time."""
        self._environment = value.node.shape_env
        return self._node(torch_api.symbol_expression(value), value)

    def _node(self, expression: Any, value: Any) -> Any:
        if expression.is_number:
            return _plain_number(expression)
        if expression in self._nodes:
            if expression.is_Symbol and not torch_api.fits_a_word(expression, self._environment):
                raise Unsupported("size-expression", f"a number as large as {expression}")
            return self._nodes[expression]
        if expression in self._sizes:
            read, source, dim = self._sizes[expression]
            value = self._values[expression]
            node = self._add(read, (source, dim), value)
        elif not expression.args:
            raise Unsupported("unknown-symbol", f"no input gives the size {expression}")
        else:
            node = self._arithmetic(expression)
            if value is not None:
                node.meta["val"] = value
        self._nodes[expression] = node
        return node

    def _arithmetic(self, expression: Any) -> fx.Node:
        name = type(expression).__name__
        if name == "Pow" and expression.args[1].is_Integer and expression.args[1] > 0:
            parts = [self._node(expression.args[0], None)] * int(expression.args[1])
            function: Callable[..., Any] = operator.mul
        elif name in _OPERATORS:
            parts = [self._node(argument, None) for argument in expression.args]
            function = _OPERATORS[name]
        else:
            raise Unsupported("size-expression", f"a size computed as {expression}")
        if not torch_api.fits_a_word(expression, self._environment):
            raise Unsupported("size-expression", f"a number as large as {expression}")
        if len(parts) == 1:
            return self._add(function, tuple(parts), None)
        total = parts[0]
        for part in parts[1:]:
            total = self._add(function, (total, part), None)
        return total

    def _add(self, function: Callable[..., Any], args: tuple[Any, ...], value: Any) -> fx.Node:
        node = self.graph.create_node("call_function", function, args)
        if value is None:
            value = function(*(a.meta["val"] if isinstance(a, fx.Node) else a for a in args))
        node.meta["val"] = value
        return node


def _plain_number(expression: Any) -> bool | int | float:
    if expression.is_Boolean:
        return bool(expression)
    if not expression.is_integer:
        return float(expression)
    if not expression.is_Integer or abs(expression) >= torch_api.LARGEST_WORD:
        raise Unsupported("size-expression", f"a number as large as {expression}")
    return int(expression)
