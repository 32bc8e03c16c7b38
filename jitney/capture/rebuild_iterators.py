"""Iterators that a frame leaves behind, as recipes: what they go over, and how far they are."""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitney.capture import construct
from jitney.capture import recipe as r
from jitney.capture.source import keys_in_order

if TYPE_CHECKING:
    from jitney.capture.rebuild import Rebuilder

#: Over what notices that it is changed meanwhile: the base of what they go over, and what of it.
_NOTICING: dict[type, tuple[type, Callable[..., Any]]] = {
    type(iter({})): (dict, dict.keys),
    type(iter({}.values())): (dict, dict.values),
    type(iter({}.items())): (dict, dict.items),
    type(reversed({})): (dict, dict.__reversed__),
    type(reversed({}.values())): (dict, lambda d: reversed(dict.values(d))),
    type(reversed({}.items())): (dict, lambda d: reversed(dict.items(d))),
    type(iter(set())): (set, iter),
    type(iter(collections.deque())): (collections.deque, iter),
}
_Ordered: Any = collections.OrderedDict
#: Of one type whatever it goes over.
_ORDERED: type = type(iter(_Ordered()))
_ORDERED_VIEWS: tuple[Callable[..., Any], ...] = (
    _Ordered.keys, _Ordered.values, _Ordered.items, _Ordered.__reversed__,
    lambda d: reversed(_Ordered.values(d)), lambda d: reversed(_Ordered.items(d)),
)  # fmt: skip
#: Over tuples, which never change: what it has given is not kept for it.
_DRAINED = type(iter(()))
_TEE: type = type(itertools.tee(())[0])


class CannotRebuild(Exception):
    """A value that no recipe makes."""


def iterator_recipe(rebuilder: Rebuilder, value: Any) -> r.Recipe:
    """The iterator again, over the same list, dict or iterators; over what is left of a tuple.
    Raises CannotRebuild where C code does not say what it goes over."""
    if type(value) is _ORDERED:
        return _noticing(rebuilder, value, collections.OrderedDict, _view_of_ordered(value))
    if type(value) in _NOTICING:
        return _noticing(rebuilder, value, *_NOTICING[type(value)])
    if type(value) is _TEE:
        raise CannotRebuild("an iterator that shares another one with others")
    if type(value) is _DRAINED:
        return r.Apply(iter, (r.MakeTuple(_rest(rebuilder, value)),))
    parts = _parts(value)
    if parts is None:  # what it would give may come from the program's code, or change yet
        raise CannotRebuild(f"a {type(value).__qualname__} that does not say what it goes over")
    function, arguments, *state = parts
    made = (r.Constant(function), rebuilder.of(arguments))
    over = arguments[0] if arguments else None
    if state and isinstance(over, list):  # it is put no further than the list is long by then
        if state[0] > len(over) - (function is reversed):
            raise CannotRebuild("an iterator past the end of its list")
        if _will_change(rebuilder, over):
            begun = r.Apply(construct.make_iterator, made)
            place = (begun, rebuilder.of(state[0]))
            rebuilder.effects.append(r.DeferredCall(r.Constant(construct.set_state), place))
            return begun
    return r.Apply(construct.make_iterator, (*made, *map(rebuilder.of, state)))


def _parts(value: Any) -> tuple[Any, ...] | None:
    """What pickling it would keep: (what makes it, of what, its state if it has one); None where
    that is a copy of what is left."""
    deprecated = type(value).__module__ == "itertools" and sys.version_info >= (3, 12)
    with warnings.catch_warnings() if deprecated else contextlib.nullcontext():
        if deprecated:
            warnings.simplefilter("ignore", DeprecationWarning)
        try:
            parts: Any = value.__reduce__()
        except TypeError:  # no part of it can be had
            return None
    copied = parts[0] is iter and any(isinstance(x, dict) for x in gc.get_referents(value))
    return None if copied else parts


def _rest(rebuilder: Rebuilder, value: Any) -> tuple[r.Recipe, ...]:
    return tuple([rebuilder.of(item) for item in value])


def _view_of_ordered(value: Any) -> Callable[..., Any]:
    """What an OrderedDict's iterator goes over, by what it has left; raises CannotRebuild."""
    owners = [x for x in gc.get_referents(value) if isinstance(x, _Ordered)]
    try:
        left = value.__reduce__()[1][0]
    except RuntimeError:  # as it will in all its steps
        left = []
    if not owners or not left:
        return _ORDERED_VIEWS[0]
    views = [v for v in _ORDERED_VIEWS if _are(list(v(owners[0]))[-len(left) :], left)]
    if len(views) != 1:
        raise CannotRebuild("an OrderedDict's iterator that could be one of several")
    return views[0]


def _are(items: list[Any], others: list[Any]) -> bool:
    """Whether they are the same objects; tuples are made anew each time."""
    return len(items) == len(others) and all(
        a is b or (type(a) is type(b) is tuple and len(a) == 2 and _are([*a], [*b]))
        for a, b in zip(items, others, strict=True)
    )


def _noticing(rebuilder: Rebuilder, value: Any, base: Any, view: Callable[..., Any]) -> r.Recipe:
    owners = [x for x in gc.get_referents(value) if isinstance(x, base | frozenset)]
    if not owners:
        return r.MakeIterator(())  # at its end
    owner: Any = owners[0]
    try:
        left = list(value)
    except RuntimeError as error:
        if "size" not in str(error) and "mutated" not in str(error):  # old keys still come first
            raise CannotRebuild("an iterator whose keys have changed") from None
        return r.Apply(construct.disturbed, (r.Constant(base), r.Constant(view)))
    items = list(owner)
    if isinstance(owner, set | frozenset) and list(set(items)) != items:  # made anew it is another
        return r.MakeIterator(tuple([rebuilder.of(x) for x in left]))
    walk = construct.walk_later if _will_change(rebuilder, owner) else construct.walk
    counts = (r.Constant(len(left)), r.Constant(len(owner)))
    return r.Apply(walk, (rebuilder.of(owner), r.Constant(view), *counts))


def _will_change(rebuilder: Rebuilder, owner: Any) -> bool:
    """Whether it existed before, and effects will give it other keys or items."""
    world = rebuilder.vm.world
    known = world.inside.get(id(owner))
    if known is None:
        return False
    if isinstance(owner, dict):
        return list(world.shadows.dicts[id(known.original)].initial) != keys_in_order(owner)
    before = world.shadows.sequences[id(known.original)].initial
    return [*map(id, before)] != [*map(id, owner)]
