"""Accesses of a kernel's text between which its program's threads should wait, and do not.

Read off the text alone, without what the emitter knows: loops are gone through twice, and an
access is told by the pointers in its address.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ACCESS = re.compile(r"tl\.(load|store|atomic_\w+)\(")
_POINTER = re.compile(r"\bp\d+\b")
#: One address for all threads: the one thread whose mask holds stores what it has read itself.
_ONE_PLACE = re.compile(r"^tl\.broadcast_to\((.*), \[[^\]]*\]\)$")


def races(body: str) -> list[str]:
    """The statements that read what was stored since threads last waited for each other, that
    store elsewhere what was read or stored, or that add to what was read or stored."""
    read: dict[str, set[str]] = {}
    written: dict[str, set[str]] = {}
    found = []
    for line in _steps([x for x in body.splitlines() if x.strip()]):
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
        return bool(written)
    if kind == "store":
        return bool((read | written) - {address})
    return bool(read or written - {kind})


def _steps(lines: Sequence[str]) -> list[str]:
    """The lines in the order they run, each loop's twice."""
    steps: list[str] = []
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        steps.append(line.strip())
        if line.lstrip().startswith("for "):
            inside = at
            while at < len(lines) and _indent(lines[at]) > _indent(line):
                at += 1
            steps += 2 * _steps(lines[inside:at])
    return steps


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _first_argument(text: str) -> str:
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if depth < 0 or (sign == "," and not depth):
            return text[:at]
    return text
