"""A GPU on the CPU: `jitney.compile` makes kernels for a GPU, which Triton's interpreter runs on
the CPU's memory, launched as a plan says. Eager and the library's calls are the CPU's."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
from triton._C.libtriton.ir import ATOMIC_OP
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

from jitney import gpu_pipeline, graph_pipeline, region_pipeline, torch_api
from jitney.capture import operators
from jitney.graph import fold_constants
from jitney.kernels.triton import build_program, gpu_program
from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.expressions import TYPES
from jitney.kernels.triton.kernel_source import KernelSource
from jitney.kernels.triton.launch import Launch
from jitney.kernels.triton.load_binary import Binary, Loaded
from jitney.loops import lower_graph
from jitney.loops.index import Atom
from jitney.loops.lowerings import attention, random
from jitney.loops.lowerings.registry import Refused
from jitney.loops.target import Target

#: With few multiprocessors small sizes reach the ways in which large ones are worked on.
SMALL_GPU = Target("cuda", "a GPU", multiprocessors=4, capability=(9, 0))


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, target: Target = SMALL_GPU) -> list[KernelSource]:
    """From now on graphs are compiled for ``target``. Returns a list that gets what is loaded."""
    sources: list[KernelSource] = []

    class Build:
        """In place of machine code: the sources themselves."""

        def __init__(self, *_: Any) -> None:
            self.binaries: dict[str, Binary] = {}

        def give(self, given: Sequence[KernelSource]) -> None:
            for source in given:
                self.binaries[source.key] = Binary(source.name, pickle.dumps(source), 0, 4)

        def end(self) -> None:
            pass

        def finish(self) -> dict[str, Binary]:
            return self.binaries

    class Table(InterpretedLaunches):
        def __init__(self, launches: Sequence[Launch], slots: int) -> None:
            super().__init__(launches, slots, sources)

    def load(binary: Binary, _: torch.device) -> Loaded:
        sources.append(pickle.loads(binary.code))
        return Loaded(len(sources) - 1, 128, 0)

    def refused(*_: Any) -> Any:
        raise Refused("eager here draws as a CPU does")

    for pipeline in (graph_pipeline, region_pipeline):
        monkeypatch.setattr(pipeline, "target_of", lambda *_: target)
    monkeypatch.setattr(operators, "assert_valid", lambda *_: False)  # what a GPU would not survive
    monkeypatch.setattr(lower_graph, "_check_tensors", lambda *given: check_tensors(*given))
    monkeypatch.setattr(fold_constants, "_on_cpu", lambda _: False)
    monkeypatch.setattr(gpu_pipeline, "check_runnable", lambda *_: None)
    monkeypatch.setattr(random, "_draw", refused)
    asserts = replace(interpreter_builder.options, debug=True, sanitize_overflow=False)
    monkeypatch.setattr(interpreter_builder, "options", asserts)
    for name, function in MENDED.items():
        monkeypatch.setattr(InterpreterBuilder, name, function)
    monkeypatch.setattr(attention, "emit_attention", emit_attention)
    monkeypatch.setattr(build_program, "KernelBuild", Build)
    monkeypatch.setattr(gpu_program, "LaunchTable", Table)
    monkeypatch.setattr(gpu_program, "load_binary", load)
    monkeypatch.setattr(gpu_program, "_device", lambda _: torch.device("cpu"))
    monkeypatch.setattr(torch_api, "is_other_gpu", lambda _: False)
    monkeypatch.setattr(torch_api, "raw_cuda_stream", lambda _: 0)
    return sources


def check_tensors(b: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`lower_graph._check_tensors` for tensors that say they lie on a CPU."""
    real = b.target
    b.target = Target("cpu", "a CPU", 1)
    try:
        CHECK(b, args, kwargs)
    finally:
        b.target = real


def emit_attention(b: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, *rest: Any) -> None:
    """`attention.emit_attention`; a GPU's attention leaves what its backward pass needs to the
    library."""
    if logsumexp is not None and b.used(1):
        raise Refused("the backward pass needs what the library saves")
    ATTENTION(b, q, k, v, out, logsumexp, *rest)


CHECK = lower_graph._check_tensors
ATTENTION = attention.emit_attention


class GpuLost(BaseException):
    """A device assertion. None of Jitney's handlers sees one on a GPU, which is lost then."""


class InterpretedLaunches:
    """A `LaunchTable` whose launches are runs of Triton's interpreter."""

    def __init__(
        self, launches: Sequence[Launch], slots: int, sources: Sequence[KernelSource]
    ) -> None:
        self.values = (ctypes.c_int64 * (slots + 1))()
        self.launches = [(one, sources[one.function]) for one in launches]
        self.sizes: Mapping[Atom, int] = {}

    def set_sizes(self, sizes: Mapping[Atom, int]) -> None:
        self.sizes = dict(sizes)

    def run(self, first: int, count: int, stream: int) -> None:
        for launch, source in self.launches[first : first + count]:
            grid = tuple(size.evaluate(self.sizes) for size in launch.grid)
            if 0 in grid:
                continue
            kernel = load_function(source.text(interpret=True))
            slots = zip(launch.slots, source.parameters, strict=True)
            given = [_argument(self.values[slot], one) for slot, one in slots]
            try:
                kernel[grid](*given)
            except InterpreterError as error:
                if "AssertionError" not in str(error):
                    raise
                raise GpuLost("an assertion failed, with which a GPU ends") from error


def _argument(value: int, parameter: Any) -> Any:
    """What a kernel is given for the 8 bytes of a slot."""
    if parameter.kind == "pointer":
        if not value:  # of a tensor without elements
            return torch.zeros(1, dtype=parameter.dtype)
        return _element(value, parameter.dtype)
    if parameter.kind == "dim":
        return value
    raw = torch.tensor([value]).view(torch.uint8)[: parameter.dtype.itemsize]
    number = raw.view(parameter.dtype).numpy()  # the interpreter leaves Python's floats as they are
    kind = KINDS[parameter.dtype]
    return triton.language.tensor(TensorHandle(number, kind), kind)


def _element(address: int, dtype: torch.dtype) -> torch.Tensor:
    """The element of ``dtype`` in memory at ``address``: a tensor of one."""
    return torch.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype=dtype)


def splat(_: Any, block: Any, number: Any) -> TensorHandle:
    """`InterpreterBuilder.create_splat`, which takes what compared two floats for a float."""
    data = number.data.reshape(-1)
    return TensorHandle(np.full(block.shape, data[0], data.dtype), number.dtype.scalar)


def cast(builder: Any, given: TensorHandle, to: Any) -> TensorHandle:
    """`InterpreterBuilder.cast_impl`, which cuts bfloat16 off and makes its bits of integers."""
    before, after = given.dtype.scalar, to.scalar
    if triton.language.bfloat16 not in (before, after):
        return CAST(builder, given, to)
    source = torch.from_numpy(np.array(given.data))
    if before == triton.language.bfloat16:
        source = source.view(torch.bfloat16)
    found = source.to(next(dtype for dtype, kind in KINDS.items() if kind == after))
    if after == triton.language.bfloat16:
        found = found.view(torch.uint16)
    return TensorHandle(found.numpy(), after)


def of_two(builder: Any, left: TensorHandle, right: TensorHandle, op: Any) -> TensorHandle:
    """`InterpreterBuilder.binary_op`, which computes and compares the bits of bfloat16."""
    kind = left.dtype.scalar
    if kind != triton.language.bfloat16:
        return OF_TWO(builder, left, right, op)
    wide = (cast(builder, one, triton.language.float32).data for one in (left, right))
    found = op(*wide)
    if found.dtype == np.bool_:
        return TensorHandle(found, triton.language.int1)
    return cast(builder, TensorHandle(found, triton.language.float32), kind)


def dot(builder: Any, left: TensorHandle, right: TensorHandle, *rest: Any) -> TensorHandle:
    """`InterpreterBuilder.create_dot`, which multiplies the bits of bfloat16."""
    if left.dtype.scalar == triton.language.bfloat16:
        left, right = (cast(builder, one, triton.language.float32) for one in (left, right))
    return DOT(builder, left, right, *rest)


def add_to(
    builder: Any, kind: Any, at: TensorHandle, more: TensorHandle, mask: TensorHandle, *rest: Any
) -> TensorHandle:
    """`InterpreterBuilder.create_atomic_rmw`, which does not know bfloat16."""
    if more.dtype.scalar != triton.language.bfloat16:
        return ADD_TO(builder, kind, at, more, mask, *rest)
    assert kind == ATOMIC_OP.FADD, kind  # bfloat16 has no other
    before = np.zeros_like(more.data)
    for where in map(tuple, np.argwhere(mask.data)):
        memory = _element(int(at.data[where]), torch.bfloat16)
        before[where] = memory.view(torch.uint16).numpy()[0]
        memory += torch.from_numpy(more.data[where].reshape(1)).view(torch.bfloat16)
    return TensorHandle(before, more.dtype.scalar)


ADD_TO = InterpreterBuilder.create_atomic_rmw
CAST = InterpreterBuilder.cast_impl
DOT = InterpreterBuilder.create_dot
OF_TWO = InterpreterBuilder.binary_op
KINDS = {dtype: getattr(triton.language, name[3:]) for dtype, name in TYPES.items()}
#: What Triton's interpreter does otherwise than a GPU.
MENDED = {
    "create_splat": splat,
    "cast_impl": cast,
    "binary_op": of_two,
    "create_dot": dot,
    "create_atomic_rmw": add_to,
}
