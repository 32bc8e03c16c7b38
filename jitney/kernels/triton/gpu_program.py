"""A built program at run time: kernels in native runs, extern calls between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import CompilerBug
from jitney.kernels.call_extern import ExternCall
from jitney.kernels.own_results import freed, own_results
from jitney.kernels.triton.kernel_source import ALIGNED
from jitney.kernels.triton.launch import Launch, LaunchTable
from jitney.kernels.triton.launch_plan import LaunchPlan, Segment
from jitney.kernels.triton.load_binary import load_binary
from jitney.loops.evaluate_scalar import evaluate_scalar
from jitney.loops.index import Atom, Dim, Index
from jitney.loops.ir import Buffer, BufferView, Extern, IntOutput, Output, ScalarArg

Layout = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, offset


class GpuProgram:
    """``program(*args) -> tuple``; ``args`` as ``plan.arguments`` say. Thread-safe: each call
    leases a launch table; workspace and outputs come from torch's allocator on its stream."""

    def __init__(self, plan: LaunchPlan, constants: Mapping[str, torch.Tensor]) -> None:
        self.plan, self.constants = plan, constants
        self.buffers = {b.name: b for b in plan.buffers}
        self.device = _device(plan)
        self.slots = {name: i for i, name in enumerate(self.buffers)}
        names = [a.name for a in plan.arguments if isinstance(a, Dim | ScalarArg)]
        names += [size.dim.name for size in plan.sizes]
        for name in (*names, *plan.offsets):
            self.slots.setdefault(name, len(self.slots))
        self.launches = self._launches()
        self.steps = [ExternCall(s) if isinstance(s, Extern) else s for s in plan.steps]
        born = {name for names in plan.born for name in names}
        self.unwritten = [b for b in plan.buffers if b.kind == "output" and b.name not in born]
        places = [(self.slots[name], offset) for name, offset in plan.offsets.items()]
        self.fixed = [(slot, int(offset)) for slot, offset in places if offset.is_const]
        self.sized = [(slot, offset) for slot, offset in places if not offset.is_const]
        self.own = own_results(plan.outputs, plan.buffers)
        self._tables: list[LaunchTable] = []
        self._layouts: dict[int, Layout] = {}

    def _launches(self) -> list[Launch]:
        """Early are those that surely come right after another launch of ours."""
        made: list[Launch] = []
        first = {s.first for s in self.plan.steps if isinstance(s, Segment)}
        for at, call in enumerate(self.plan.calls):
            binary = self.plan.binaries[call.kernel]
            known = load_binary(binary, self.device)
            slots = tuple(self.slots[name] for name in call.parameters)
            follows = at not in first and all(size.is_const for size in made[-1].grid)
            early = binary.waits and follows
            own = self.slots[call.scratch] if call.scratch else None
            made.append(
                Launch(known.function, call.grid, known.threads, known.shared, slots, early, own)
            )
        return made

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return self.consume(list(args))

    def consume(self, args: list[Any]) -> tuple[Any, ...]:
        """As a call, but empties ``args``: what nobody else holds is freed after its last use."""
        if torch_api.is_other_gpu(self.device):
            with torch.cuda.device(self.device):
                return self.consume(args)
        try:
            table = self._tables.pop()
        except IndexError:
            table = LaunchTable(self.launches, len(self.slots))
        try:
            with torch.no_grad():
                return _Call(self, table, args).run()
        finally:
            self._tables.append(table)

    def layout(self, view: BufferView | Buffer, sizes: Mapping[Atom, int]) -> Layout:
        """Shape, strides and offset as numbers; those without symbols are worked out once."""
        known = self._layouts.get(id(view))
        if known is not None:
            return known
        offset = view.offset if isinstance(view, BufferView) else Index()
        found = (
            tuple(s.evaluate(sizes) for s in view.shape),
            tuple(s.evaluate(sizes) for s in view.strides),
            offset.evaluate(sizes),
        )
        if all(s.is_const for s in (*view.shape, *view.strides, offset)):
            self._layouts[id(view)] = found
        return found


class _Call:
    """One call under way: its tensors by buffer name, its sizes."""

    def __init__(self, owner: GpuProgram, table: LaunchTable, args: list[Any]) -> None:
        self.owner, self.values = owner, table.values
        self.table = table
        self.tensors: dict[str, torch.Tensor] = dict(owner.constants)
        self.sizes: dict[Atom, int] = {}
        self.scalars: dict[str, Any] = {}
        self.typed: dict[torch.dtype, torch.Tensor] = {}  # the workspace, by dtype
        for argument, value in zip(owner.plan.arguments, args, strict=True):
            if isinstance(argument, Dim):
                self.sizes[argument] = value
                self._set(argument.name, value)
            elif isinstance(argument, ScalarArg):
                self.scalars[argument.name] = value
                self._set(argument.name, _bits(value, argument.dtype))
            else:
                self.tensors[argument] = value
        for size in owner.plan.sizes:
            self.sizes[size.dim] = size.of(args[size.position])
            self._set(size.dim.name, self.sizes[size.dim])
        args.clear()
        if self.sizes:
            table.set_sizes(self.sizes)

    def run(self) -> tuple[Any, ...]:
        owner, device = self.owner, self.owner.device
        for buffer in owner.unwritten:
            self._make(buffer)
        self._lease_workspace()
        slots, values = owner.slots, self.values
        astray: dict[str, torch.Tensor] = {}
        for name, tensor in self.tensors.items():
            values[slots[name]] = address = tensor.data_ptr()
            if address % ALIGNED:
                astray[name] = tensor
        copies = self._stand_in(astray)
        stream = torch_api.raw_cuda_stream(device)
        for step, born, dead in zip(owner.steps, owner.plan.born, owner.plan.dead, strict=True):
            for name in born:
                self._set(name, self._make(owner.buffers[name]).data_ptr())
            if isinstance(step, Segment):
                self.table.run(step.first, step.count, stream)
            else:
                self._extern(step)
            for name in dead:
                self.tensors.pop(name, None)
        for name, tensor in astray.items():
            if name in owner.plan.written:
                tensor.copy_(copies[name])
            self.tensors[name] = tensor
        return tuple([self._result(out) for out in owner.plan.outputs])

    def _stand_in(self, astray: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of tensors that begin inside others, where kernels do not expect them. An extern
        call is given the tensor itself if nothing writes to it: dropout draws by where it lies."""
        copies = {name: copied_whole(tensor) for name, tensor in astray.items()}
        for name, copy in copies.items():
            self._set(name, copy.data_ptr())
            if name in self.owner.plan.written:
                self.tensors[name] = copy
        return copies

    def _make(self, buffer: Buffer) -> torch.Tensor:
        shape, strides, _ = self.owner.layout(buffer, self.sizes)
        device = self.owner.device
        made = torch.empty_strided(shape, strides, dtype=buffer.dtype, device=device)
        self.tensors[buffer.name] = made
        return made

    def _set(self, name: str, value: int) -> None:
        self.values[self.owner.slots[name]] = value

    def _lease_workspace(self) -> None:
        size = self.owner.plan.workspace.evaluate(self.sizes)
        self.workspace = torch.empty(size, dtype=torch.uint8, device=self.owner.device)
        base, values = self.workspace.data_ptr(), self.values
        for slot, place in self.owner.fixed:
            values[slot] = base + place
        for slot, offset in self.owner.sized:
            values[slot] = base + offset.evaluate(self.sizes)

    def _extern(self, step: ExternCall) -> None:
        results = step.run(self.view, self.sizes, self.scalars)
        for name, result in zip(step.node.outputs, results, strict=False):
            if result is None:
                step.left_undefined(name, self.owner.plan.outputs)
            if name is None or result is None:
                continue
            buffer = self.owner.buffers[name]
            shape, strides, _ = self.owner.layout(buffer, self.sizes)
            if len(shape) == result.dim():
                step.check(result, shape, buffer.dtype)
            else:  # a product of rows that its readers see as images
                step.check(result.view(-1), (math.prod(shape),), buffer.dtype)
                strides = result.stride()
            if result.data_ptr() % ALIGNED or not _laid_out(result, strides):
                wanted = torch.empty_strided(
                    result.shape, strides, dtype=result.dtype, device=result.device
                )
                result = wanted.copy_(result)
            self.tensors[name] = result
            self._set(name, result.data_ptr())

    def view(self, view: BufferView) -> torch.Tensor:
        """The tensor a view of a buffer stands for in this call."""
        shape, strides, offset = self.owner.layout(view, self.sizes)
        tensor = self.tensors.get(view.buffer)
        if tensor is None:
            tensor, start = self._temp(view.buffer)
            return tensor.as_strided(shape, strides, start + offset)
        if not offset and tensor.shape == shape and tensor.stride() == strides:
            return tensor
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)

    def _temp(self, name: str) -> tuple[torch.Tensor, int]:
        """The workspace in a temporary's dtype, and at which element of it the temporary begins."""
        dtype = self.owner.buffers[name].dtype
        typed = self.typed.get(dtype)
        if typed is None:
            typed = self.typed[dtype] = self.workspace.view(dtype)
        return typed, self.owner.plan.offsets[name].evaluate(self.sizes) // dtype.itemsize

    def _result(self, out: Any) -> Any:
        if isinstance(out, Output):
            tensor = self.view(out.view)
            return freed(tensor) if out.view.buffer in self.owner.own else tensor
        if isinstance(out, IntOutput):
            return out.value.evaluate(self.sizes)
        return evaluate_scalar(out.value, self.scalars, self.sizes)


def _laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether the tensor has these strides, where a stride says anything."""
    return all(
        have == want or size <= 1
        for have, want, size in zip(tensor.stride(), strides, tensor.shape, strict=True)
    )


def copied_whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with all strides, gaps and repetitions."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs)
    return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def _device(plan: LaunchPlan) -> torch.device:
    for buffer in plan.buffers:
        if buffer.device.type == "cuda":
            return buffer.device
    raise CompilerBug("a program without CUDA buffers reached the Triton backend")


def _bits(value: Any, dtype: torch.dtype) -> int:
    """A scalar as the 8 bytes of its parameter slot."""
    padded = torch.zeros(8, dtype=torch.uint8, device="cpu")
    raw = torch.tensor([value], dtype=dtype, device="cpu").view(torch.uint8)
    padded[: raw.numel()] = raw
    return int(padded.view(torch.int64))
