"""Loops that are under way: the next items of a resumed frame's iterators, without advancing them.

A resume function is given, beside its stack, the next items of the iterators on it (`look_ahead`)
as a plain tuple. So what a capture takes has a source and guards like anything else, and the
position in the loop has none. The capture takes items from the tuple (`advance`); the iterators
themselves are advanced as often once the graph has run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from gc import get_referents
from itertools import islice
from typing import TYPE_CHECKING, Any

from jitney.capture import recipe as r
from jitney.capture.frame import BreakCapture, Raised
from jitney.capture.guard import Kind
from jitney.capture.source import Item, Local

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter
    from jitney.capture.world import World

AHEAD = "<ahead>"  # the last parameter of a resume function inside of a loop
MOST_ITEMS = 128  # of a loop that are looked at
#: What goes over a sequence by an index, and how to make it anew past a subclass's methods.
_INDEXED: dict[type, Callable[[Any], Iterator[Any]]] = {
    type(iter([])): list.__iter__,
    type(reversed([])): list.__reversed__,
    type(iter(())): tuple.__iter__,
    type(iter("")): str.__iter__,
    type(iter("\u0100")): str.__iter__,
    type(iter(b"")): bytes.__iter__,
    type(iter(range(0))): range.__iter__,
    type(iter(range(1 << 70))): range.__iter__,
}
_DICTS: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
#: What pickles as a copy of what is left, and raises where the dict has changed its size.
_COPYING = frozenset(
    type(iterator)
    for d in _DICTS
    for view in (d.keys(), d.values(), d.items())
    for iterator in (iter(view), reversed(view))
)
_KNOWN = frozenset({*_INDEXED, *_COPYING, enumerate, zip})


class _Unknown(Exception):
    """Raised for an iterator whose next items cannot be told."""


def look_ahead(values: Sequence[Any]) -> tuple[tuple[Any, ...] | None, ...]:
    """For each of ``values`` None or, of an iterator of C code whose next items can be told, a
    tuple of them (at most `MOST_ITEMS`) and then the lists and dicts that it goes over. Iterators
    that advance each other have None."""
    found: list[tuple[Any, ...] | None] = []
    iterators = []
    for value in values:
        if type(value) in _KNOWN:
            iterators.append(value)
            found.append(_look(value))
        else:
            found.append(None)
    if len(iterators) > 1 and _advance_each_other(iterators):
        return (None,) * len(values)
    return tuple(found)


def _look(iterator: Any) -> tuple[Any, ...] | None:
    owners: list[Any] = []
    try:
        if type(iterator) in _COPYING:  # mostly a ModuleList's
            items = tuple(_left(iterator, owners))
        else:
            items = tuple(islice(_again(iterator, {}, owners), MOST_ITEMS))
        return (items, *owners)
    except (_Unknown, RuntimeError, ValueError):  # a dict has changed; a strict zip ends
        return None


def _again(value: Any, known: dict[int, Iterator[Any]], owners: list[Any]) -> Iterator[Any]:
    """A copy of the iterator, in the same position, over the same ``owners``; ``known``: iterators
    that were copied before, by id. Raises _Unknown."""
    made = known.get(id(value))
    if made is None:
        cls = type(value)
        if cls in _COPYING:
            made = iter(_left(value, owners))
        elif cls in _INDEXED:
            made = _indexed(value, _INDEXED[cls], owners)
        elif cls is enumerate:
            inner, start = value.__reduce__()[1]
            made = enumerate(_again(inner, known, owners), start)
        elif cls is zip:
            _, inners, *strict = value.__reduce__()
            made = zip(*[_again(x, known, owners) for x in inners], strict=any(strict))
        else:
            raise _Unknown
        known[id(value)] = made
    return made


def _indexed(value: Any, begin: Callable[[Any], Iterator[Any]], owners: list[Any]) -> Iterator[Any]:
    _, arguments, *state = value.__reduce__()
    if not state:  # at its end
        return iter(())
    owner = arguments[0]
    made: Any = begin(owner)
    if state[0] is not None:
        made.__setstate__(state[0])
    if isinstance(owner, list):
        if type(owner) is not list or state[0] > len(owner) - (begin is list.__reversed__):
            raise _Unknown  # the list has become shorter, which `__setstate__` would see
        owners.append(owner)
    return made


def _left(value: Any, owners: list[Any]) -> list[Any]:
    for owner in get_referents(value):
        if isinstance(owner, dict):
            if len(owner) > MOST_ITEMS or type(owner) not in (dict, OrderedDict):
                raise _Unknown  # all of them would be copied each time
            owners.append(owner)
            break
    left: list[Any] = value.__reduce__()[1][0]
    return left


def _advance_each_other(iterators: Sequence[Any]) -> bool:
    """Whether one of them is, contains, or shares a part with another one."""
    parts = [part for iterator in iterators for part in {id(x) for x in _parts(iterator)}]
    return len(set(parts)) < len(parts)


def _parts(iterator: Any) -> Iterator[Any]:
    yield iterator
    if type(iterator) in (enumerate, zip):
        arguments = iterator.__reduce__()[1]
        for part in arguments[:1] if type(iterator) is enumerate else arguments:
            yield from _parts(part)


class Ahead:
    """An iterator on the stack of a resumed frame: what it will give, and how often a capture has
    advanced it."""

    def __init__(self, given: Local, source: Item, found: tuple[Any, ...]) -> None:
        self.given, self.source, self.found = given, source, found
        self.advanced = 0

    def advance(self, world: World) -> Any:
        """The next item, maybe `Lazy`; raises `Raised(StopIteration)` at the end."""
        items, owners = self.found[0], self.found[1:]
        world.guard(Kind.TYPE, self.source.base, tuple)
        world.guard(Kind.TYPE, self.source, tuple)
        world.guard(Kind.LENGTH, self.source, len(self.found))
        for place, owner in enumerate(owners, 1):
            at = Item(self.source, place)
            find = world.dict_shadow if isinstance(owner, dict) else world.sequence_shadow
            if find(owner, at).is_changed():
                raise BreakCapture("foreign-iterator", "a loop goes on over what was changed in it")
        source = Item(self.source, 0)
        world.guard(Kind.TYPE, source, tuple)
        if self.advanced < len(items):
            value = world.read_lazy(items[self.advanced], Item(source, self.advanced))
            self.advanced += 1
            return value
        if len(items) == MOST_ITEMS:
            raise BreakCapture("foreign-iterator", f"a loop of more than {MOST_ITEMS} rounds")
        world.guard(Kind.LENGTH, source, len(items))
        self.advanced += 1
        raise Raised(StopIteration())


def seen_ahead(arguments: Mapping[str, Any]) -> dict[int, Ahead]:
    """The iterators among the ``arguments`` of a resume function, by id."""
    stack = [name for name in arguments if name.startswith("<stack ")]
    slots = enumerate(zip(stack, arguments.get(AHEAD) or (), strict=False))
    return {
        id(arguments[name]): Ahead(Local(name), Item(Local(AHEAD), slot), found)
        for slot, (name, found) in slots
        if found is not None
    }


def advance(interpreter: Interpreter, iterator: Any) -> Any:
    """``next(iterator)`` for an iterator made outside of the frame; breaks if its next items are
    not known."""
    world = interpreter.world
    ahead = world.iterators.ahead.get(id(iterator))
    if ahead is None or world.reads is not None:  # what a checkpoint reads is read once more
        raise BreakCapture("foreign-iterator", "an iterator made outside of the frame is advanced")
    return ahead.advance(world)


def advances(world: World) -> list[r.Effect]:
    """The effects that advance the iterators as the capture did, before anything else is
    changed."""
    return [
        r.DeferredCall(r.Constant(take), (r.Given(ahead.given), r.Constant(ahead.advanced)))
        for ahead in world.iterators.ahead.values()
        if ahead.advanced
    ]


def take(iterator: Iterator[Any], count: int) -> None:
    """Advances an iterator; past its end nothing happens."""
    for _ in range(count):
        next(iterator, None)
