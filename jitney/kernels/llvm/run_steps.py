"""Runs a program that is more than one native call: extern calls, views of results, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from jitney.loops import visit
from jitney.loops.evaluate_scalar import evaluate_scalar
from jitney.loops.index import Atom, Dim, Index
from jitney.loops.interpret import interpret
from jitney.loops.ir import Buffer, BufferView, Extern, IntOutput, LoopProgram, Output, ScalarArg
from jitney.loops.read_sizes import ReadSize, sizes_to_read


def is_plain(program: LoopProgram, steps: Sequence[Step]) -> bool:
    """Whether the one segment's own result is the program's: whole fresh buffers, in order."""
    if len(steps) != 1 or not isinstance(steps[0], Segment):
        return False
    if len(program.outputs) != len(steps[0].outputs):
        return False
    table = program.buffer_table()
    return all(
        isinstance(out, Output) and out.view.buffer == name and _is_whole(out.view, table[name])
        for out, name in zip(program.outputs, steps[0].outputs, strict=True)
    )


def _is_whole(view: BufferView, buffer: Buffer) -> bool:
    return (view.shape, view.strides, view.offset) == (buffer.shape, buffer.strides, Index())


class RunSteps:
    """The callable of such a program. Thread-safe: a call keeps everything in its own frame."""

    def __init__(
        self,
        program: LoopProgram,
        steps: Sequence[Step],
        calls: Sequence[Callable[..., Any]],
        constants: Mapping[str, torch.Tensor],
    ) -> None:
        self._program, self._constants = program, dict(constants)
        self._table = program.buffer_table()
        self._sizes = sizes_to_read(program, program.arguments)
        remaining = iter(calls)
        self._steps = [_ready(program, s, remaining) for s in steps]
        self._dead = _dead_after(program, steps)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        frame = _Frame(self._program, self._constants, args, self._sizes)
        with torch.no_grad():
            for step, dead in zip(self._steps, self._dead, strict=True):
                step(frame)
                for name in dead:
                    frame.tensors.pop(name, None)
            return tuple(frame.output(out) for out in self._program.outputs)


def _ready(
    program: LoopProgram, step: Step, calls: Iterator[Callable[..., Any]]
) -> Callable[[_Frame], None]:
    """The step as a function of the call's frame."""
    if isinstance(step, Extern):
        extern = ExternCall(step)
        return lambda frame: frame.extern(extern)
    if isinstance(step, Interpreted):
        single = _program_of(program, step)
        return lambda frame: frame.interpreted(single)
    call = next(calls)
    return lambda frame: frame.native(step, call)


def _program_of(program: LoopProgram, step: Interpreted) -> LoopProgram:
    """One node as a program whose every buffer is the caller's."""
    table = program.buffer_table()
    names = dict.fromkeys((*visit.reads(step.node), *visit.writes(step.node)))
    buffers = tuple(replace(table[n], kind="input") for n in names)
    numbers = [a for a in program.arguments if not isinstance(a, str)]
    return LoopProgram((*names, *numbers), buffers, (step.node,), ())


def _dead_after(program: LoopProgram, steps: Sequence[Step]) -> list[list[str]]:
    """Buffers no later step and no output needs, per step."""
    needed = {o.view.buffer for o in program.outputs if isinstance(o, Output)}
    dead: list[list[str]] = []
    for step in reversed(steps):
        nodes = step.nodes if isinstance(step, Segment) else (node_of(step),)
        touched = {b for n in nodes for b in (*visit.reads(n), *visit.writes(n))}
        dead.append(sorted(touched - needed))
        needed |= touched
    return dead[::-1]


class _Frame:
    """The tensors and numbers of one call."""

    def __init__(
        self,
        program: LoopProgram,
        constants: Mapping[str, torch.Tensor],
        args: Sequence[Any],
        sizes: Sequence[ReadSize],
    ) -> None:
        self._table = program.buffer_table()
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
            self.sizes[size.dim] = args[size.position].shape[size.axis]

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
                buffer = self._table[name]
                self.view(BufferView(name, buffer.shape, buffer.strides))
        interpret(single, {}, [self._argument(a) for a in single.arguments])

    def extern(self, call: ExternCall) -> None:
        """Runs an extern call; its results join the tensors in the strides declared."""
        results = call.run(self.view, self.sizes, self.scalars)
        for name, value in zip(call.node.outputs, results, strict=False):
            if name is not None and value is not None:  # None: a result left undefined
                self.tensors[name] = self._laid_out(call, self._table[name], value)

    def _laid_out(self, call: ExternCall, buffer: Buffer, value: torch.Tensor) -> torch.Tensor:
        shape, strides = self._ints(buffer.shape), self._ints(buffer.strides)
        call.check(value, shape, buffer.dtype)
        if list(value.stride()) == strides or value.numel() < 2:
            return value
        return torch.empty_strided(shape, strides, dtype=value.dtype).copy_(value)

    def _ints(self, values: Sequence[Index]) -> list[int]:
        return [v.const if not v.terms else v.evaluate(self.sizes) for v in values]

    def view(self, view: BufferView) -> torch.Tensor:
        """The tensor a view names; a buffer nothing has written yet is allocated."""
        buffer = self._table[view.buffer]
        base = self.tensors.get(view.buffer)
        if base is None:
            shape, strides = self._ints(buffer.shape), self._ints(buffer.strides)
            base = torch.empty_strided(shape, strides, dtype=buffer.dtype)
            self.tensors[view.buffer] = base
        if _is_whole(view, buffer):
            return base
        offset = base.storage_offset() + view.offset.evaluate(self.sizes)
        return base.as_strided(self._ints(view.shape), self._ints(view.strides), offset)

    def output(self, out: Any) -> Any:
        """One result of the program."""
        if isinstance(out, Output):
            return self.view(out.view)
        if isinstance(out, IntOutput):
            return out.value.evaluate(self.sizes)
        return evaluate_scalar(out.value, self.scalars, self.sizes)
