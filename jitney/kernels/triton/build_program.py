"""A LoopProgram as something to call on the GPU: kernels in native runs, extern calls between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jitney.errors import CompilerBug
from jitney.kernels.call_extern import ExternCall
from jitney.kernels.triton.compile_kernels import Binary, compile_kernels
from jitney.kernels.triton.decode_attention import (
    Scratch,
    emit_decode_attention,
    scratch_of,
    split_count,
)
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.kernel_source import KernelSource, join_sources
from jitney.kernels.triton.launch import Launch, LaunchTable
from jitney.kernels.triton.load_binary import current_stream, load_binary
from jitney.kernels.triton.schedule_nest import Schedule, schedule_nest
from jitney.loops.index import Atom, Dim
from jitney.loops.ir import (
    Attention,
    BufferView,
    Extern,
    IntOutput,
    LoopNest,
    LoopProgram,
    Output,
    ScalarArg,
    Together,
)
from jitney.loops.target import Target

#: Schedules chosen by measurement, by nest; a nest that is not there gets `schedule_nest`'s.
Tuned = Mapping[LoopNest, Schedule]


@dataclass(frozen=True)
class Segment:
    """Launch records ``first`` to ``first + count``, issued by one native call."""

    first: int
    count: int


def build_program(
    program: LoopProgram,
    constants: dict[str, torch.Tensor],
    target: Target,
    tuned: Tuned | None = None,
) -> GpuProgram:
    """Compiles every nest for ``target`` and returns the callable program.

    Nodes must be nests and extern calls (`choose_libraries` turns templates into those).
    """
    sources: dict[str, tuple[KernelSource, ...]] = {}
    scratch: list[Scratch] = []
    for node in program.nodes:
        if isinstance(node, LoopNest):
            schedule = (tuned or {}).get(node) or schedule_nest(node, target)
            sources[node.name] = (emit_nest(node, schedule),)
        elif isinstance(node, Together):
            sources[node.name] = emit_together(node, target)
        elif isinstance(node, Attention):
            splits = split_count(node, target.multiprocessors)
            sources[node.name] = emit_decode_attention(node, splits)
            scratch.append(scratch_of(node, splits))
        elif not isinstance(node, Extern):
            raise CompilerBug(f"{type(node).__name__} {node.name} reached the Triton backend")
    every = [source for several in sources.values() for source in several]
    binaries = compile_kernels(every, target.capability)
    return GpuProgram(program, constants, sources, binaries, tuple(scratch))


def emit_together(group: Together, target: Target) -> tuple[KernelSource, ...]:
    """One kernel for the group; nests whose grids have more dimensions keep their own."""
    parts = [emit_nest(nest, schedule_nest(nest, target)) for nest in group.nests]
    flat = tuple(p for p in parts if len(p.grid) == 1)
    rest = tuple(p for p in parts if len(p.grid) > 1)
    return (join_sources(group.name, flat), *rest) if len(flat) > 1 else tuple(parts)


class GpuProgram:
    """``program(*args) -> tuple``; ``args`` as ``program.arguments`` say. Thread-safe: each call
    leases a launch table; workspace and outputs come from torch's allocator on its stream."""

    def __init__(
        self,
        program: LoopProgram,
        constants: dict[str, torch.Tensor],
        sources: Mapping[str, tuple[KernelSource, ...]],
        binaries: Mapping[str, Binary],
        scratch: tuple[Scratch, ...] = (),
    ) -> None:
        self.program, self.constants = program, constants
        self.device = _device(program)
        self._slots = {b.name: i for i, b in enumerate(program.buffers)}
        for argument in program.arguments:
            if isinstance(argument, Dim | ScalarArg):
                self._slots[argument.name] = len(self._slots)
        for extra in scratch:
            self._slots[extra.name] = len(self._slots)
        self._launches: list[Launch] = []
        self._steps = self._plan(sources, binaries)
        self._tables: list[LaunchTable] = []
        self._temps = list(program.slots)
        self.workspace = program.workspace
        for extra in scratch:  # stands beside the planned workspace, aligned as it is
            self._temps.append((extra.name, self.workspace))
            self.workspace = self.workspace + (4 * extra.elements + 255) // 256 * 256
        self._made = [b for b in program.buffers if b.kind == "output"]

    def _plan(
        self, sources: Mapping[str, tuple[KernelSource, ...]], binaries: Mapping[str, Binary]
    ) -> list[Segment | ExternCall]:
        steps: list[Segment | ExternCall] = []
        for node in self.program.nodes:
            if isinstance(node, Extern):
                steps.append(ExternCall(node))
                continue
            first = len(self._launches)
            for source in sources[node.name]:
                loaded = load_binary(binaries[source.key], self.device)
                slots = tuple(self._slots[p.name] for p in source.parameters)
                grid, threads = source.grid, loaded.threads
                self._launches.append(Launch(loaded.function, grid, threads, loaded.shared, slots))
            last, added = steps[-1] if steps else None, len(self._launches) - first
            if isinstance(last, Segment):
                steps[-1] = Segment(last.first, last.count + added)
            else:
                steps.append(Segment(first, added))
        return steps

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        try:
            table = self._tables.pop()
        except IndexError:
            table = LaunchTable(self._launches, len(self._slots))
        try:
            return _Call(self, table, args).run()
        finally:
            self._tables.append(table)


class _Call:
    """One call under way: its tensors by buffer name, its sizes."""

    def __init__(self, owner: GpuProgram, table: LaunchTable, args: Sequence[Any]) -> None:
        self.owner, self.table = owner, table
        self.tensors: dict[str, torch.Tensor] = dict(owner.constants)
        self.sizes: dict[Atom, int] = {}
        self.scalars: dict[str, Any] = {}
        for argument, value in zip(owner.program.arguments, args, strict=True):
            if isinstance(argument, Dim):
                self.sizes[argument] = value
                self._set(argument.name, value)
            elif isinstance(argument, ScalarArg):
                self.scalars[argument.name] = value
                self._set(argument.name, _bits(value, argument.dtype))
            else:
                self.tensors[argument] = value
        if self.sizes:
            table.set_sizes(self.sizes)

    def run(self) -> tuple[Any, ...]:
        owner, program = self.owner, self.owner.program
        for buffer in owner._made:
            shape = [s.evaluate(self.sizes) for s in buffer.shape]
            strides = [s.evaluate(self.sizes) for s in buffer.strides]
            self.tensors[buffer.name] = torch.empty_strided(
                shape, strides, dtype=buffer.dtype, device=owner.device
            )
        self._lease_workspace()
        for name, tensor in self.tensors.items():
            self._set(name, tensor.data_ptr())
        stream = current_stream(owner.device)
        for step in owner._steps:
            if isinstance(step, Segment):
                self.table.run(step.first, step.count, stream)
            else:
                self._extern(step)
        return tuple(self._result(out) for out in program.outputs)

    def _set(self, name: str, value: int) -> None:
        self.table.values[self.owner._slots[name]] = value

    def _lease_workspace(self) -> None:
        size = self.owner.workspace.evaluate(self.sizes)
        self.workspace = torch.empty(size, dtype=torch.uint8, device=self.owner.device)
        base = self.workspace.data_ptr()
        for name, offset in self.owner._temps:
            self._set(name, base + offset.evaluate(self.sizes))

    def _extern(self, step: ExternCall) -> None:
        results = step.run(self._view, self.sizes, self.scalars)
        for name, result in zip(step.node.outputs, results, strict=False):
            if name is not None and result is not None:
                self.tensors[name] = result
                self._set(name, result.data_ptr())

    def _view(self, view: BufferView) -> torch.Tensor:
        shape = [s.evaluate(self.sizes) for s in view.shape]
        strides = [s.evaluate(self.sizes) for s in view.strides]
        tensor = self.tensors.get(view.buffer)
        offset = view.offset.evaluate(self.sizes)
        if tensor is None:
            tensor = self._temp(view.buffer)
        elif not offset and list(tensor.shape) == shape and list(tensor.stride()) == strides:
            return tensor
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)

    def _temp(self, name: str) -> torch.Tensor:
        buffer = self.owner.program.buffer(name)
        start = dict(self.owner._temps)[name].evaluate(self.sizes)
        size = buffer.dtype.itemsize
        for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
            size += (
                max(extent.evaluate(self.sizes) - 1, 0)
                * stride.evaluate(self.sizes)
                * (buffer.dtype.itemsize)
            )
        tensor = self.workspace[start : start + size].view(buffer.dtype)
        self.tensors[name] = tensor
        return tensor

    def _result(self, out: Any) -> Any:
        if isinstance(out, Output):
            return self._view(out.view)
        if isinstance(out, IntOutput):
            return out.value.evaluate(self.sizes)
        value = out.value
        return self.scalars[value.name] if isinstance(value, ScalarArg) else value


def _device(program: LoopProgram) -> torch.device:
    for buffer in program.buffers:
        if buffer.device.type == "cuda":
            return buffer.device
    raise CompilerBug("a program without CUDA buffers reached the Triton backend")


def _bits(value: Any, dtype: torch.dtype) -> int:
    """A scalar as the 8 bytes of its parameter slot."""
    tensor = torch.tensor(value, dtype=dtype)
    padded = torch.zeros(8, dtype=torch.uint8)
    raw = tensor.reshape(1).view(torch.uint8)
    padded[: raw.numel()] = raw
    return int(padded.view(torch.int64))


CompiledGraph = Callable[..., tuple[Any, ...]]
