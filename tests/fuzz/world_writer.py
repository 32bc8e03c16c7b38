"""Draws the text of random programs whose world changes."""

from __future__ import annotations

import contextlib
import random
import re

from tests.fuzz import world_changes as changes
from tests.fuzz import world_grammar as grammar

#: What a step that is a call begins with; the rest are keyword arguments.
CALL = "# call "
#: What statements and changes bind in the module.
GLOBALS = (
    "G1", "G2", "G3", "GN", "NP", "NA", "obj", "obj2", "obj3", "obj4", "obj5", "obj6", "L1", "L2",
    "L3", "D1", "D2", "E1", "E2", "Q1", "O1", "W1", "C1", "CH", "U1", "UL", "VIEW", "T1", "T2",
    "T3", "TL", "net", "bound", "half", "FS", "GP", "Other", "closed", "I1", "I2", "I3",
    "I4", "I5", "VAR",
    "LOCAL", "REF", "WD", "DEEP", "Root", "Left", "Right", "Bottom", "Desc", "Ops", "Getter",
    "Slotted", "Record", "Meta", "Frozen", "Gated", "Pair", "Layer", "Color", "Mark", "Seen",
    "SlottedMore", "Level", "plain", "plainer", "cached", "deeper", "nested_global", "num", "F_",
    "G_", "is_num", "here", "other", "extra", "from_import", "weak", "helper_num", "len", "sum",
    "isinstance", "hasattr", "type", "range", "array_",
)  # fmt: skip
#: Of places, as `world_grammar` names them.
KINDS = "soldetmfci"
ATTRIBUTES = ("a", "a", "b", "k", "k", "c", "r", "m", "child", "p", "cp", "zz", "half")
KEYS = ("'p'", "'p'", "'q'", "'a'", "'zz'", "1", "'b'")
#: Places as statements name them, and as the module does.
_OUTSIDE = (
    (re.compile(r"\bcell_(\w)\b"), r"cells['cell_\1'].cell_contents"),
    (re.compile(r"\bkw_s\b(?!')"), "program_.__kwdefaults__['kw_s']"),
    (re.compile(r"\bd_s\b"), "program_.__defaults__[1]"),
    (re.compile(r"\bhelper\b"), "helper_"),
)
_HOLE = re.compile(r"\{\{|\}\}|\{(\w)(!r)?\}")


class WorldWriter:
    """Draws statements, and changes that mostly touch what the statements read."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.used: dict[str, list[str]] = {}  # places
        self.read: dict[str, list[str]] = {}  # those that statements name
        self.inside: list[str] = []
        self.depth = 0
        # A program is about few kinds of things, of which it reads much.
        self.about = self.draw.sample(KINDS, self.draw.choice((1, 2, 2, 3)))
        self.attributes = self.draw.sample(ATTRIBUTES, 5)
        self.keys = self.draw.sample(KEYS, 4)

    def statements(self, count: int, nested: bool = False) -> tuple[str, ...]:
        """So many, some of which change the world."""
        made = []
        for _ in range(count):
            if not nested and self.draw.random() < 0.12:
                self.inside.append(outside(self.change()))
                name = f"change_{len(self.inside) - 1}"
                made.append(self.draw.choice(grammar.INSIDE).replace("{z}", name))
            else:
                made.append(self.statement(nested))
        return tuple(made)

    def statement(self, nested: bool) -> str:
        """One that reads; mostly so that an error does not end the call."""
        if self.draw.random() < 0.55:
            text = self.fill(f"out.append({self.about_them(grammar.EXPRESSIONS)})")
        else:
            text = self.fill(self.about_them(grammar.STATEMENTS))
            while nested and "helper(" in text:
                text = self.fill(self.about_them(grammar.STATEMENTS))
        if self.draw.random() < 0.06:
            return text
        lines = "\n".join(f"    {line}" for line in text.split("\n"))
        return f"try:\n{lines}\nexcept Exception as e:\n    out.append(type(e).__name__)"

    def about_them(self, table: tuple[str, ...]) -> str:
        """An alternative about the program's kinds of things, if chance has it."""
        text = self.draw.choice(table)
        for _ in range(6):
            kinds = {hole[1] for hole in _HOLE.finditer(text) if hole[1]} & set(KINDS)
            if kinds <= set(self.about) and (kinds or self.draw.random() < 0.3):
                break
            text = self.draw.choice(table)
        return text

    def change(self) -> str:
        """One change of the world, as a statement; not one to what is no place."""
        while True:
            text = self.fill(self.about_them(changes.CHANGES))
            with contextlib.suppress(SyntaxError):
                compile(outside(text), "change", "exec")
                return text

    def steps(self, count: int) -> tuple[str, ...]:
        """Calls, often several, with changes between them; some are taken back."""
        made, back = [*self.calls()], []
        self.read = {kind: list(places) for kind, places in self.used.items()}
        for number in range(count):
            change = outside(self.change())
            place = re.match(r"^([^=;\n]*[^=;\n!<> ]) = ", change)
            if place and "," not in place[1] and self.draw.random() < 0.4:
                made.append(f"old_{number} = {place[1]}")
                back.append(f"{place[1]} = old_{number}")
            made.append(change)
            if self.draw.random() < 0.8:
                made += self.calls()
            if back and self.draw.random() < 0.4:
                made += [back.pop(self.draw.randrange(len(back))), *self.calls()]
        for step in back:
            made.append(step)
        return (*made, *self.calls())

    def calls(self) -> list[str]:
        given = self.draw.choice(("", "", "", "", "", "n=2", "kw_s=3", "d_s=None"))
        return [CALL + given] * self.draw.choice((1, 1, 2, 3))

    def fill(self, text: str) -> str:
        """The text with every hole filled."""
        return _HOLE.sub(self.hole, text)

    def hole(self, hole: re.Match[str]) -> str:
        kind = hole[1]
        if kind is None:
            return hole[0][0]
        if kind == "n":
            return self.draw.choice("0112234")
        if kind == "a":
            name = self.draw.choice(self.attributes)
            return repr(name) if hole[2] else name
        if kind == "k":
            return self.draw.choice(self.keys)
        if kind in "xy":
            return self.expression(grammar.EXPRESSIONS if kind == "x" else grammar.TENSORS)
        if kind.isupper():
            return self.fill(self.draw.choice(changes.VALUES[kind]))
        return self.place(kind)

    def expression(self, table: tuple[str, ...]) -> str:
        return self.fill(self.about_them(table))

    def place(self, kind: str) -> str:
        """Mostly one that has been named before."""
        used = self.used.setdefault(kind, [])
        read = self.read.get(kind)
        if read and self.draw.random() < 0.75:
            return self.draw.choice(read)
        if used and self.draw.random() < 0.6:
            return self.draw.choice(used)
        if self.depth > 2:
            text = {"s": "G1", "o": "obj", "c": "Bottom", "m": "net.first"}.get(kind, "D1")
        else:
            self.depth += 1
            text = self.fill(self.draw.choice(grammar.PLACES[kind]))
            self.depth -= 1
        used.append(text)
        return text


def outside(change: str) -> str:
    """A change as the module makes it, outside of the function."""
    for pattern, text in _OUTSIDE:
        change = pattern.sub(text, change)
    return change
