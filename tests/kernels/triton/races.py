"""Accesses of a kernel's text between which its program's threads should wait, and do not.

Read off the text alone, without what the emitter knows: loops are gone through twice, and an
access is told by the pointers in its address. What one address, written alike, means in another
turn of a loop that it varies with are other elements: what the verifier asks of a nest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ACCESS = re.compile(r"tl\.(load|store|atomic_\w+)\(")
_POINTER = re.compile(r"\bp\d+\b")
#: One address for all threads: the one thread whose mask holds stores what it has read itself.
_ONE_PLACE = re.compile(r"^tl\.broadcast_to\((.*), \[[^\]]*\]\)$")
_FOR = re.compile(r"\s*for (\w+) in ")
_ASSIGNED = re.compile(r"\s*(\w+) = (.*)")
#: Said of an address of the turn before.
_BEFORE = " of the turn before"


def races(body: str) -> list[str]:
    """The statements that read what was stored since threads last waited for each other, that
    store elsewhere what was read or stored, or that add to what was read or stored."""
    read: dict[str, set[str]] = {}
    written: dict[str, set[str]] = {}
    found = []
    for line in _steps([x for x in body.splitlines() if x.strip()]):
        if isinstance(line, frozenset):
            read, written = _of_the_turn_before(read, line), _of_the_turn_before(written, line)
            continue
        if "tl.debug_barrier()" in line:
            read, written = {}, {}
        for access in _ACCESS.finditer(line):
            kind = access[1]
            address = _ONE_PLACE.sub(r"\1", _first_argument(line[access.end() :]))
            for pointer in _POINTER.findall(address):
                known = read.get(pointer, set()), written.get(pointer, set())
                if _meets(kind, address, *known):
                    found.append(line)
                into = read if kind == "load" else written
                into.setdefault(pointer, set()).add(address if kind in ("load", "store") else kind)
    return found


def _meets(kind: str, address: str, read: set[str], written: set[str]) -> bool:
    if kind == "load":
        return bool(written - {address + _BEFORE})
    if kind == "store":
        return bool((read | written) - {address, address + _BEFORE})
    return bool(read or written - {kind})


def _of_the_turn_before(known: dict[str, set[str]], varying: frozenset[str]) -> dict[str, set[str]]:
    return {
        pointer: {x + _BEFORE if varying & {*re.findall(r"\w+", x)} else x for x in addresses}
        for pointer, addresses in known.items()
    }


def _steps(lines: Sequence[str]) -> list[str | frozenset[str]]:
    """The lines in the order they run, each loop's twice; between its turns, the names that vary
    from one to the next."""
    steps: list[str | frozenset[str]] = []
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        steps.append(line.strip())
        if loop := _FOR.match(line):
            inside = at
            while at < len(lines) and _indent(lines[at]) > _indent(line):
                at += 1
            turn = _steps(lines[inside:at])
            steps += [*turn, _varying(loop[1], lines[inside:at]), *turn]
    return steps


def _varying(variable: str, body: Sequence[str]) -> frozenset[str]:
    """The names of a loop's ``body`` that are computed from its ``variable``."""
    names = {variable}
    for line in body:
        if (assigned := _ASSIGNED.match(line)) and names & {*re.findall(r"\w+", assigned[2])}:
            names.add(assigned[1])
    return frozenset(names)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _first_argument(text: str) -> str:
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if depth < 0 or (sign == "," and not depth):
            return text[:at]
    return text
