"""Runs a program that is more than one native call: extern calls, views of results, numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from jitney.kernels.call_extern import ExternCall
from jitney.kernels.llvm.segments import (
    Interpreted,
    Segment,
    Step,
    node_of,
)
from jitney.kernels.own_results import freed, own_results
from jitney.loops import visit
from jitney.loops.evaluate_scalar import evaluate_scalar
from jitney.loops.index import Atom, Dim, Index
from jitney.loops.interpret import interpret
from jitney.loops.ir import Buffer, BufferView, Extern, IntOutput, LoopProgram, Output, ScalarArg
from jitney.loops.read_sizes import ReadSize, sizes_to_read


def is_plain(program: LoopProgram, steps: Sequence[Step]) -> bool:
    """Whether there is one segment, and its results are the program's: whole fresh buffers, in
    order."""
    if len(steps) != 1 or not isinstance(steps[0], Segment):
        return False
    if len(program.outputs) != len(steps[0].outputs):
        return False
    table = program.buffer_table()
    return all(
        isinstance(out, Output) and out.view.buffer == name and out.view.is_whole(table[name])
        for out, name in zip(program.outputs, steps[0].outputs, strict=True)
    )


class RunSteps:
    """The callable of a program of several steps. Thread-safe: a call keeps everything in its own
    frame."""

    def __init__(
        self,
        program: LoopProgram,
        steps: Sequence[Step],
        calls: Sequence[Callable[..., Any]],
        constants: Mapping[str, torch.Tensor],
    ) -> None:
        self._program, self._constants = program, dict(constants)
        self._places = _Places(program.buffer_table())
        self._own = own_results(program.outputs, program.buffers)
        self._sizes = sizes_to_read(program, program.arguments)
        remaining = iter(calls)
        returned = visit.returned(program.outputs)
        self._steps = [_ready(program, s, remaining, returned) for s in steps]
        self._dead = _dead_after(program, steps)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """The program's outputs, a flat tuple; runs without grad."""
        frame = _Frame(self._program, self._places, self._constants, args, self._sizes)
        if not torch.is_grad_enabled():  # the context alone takes as long as a small op
            return self._run(frame)
        with torch.no_grad():
            return self._run(frame)

    def _run(self, frame: _Frame) -> tuple[Any, ...]:
        for step, dead in zip(self._steps, self._dead, strict=True):
            step(frame)
            for name in dead:
                frame.tensors.pop(name, None)
        return tuple([frame.output(out, self._own) for out in self._program.outputs])


def _ready(
    program: LoopProgram,
    step: Step,
    calls: Iterator[Callable[..., Any]],
    returned: Collection[str],
) -> Callable[[_Frame], None]:
    """The step as a function of the call's frame."""
    if isinstance(step, Extern):
        extern = ExternCall(step, returned)
        return lambda frame: frame.extern(extern)
    if isinstance(step, Interpreted):
        single = _program_of(program, step)
        return lambda frame: frame.interpreted(single)
    call = next(calls)
    return lambda frame: frame.native(step, call)


def _program_of(program: LoopProgram, step: Interpreted) -> LoopProgram:
    """A program of one node, all of whose buffers belong to the caller."""
    table = program.buffer_table()
    names = dict.fromkeys((*visit.reads(step.node), *visit.writes(step.node)))
    buffers = tuple(replace(table[n], kind="input") for n in names)
    numbers = [a for a in program.arguments if not isinstance(a, str)]
    return LoopProgram((*names, *numbers), buffers, (step.node,), ())


def _dead_after(program: LoopProgram, steps: Sequence[Step]) -> list[list[str]]:
    """Buffers no later step and no output needs, per step."""
    needed = visit.returned(program.outputs)
    dead: list[list[str]] = []
    for step in reversed(steps):
        nodes = step.nodes if isinstance(step, Segment) else (node_of(step),)
        touched = {b for n in nodes for b in (*visit.reads(n), *visit.writes(n))}
        dead.append(sorted(touched - needed))
        needed |= touched
    return dead[::-1]


class _Places:
    """Where buffers and views of them lie, as far as no call changes it: looked up once."""

    def __init__(self, table: Mapping[str, Buffer]) -> None:
        self.table = table
        self._fixed = {name: _fixed(b.shape, b.strides) for name, b in table.items()}
        self._whole: dict[int, tuple[BufferView, bool]] = {}

    def of_buffer(self, name: str, sizes: Mapping[Atom, int]) -> tuple[list[int], list[int]]:
        """(shape, strides) of a buffer."""
        buffer, fixed = self.table[name], self._fixed[name]
        return fixed or (_ints(buffer.shape, sizes), _ints(buffer.strides, sizes))

    def is_whole(self, view: BufferView) -> bool:
        """Whether a view of the program (kept here: its id stays its own) is a whole buffer."""
        known = self._whole.get(id(view))
        if known is None:
            known = self._whole[id(view)] = (view, view.is_whole(self.table[view.buffer]))
        return known[1]


def _fixed(shape: Sequence[Index], strides: Sequence[Index]) -> tuple[list[int], list[int]] | None:
    if any(v.terms for v in (*shape, *strides)):
        return None
    return [v.const for v in shape], [v.const for v in strides]


def _ints(values: Sequence[Index], sizes: Mapping[Atom, int]) -> list[int]:
    return [v.const if not v.terms else v.evaluate(sizes) for v in values]


class _Frame:
    """The tensors and numbers of one call."""

    def __init__(
        self,
        program: LoopProgram,
        places: _Places,
        constants: Mapping[str, torch.Tensor],
        args: Sequence[Any],
        sizes: Sequence[ReadSize],
    ) -> None:
        self._places = places
        self.tensors: dict[str, torch.Tensor] = dict(constants)
        self.sizes: dict[Atom, int] = {}
        self.scalars: dict[str, Any] = {}
        for argument, value in zip(program.arguments, args, strict=True):
            if isinstance(argument, Dim):
                self.sizes[argument] = value
            elif isinstance(argument, ScalarArg):
                self.scalars[argument.name] = value
            else:
                self.tensors[argument] = value
        for size in sizes:
            self.sizes[size.dim] = size.of(args[size.position])

    def native(self, segment: Segment, call: Callable[..., Any]) -> None:
        """Runs a segment; its fresh buffers join the tensors."""
        made = call(*(self._argument(a) for a in segment.arguments))
        self.tensors.update(zip(segment.outputs, made, strict=True))

    def _argument(self, argument: str | Dim | ScalarArg) -> Any:
        if isinstance(argument, Dim):
            return self.sizes[argument]
        if isinstance(argument, ScalarArg):
            return self.scalars[argument.name]
        return self.tensors[argument]

    def interpreted(self, single: LoopProgram) -> None:
        """Runs a node in the reference interpreter, on whole buffers."""
        for name in single.arguments:
            if isinstance(name, str) and name not in self.tensors:
                self._allocate(name)
        interpret(single, {}, [self._argument(a) for a in single.arguments])

    def extern(self, call: ExternCall) -> None:
        """Runs an extern call; its results join the tensors in the strides declared."""
        results = call.run(self.view, self.sizes, self.scalars)
        for name, value in zip(call.node.outputs, results, strict=False):
            if value is None:
                call.left_undefined(name)
            elif name is not None:
                self.tensors[name] = self._laid_out(call, name, value)

    def _laid_out(self, call: ExternCall, name: str, value: torch.Tensor) -> torch.Tensor:
        shape, strides = self._places.of_buffer(name, self.sizes)
        call.check(value, shape, self._places.table[name].dtype)
        if list(value.stride()) == strides or value.numel() < 2:
            return value
        own = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
        return own.copy_(value)

    def _allocate(self, name: str) -> torch.Tensor:
        shape, strides = self._places.of_buffer(name, self.sizes)
        dtype = self._places.table[name].dtype
        made = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
        self.tensors[name] = made
        return made

    def view(self, view: BufferView) -> torch.Tensor:
        """The tensor a view names; a buffer nothing has written yet is allocated."""
        base = self.tensors.get(view.buffer)
        if base is None:
            base = self._allocate(view.buffer)
        if self._places.is_whole(view):
            return base
        offset = base.storage_offset() + view.offset.evaluate(self.sizes)
        shape, strides = _ints(view.shape, self.sizes), _ints(view.strides, self.sizes)
        return base.as_strided(shape, strides, offset)

    def output(self, out: Any, own: Collection[str]) -> Any:
        """One result of the program; ``own``: buffers that are one result's alone."""
        if isinstance(out, Output):
            tensor = self.view(out.view)
            return freed(tensor) if out.view.buffer in own else tensor
        if isinstance(out, IntOutput):
            return out.value.evaluate(self.sizes)
        return evaluate_scalar(out.value, self.scalars, self.sizes)
