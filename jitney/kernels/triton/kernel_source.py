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
from jitney.kernels.triton import device_math as dm, device_random as dr
{library}
{functions}

@triton.jit
def {name}({parameters}):
"""


#: The statement after which a kernel may read what earlier launches wrote, and may write; and the
#: one that lets the next launch start. Every kernel has both, on every path.
WAIT = "gdc_wait()"
RELEASE = "gdc_launch_dependents()"
#: How a statement begins that asks for memory some later one will read; where launches do not
#: overlap there is no time for it to arrive.
PREFETCH = "dm.prefetch("
#: What stops a program of a kernel that has it; compiled for debugging, or it does nothing.
ASSERT = "tl.device_assert"
#: Bytes that every address handed to a kernel is a multiple of.
ALIGNED = 16


@dataclass(frozen=True)
class Parameter:
    """``name`` in the program; ``kind`` "pointer" (to a multiple of `ALIGNED` bytes), "dim" or
    "scalar"; ``label`` in the source."""

    name: str
    kind: str
    dtype: torch.dtype
    label: str

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

    def text(self, interpret: bool = False, early: bool = False) -> str:
        """The whole module; ``interpret``: for Triton's interpreter, which has no libdevice;
        ``early``: for GPUs whose launches can overlap (Hopper and later)."""
        library = (
            "from jitney.kernels.triton import interpret_math as lib"
            if interpret
            else "from triton.language.extra import libdevice as lib"
        )
        if early:
            library += "\nfrom triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
        labels = ", ".join(p.label for p in self.parameters)
        functions = "".join("\n\n" + f for f in self.functions)
        name = f"kernel_{self.key[:10]}"  # what profilers show; the log says which nest it is
        head = _HEADER.format(library=library, name=name, parameters=labels, functions=functions)
        text = f"{head}{self.body}\n\n\nkernel = {name}\n"
        if early:
            return text
        lines = (line for line in text.splitlines(True) if line.strip() not in (WAIT, RELEASE))
        return "".join(line for line in lines if not line.strip().startswith(PREFETCH))

    @property
    def waits(self) -> bool:
        """Whether every program executes `WAIT`: in the body, or in each part it branches to."""
        parts = [f for f in self.functions if "\ndef part" in f]
        return WAIT in self.body or (bool(parts) and all(WAIT in part for part in parts))

    @cached_property
    def key(self) -> str:
        """Equal for kernels that compile to the same code, whatever buffers they are used on."""
        signature = [p.signature for p in self.parameters]
        facts = (self.body, self.functions, signature, self.num_warps, self.num_stages)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def join_sources(name: str, parts: tuple[KernelSource, ...]) -> KernelSource:
    """One kernel whose programs are those of all ``parts``, one after the other.

    Parts must have one-dimensional grids of known size. Equal parts (the projections of one
    input) become one body that picks its pointers: less code, and shared memory for one.
    """
    parameters = _all_parameters(parts)
    write = _picked if _are_equal(parts) else _branches
    functions, lines = write(parts, parameters)
    return KernelSource(
        name=name,
        body="\n".join(["    program = tl.program_id(0)", *lines]),
        parameters=tuple(parameters.values()),
        grid=(index(sum(int(p.grid[0]) for p in parts)),),
        num_warps=max(p.num_warps for p in parts),
        num_stages=max(p.num_stages for p in parts),
        functions=functions,
    )


def _all_parameters(parts: tuple[KernelSource, ...]) -> dict[str, Parameter]:
    """By name, labelled anew."""
    found: dict[str, Parameter] = {}
    for parameter in (q for part in parts for q in part.parameters):
        if parameter.name not in found:
            label = f"{parameter.kind[0]}{len(found)}"
            found[parameter.name] = replace(parameter, label=label)
    return found


def _as_function(number: int, part: KernelSource) -> str:
    own = ", ".join(["program", *(p.label for p in part.parameters)])
    body = part.body.replace("tl.program_id(0)", "program")
    return f"@triton.jit\ndef part{number}({own}):\n{body}"


def _are_equal(parts: tuple[KernelSource, ...]) -> bool:
    """Whether the parts differ in nothing but which buffers they work on."""
    first = parts[0]
    for part in parts[1:]:
        if (part.key, part.grid) != (first.key, first.grid):
            return False
        for a, b in zip(first.parameters, part.parameters, strict=True):
            if replace(a, name=b.name) != b or (a.kind != "pointer" and a.name != b.name):
                return False
    return True


def _picked(
    parts: tuple[KernelSource, ...], parameters: dict[str, Parameter]
) -> tuple[tuple[str, ...], list[str]]:
    """The one function, and its call with the pointers of the part a program belongs to."""
    size, arguments = int(parts[0].grid[0]), []
    for same in zip(*(part.parameters for part in parts), strict=True):
        labels = [parameters[p.name].label for p in same]
        text = labels[-1]
        for number in reversed(range(len(labels) - 1)):
            if len(set(labels)) > 1:
                text = f"tl.where(part == {number}, {labels[number]}, {text})"
        arguments.append(text)
    call = f"    part0({', '.join([f'program % {size}', *arguments])})"
    functions = (*parts[0].functions, _as_function(0, parts[0]))
    return functions, [f"    part = program // {size}", call]


def _branches(
    parts: tuple[KernelSource, ...], parameters: dict[str, Parameter]
) -> tuple[tuple[str, ...], list[str]]:
    """A function for each part, and the tests that lead to it."""
    functions: list[str] = []
    lines, before = [], 0
    for number, part in enumerate(parts):
        functions += [*part.functions, _as_function(number, part)]
        size = int(part.grid[0])
        word = "if" if number == 0 else "elif"
        test = f"{word} program < {before + size}" if number < len(parts) - 1 else "else"
        labels = [parameters[p.name].label for p in part.parameters]
        lines.append(f"    {test}:")
        lines.append(f"        part{number}({', '.join([f'program - {before}', *labels])})")
        before += size
    return tuple(functions), lines
