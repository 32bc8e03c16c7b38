"""Symbolic sizes that a call reads off its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitney.loops.index import Dim, bare_dim
from jitney.loops.ir import LoopProgram, ScalarArg


@dataclass(frozen=True)
class ReadSize:
    """A symbolic size nobody hands over: dimension ``axis`` of the argument at ``position``."""

    dim: Dim
    position: int
    axis: int


def sizes_to_read(
    program: LoopProgram, arguments: Sequence[str | Dim | ScalarArg]
) -> tuple[ReadSize, ...]:
    """Symbolic sizes of the tensors among ``arguments`` that are not arguments themselves."""
    table = program.buffer_table()
    known = {a for a in arguments if isinstance(a, Dim)}
    found: dict[Dim, ReadSize] = {}
    for position, argument in enumerate(arguments):
        if isinstance(argument, str):
            for axis, size in enumerate(table[argument].shape):
                dim = bare_dim(size)
                if dim is not None and dim not in known:
                    found.setdefault(dim, ReadSize(dim, position, axis))
    return tuple(found.values())
