"""Reads `grammar.txt`."""

from __future__ import annotations

import re
from pathlib import Path

SECTION = re.compile(r"^\[([^\]<]+)\]\n", re.MULTILINE)


def read_grammar() -> dict[str, list[str]]:
    """The alternatives of every section by its name."""
    _, *parts = SECTION.split(Path(__file__).with_name("grammar.txt").read_text())
    found = {}
    for name, text in zip(parts[::2], parts[1::2]):
        found[name] = text.strip("\n").split("\n\n" if name == "compound" else "\n")
    return found


RULES = read_grammar()
