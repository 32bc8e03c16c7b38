"""The source of one Triton kernel and what a launch must hand it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch

from jitney.kernels.triton.expressions import SIGNATURE
from jitney.loops.index import Index

_HEADER = """\
import triton
import triton.language as tl
from jitney.kernels.triton import device_math as dm
{library}

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

    def text(self, interpret: bool = False) -> str:
        """The whole module; ``interpret``: for Triton's interpreter, which has no libdevice."""
        library = (
            "from jitney.kernels.triton import interpret_math as lib"
            if interpret
            else "from triton.language.extra import libdevice as lib"
        )
        labels = ", ".join(p.label for p in self.parameters)
        return _HEADER.format(library=library, parameters=labels) + self.body + "\n"

    @cached_property
    def key(self) -> str:
        """Equal for kernels that compile to the same code, whatever buffers they are used on."""
        facts = (self.body, [p.signature for p in self.parameters], self.num_warps, self.num_stages)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
