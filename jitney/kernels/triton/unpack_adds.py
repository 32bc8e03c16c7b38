"""Additions of packed 16-bit integers, written so that the assembler gets them right.

LLVM narrows index arithmetic that fits 16 bits and packs it by twos. ptxas (12.8 and 12.9, for
Hopper) then drops an operand of some ``add.s16x2``: docs/decisions/034-packed-adds.md.
"""

from __future__ import annotations

import re

_ADD = re.compile(r"^\s*(@!?%\w+\s+)?add\.[su]16x2\s+([^,]+),\s*([^,]+),\s*([^;]+);", re.MULTILINE)

#: All bits of both halves but the highest, and those. Sums of the former carry into none but the
#: latter, which add without a carry.
_LOW, _HIGH = "0x7fff7fff", "0x80008000"


def unpack_adds(ptx: str) -> str:
    """``ptx`` with each packed addition as six instructions on 32 bits."""
    return _ADD.sub(_unpacked, ptx)


def _unpacked(found: re.Match[str]) -> str:
    guard, result, a, b = (part or "" for part in found.groups())
    lines = (
        "{",
        ".reg .b32 %low, %other, %high;",
        f"and.b32 %low, {a}, {_LOW};",
        f"and.b32 %other, {b}, {_LOW};",
        "add.s32 %low, %low, %other;",
        f"xor.b32 %high, {a}, {b};",
        f"and.b32 %high, %high, {_HIGH};",
        f"{guard}xor.b32 {result}, %low, %high;",
        "}",
    )
    return "\n\t".join(("", *lines)).removeprefix("\n")
