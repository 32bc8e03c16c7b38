"""A built program at run time: kernels in native runs, extern calls between them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
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
from jitney.kernels.triton.places import Places, Whole
from jitney.loops import visit
from jitney.loops.evaluate_scalar import evaluate_scalar
from jitney.loops.index import Atom, Dim
from jitney.loops.ir import BufferView, Extern, IntOutput, Output, ScalarArg

#: Sets of sizes whose numbers a program keeps.
KEPT = 16


class GpuProgram:
    """``program(*args) -> tuple``; ``args`` as ``plan.arguments`` say. Thread-safe: each call
    leases a launch table; workspace and outputs come from torch's allocator on its stream."""

    def __init__(self, plan: LaunchPlan, constants: Mapping[str, torch.Tensor]) -> None:
        self.plan, self.constants = plan, constants
        self.device = _device(plan)
        self.empty = torch_api.maker_of_empty(self.device)
        self.slots = {buffer.name: i for i, buffer in enumerate(plan.buffers)}
        names = [a.name for a in plan.arguments if isinstance(a, Dim | ScalarArg)]
        names += [size.dim.name for size in plan.sizes]
        for name in (*names, *plan.offsets):
            self.slots.setdefault(name, len(self.slots))
        self.launches = self._launches()
        returned = visit.returned(plan.outputs)
        self.steps = [ExternCall(s, returned) if isinstance(s, Extern) else s for s in plan.steps]
        born = {name for names in plan.born for name in names}
        self.unwritten = [b.name for b in plan.buffers if b.kind == "output" and b.name not in born]
        self.own = own_results(plan.outputs, plan.buffers)
        self.whole_results = _whole_results(plan, self.own & {*born, *self.unwritten})
        self._tables: list[LaunchTable] = []
        self._places: dict[tuple[int, ...], Places] = {}

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
        """The program's outputs, a flat tuple; arguments stay alive."""
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

    def places(self, sizes: Mapping[Atom, int]) -> Places:
        """The numbers of a call with these sizes, those of other calls' kept for a while."""
        key = tuple(sizes.values())
        known = self._places.get(key)
        if known is None:
            if len(self._places) >= KEPT:
                self._places = {}
            known = self._places[key] = Places(self.plan, self.slots, sizes)
        return known


class _Call:
    """One call in progress: its tensors by buffer name, its sizes."""

    def __init__(self, owner: GpuProgram, table: LaunchTable, args: list[Any]) -> None:
        self.owner, self.table, self.values = owner, table, table.values
        self.tensors: dict[str, torch.Tensor] = dict(owner.constants)
        self.sizes: dict[Atom, int] = {}
        self.scalars: dict[str, Any] = {}
        self.typed: dict[torch.dtype, torch.Tensor] = {}  # the workspace, by dtype
        for argument, value in zip(owner.plan.arguments, args, strict=True):
            if isinstance(argument, str):
                self.tensors[argument] = value
            elif isinstance(argument, Dim):
                self.sizes[argument] = value
                self._set(argument.name, value)
            else:
                self.scalars[argument.name] = value
                self._set(argument.name, _bits(value, argument.dtype))
        for size in owner.plan.sizes:
            self.sizes[size.dim] = size.of(args[size.position])
            self._set(size.dim.name, self.sizes[size.dim])
        args.clear()
        self.places = owner.places(self.sizes)
        if self.sizes:
            table.set_sizes(self.sizes)

    def run(self) -> tuple[Any, ...]:
        # Hundreds of steps of a few microseconds: a name looked up in here is time.
        owner, places, tensors, values = self.owner, self.places, self.tensors, self.values
        astray = self._take_addresses()
        copies = self._stand_in(astray)
        for name in owner.unwritten:
            self._make(places.whole(name))
        self._lease_workspace()
        empty, launch = owner.empty, self.table.run
        stream = torch_api.raw_cuda_stream(owner.device)
        steps = zip(owner.steps, places.born, places.results, owner.plan.dead, strict=True)
        for step, born, results, dead in steps:
            for whole in born:
                tensors[whole.name] = made = empty(whole.shape, whole.strides, whole.dtype)
                values[whole.slot] = made.data_ptr()
                del made  # so that its memory is free as soon as `tensors` lets go of it
            if isinstance(step, Segment):
                launch(step.first, step.count, stream)
            else:
                self._extern(step, results)
            for name in dead:
                tensors.pop(name, None)
        for name, tensor in astray.items():
            if name in owner.plan.written:
                tensor.data.copy_(copies[name])  # the caller counts the change
            tensors[name] = tensor
        pairs = zip(owner.plan.outputs, owner.whole_results, strict=True)
        return tuple([tensors[name] if name else self._result(out) for out, name in pairs])

    def _take_addresses(self) -> dict[str, torch.Tensor]:
        """Fills in where arguments and constants lie; those that kernels cannot take so."""
        slots, values = self.owner.slots, self.values
        astray: dict[str, torch.Tensor] = {}
        for name, tensor in self.tensors.items():
            values[slots[name]] = address = tensor.data_ptr()
            if address % ALIGNED:
                astray[name] = tensor
        return astray

    def _stand_in(self, astray: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of tensors that begin inside others, where kernels do not expect them. An extern
        call is given the tensor itself if nothing writes to it: dropout draws by where it lies."""
        copies = {name: copied_whole(tensor) for name, tensor in astray.items()}
        for name, copy in copies.items():
            self._set(name, copy.data_ptr())
            if name in self.owner.plan.written:
                self.tensors[name] = copy
        return copies

    def _make(self, whole: Whole) -> None:
        made = self.owner.empty(whole.shape, whole.strides, whole.dtype)
        self.tensors[whole.name] = made
        self.values[whole.slot] = made.data_ptr()

    def _set(self, name: str, value: int) -> None:
        self.values[self.owner.slots[name]] = value

    def _lease_workspace(self) -> None:
        places, values = self.places, self.values
        self.workspace = self.owner.empty((places.workspace,), (1,), torch.uint8)
        base = self.workspace.data_ptr()
        for slot, offset in places.temporaries:
            values[slot] = base + offset

    def _extern(self, step: ExternCall, wanted: Sequence[Whole | None]) -> None:
        results = step.run(self.view, self.sizes, self.scalars)
        for whole, result in zip(wanted, results, strict=False):
            if result is None:
                step.left_undefined(whole.name if whole else None)
            if whole is None or result is None:
                continue
            address = result.data_ptr()
            if (
                address % ALIGNED
                or result.shape != whole.shape
                or result.stride() != whole.strides
                or result.dtype is not whole.dtype
            ):
                result = _as_foreseen(step, result, whole)
                address = result.data_ptr()
            self.tensors[whole.name] = result
            self.values[whole.slot] = address

    def view(self, view: BufferView) -> torch.Tensor:
        """The tensor a view of a buffer stands for in this call."""
        part = self.places.part(view)
        tensor = self.tensors.get(part.buffer)
        if tensor is None:
            start = part.base + part.start
            return self._workspace_of(part.dtype).as_strided(part.shape, part.strides, start)
        if not part.start and tensor.shape == part.shape and tensor.stride() == part.strides:
            return tensor
        return tensor.as_strided(part.shape, part.strides, tensor.storage_offset() + part.start)

    def _workspace_of(self, dtype: torch.dtype) -> torch.Tensor:
        typed = self.typed.get(dtype)
        if typed is None:
            typed = self.typed[dtype] = self.workspace.view(dtype)
        return typed

    def _result(self, out: Any) -> Any:
        if isinstance(out, Output):
            tensor = self.view(out.view)
            return freed(tensor) if out.view.buffer in self.owner.own else tensor
        if isinstance(out, IntOutput):
            return out.value.evaluate(self.sizes)
        return evaluate_scalar(out.value, self.scalars, self.sizes)


def _whole_results(plan: LaunchPlan, made: Collection[str]) -> list[str | None]:
    """Per result the buffer among those ``made`` in a call that it is the whole of, if any."""
    buffers = {b.name: b for b in plan.buffers}
    found: list[str | None] = []
    for out in plan.outputs:
        view = out.view if isinstance(out, Output) else None
        buffer = buffers[view.buffer] if view is not None and view.buffer in made else None
        whole = view is not None and buffer is not None and view.is_whole(buffer)
        found.append(buffer.name if buffer is not None and whole else None)
    return found


def _as_foreseen(step: ExternCall, result: torch.Tensor, whole: Whole) -> torch.Tensor:
    """A result in the layout that kernels expect. Raises CompilerBug for another dtype or shape."""
    strides = whole.strides
    if len(whole.shape) == result.dim():
        step.check(result, whole.shape, whole.dtype)
    else:  # a product of rows that its readers see as images
        step.check(result.view(-1), (math.prod(whole.shape),), whole.dtype)
        strides = result.stride()
    if not result.data_ptr() % ALIGNED and _laid_out(result, strides):
        return result
    wanted = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    return wanted.copy_(result)


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
