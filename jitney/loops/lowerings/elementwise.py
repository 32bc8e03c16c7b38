"""How an elementwise op is lowered: operands to expressions, one nest for the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from jitney import torch_api
from jitney.loops.index import index
from jitney.loops.ir import Const, Expr, Op
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    HALF,
    as_expr,
    cast,
    compute_dtype,
    const,
    holds,
)
from jitney.loops.lowerings.registry import OpKey, Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor
from jitney.torch_api import OpOverload

Formula = Callable[..., Expr]


@lru_cache(maxsize=4096)
def operand_flags(op: OpOverload) -> dict[str, bool]:
    """Argument name -> whether the schema takes a tensor or a number there (an operand)."""
    flags = {}
    for argument in torch_api.schema_of(op).arguments:
        kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
        flags[argument.name] = kind in ("Tensor", "number", "Scalar")
    return flags


def _rounded(dtype: torch.dtype, value: Any) -> Any:
    """A number as a 16-bit type holds it."""
    if isinstance(value, int | float):
        return float(torch.tensor(float(value)).to(dtype))
    return cast(as_expr(value, compute_dtype(dtype)), dtype)


def rounded_to(dtype: torch.dtype, value: Expr) -> Expr:
    """A value of the compute dtype as a tensor of a 16-bit ``dtype`` would hold it."""
    if dtype not in HALF or (
        isinstance(value, Op) and value.op == "cast" and value.args[0].dtype == dtype
    ):
        return value
    if isinstance(value, Const):
        return const(_rounded(dtype, value.value), value.dtype)
    return cast(cast(value, dtype), value.dtype)


def _loaded(value: StridedTensor, position: Position, own: torch.dtype | None, wide: bool) -> Expr:
    """An element, rounded to a 16-bit dtype of the loop (it may become infinite) as eager does, in
    the compute dtype; ``wide``: that of a tensor of one element is not rounded."""
    loaded: Expr = value.load(position)
    if own is None:
        return loaded
    as_it_is = wide and all(size == index(1) for size in value.shape)
    return cast(cast(loaded, own) if own in HALF and not as_it_is else loaded, compute_dtype(own))


def elementwise(
    *ops: OpKey | None,
    operands: str = "result",
    narrow_on: tuple[str, ...] = (),
    wide_on_cpu: str | None = None,
    exact_numbers: bool = False,
    with_builder: bool = False,
) -> Callable[[Formula], Formula]:
    """Registers ``formula(*operand expressions, *other arguments) -> Expr`` as a lowering.

    Operands (the schema's Tensor or Scalar) come as expressions in the compute dtype of the result
    (``operands="result"``) or of the promoted operands ("promoted": comparisons), or in dtypes of
    their own ("own": tensors unconverted, numbers as they are). Where eager's loop is 16-bit
    (``narrow_on`` these kinds of devices), a number is rounded to it first, of comparisons always.
    A tensor is always, but the CPU's loop takes a ``wide_on_cpu`` of one element as it is.
    ``exact_numbers`` refuses numbers that the dtype does not hold: torch's versions differ. Other
    arguments come as they are (``with_builder``: after the `Builder`); the value is cast.
    """

    def register(formula: Formula) -> Formula:
        def lowering(b: Builder, *args: Any, **kwargs: Any) -> StridedTensor:
            assert isinstance(b.node.target, OpOverload)
            flags = operand_flags(b.node.target)
            names = [argument.name for argument in torch_api.schema_of(b.node.target).arguments]
            own = _operand_dtype(b, operands)
            dtype = None if own is None else compute_dtype(own)

            def operand(name: str, value: Any, position: Position) -> Any:
                if not flags[name] or value is None:
                    return value
                if isinstance(value, StridedTensor):
                    wide = name == wide_on_cpu and b.target.kind == "cpu"
                    return _loaded(value, position, own, wide)
                if exact_numbers and own is not None and not holds(own, value):
                    raise Refused(f"{value} is no {own}")
                if own in HALF and (b.target.kind in narrow_on or operands == "promoted"):
                    value = _rounded(own, value)
                return value if dtype is None else as_expr(value, dtype)

            def value_at(position: Position) -> Expr:
                plain = [operand(n, a, position) for n, a in zip(names, args, strict=False)]
                named = {n: operand(n, a, position) for n, a in kwargs.items()}
                return formula(*([b] if with_builder else []), *plain, **named)

            return b.compute(b.allocate(), value_at)

        lowers(*ops)(lowering)
        return formula

    return register


def _operand_dtype(b: Builder, operands: str) -> torch.dtype | None:
    if operands == "own":
        return None
    if operands == "result":
        dtype: torch.dtype = b.fake.dtype
        return dtype
    return promoted_dtype(b)


def promoted_dtype(b: Builder) -> torch.dtype:
    """The dtype eager promotes the node's first two operands to."""
    operands: list[Any] = []
    for argument in b.node.args:
        value = fake_of(argument)
        if isinstance(value, torch.SymInt | torch.SymFloat):
            value = 1 if isinstance(value, torch.SymInt) else 1.0
        if isinstance(value, complex):
            raise Refused(f"the complex number {value}")
        if isinstance(value, torch.Tensor | int | float):
            operands.append(value)
    if len(operands) == 1:
        dtype: torch.dtype = operands[0].dtype
        return dtype
    return torch.result_type(operands[0], operands[1])


def fake_of(argument: Any) -> Any:
    """The fake value of a graph argument; a literal is itself."""
    return argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
