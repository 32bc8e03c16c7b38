"""Symbolic sizes and scalars: which inputs are symbols, and the nodes that compute from them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.options import CaptureOptions
from jitney.capture.source import Computed, DictItem, Local, SizeOf, Source, is_in_key
from jitney.torch_api import modules

if TYPE_CHECKING:
    from jitney.capture.record import Recorder

NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
SYMBOLS = tuple(NUMBERS)
_SINGLE = (torch.SymInt, torch.SymBool)  # whose small values are one object each
LARGEST_FLOAT = 1e38  # that is a symbol: 32 bits hold it, what is computed of it is not infinite
LARGEST_NUMBER = 1 << 31  # of a Python int that is a symbol; its square fits a machine's word


def dynamic_dims(
    tensor: torch.Tensor, source: Source, options: CaptureOptions
) -> tuple[frozenset[int], frozenset[int]]:
    """(the dims of an input that are symbolic, those the user marked dynamic)."""
    marked = frozenset(torch_api.mark_of(tensor, "dynamic"))
    weak = frozenset(torch_api.mark_of(tensor, "weak_dynamic"))
    fixed = frozenset(torch_api.mark_of(tensor, "static"))
    every = range(tensor.dim())
    wanted = set(marked)  # as torch, also where nothing else is dynamic
    if options.dynamic is not False:
        wanted |= {d for d in every if (source, d) in options.dynamic_sources} | weak
    if options.dynamic and not _belongs_to_module(tensor, source):
        wanted |= set(every)
    wanted.intersection_update(every)  # as torch, which takes any number for a mark
    chosen = {d for d in wanted if d not in fixed and tensor.shape[d] > 1}
    return frozenset(chosen), frozenset(chosen & marked)


def _belongs_to_module(tensor: torch.Tensor, source: Source) -> bool:
    """Parameters, buffers and tensors at static addresses: their sizes are the model's."""
    if isinstance(tensor, torch.nn.Parameter) or torch_api.mark_of(tensor, "address"):
        return True
    table = getattr(source, "base", None)
    return isinstance(table, DictItem) and table.key in modules.TENSOR_TABLES


def is_dynamic_number(value: Any, source: Source, options: CaptureOptions) -> bool:
    """Whether a Python int or float input is a symbol."""
    if type(value) not in (int, float) or value in (0, 1) or options.dynamic is False:
        return False
    if type(value) is float and not abs(value) < LARGEST_FLOAT:
        return False
    if type(value) is int and abs(value) > LARGEST_NUMBER:
        return False
    if (source, None) in options.dynamic_sources:
        return not is_in_key(source)  # no symbol has a hash
    return bool(options.dynamic) and type(value) is int and isinstance(source, Local)


def concrete(value: Any) -> Any:
    """The number that a symbol is now, which becomes a guard; any other value as it is."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return torch_api.number_of(value)
    return bool(value) if isinstance(value, torch.SymBool) else value


def identical(left: Any, right: Any) -> bool:
    """``left is right`` for numbers: one from -5 to 256 is a single object, however it was
    computed, and so is a symbol with such a value."""
    if left is right or not (isinstance(left, _SINGLE) or isinstance(right, _SINGLE)):
        return left is right
    if not all(isinstance(x, _SINGLE) or type(x) in (int, bool) for x in (left, right)):
        return False
    truths = [isinstance(x, torch.SymBool | bool) for x in (left, right)]
    if any(truths):
        return all(truths) and bool(left) is bool(right)
    if any(type(x) is int and not -5 <= x <= 256 for x in (left, right)):
        return False
    return bool(left == right) and -5 <= concrete(left) <= 256


def counted(value: Any) -> Any:
    """What ``int`` and ``round`` make whole, where that is no symbol of its own: a fraction of
    sizes as the number it has now, since sizes in nests are products and whole quotients of sizes.
    """
    if isinstance(value, torch.SymFloat):
        if all(symbol.is_integer for symbol in torch_api.free_symbols(value)):
            return concrete(value)
    return value


def concrete_key(value: Any) -> Any:
    """A key that C code may hash: symbols, in tuples too, as the numbers they have now."""
    if not isinstance(value, tuple):
        return concrete(value)
    items = [concrete_key(item) for item in tuple.__iter__(value)]
    if all(a is b for a, b in zip(items, tuple.__iter__(value), strict=True)):
        return value
    return torch.Size(items) if type(value) is torch.Size else tuple.__new__(type(value), items)


def concrete_keys(values: Any) -> Any:
    """A list or tuple of keys as `concrete_key` has each; anything else as it is."""
    return [*map(concrete_key, values)] if type(values) in (list, tuple) else values


_DIVIDE = (operator.truediv, operator.floordiv, operator.mod)
_DIVIDE_IN_PLACE = (operator.itruediv, operator.ifloordiv, operator.imod)
_EQUAL = (operator.eq, operator.ne)
_SHIFT = (operator.lshift, operator.rshift, operator.ilshift, operator.irshift)
_GROW = (operator.add, operator.sub, operator.mul, operator.lshift)
_GROW_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.ilshift)


#: What never equals a number.
_NO_NUMBERS = (
    str, bytes, bytearray, type, list, tuple, dict, set, frozenset, slice, range, type(None),
    type(...), torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def beside_symbols(values: Sequence[Any]) -> Any:
    """The first of the values that numbers may equal though a symbol says no: a truth value, a
    complex number, a Decimal, a NumPy number, an instance of a class derived from int; None for
    none."""
    if not any(isinstance(v, SYMBOLS) for v in values):
        return None
    others = (v for v in values if type(v) not in (int, float, *SYMBOLS))
    return next((v for v in others if not isinstance(v, _NO_NUMBERS)), None)


def exact_operands(function: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Operands for which ``function`` of symbols means what it means in Python; what that takes is
    assumed: a divisor other than zero, a power that neither overflows nor is complex, a result
    that fits a machine's word. Where more would have to be assumed, the numbers themselves."""
    if len(values) != 2 or not any(isinstance(v, SYMBOLS) for v in values):
        return values
    if any(isinstance(v, torch.SymInt | torch.SymFloat) for v in values):
        values = [int(v) if type(v) is bool else v for v in values]
    left, right = values
    if beside_symbols(values) is not None:  # a NumPy number has a say in what the result is
        return [concrete(v) for v in values]
    if (
        any(type(v) is int and abs(v) >= torch_api.LARGEST_WORD for v in values)
        and function in _WHOLE
    ):
        return [concrete(v) for v in values]
    if function in (*_DIVIDE, *_DIVIDE_IN_PLACE):
        floats = torch.SymFloat in map(type, values) or float in map(type, values)
        true = function in (operator.truediv, operator.itruediv)
        exact = right != 0 and (true or not floats)
    elif function in (operator.pow, operator.ipow):
        exact = _is_plain_power(left, right)
    elif function in _SHIFT and not (type(right) is int and 0 <= right < 62):
        exact = False
    elif function in (*_GROW, *_GROW_IN_PLACE):
        exact = _fits_a_word(function, left, right)
    else:
        return values
    return values if exact else [concrete(v) for v in values]


_WHOLE = (*_DIVIDE, *_DIVIDE_IN_PLACE, *_GROW, *_GROW_IN_PLACE)


def rounded_operands(function: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Operands of which ``function`` rounds where Python does: terms of their own where sympy would
    take them together with others. ``t += dt`` ten times is not ``t + 10 * dt``."""
    if not any(isinstance(v, torch.SymFloat) for v in values):
        return values
    if function in _WITH_SIGNS or (
        function in _ROUND
        and all(isinstance(v, (int, float, *SYMBOLS)) for v in values)
        and not torch_api.is_one_step(function(*values), *values)
    ):
        return [torch_api.as_one_term(v) for v in values]
    return values


#: Guards move terms from one side to the other; a minus goes to each term.
_WITH_SIGNS = (operator.lt, operator.le, operator.gt, operator.ge, *_EQUAL, operator.neg)
_ROUND = tuple(f for f in (*_GROW, *_GROW_IN_PLACE) if f not in _SHIFT)


def _fits_a_word(function: Any, left: Any, right: Any) -> bool:
    """Whether an int computed of symbols fits a machine's word. Products of sizes alone do: memory
    is not larger."""
    if not all(isinstance(v, (int, float, complex, *SYMBOLS)) for v in (left, right)):
        return True  # of a list that is repeated in place no trial is made
    symbols = [v for v in (left, right) if isinstance(v, torch.SymInt)]
    if not any(torch_api.has_numbers(v) for v in symbols):
        return True
    result = function(left, right)
    return not isinstance(result, torch.SymInt) or _is_small(result)


def _is_small(result: torch.SymInt) -> bool:
    return bool(result < torch_api.LARGEST_WORD) and bool(result > -torch_api.LARGEST_WORD)


def _is_plain_power(base: Any, exponent: Any) -> bool:
    """Whether Python's result is a real number far from overflow."""
    if isinstance(base, float):  # as in ``1 - beta**step``
        return 0 < base <= 1 and bool(exponent >= 0)
    if isinstance(base, torch.SymFloat) and isinstance(exponent, int | float):
        return abs(exponent) <= 10 and bool(base > 1e-30) and bool(base < 1e30)
    if not isinstance(base, torch.SymInt) or type(exponent) is not int or not 0 <= exponent <= 4:
        return False
    result = base**exponent
    return not isinstance(result, torch.SymInt) or _is_small(result)


#: Functions of numbers whose results are symbols of their own, and how Python writes them.
MATH: dict[Any, str] = {
    **{
        getattr(math, name): f"math.{name}({{}})"
        for name in (
            "sqrt", "exp", "expm1", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos",
            "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "gamma",
            "lgamma", "radians", "degrees", "fabs", "log",
        )
    },
    math.pow: "math.pow({}, {})",
    **{
        getattr(math, name): f"math.{name}({{}}, {{}})"
        for name in ("atan2", "hypot", "fmod", "remainder")
    },
    operator.pow: "{}**{}",
}  # fmt: skip


#: Those of them whose results are ints.
WHOLE: dict[Any, str] = {
    math.floor: "math.floor({})",
    math.ceil: "math.ceil({})",
    math.trunc: "math.trunc({})",
    round: "round({})",
    int: "int({})",
    math.isqrt: "math.isqrt({})",
}
_FORMULAS = {**MATH, **WHOLE}


def function_of(formula: str, names: Iterable[str]) -> Callable[..., Any]:
    """A formula as a function of what it names."""
    known = {**torch_api.shape_expression_names(), "math": math}
    function: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {formula}", known)
    return function


class Symbols:
    """The nodes that compute expressions of symbols; made on demand."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.origin: dict[Any, tuple[Source, Any]] = {}  # sympy symbol -> (source, SymInt)
        self.read: list[tuple[Source, Any]] = []  # every input extent or number that is symbolic
        self.nodes: dict[Any, torch.fx.Node] = {}  # sympy expression -> node
        self.computed: dict[str, Any] = {}  # formula -> SymInt or SymFloat
        self._texts: dict[Source, str] = {}

    def learn(self, value: Any, source: Source) -> None:
        """Notes where a symbol can be read."""
        self.read.append((source, value))
        symbols = torch_api.free_symbols(value)
        if len(symbols) == 1 and value.node.expr in symbols:
            self.origin.setdefault(value.node.expr, (source, value))

    def learn_tensor(self, fake: torch.Tensor, source: Source) -> None:
        """Notes the symbols among a tensor's sizes and strides, and its offset."""
        for what, extents in (("size", fake.size()), ("stride", fake.stride())):
            for dim, extent in enumerate(extents):
                if isinstance(extent, torch.SymInt):
                    self.learn(extent, SizeOf(source, what, dim))
        offset = fake.storage_offset()
        if isinstance(offset, torch.SymInt):
            self.learn(offset, SizeOf(source, "storage_offset"))

    def of_math(self, function: Any, values: Sequence[Any]) -> Any:
        """What a function of `MATH` or `WHOLE` returns of symbols, a symbol of its own: each call
        computes it in Python, as eager does, and the graph is given it. Other calls are guarded
        not to raise. None where the numbers have to be assumed, or are no symbols."""
        if not any(isinstance(v, torch.SymInt | torch.SymFloat) for v in values):
            return None
        to_digits = function is round and len(values) == 2
        template = "round({}, {})" if to_digits else _FORMULAS.get(function)
        if template is None or len(values) != template.count("{}"):
            return None
        texts, symbols = [], {}
        for value in values:
            operand = self.operand(value)
            if operand is None:
                return None
            texts.append(operand[0])
            symbols.update(operand[1])
        formula = template.format(*texts)
        if formula not in self.computed:
            kind = int if function in WHOLE and not to_digits else float
            self.computed[formula] = self._compute(formula, symbols, kind)
        return self.computed[formula]

    def operand(self, value: Any) -> tuple[str, dict[str, Any]] | None:
        """A number as a formula has it, and the symbols in that; None where none is exact."""
        if not isinstance(value, torch.SymInt | torch.SymFloat):
            exact = type(value) in (int, float) and math.isfinite(value)
            return (f"({value!r})", {}) if exact else None
        symbols = {str(s): s for s in torch_api.free_symbols(value)}
        if torch_api.constant_of(value) is not None or not torch_api.can_build(value):
            return None
        if not all(s in self.origin for s in symbols.values()):
            return None
        return f"({torch_api.expression_text(value)[0]})", symbols

    def name_of_text(self, source: Source) -> str:
        """What formulas call the text at ``source``."""
        return self._texts.setdefault(source, f"text{len(self._texts)}")

    def _compute(self, formula: str, symbols: dict[str, Any], kind: type) -> Any:
        """The symbol of a formula; None where its number now is not one that symbols stand for."""
        function = function_of(formula, symbols)
        given = [self.origin[s] for s in symbols.values()]
        sources = tuple(zip(symbols, [source for source, _ in given]))
        source = Computed(formula, sources, function, kind)
        value = source.of(*(symbol.node.hint for _, symbol in given))
        largest = LARGEST_FLOAT if kind is float else LARGEST_NUMBER
        if not abs(value) < largest or (kind is float and value in (0, 1)):
            return None
        environment = self.recorder.shape_env
        symbol = torch_api.symbolic_number(environment, value, formula, LARGEST_NUMBER)
        self.learn(symbol, source)
        return concrete(symbol) if value in (0, 1) else symbol  # which symbols do not stand for

    def node_of(self, value: Any) -> Any:
        """The node of a SymInt, SymFloat or SymBool; a number if it is one."""
        number = torch_api.constant_of(value)
        if number is not None:
            return number
        if not torch_api.can_build(value):
            return concrete(value)
        expression = value.node.expr
        node = self.nodes.get(expression)
        if node is None:
            leaves = {s: self._leaf(s) for s in torch_api.free_symbols(value)}
            node = leaves.get(expression)
            if node is None:
                node = torch_api.build_expression(self.recorder.main, value, leaves)
                self.recorder.note_first(node)
            node.meta.setdefault("example_value", value)
            self.nodes[expression] = node
        return node

    def _leaf(self, symbol: Any) -> torch.fx.Node:
        node = self.nodes.get(symbol)
        if node is None:
            source, value = self.origin[symbol]
            node = self.nodes[symbol] = self.recorder.placeholder(value, source, False)
        return node
