"""Authors' ops that write to their arguments, as ops that write to nothing.

The functional form of an op takes ``bases``, the tensors that own what is written to, and gives
their new values behind the op's own results. ``places`` says which arguments are parts of bases:
the op is given parts of the new values there, so that those which overlap do so in a graph, too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from jitney.torch_api.ops import OpOverload, op_name, overload_name, schema_of

NAMESPACE = "jitney_written"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_NUMBERS = itertools.count()
_ORIGINALS: dict[OpOverload, OpOverload] = {}
_KNOWN = ("Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]")


@dataclass(frozen=True)
class Place:
    """Where an argument lies: ``slot`` counts the schema's arguments, ``item`` those of a list (-1:
    the argument itself). Offsets are counted from where the base begins. ``whole``: it is the base
    itself, of which no size or stride needs to be known."""

    slot: int
    item: int
    base: int
    shape: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()
    offset: Any = 0
    whole: bool = False

    def numbers(self) -> list[Any]:
        """As a part of ``places``."""
        if self.whole:
            return [self.slot, self.item, self.base, -1]
        rank = len(self.shape)
        sizes = (*self.shape, *self.strides, self.offset)
        return [self.slot, self.item, self.base, rank, *sizes]


def places_of(numbers: Sequence[Any]) -> Iterator[Place]:
    """What ``places`` says."""
    at = 0
    while at < len(numbers):
        slot, item, base, rank = (int(n) for n in numbers[at : at + 4])
        if rank < 0:
            yield Place(slot, item, base, whole=True)
            at += 4
            continue
        end = at + 4 + 2 * rank
        sizes = tuple(numbers[at + 4 : end])
        yield Place(slot, item, base, sizes[:rank], sizes[rank:], numbers[end])
        at = end + 1


def written_arguments(op: OpOverload) -> list[int]:
    """Which of the schema's arguments the op writes to."""
    arguments = enumerate(schema_of(op).arguments)
    return [i for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def overloads_of(func: Any) -> list[OpOverload]:
    """The ops that a call of ``torch.ops.…`` may mean."""
    if isinstance(func, OpOverload):
        return [func]
    return [getattr(func, name) for name in func.overloads()]


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What a call of ``torch.ops.…`` may write to: tensors, or lists of them, or None."""
    found = []
    for op in overloads_of(func):
        for at in written_arguments(op):
            name = schema_of(op).arguments[at].name
            found.append(args[at] if at < len(args) else kwargs.get(name))
    return found


@lru_cache(maxsize=1024)
def functional_form_of(op: OpOverload) -> OpOverload | None:
    """``op`` without its writes. None where its schema says what no graph of ours can: results that
    are no tensors, or views of arguments; written arguments that are no tensors or lists of them;
    an op that is made of others."""
    schema = schema_of(op)
    results = [(str(r.type), r.alias_info) for r in schema.returns]
    if any(kind != "Tensor" or (alias and not alias.is_write) for kind, alias in results):
        return None
    if any(str(schema.arguments[i].type) not in _KNOWN for i in written_arguments(op)):
        return None
    if any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments):
        return None
    if torch.Tag.inplace_view in op.tags or None in _returned(op):
        return None
    if any(a.name in ("bases", "places") for a in schema.arguments):
        return None
    # A number, as an op may be defined anew under its name.
    name = f"{op.namespace}__{op_name(op)}__{overload_name(op)}__{next(_NUMBERS)}"
    text = re.sub(r"Tensor\([^)]*\)", "Tensor", str(schema))
    given = text[text.index("(") + 1 : text.rindex(") ->")]
    given = re.sub(r"\bTensor\b(?!\?)", "Tensor?", given)
    more = f", {given}" if given else ""
    _LIBRARY.define(f"{name}(Tensor[] bases, SymInt[] places{more}) -> Tensor[]")
    _LIBRARY.impl(name, _run(op, _copied), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _run(op, _like), lib=_LIBRARY)
    form: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    _ORIGINALS[form] = op
    return form


def writing_form_of(form: Any) -> OpOverload | None:
    """The op that ``form`` is the functional form of; None for other ops."""
    return _ORIGINALS.get(form)


def filled(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    places: Sequence[Place],
    part: Callable[[Place], Any],
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of ``op`` from those of its functional form: ``part`` gives each place's."""
    arguments = schema_of(op).arguments
    positional = [a for a in arguments if not a.kwarg_only]
    given, named = list(args), dict(kwargs)
    last = max((p.slot for p in places if p.slot < len(positional)), default=-1)
    given += [a.default_value for a in positional[len(given) : last + 1]]
    for place in places:
        name = arguments[place.slot].name
        holder, key = (given, place.slot) if place.slot < len(positional) else (named, name)
        if place.item < 0:
            holder[key] = part(place)  # type: ignore[index]
        else:
            items = list(holder[key])  # type: ignore[index]
            items[place.item] = part(place)
            holder[key] = items  # type: ignore[index]
    return given, named


def _returned(op: OpOverload) -> list[int | None]:
    """Per result the tensor argument that it is; -1 for a result of its own, None where none is
    known."""
    schema = schema_of(op)
    found: list[int | None] = []
    for result in schema.returns:
        if result.alias_info is None:
            found.append(-1)
            continue
        names = _alias_names(result)
        given = [i for i in written_arguments(op) if str(schema.arguments[i].type) == "Tensor"]
        alike = [i for i in given if names & _alias_names(schema.arguments[i])]
        found.append(alike[0] if len(alike) == 1 else None)
    return found


def _alias_names(value: Any) -> set[str]:
    return set(value.alias_info.before_set)


def emptied(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], places: Sequence[Place]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that the functional form is given: None where they are parts of bases."""
    return filled(op, args, kwargs, places, lambda place: None)


def own_results(op: OpOverload, result: Any) -> list[Any]:
    """The results that are no argument which was written to."""
    returns = schema_of(op).returns
    results = result if len(returns) > 1 else (result,) * len(returns)
    return [x for r, x in zip(returns, results, strict=True) if r.alias_info is None]


def all_results(
    op: OpOverload, own: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What ``op`` gives in eager: its ``own`` results, and arguments that it has written to."""
    fresh, arguments, results = iter(own), schema_of(op).arguments, []
    for returned in _returned(op):
        if returned == -1:
            results.append(next(fresh))
        elif returned is not None:
            name = arguments[returned].name
            results.append(args[returned] if returned < len(args) else kwargs[name])
    return tuple(results) if len(results) > 1 else (results or [None])[0]


def places_among(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    owner: Callable[[torch.Tensor], torch.Tensor],
    value_of: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[torch.Tensor], list[Place]]:
    """(the owners of what a call writes to; every argument in their memory, written or not). By
    ``value_of`` a tensor is told where it lies."""
    arguments = schema_of(op).arguments
    names = {a.name: i for i, a in enumerate(arguments)}
    slots = [*enumerate(args), *((names[name], value) for name, value in kwargs.items())]
    tensors = [
        (slot, item, value)
        for slot, argument in slots
        for item, value in _items(argument)
        if isinstance(value, torch.Tensor)
    ]
    writes = set(written_arguments(op))
    written = [value for slot, _, value in tensors if slot in writes]
    bases = list({id(base): base for base in map(owner, written)}.values())
    numbers = {id(base): i for i, base in enumerate(bases)}
    places = []
    for slot, item, value in tensors:
        base = owner(value)
        if value is base and id(base) in numbers:
            places.append(Place(slot, item, numbers[id(base)], whole=True))
        elif id(base) in numbers:
            part, whole = value_of(value), value_of(base)
            offset = part.storage_offset() - whole.storage_offset()
            shape, strides = tuple(part.shape), part.stride()
            places.append(Place(slot, item, numbers[id(base)], shape, strides, offset))
    return bases, places


def _items(argument: Any) -> Iterator[tuple[int, Any]]:
    return enumerate(argument) if isinstance(argument, list | tuple) else iter([(-1, argument)])


def _run(op: OpOverload, fresh: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def run(bases: Any, places: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        values = [fresh(base) for base in bases]

        def part(place: Place) -> torch.Tensor:
            value = values[place.base]
            if place.whole:
                return value
            start = value.storage_offset() + place.offset
            return value.as_strided(place.shape, place.strides, start)

        given, named = filled(op, args, kwargs, list(places_of(places)), part)
        return [*own_results(op, op(*given, **named)), *values]

    return run


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return _like(tensor).copy_(tensor)
