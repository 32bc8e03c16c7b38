"""An entry's guards as a program for the native check, for the objects of one call.

Sources divide in two. *Stable* ones are reached through objects that are themselves watched:
while the words of the program (dict versions, pointers) are unchanged, they hold the same objects
and their guards need no check. *Slots* vary from call to call: arguments, what is in containers
passed as arguments, contents of dicts that change all the time; the program walks to them.
Guards that neither way can express are left over for the generated Python.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CellType, MappingProxyType
from typing import Any

import torch

from jitney import torch_api
from jitney.capture import layouts
from jitney.capture.guard import Apart, Guard, Kind, TensorFacts
from jitney.capture.native_program import SLOTS, Op, Program, apart_words, tensor_words
from jitney.capture.native_sets import (
    meeting_words,
    object_words,
    scratch_for,
    slot_words,
    span_words,
)
from jitney.capture.place_sources import SCALARS, Arming, Habits, Place
from jitney.capture.source import Roots, Source, keeps_order

_FEW = 4
CONSTANTS = (*SCALARS, bytes, complex, torch.dtype, torch.device, torch.layout)


@dataclass
class Arm:
    """A program, the sources that are stable under it with their objects, guards left over.
    ``roots``: objects, by id, that it takes from what a call brings, ``modules`` among them."""

    program: Program
    stable: tuple[Source, ...]
    values: tuple[Any, ...]
    residual: tuple[Guard, ...]
    roots: dict[Source, int]
    modules: set[Source]
    versions: dict[int, int]


def arm_guards(
    guards: Sequence[Guard], needed: Iterable[Source], roots: Roots, habits: Habits
) -> Arm | None:
    """The program for these inputs, of which every guard holds; None if it would be too long.

    ``needed``: sources the glue fetches. To be safe against other threads, the full check must
    pass once more after this has read the versions.
    """
    arming = Arming(roots, habits)
    first = sorted(guards, key=lambda g: g.kind is not Kind.STATE)  # modes may see what is read
    residual = tuple(g for g in first if not cover(arming, g))
    wanted = [*needed, *_sources_of(residual)]
    stable = dict.fromkeys(s for source in wanted for s in arming.anchors(source))
    if arming.slots > SLOTS:
        return None
    program = _program(arming)
    values = tuple(place.value for s in stable if (place := arming.place(s)) is not None)
    objects = arming.roots, arming.modules, arming.versions
    return Arm(program, tuple(stable), values, residual, *objects)


def _program(arming: Arming) -> Program:
    """Slots first, then what is stable: dicts' versions, of which one word may tell that none has
    changed since they were compared; other words; tensors that are asked."""
    program = Program(list(arming.code), arming.words, arming.keep)
    stores = [len(arming.stores) // 2, *arming.stores]
    if arming.watcher is None:
        program.add(Op.WORDS, program.data(stores))
    else:
        noted = ctypes.c_int64(-1)
        program.keep.append(noted)
        where = [arming.watcher.count, ctypes.addressof(noted)]
        program.add(Op.QUIET, program.data([*where, *stores]))
    program.add(Op.WORDS, program.data([len(arming.pairs) // 2, *arming.pairs]))
    program.code += arming.late
    program.add(Op.END)
    return program


def _sources_of(guards: Iterable[Guard]) -> list[Source]:
    found: list[Source] = []
    for guard in guards:
        found.append(guard.source)
        expected = guard.expected
        if guard.kind in (Kind.EXPRESSION, Kind.CACHED):
            found.extend(expected[1].values())
        elif guard.kind in (Kind.DISTINCT, Kind.NO_OVERLAP):
            found.extend(expected)
        elif guard.kind is Kind.SAME:
            found.append(expected)
    return found


# ---------------------------------------------------------------- a guard as checks


def cover(arming: Arming, guard: Guard) -> bool:
    """Adds checks to the program that imply the guard. False if the guard has to be checked in
    Python."""
    if guard.kind is Kind.STATE:
        return _state(arming, *guard.expected)
    if guard.kind is Kind.SAME:
        return _same(arming, arming.place(guard.source), arming.place(guard.expected))
    if guard.kind is Kind.NO_OVERLAP:
        return _apart(arming, guard.expected)
    if guard.kind is Kind.DISTINCT:
        return _distinct(arming, [arming.place(s) for s in guard.expected])
    handler = _COVERS.get(guard.kind)
    place = arming.place(guard.source)
    if handler is None or place is None:
        return False
    return handler(arming, place, guard.expected)


def _type(arming: Arming, place: Place, expected: Any) -> bool:
    if place.fixed:
        arming.type_stays(place.value)
    elif place.slot is not None:
        arming.add(Op.FIELD, place.slot, layouts.OB_TYPE, id(expected))
    return True


def _is(arming: Arming, place: Place, expected: Any) -> bool:
    if not place.fixed and place.slot is not None:
        arming.keep.append(expected)
        arming.add(Op.IS, place.slot, id(expected))
    return True


def _equals(arming: Arming, place: Place, expected: Any) -> bool:
    if place.fixed:
        return _is_immutable(expected)
    if type(expected) not in SCALARS or place.slot is None:
        return False
    arming.keep.append(expected)
    arming.add(Op.EQUAL, place.slot, id(expected))
    return True


def _is_immutable(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(_is_immutable(v) for v in value)
    return type(value) in CONSTANTS


def _length(arming: Arming, place: Place, expected: int) -> bool:
    value = place.value
    if place.slot is not None:
        if type(value) not in (dict, list, tuple):
            return False
        arming.same_length(place.slot, value)
        return True
    if isinstance(value, dict):
        arming.watch(value)
    elif isinstance(value, list):
        arming.watch_list(value)
    return isinstance(value, dict | list | tuple | str)


def _keys(arming: Arming, place: Place, expected: tuple[Any, ...]) -> bool:
    if isinstance(place.value, frozenset) and place.fixed:
        return True
    if not isinstance(place.value, dict) or keeps_order(place.value):
        return False
    if place.slot is None:
        arming.watch(place.value)
        return True
    keys = list(dict.keys(place.value))
    if any(type(key) not in (str, int) for key in keys):
        return False
    arming.contains_dict(place.slot, place.value)
    arming.keep.append(keys)
    index = arming.data([len(keys), *map(id, keys)])
    arming.add(Op.DICT_KEYS, place.slot, index)
    return True


def _has_key(arming: Arming, place: Place, expected: Any) -> bool:
    return _membership(arming, place, expected, present=True)


def _no_key(arming: Arming, place: Place, expected: Any) -> bool:
    return _membership(arming, place, expected, present=False)


def _membership(arming: Arming, place: Place, key: Any, *, present: bool) -> bool:
    if place.slot is None:
        if isinstance(place.value, dict):
            arming.watch(place.value)
        return isinstance(place.value, dict | MappingProxyType)
    if not isinstance(place.value, dict) or type(key) not in (str, int):
        return False
    arming.contains_dict(place.slot, place.value)
    arming.keep.append(key)
    if present:
        arming.add(Op.DICT_ITEM, place.slot, id(key), arming.new_slot())
    else:
        arming.add(Op.ABSENT, place.slot, id(key))
    return True


def _class_attr(arming: Arming, place: Place, expected: tuple[str, Any]) -> bool:
    if place.fixed:
        arming.watch_class(place.value)
    return place.fixed


def _no_attr(arming: Arming, place: Place, name: str) -> bool:
    value = place.value
    if not place.fixed:
        return False
    if type(value) is CellType:
        arming.word(id(value) + layouts.CELL_CONTENTS, 0)
        return True
    arming.type_stays(value)
    arming.watch_class(type(value))
    address = layouts.slot_address(value, name)
    if address is not None:
        arming.word(address, 0)
        return True
    pointer = layouts.dict_pointer(value) if hasattr(value, "__dict__") else None
    if pointer is None or hasattr(type(value), name):
        return False
    arming.word(pointer, id(value.__dict__))
    arming.watch(value.__dict__)
    return True


def _tensor(arming: Arming, place: Place, facts: TensorFacts) -> bool:
    value = place.value
    is_class = type(value) is facts.cls
    if facts.layout is not torch.strided or not is_class:
        return False
    known = torch_api.fact_words(value, facts.sizes, facts.strides) if place.fixed else None
    if known is not None:
        for address, word in known:
            arming.word(address, word)
    elif place.fixed:
        words = arming.data(tensor_words(value, facts.sizes, facts.strides))
        arming.late += (int(Op.CONST), 0, id(value), arming.scratch)
        arming.late += (int(Op.TENSOR), arming.scratch, words, 0)
    elif place.slot is not None:
        words = arming.data(tensor_words(value, facts.sizes, facts.strides))
        arming.add(Op.TENSOR, place.slot, words)
    return True


def _apart(arming: Arming, apart: Apart) -> bool:
    """Tensors that stay where they are share no memory as long as they do; one that varies is
    compared with the memory of those that do not."""
    places = [p for p in map(arming.place, apart.sources) if p is not None]
    if apart.together or not apart.static or len(places) < len(apart.sources):
        return False  # calls whose written inputs lie together run eager
    moving = [n for n, p in enumerate(places) if not p.fixed]
    spans = [torch_api.span(p.value) for p in places]
    moving = [n for n in moving if spans[n][0] < spans[n][1]]
    words = [torch_api.memory_words(p.value) for p in places if p.fixed]
    operands = {n: apart_words(places[n].value) for n in moving}
    if None in words or any(places[n].slot is None or not operands[n] for n in moving):
        return False
    if not apart.written.isdisjoint(moving) and not _meet_none(arming, places, operands):
        return False
    for address, word in (pair for several in words for pair in several or ()):
        arming.word(address, word)
    fixed = {n for n, p in enumerate(places) if p.fixed}
    tables: dict[bool, int] = {}
    for n in moving:
        written = n in apart.written
        if written not in tables:
            others = fixed if written else fixed & apart.written
            tables[written] = arming.data(span_words(spans[o] for o in others))
        arming.add(Op.APART, places[n].slot or 0, arming.data(operands[n] or []), tables[written])
    return True


def _meet_none(arming: Arming, places: list[Place], operands: dict[int, list[int] | None]) -> bool:
    """Adds a check that no two of the tensors that vary share memory. False where they may."""
    found = sorted(torch_api.span(places[n].value) for n in operands)
    if any(one[1] > other[0] for one, other in itertools.pairwise(found)):
        return False
    known = [(places[n].slot or 0, words) for n, words in operands.items() if words]
    tensors = [(slot, words[4], words[5]) for slot, words in known]
    words, memory = meeting_words(known[0][1][:4], tensors)
    arming.keep.append(memory)
    arming.add(Op.NO_MEETING, arming.data(words))
    return True


def _same(arming: Arming, one: Place | None, other: Place | None) -> bool:
    if one is None or other is None:
        return False
    if one.fixed and other.fixed:
        return True
    for place, known in ((one, other), (other, one)):
        if known.fixed and place.slot is not None:
            arming.add(Op.IS, place.slot, id(known.value))
            return True
    return False


def _distinct(arming: Arming, places: list[Place | None]) -> bool:
    """Fixed objects differ for good; a slot must differ from each of them and from other slots."""
    fixed = [id(p.value) for p in places if p is not None and p.fixed]
    slots = [p.slot for p in places if p is not None and not p.fixed and p.slot is not None]
    if len(fixed) + len(slots) < len(places):
        return False
    known = arming.data(object_words(fixed)) if slots and fixed else None
    for nth, slot in enumerate(slots):
        if known is not None:
            arming.add(Op.NONE_OF, slot, known)
        for other in slots[:nth] if len(slots) <= _FEW else ():
            arming.add(Op.DIFFER, slot, other)
    if len(slots) > _FEW:
        mask, memory = scratch_for(len(slots))
        arming.keep.append(memory)
        arming.add(Op.UNEQUAL, arming.data(slot_words(slots, mask, ctypes.addressof(memory))))
    return True


def _state(arming: Arming, name: str, expected: Any) -> bool:
    calls = torch_api.native_state(name, expected)
    for address, argument, mask, value in calls or ():
        arming.add(Op.CALL, address, arming.data([argument, mask, value]))
    return calls is not None


_COVERS: dict[Kind, Callable[[Arming, Place, Any], bool]] = {
    Kind.TYPE: _type,
    Kind.IS: _is,
    Kind.EQUALS: _equals,
    Kind.LENGTH: _length,
    Kind.KEYS: _keys,
    Kind.HAS_KEY: _has_key,
    Kind.NO_KEY: _no_key,
    Kind.CLASS_ATTR: _class_attr,
    Kind.NO_ATTR: _no_attr,
    Kind.TENSOR: _tensor,
}
