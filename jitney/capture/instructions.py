"""A code object's instructions, with those that do two things split in two.

From CPython 3.13 on one instruction may load or store two locals, or turn the result of a
comparison into a bool. It is split, so that a frame can stop in between: the second half has the
odd offset behind the first. From 3.14 on an instruction may borrow a local that stays alive until
it is used. Where a frame can stop in between, the local is loaded in the ordinary way.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

from bytecode import Compare, Instr

_LENDING = "LOAD_FAST_BORROW"
_PAIRS = {
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
_TO_BOOL = dis.opmap.get("TO_BOOL")
_AS_BOOL = 16  # in the argument of COMPARE_OP, where there is TO_BOOL


def read_instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """What `dis.get_instructions` gives, taken apart."""
    for whole in dis.get_instructions(code):
        pair = _PAIRS.get(whole.opname)
        arg = whole.arg or 0
        if pair is not None:
            for nth, (name, local) in enumerate(zip(pair, (arg >> 4, arg & 15))):
                yield whole._replace(
                    opname=name,
                    opcode=dis.opmap[name],
                    arg=local,
                    argval=whole.argval[nth],
                    offset=whole.offset + nth,
                )
        elif whole.opname == _LENDING:
            yield whole._replace(opname="LOAD_FAST", opcode=dis.opmap["LOAD_FAST"])
        elif whole.opname == "COMPARE_OP" and _TO_BOOL is not None and arg & _AS_BOOL:
            yield whole._replace(arg=arg & ~_AS_BOOL)
            yield whole._replace(
                opname="TO_BOOL", opcode=_TO_BOOL, arg=None, argval=None, offset=whole.offset + 1
            )
        else:
            yield whole


def take_apart(item: Any) -> list[Any]:
    """The same of an item of an editable code object: one or two instead of it."""
    if not isinstance(item, Instr):
        return [item]
    pair = _PAIRS.get(item.name)
    if pair is not None:
        names: Any = item.arg
        return [Instr(one, name, location=item.location) for one, name in zip(pair, names)]
    if item.name == _LENDING:
        return [Instr("LOAD_FAST", item.arg, location=item.location)]
    if isinstance(item.arg, Compare) and _TO_BOOL is not None and item.arg & _AS_BOOL:
        compare = Instr(item.name, Compare(item.arg & ~_AS_BOOL), location=item.location)
        return [compare, Instr("TO_BOOL", location=item.location)]
    return [item]
