"""The function Python calls for a segment: tensors in, tensors out, all of it native.

It is a ``METH_FASTCALL`` C function: reads data pointers through torch's C interface, allocates
the results, leases a workspace, runs the segment (without the GIL when it takes long), and wraps
the results. Its ``self`` is a tuple: the segment's constants, the exception class to raise where a
check failed, then functions that make the large results (`large_results`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jitney import torch_api
from jitney.kernels.llvm.emit_segment import RELEASE_GIL, SegmentCode, any_check_failed
from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.native_runtime import HUGE_BYTES, constant_list
from jitney.kernels.llvm.operands import Operands
from jitney.kernels.llvm.result_memory import KEPT_BYTES
from jitney.kernels.llvm.segments import Segment
from jitney.kernels.llvm.text import FunctionText
from jitney.loops.index import Index
from jitney.loops.ir import Buffer, LoopProgram
from jitney.loops.plan_memory import size_in_bytes
from jitney.loops.read_sizes import ReadSize


@dataclass(frozen=True)
class LargeResult:
    """A result whose memory is kept for later calls (`result_memory`)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def large_results(program: LoopProgram, segment: Segment) -> dict[str, LargeResult]:
    """A segment's results of known sizes from `KEPT_BYTES` on."""
    table = program.buffer_table()
    found = {}
    for buffer in (table[name] for name in segment.outputs):
        if all(n.is_const for n in (*buffer.shape, *buffer.strides)):
            shape, strides = (tuple(map(int, x)) for x in (buffer.shape, buffer.strides))
            if int(size_in_bytes(buffer)) >= KEPT_BYTES:
                found[buffer.name] = LargeResult(shape, strides, buffer.dtype)
    return found


_TUPLE_ITEMS = tuple.__basicsize__  # the words of a tuple before its items

_DECLARE = (
    "declare i32 @aoti_torch_empty_strided(i64, ptr, ptr, i32, i32, i32, ptr)",
    "declare i32 @aoti_torch_delete_tensor_object(ptr)",
    "declare i64 @PyLong_AsLongLong(ptr)",
    "declare double @PyFloat_AsDouble(ptr)",
    "declare ptr @PyEval_SaveThread()",
    "declare void @PyEval_RestoreThread(ptr)",
    "declare ptr @PyTuple_New(i64)",
    "declare ptr @PyErr_NoMemory()",
    "declare ptr @PyObject_CallNoArgs(ptr)",
    "declare void @Py_DecRef(ptr)",
    "declare void @PyErr_SetNone(ptr)",
    "declare i32 @aoti_torch_get_size(ptr, i64, ptr)",
    "declare i32 @aoti_torch_get_stride(ptr, i64, ptr)",
)


def emit_call(program: LoopProgram, segment: Segment, code: SegmentCode, name: str) -> FunctionText:
    """``ptr @name(ptr %self, ptr %args, i64 %count)``; ``finish`` it with its result."""
    text = FunctionText(name, ("ptr %self", "ptr %args", "i64 %count"), returns="ptr")
    for line in _DECLARE:
        text.declare(line)
    wrap = torch_api.tensor_wrap_symbol()
    text.declare(f"declare ptr @{wrap}(ptr)")
    text.do(f"%buffers = alloca [{len(code.table) + 1} x ptr], align 16")
    text.do(f"%scalars = alloca [{len(code.scalars) + 1} x i64], align 16")
    writer = _CallWriter(program, segment, code, text)
    writer.arguments()
    writer.constants()
    results = writer.outputs()
    checks = writer.checks()
    writer.run()
    writer.raise_if_failed(checks, results)
    result = writer.results(results, wrap)
    text.do(f"ret ptr {result}")
    return text


@dataclass(frozen=True)
class _Result:
    """A result: its handle in torch's C interface, and the Python object that it is part of, if it
    is."""

    handle: str
    item: str | None = None

    def drop(self, text: FunctionText) -> None:
        if self.item is None:
            text.emit(f"call i32 @aoti_torch_delete_tensor_object(ptr {self.handle})")
        else:
            text.do(f"call void @Py_DecRef(ptr {self.item})")


class _CallWriter:
    def __init__(
        self, program: LoopProgram, segment: Segment, code: SegmentCode, text: FunctionText
    ) -> None:
        self.segment, self.code, self.text = segment, code, text
        self.buffers = program.buffer_table()
        self.positions = {b: k for k, b in enumerate(code.table)}
        self.large = list(large_results(program, segment))
        self.scope = Scope(text, Operands(text, code.table, code.scalars))

    def arguments(self) -> None:
        """Data pointers of tensors and values of numbers into the tables."""
        tensors = [k for k, a in enumerate(self.segment.arguments) if isinstance(a, str)]
        self._collect("%args", tensors, 0)
        numbers = [k for k, a in enumerate(self.segment.arguments) if not isinstance(a, str)]
        for position, k in enumerate(numbers):
            slot = self.text.pure(f"getelementptr ptr, ptr %args, i64 {k}")
            self._number(self.text.pure(f"load ptr, ptr {slot}"), position)
        for k, size in enumerate(self.code.sizes, len(numbers)):
            self._size(size, k)

    def constants(self) -> None:
        """Data pointers of the constants ``self`` holds."""
        held = self.text.pure(f"getelementptr i8, ptr %self, i64 {_TUPLE_ITEMS}")
        given = sum(isinstance(a, str) for a in self.segment.arguments)
        self._collect(held, list(range(len(self.segment.constants))), given)

    def _collect(self, items: str, where: Sequence[int], first: int) -> None:
        """The data pointers of the tensors at ``where``, from entry ``first`` of the table on."""
        if not where:
            return
        name, definition = constant_list("i32", where)
        self.text.declare(definition)
        table = self.text.pure(f"getelementptr ptr, ptr %buffers, i64 {first}")
        self.text.do(
            f"call void @jitney.collect(ptr {items}, ptr {name}, i64 {len(where)}, "
            f"i64 {torch_api.tensor_handle_offset()}, ptr {table})"
        )

    def _entry(self, buffer: str) -> str:
        return self.text.pure(f"getelementptr ptr, ptr %buffers, i64 {self.positions[buffer]}")

    def _number(self, item: str, position: int) -> None:
        scalar = self.code.scalars[position]
        floating = getattr(scalar, "dtype", torch.int64).is_floating_point
        callee, kind = ("PyFloat_AsDouble", "double") if floating else ("PyLong_AsLongLong", "i64")
        value = self.text.emit(f"call {kind} @{callee}(ptr {item})")
        slot = self.text.pure(f"getelementptr i64, ptr %scalars, i64 {position}")
        self.text.do(f"store {kind} {value}, ptr {slot}")

    def _size(self, size: ReadSize, position: int) -> None:
        """A symbolic size or stride, from the tensor that has it."""
        place = self.text.pure(f"getelementptr ptr, ptr %args, i64 {size.position}")
        item = self.text.pure(f"load ptr, ptr {place}")
        handle = f"getelementptr i8, ptr {item}, i64 {torch_api.tensor_handle_offset()}"
        slot = self.text.pure(f"getelementptr i64, ptr %scalars, i64 {position}")
        getter = "aoti_torch_get_stride" if size.is_stride else "aoti_torch_get_size"
        self.text.emit(
            f"call i32 @{getter}(ptr {self.text.pure(handle)}, i64 {size.axis}, ptr {slot})"
        )

    # ---------------------------------------------------------------- results

    def outputs(self) -> list[_Result]:
        """Allocates the results."""
        results = []
        rank = max((len(self.buffers[b].shape) for b in self.segment.outputs), default=0)
        sizes, strides = (self.text.allocate(8 * rank + 8) for _ in range(2))
        for name in self.segment.outputs:
            buffer = self.buffers[name]
            if name in self.large:
                result = self._lease(self.large.index(name))
            else:
                self._fill(sizes, buffer.shape)
                self._fill(strides, buffer.strides)
                result = self._allocate(buffer, sizes, strides)
            self.text.emit(
                f"call i32 @aoti_torch_get_data_ptr(ptr {result.handle}, ptr {self._entry(name)})"
            )
            self._use_huge_pages(name, buffer)
            results.append(result)
        return results

    def _held(self, position: int) -> str:
        """The object of ``self`` at a position behind the constants."""
        offset = _TUPLE_ITEMS + 8 * (len(self.segment.constants) + position)
        slot = self.text.pure(f"getelementptr i8, ptr %self, i64 {offset}")
        return self.text.emit(f"load ptr, ptr {slot}")

    def _lease(self, number: int) -> _Result:
        item = self.text.emit(f"call ptr @PyObject_CallNoArgs(ptr {self._held(1 + number)})")
        with self.text.when(self.text.emit(f"icmp eq ptr {item}, null")):
            self.text.do("ret ptr null")
            self.text.open_block()
        offset = torch_api.tensor_handle_offset()
        return _Result(self.text.emit(f"getelementptr i8, ptr {item}, i64 {offset}"), item)

    def _allocate(self, buffer: Buffer, sizes: str, strides: str) -> _Result:
        place = self.text.allocate(8)
        code = self.text.emit(
            f"call i32 @aoti_torch_empty_strided(i64 {len(buffer.shape)}, ptr {sizes}, "
            f"ptr {strides}, i32 {torch_api.scalar_type(buffer.dtype)}, i32 0, i32 0, ptr {place})"
        )
        self._return_if(self.text.emit(f"icmp ne i32 {code}, 0"))
        return _Result(self.text.emit(f"load ptr, ptr {place}"))

    def _use_huge_pages(self, name: str, buffer: Buffer) -> None:
        """Asks for huge pages for a result that nothing has touched yet, if it may be large."""
        size = size_in_bytes(buffer)
        if size.is_const and int(size) < HUGE_BYTES:
            return
        data = self.text.emit(f"load ptr, ptr {self._entry(name)}")
        bytes_ = self.scope.indices.uniform(size)
        self.text.do(f"call void @jitney.use_huge_pages(ptr {data}, i64 {bytes_})")

    def _return_if(self, failed: str) -> None:
        """Raises MemoryError where ``failed``: only allocation can fail here."""
        with self.text.when(failed):
            none = self.text.emit("call ptr @PyErr_NoMemory()")
            self.text.do(f"ret ptr {none}")
            self.text.open_block()

    def _fill(self, array: str, values: Sequence[Index]) -> None:
        for k, value in enumerate(values):
            slot = self.text.pure(f"getelementptr i64, ptr {array}, i64 {k}")
            self.text.do(f"store i64 {self.scope.indices.uniform(value)}, ptr {slot}")

    def checks(self) -> str:
        """Places the check buffers side by side, all unset."""
        names = self.code.checks
        if not names:
            return ""
        base = self.text.allocate(8 * -(-len(names) // 8), align=8)
        for k in range(-(-len(names) // 8)):
            slot = self.text.pure(f"getelementptr i64, ptr {base}, i64 {k}")
            self.text.do(f"store i64 0, ptr {slot}")
        for k, name in enumerate(names):
            slot = self.text.pure(f"getelementptr i8, ptr {base}, i64 {k}")
            self.text.do(f"store ptr {slot}, ptr {self._entry(name)}")
        return base

    def raise_if_failed(self, checks: str, results: Sequence[_Result]) -> None:
        """Drops the results and raises where a check found something."""
        if not checks:
            return
        with self.text.when(any_check_failed(self.text, checks, len(self.code.checks))):
            for result in results:
                result.drop(self.text)
            self.text.do(f"call void @PyErr_SetNone(ptr {self._held(0)})")
            self.text.do("ret ptr null")
            self.text.open_block()

    def results(self, results: Sequence[_Result], wrap: str) -> str:
        """The tuple of result tensors."""
        made = self.text.emit(f"call ptr @PyTuple_New(i64 {len(results)})")
        for k, result in enumerate(results):
            tensor = result.item
            if tensor is None:
                tensor = self.text.emit(f"call ptr @{wrap}(ptr {result.handle})")
                result.drop(self.text)
            slot = self.text.pure(f"getelementptr i8, ptr {made}, i64 {_TUPLE_ITEMS + 8 * k}")
            self.text.do(f"store ptr {tensor}, ptr {slot}")
        return made

    # ---------------------------------------------------------------- the run

    def run(self) -> None:
        """Leases a workspace and runs the nodes."""
        text, code = self.text, self.code
        if not self.segment.nodes:
            return
        threads = text.emit("call i64 @jitney.threads()")
        fixed = self.scope.indices.uniform(code.workspace)
        needs = code.scratch > 0 or code.workspace != Index()
        workspace = "null"
        if needs:
            scratch = text.pure(f"mul i64 {threads}, {code.scratch}")
            bytes_ = text.pure(f"add i64 {fixed}, {scratch}")
            workspace = text.emit(f"call ptr @jitney.lease(i64 {bytes_})")
            self._return_if(text.emit(f"icmp eq ptr {workspace}, null"))
        long = code.nanoseconds > RELEASE_GIL
        state = text.emit("call ptr @PyEval_SaveThread()") if long else ""
        text.do(
            f"call void @{code.name}(ptr %buffers, ptr %scalars, ptr {workspace}, i64 {threads})"
        )
        if long:
            text.do(f"call void @PyEval_RestoreThread(ptr {state})")
        if needs:
            text.do(f"call void @jitney.release(ptr {workspace})")
