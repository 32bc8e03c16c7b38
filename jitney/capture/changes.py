"""What a frame changed of the world, as effects: shadows compared with what they were given."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from jitney.capture import recipe as r
from jitney.capture.frame import Lazy
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.look_ahead import advances
from jitney.capture.rebuild import Rebuilder
from jitney.capture.scalars import SCALAR_TYPES
from jitney.capture.shadows import DictShadow, SequenceShadow
from jitney.capture.source import Attr, Fixed, Source, keys_in_order

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def effects_of(vm: Interpreter, rebuilder: Rebuilder) -> list[r.Effect]:
    """Every change to be replayed, in an order in which none needs an object made later."""
    effects = advances(vm.world)
    for function, args, kwargs in vm.deferred:
        effects.append(
            r.DeferredCall(
                rebuilder.of(function),
                tuple([rebuilder.of(a) for a in args]),
                tuple([(k, rebuilder.of(v)) for k, v in kwargs.items()]),
            )
        )
    return [*effects, *changes_of(vm, rebuilder)]


def changes_of(vm: Interpreter, rebuilder: Rebuilder) -> list[r.Effect]:
    """What was written to objects that existed before."""
    effects: list[r.Effect] = []
    for shadow in list(vm.world.shadows.dicts.values()):
        effects.extend(_dict_changes(vm, shadow, rebuilder))
    for sequence in list(vm.world.shadows.sequences.values()):
        effects.extend(_sequence_changes(sequence, rebuilder))
    guard_apart(vm, _targets(effects))
    for cell in list(vm.world.shadows.cells.values()):
        if cell.changed:
            value = None if cell.contents is ABSENT else rebuilder.of(cell.contents)
            effects.append(r.StoreCell(r.Given(cell.source), value))
    for (_, name), (value, owner) in list(vm.world.shadows.slots.items()):
        effects.append(r.StoreAttr(rebuilder.of(owner), name, rebuilder.of(value)))
    return effects


CONTENTS = (r.StoreItem, r.DeleteItem, r.ReplaceContents, r.ExtendList)


def _targets(effects: list[r.Effect]) -> list[Source]:
    """What effects on contents change, of what existed before."""
    targets = [e.target for e in effects if isinstance(e, CONTENTS)]
    return [t.source for t in targets if isinstance(t, r.Given)]


def guard_apart(vm: Interpreter, changed: list[Source]) -> None:
    """Containers and objects that were changed, even if they are as they were again, stay distinct
    from the others of their types."""
    changed = [*changed, *vm.world.written]
    known = list(vm.world.outside.values())
    owners = {s.base for s in changed if _is_namespace(s) and isinstance(s, Attr)}
    containers = {s for s in changed if not _is_namespace(s)}
    types = {type(k.original) for k in known if k.source in owners | containers}
    for cls in types:
        alike = [k.source for k in known if type(k.original) is cls and not _is_namespace(k.source)]
        if len(alike) > 1 and not all(isinstance(source, Fixed) for source in alike):
            vm.world.guard(Kind.DISTINCT, alike[0], tuple(alike), cls)


def _is_namespace(source: Source) -> bool:
    return isinstance(source, Attr) and source.name == "__dict__"


def _unchanged(vm: Interpreter, before: Any, now: Any) -> bool:
    """Whether storing would change nothing. A scalar that was put back as it was gets a guard
    instead, so that calls do not write to dicts that are watched."""
    if before is now:
        return True
    known = vm.world.inside.get(id(now))
    if type(before) is Lazy and known is not None and known.original is before.value:
        return vm.world.force(before) is now
    if type(before) is Lazy and type(before.value) in SCALAR_TYPES:
        same = type(before.value) is type(now) and before.value == now
        return same and vm.world.force(before) is before.value
    return False


def _dict_changes(vm: Interpreter, shadow: DictShadow, rebuilder: Rebuilder) -> list[r.Effect]:
    target = r.Given(shadow.source)
    inside, initial = shadow.inside, shadow.initial
    moved = set() if shadow.seeded else shadow.moved
    stored = [
        k
        for k, v in dict.items(inside)
        if k in moved or k not in initial or not _unchanged(vm, initial[k], v)
    ]
    deleted = [k for k in initial if k in moved or not dict.__contains__(inside, k)]
    if not stored and not deleted and not _reordered(shadow):
        return []
    ordered = isinstance(shadow.original, collections.OrderedDict)
    other_keys = ordered and list(initial) != keys_in_order(inside)
    if shadow.seeded and (other_keys or _reordered(shadow)):
        items = [
            (rebuilder.of(k), rebuilder.of(dict.__getitem__(inside, k)))
            for k in keys_in_order(inside)
        ]
        return [r.ReplaceContents(target, r.MakeDict(tuple(items)))]
    effects: list[r.Effect] = [r.DeleteItem(target, rebuilder.of(k)) for k in deleted]
    effects.extend(
        r.StoreItem(target, rebuilder.of(k), rebuilder.of(dict.__getitem__(inside, k)))
        for k in stored
    )
    return effects


def _reordered(shadow: DictShadow) -> bool:
    """Whether stores and deletes alone would leave the keys in another order."""
    if not shadow.seeded:
        return False
    now = keys_in_order(shadow.inside)
    kept = [k for k in shadow.initial if dict.__contains__(shadow.inside, k)]
    return now[: len(kept)] != kept


def _sequence_changes(sequence: SequenceShadow, rebuilder: Rebuilder) -> list[r.Effect]:
    inside = sequence.inside
    if isinstance(inside, frozenset):
        return []
    target = r.Given(sequence.source)
    if not sequence.seeded:
        added = r.MakeList(tuple([rebuilder.of(x) for x in inside]))
        return [r.ExtendList(target, added)] if inside else []
    if isinstance(inside, set):
        now = list(set.__iter__(inside))
        if [*map(id, now)] == [*map(id, sequence.initial)]:
            return []
    else:
        now = list(inside) if type(inside) is list else list(_raw_items(inside))
        same = len(now) == len(sequence.initial) and all(
            a is b for a, b in zip(now, sequence.initial, strict=True)
        )
        if same:
            return []
    items = r.MakeList(tuple([rebuilder.of(x) for x in now]))
    return [r.ReplaceContents(target, items)]


def _raw_items(inside: Any) -> Any:
    base = list if isinstance(inside, list) else collections.deque
    return base.__iter__(inside)
