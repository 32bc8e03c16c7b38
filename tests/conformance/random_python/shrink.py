"""The smallest program that still fails: lines with what is indented below them are left out."""

from __future__ import annotations

from collections.abc import Callable


def shrink(text: str, fails: Callable[[str], bool]) -> str:
    """``text`` with fewer lines, for which ``fails`` still holds, until none can be spared."""
    before = ""
    while before != text:
        before = text
        place = len(text.split("\n")) - 1
        while place >= 0:
            for smaller in without(text.split("\n"), place):
                if compiles(smaller) and fails(smaller):
                    text = smaller
                    break
            place = min(place, len(text.split("\n"))) - 1
    return text


def without(lines: list[str], place: int) -> list[str]:
    """The text without the block at ``place``; without its first line alone, the rest moved out."""
    indent = depth(lines[place])
    end = place + 1
    while end < len(lines) and (not lines[end].strip() or depth(lines[end]) > indent):
        end += 1
    inside = lines[place + 1 : end]
    step = min((depth(line) - indent for line in inside if line.strip()), default=0)
    found = ["\n".join(lines[:place] + lines[end:])]
    if step:
        found.append("\n".join(lines[:place] + [line[step:] for line in inside] + lines[end:]))
    return found


def depth(line: str) -> int:
    """Columns before the text."""
    return len(line) - len(line.lstrip())


def compiles(text: str) -> bool:
    """Whether it is Python."""
    try:
        compile(text, "program", "exec")
    except SyntaxError:
        return False
    return True
