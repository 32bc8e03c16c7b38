"""Values of tensors that are computed from symbolic sizes alone: positions, and what is asked of
them.

Each element is an affine function of its place: ``first + Σ steps[d] · place[d]``. A library asks
whether positions rise by one everywhere; that they do, whatever the sizes are, shows here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from jitney import torch_api


@dataclass(frozen=True)
class Places:
    """The elements of an int64 or bool tensor: ``first`` is an int or an expression of sizes, and
    ``steps`` has a number for each dimension."""

    first: Any
    steps: tuple[int, ...]

    @property
    def constant(self) -> int | None:
        """What every element is; None where they differ or it depends on sizes."""
        return _number(self.first) if not any(self.steps) else None

    def without(self, dim: int) -> Places:
        """The elements at place 0 of a dimension that is left out."""
        return replace(self, steps=self.steps[:dim] + self.steps[dim + 1 :])


def truth_for_any_size(before: Sequence[fx.Node]) -> bool | None:
    """What the last of ``before`` is, one bool that the nodes before it compute from sizes alone;
    None where that is not known for all sizes."""
    values: dict[fx.Node, Places | None] = {}
    for node in before:
        values[node] = _value(node, values)
    found = values[before[-1]]
    return None if found is None or found.constant is None else bool(found.constant)


def _value(node: fx.Node, values: dict[fx.Node, Places | None]) -> Places | None:
    made = node.meta.get("example_value")
    if not isinstance(made, torch.Tensor) or made.dtype not in (torch.int64, torch.bool):
        return None
    if node.target is torch.arange:
        return _arange(node)
    name = str(node.target).strip("_") if node.op == "call_method" else node.target
    rule = _RULES.get(name)
    of = values.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
    return None if rule is None or of is None else rule(of, node, values)


def _arange(node: fx.Node) -> Places | None:
    limits = [_size(a) for a in node.args]
    if not 1 <= len(limits) <= 2 or None in limits or not node.kwargs.keys() <= {"device", "dtype"}:
        return None
    return Places(limits[0] if len(limits) == 2 else 0, (1,))


def _size(value: Any) -> Any:
    """An int, or the expression of a symbolic one; None for anything else."""
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value")
    if isinstance(value, torch.SymInt):
        return torch_api.symbol_expression(value)
    return value if type(value) is int else None


def _number(value: Any) -> int | None:
    return int(value) if type(value) is int or value.is_Integer else None


def _operand(node: fx.Node) -> Any:
    """The one number that a call is given beside its tensor; None for anything else."""
    if len(node.args) != 2 or node.kwargs or _example(node, 0).dtype is not torch.int64:
        return None
    return _size(node.args[1])


def _example(node: fx.Node, number: int) -> torch.Tensor:
    example: torch.Tensor = node.args[number].meta["example_value"]  # type: ignore[union-attr]
    return example


def _moved(sign: int) -> Callable[..., Places | None]:
    def rule(of: Places, node: fx.Node, _: Any) -> Places | None:
        by = _operand(node)
        return None if by is None else replace(of, first=of.first + sign * by)

    return rule


def _compared(holds: Callable[[int, int], bool]) -> Callable[..., Places | None]:
    def rule(of: Places, node: fx.Node, _: Any) -> Places | None:
        by = _operand(node)
        if of.constant is None or by is None or _number(by) is None:
            return None
        return replace(of, first=int(holds(of.constant, int(by))))

    return rule


def _unsqueezed(of: Places, node: fx.Node, _: Any) -> Places | None:
    if len(node.args) != 2 or type(node.args[1]) is not int:
        return None
    dim = node.args[1] % (len(of.steps) + 1)
    return replace(of, steps=(*of.steps[:dim], 0, *of.steps[dim:]))


def _expanded(of: Places, node: fx.Node, _: Any) -> Places | None:
    before, after = _example(node, 0).shape, node.meta["example_value"].shape
    new = len(after) - len(before)
    steps = [0] * new
    for size, wide, step in zip(before, after[new:], of.steps, strict=True):
        if type(size) is not int and _size(size) != _size(wide):
            return None
        steps.append(0 if type(size) is int and size == 1 else step)
    return replace(of, steps=tuple(steps))


def _indexed(of: Places, node: fx.Node, _: Any) -> Places | None:
    """By slices from the beginning and by numbers."""
    given = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    sizes, dim = _example(node, 0).shape, 0
    if Ellipsis in given:
        at = given.index(Ellipsis)
        whole = (slice(None),) * (len(sizes) - len(given) + 1)
        given = (*given[:at], *whole, *given[at + 1 :])
    for one in given:
        if isinstance(one, slice):
            if one.start not in (None, 0) or one.step not in (None, 1):
                return None
            dim += 1
        elif type(one) is int and dim < len(of.steps):
            place = one if one >= 0 else _size(sizes[dim]) + one
            of = replace(of, first=of.first + place * of.steps[dim]).without(dim)
            sizes = sizes[:dim] + sizes[dim + 1 :]
        else:
            return None
    return of


def _difference(of: Places, node: fx.Node, values: dict[fx.Node, Places | None]) -> Places | None:
    """Of neighbours; what is prepended is as far from the first as this is from the second."""
    given = dict(node.kwargs)
    dim, before = given.pop("dim", -1), given.pop("prepend", None)
    if len(node.args) != 1 or given or type(dim) is not int:
        return None
    if _example(node, 0).dtype is not torch.int64 or not isinstance(before, fx.Node):
        return None
    dim %= len(of.steps)
    earlier = values.get(before)
    if earlier is None or _size(before.meta["example_value"].shape[dim]) != 1:
        return None
    step = _number(of.first - earlier.first)
    even = step == of.steps[dim] or _size(_example(node, 0).shape[dim]) == 1
    same = of.without(dim).steps == earlier.without(dim).steps
    return Places(step, (0,) * len(of.steps)) if same and even and step is not None else None


def _summed(of: Places, node: fx.Node, _: Any) -> Places | None:
    """Running sums of zeros."""
    plain = node.kwargs.keys() <= {"dim"}
    return of if plain and of.constant == 0 else None


def _all(of: Places, node: fx.Node, _: Any) -> Places | None:
    whole = len(node.args) == 1 and not node.kwargs and of.constant
    return Places(1, ()) if whole else None


_RULES: dict[Any, Callable[..., Places | None]] = {
    "add": _moved(1),
    "sub": _moved(-1),
    "eq": _compared(operator.eq),
    "ne": _compared(operator.ne),
    "unsqueeze": _unsqueezed,
    "expand": _expanded,
    "getitem": _indexed,
    "diff": _difference,
    torch.diff: _difference,
    "cumsum": _summed,
    "all": _all,
}
