"""The source of one Triton kernel and what a launch must hand it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from jitney.kernels.triton.expressions import SIGNATURE
from jitney.loops.index import Index, index

_HEADER = """\
import triton
import triton.language as tl
from jitney.kernels.triton import device_math as dm
{library}
{functions}

@triton.jit
def kernel({parameters}):
"""


@dataclass(frozen=True)
class Parameter:
    """``name`` in the program; ``kind`` "pointer", "dim" or "scalar"; ``label`` in the source.
    ``aligned``: the address is known to be a multiple of 16 bytes."""

    name: str
    kind: str
    dtype: torch.dtype
    label: str
    aligned: bool = True

    @property
    def signature(self) -> str:
        """Its type in Triton's kernel signature."""
        if self.kind == "pointer":
            return "*" + SIGNATURE[self.dtype]
        return SIGNATURE[self.dtype]


@dataclass(frozen=True)
class KernelSource:
    """``body``: the indented statements. ``grid``: programs along each axis, as sizes."""

    name: str
    body: str
    parameters: tuple[Parameter, ...]
    grid: tuple[Index, ...]
    num_warps: int = 4
    num_stages: int = 3
    functions: tuple[str, ...] = ()

    def text(self, interpret: bool = False) -> str:
        """The whole module; ``interpret``: for Triton's interpreter, which has no libdevice."""
        library = (
            "from jitney.kernels.triton import interpret_math as lib"
            if interpret
            else "from triton.language.extra import libdevice as lib"
        )
        labels = ", ".join(p.label for p in self.parameters)
        functions = "".join("\n\n" + f for f in self.functions)
        head = _HEADER.format(library=library, parameters=labels, functions=functions)
        return head + self.body + "\n"

    @cached_property
    def key(self) -> str:
        """Equal for kernels that compile to the same code, whatever buffers they are used on."""
        signature = [p.signature + "!" * p.aligned for p in self.parameters]
        facts = (self.body, self.functions, signature, self.num_warps, self.num_stages)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def join_sources(name: str, parts: tuple[KernelSource, ...]) -> KernelSource:
    """One kernel whose programs are those of all ``parts``, one after the other.

    Parts must have one-dimensional grids of known size.
    """
    parameters: dict[str, Parameter] = {}
    functions, lines, before = [], ["    program = tl.program_id(0)"], 0
    for number, part in enumerate(parts):
        labels = []
        for parameter in part.parameters:
            known = parameters.get(parameter.name)
            if known is None:
                known = replace(parameter, label=f"{parameter.kind[0]}{len(parameters)}")
                parameters[parameter.name] = known
            labels.append(known.label)
        own = ", ".join(["program", *(p.label for p in part.parameters)])
        body = part.body.replace("tl.program_id(0)", "program")
        functions += [*part.functions, f"@triton.jit\ndef part{number}({own}):\n{body}"]
        size = int(part.grid[0])
        word = "if" if number == 0 else "elif"
        test = f"{word} program < {before + size}" if number < len(parts) - 1 else "else"
        lines.append(f"    {test}:")
        lines.append(f"        part{number}({', '.join([f'program - {before}', *labels])})")
        before += size
    return KernelSource(
        name=name,
        body="\n".join(lines),
        parameters=tuple(parameters.values()),
        grid=(index(before),),
        num_warps=max(p.num_warps for p in parts),
        num_stages=max(p.num_stages for p in parts),
        functions=tuple(functions),
    )
