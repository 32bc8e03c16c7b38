"""How to rebuild, after the graph has run, the Python values a frame left behind.

A recipe is a small DAG: the same recipe object (`is`) met twice makes one Python object, so
identity and aliasing survive. Builders may refer to themselves through effects (a list that
holds itself is made empty, then filled by an effect).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any

from jitney.capture.source import Source


class Recipe:
    """Base. Compared by identity."""


@dataclass(frozen=True, eq=False)
class Given(Recipe):
    """An object that existed before the frame: fetched again before anything is changed."""

    source: Source


@dataclass(frozen=True, eq=False)
class GraphOutput(Recipe):
    """The ``index``-th result of the compiled graph (a tensor, or an int for a SymInt)."""

    index: int


@dataclass(frozen=True, eq=False)
class Constant(Recipe):
    """A given object, shared by all calls: immutables, functions, classes, modules."""

    value: Any


@dataclass(frozen=True, eq=False)
class Null(Recipe):
    """CPython's NULL on a value stack."""


@dataclass(frozen=True, eq=False)
class MakeTuple(Recipe):
    """A new tuple."""

    items: tuple[Recipe, ...]


@dataclass(frozen=True, eq=False)
class MakeList(Recipe):
    """A new list."""

    items: tuple[Recipe, ...]


@dataclass(frozen=True, eq=False)
class MakeDict(Recipe):
    """A new dict of (key, value) pairs, in order."""

    items: tuple[tuple[Recipe, Recipe], ...]


@dataclass(frozen=True, eq=False)
class MakeSet(Recipe):
    """A new set or frozenset, filled in order."""

    items: tuple[Recipe, ...]
    frozen: bool = False


@dataclass(frozen=True, eq=False)
class MakeSlice(Recipe):
    """A slice."""

    start: Recipe
    stop: Recipe
    step: Recipe


@dataclass(frozen=True, eq=False)
class MakeCell(Recipe):
    """A new closure cell; ``contents`` None for an empty one."""

    contents: Recipe | None


@dataclass(frozen=True, eq=False)
class MakeFunction(Recipe):
    """A new function; ``closure``: its cells, in the order of ``co_freevars``."""

    code: CodeType
    globals: Recipe
    name: str
    qualname: str
    defaults: Recipe | None
    kwdefaults: Recipe | None
    closure: tuple[Recipe, ...]
    state: Recipe | None = None  # its __dict__
    annotations: Recipe | None = None
    annotate: Recipe | None = None  # what makes them when they are asked for, from 3.14 on


@dataclass(frozen=True, eq=False)
class MakeMethod(Recipe):
    """``function`` bound to ``self``."""

    function: Recipe
    self: Recipe


@dataclass(frozen=True, eq=False)
class MakeIterator(Recipe):
    """``iter([...])`` over what was left of an iterator of the frame."""

    items: tuple[Recipe, ...]


@dataclass(frozen=True, eq=False)
class MakeGenerator(Recipe):
    """A generator suspended in the YIELD_VALUE at ``offset`` with ``stack`` below the yielded
    value; not ``started``: at ``offset``, its first instruction, with nothing on the stack."""

    code: CodeType
    globals: Recipe
    offset: int
    started: bool
    stack: tuple[Recipe, ...]
    locals: tuple[tuple[str, Recipe], ...]  # bound ones; cell variables hold a cell recipe
    closure: tuple[Recipe, ...]
    names: tuple[Recipe, ...]  # its ``__name__`` and ``__qualname__``


@dataclass(frozen=True, eq=False)
class MakeObject(Recipe):
    """``cls.__new__(cls, *new_args)`` with no ``__init__``, then ``base`` contents for subclasses
    of dict (MakeDict), list or set (MakeList), then ``state`` entries put into its ``__dict__``
    raw and ``slots`` set by object.__setattr__."""

    cls: type
    new_args: tuple[Recipe, ...] = ()
    base: Recipe | None = None
    state: tuple[tuple[str, Recipe], ...] = ()
    slots: tuple[tuple[str, Recipe], ...] = ()


@dataclass(frozen=True, eq=False)
class Apply(Recipe):
    """``function(*args, **kwargs)`` for a cheap pure constructor: torch.Size, functools.partial,
    range, datetime.timedelta, a view of an input taken again, …"""

    function: Any
    args: tuple[Recipe, ...]
    kwargs: tuple[tuple[str, Recipe], ...] = ()


# ---------------------------------------------------------------- effects


class Effect:
    """A change the frame made to the world, replayed after the graph has run, in order."""


@dataclass(frozen=True, eq=False)
class StoreItem(Effect):
    """``dict.__setitem__(target, key, value)`` raw; an instance ``__dict__`` is such a dict."""

    target: Recipe
    key: Recipe
    value: Recipe


@dataclass(frozen=True, eq=False)
class DeleteItem(Effect):
    """``dict.__delitem__(target, key)`` raw."""

    target: Recipe
    key: Recipe


@dataclass(frozen=True, eq=False)
class ReplaceContents(Effect):
    """The whole contents of a list, dict, set or deque, in order: cleared, then refilled.
    ``items``: a MakeList for sequences and sets, a MakeDict for dicts."""

    target: Recipe
    items: Recipe


@dataclass(frozen=True, eq=False)
class ExtendList(Effect):
    """``list.extend(target, items)``, where nothing is known of what the list held."""

    target: Recipe
    items: MakeList


@dataclass(frozen=True, eq=False)
class StoreAttr(Effect):
    """``object.__setattr__``-like C-level store: slots, ``tensor.grad``, function attributes."""

    target: Recipe
    name: str
    value: Recipe


@dataclass(frozen=True, eq=False)
class StoreCell(Effect):
    """``target.cell_contents = value``; None empties the cell."""

    target: Recipe
    value: Recipe | None


@dataclass(frozen=True, eq=False)
class SetState(Effect):
    """Process state left changed (grad mode, autocast, default dtype): `torch_api.set_state`."""

    name: str
    value: Any


@dataclass(frozen=True, eq=False)
class DeferredCall(Effect):
    """A call put off until the graph has run: print, logging, warnings."""

    function: Recipe
    args: tuple[Recipe, ...]
    kwargs: tuple[tuple[str, Recipe], ...] = ()
