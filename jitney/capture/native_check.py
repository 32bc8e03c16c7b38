"""The guard check that every call runs, as one LLVM-compiled C function.

``pick(function, *locals)`` walks the programs of the armed entries and returns the callable of
the first that holds, else the miss handler. Programs are data (`native_program`), so that arming
compiles nothing: this function is compiled once per process. `run/arms.is_supported` tells whether
this CPython and torch are laid out as it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir

from jitney import torch_api
from jitney.capture.layouts import BYTES_DATA, OB_TYPE
from jitney.capture.native_loops import require, rounds
from jitney.capture.native_ops import write_ops
from jitney.capture.native_program import (
    ANY,
    EXTENTS,
    REQUIRES_GRAD,
    SLOTS,
    TORCH_CALLS,
    Program,
    TensorLayout,
    tensor_layout,
)
from jitney.native_code import Calls, NativeCode, address_in_python, once, python_function

PREFETCH = 48  # words ahead that are asked for: a cold check is bound by latency


def make_pick(programs: Sequence[tuple[Program, Any]], miss: Any) -> Callable[..., Any]:
    """The function that picks among armed callables, or other objects; it keeps alive all that
    they name."""
    header = [len(programs), id(miss)]
    body: list[int] = []
    start = 2 + 3 * len(programs)
    for program, run in programs:
        header += [id(run), start + len(body), start + len(body) + len(program.code)]
        body += program.code + program.words
    table = _as_bytes(header + body + [0] * 256)  # prefetches read past the end
    keep = (miss, [(program.keep, run) for program, run in programs])
    return python_function("pick", _code().address("pick"), Calls.WITH_MANY, table, keep)


def _as_bytes(words: Sequence[int]) -> bytes:
    mask = (1 << 64) - 1
    return b"".join((w & mask).to_bytes(8, "little") for w in words)


@once
def _code() -> NativeCode:
    layout = tensor_layout()
    assert layout is not None
    calls = ("PyDict_GetItemWithError", "PyErr_Clear", "PyDict_Next", "PyDict_Contains",
             "PyObject_RichCompareBool", "Py_IncRef", "Py_DecRef", "PyObject_GetAttr",
             "qsort")  # fmt: skip
    symbols = {name: address_in_python(name) for name in calls}
    symbols |= {name: torch_api.c_symbol(name) for name in TORCH_CALLS}
    return NativeCode(str(_Builder(layout).module), symbols)


I64, I32, I8, I1 = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.IntType(1)
PTR = I64.as_pointer()


class _Builder:
    """Writes ``pick``, ``tensor_ok`` and ``words_ok``."""

    def __init__(self, layout: TensorLayout) -> None:
        self.layout = layout
        self.module = ir.Module("guards")
        self.module.triple = binding.get_default_triple()
        self.declared: dict[str, Any] = {}
        self._tensor_ok()
        self._words_ok()
        self._by_first()
        self._pick()

    def external(self, name: str, result: Any, *arguments: Any) -> Any:
        """A C function, declared once."""
        if name not in self.declared:
            kind = ir.FunctionType(result, arguments)
            self.declared[name] = ir.Function(self.module, kind, name)
        return self.declared[name]

    def _word(self, b: Any, address: Any) -> Any:
        return b.load(b.inttoptr(address, PTR))

    def _tensor_ok(self) -> None:
        """``i1 tensor_ok(object, words)``: words as `tensor_words` lays them out."""
        function = ir.Function(self.module, ir.FunctionType(I1, [I64, PTR]), "tensor_ok")
        function.linkage = "internal"
        self.tensor_ok = function
        obj, words = function.args
        b = ir.IRBuilder(function.append_basic_block())
        no = function.append_basic_block("no")
        ir.IRBuilder(no).ret(I1(0))

        def expected(index: Any) -> Any:
            return b.load(b.gep(words, [index]))

        def ask(name: str, kind: Any) -> Any:
            b.call(self.external(name, I32, I64, kind.as_pointer()), [handle, out[kind]])
            return b.load(out[kind])

        out = {kind: b.alloca(kind) for kind in (I64, I32)}
        kind = self._word(b, b.add(obj, I64(OB_TYPE)))
        require(b, b.icmp_signed("==", kind, expected(I64(0))), no)
        handle = b.add(obj, I64(self.layout.handle))
        impl = self._word(b, handle)
        key_set = self._word(b, b.add(impl, I64(self.layout.key_set)))
        require(b, b.icmp_signed("==", key_set, expected(I64(1))), no)
        rank = ask("aoti_torch_get_dim", I64)
        require(b, b.icmp_signed("==", rank, expected(I64(5))), no)
        for nth, name in enumerate(EXTENTS):
            extents = b.inttoptr(ask(name, I64), PTR)
            first = b.add(I64(6), b.mul(rank, I64(nth)))
            with rounds(b, rank) as axis:
                wanted, actual = expected(b.add(first, axis)), b.load(b.gep(extents, [axis]))
                same = b.icmp_signed("==", wanted, actual)
                require(b, b.or_(b.icmp_signed("==", wanted, I64(ANY)), same), no)
        dtype = b.sext(ask("aoti_torch_get_dtype", I32), I64)
        require(b, b.icmp_signed("==", dtype, expected(I64(2))), no)
        device = expected(I64(3))
        actual = b.sext(ask("aoti_torch_get_device_index", I32), I64)
        same = b.icmp_signed("==", device, actual)
        require(b, b.or_(b.icmp_signed("==", device, I64(-1)), same), no)
        wants = b.call(self.external(REQUIRES_GRAD, I8, I64), [impl])
        wants = b.zext(b.and_(wants, I8(1)), I64)
        require(b, b.icmp_signed("==", wants, expected(I64(4))), no)
        b.ret(I1(1))

    def _words_ok(self) -> None:
        """``i1 words_ok(words)``: a count, then so many pairs of an address and its word. In
        order, since a word may say that the memory of later ones is still there."""
        function = ir.Function(self.module, ir.FunctionType(I1, [PTR]), "words_ok")
        function.linkage = "internal"
        self.words_ok = function
        (words,) = function.args
        b = ir.IRBuilder(function.append_basic_block())
        no = function.append_basic_block("no")
        ir.IRBuilder(no).ret(I1(0))
        byte = I8.as_pointer()
        prefetch = self.external("llvm.prefetch.p0i8", ir.VoidType(), byte, I32, I32, I32)
        with rounds(b, b.load(words)) as index:
            at = b.add(b.mul(index, I64(2)), I64(1))
            later = b.load(b.gep(words, [b.add(at, I64(2 * PREFETCH))]))
            b.call(prefetch, [b.inttoptr(later, byte), I32(0), I32(3), I32(1)])
            actual = self._word(b, b.load(b.gep(words, [at])))
            wanted = b.load(b.gep(words, [b.add(at, I64(1))]))
            require(b, b.icmp_signed("==", actual, wanted), no)
        b.ret(I1(1))

    def _by_first(self) -> None:
        """``i32 by_first(one, other)``: the order of two pairs of words by the first, for qsort."""
        function = ir.Function(self.module, ir.FunctionType(I32, [PTR, PTR]), "by_first")
        function.linkage = "internal"
        self.by_first = function
        b = ir.IRBuilder(function.append_basic_block())
        one, other = (b.load(pair) for pair in function.args)
        above, below = (b.icmp_unsigned(sign, one, other) for sign in (">", "<"))
        b.ret(b.sub(b.zext(above, I32), b.zext(below, I32)))

    def _pick(self) -> None:
        """``PyObject *pick(self, args, nargs)`` over the table in the bytes ``self``."""
        function = ir.Function(self.module, ir.FunctionType(I64, [I64, PTR, I64]), "pick")
        this, arguments, count = function.args
        names = "entry copy copied arm start loop fail chosen miss".split()
        block = {n: function.append_basic_block(n) for n in names}
        b = ir.IRBuilder(block["entry"])
        table = b.inttoptr(b.add(this, I64(BYTES_DATA)), PTR)
        slots = b.alloca(I64, SLOTS)
        program_counter, arm = b.alloca(I64), b.alloca(I64)
        b.store(I64(0), arm)
        b.branch(block["copy"])
        b.position_at_end(block["copy"])
        index = b.phi(I64)
        index.add_incoming(I64(0), block["entry"])
        b.store(b.load(b.gep(arguments, [index])), b.gep(slots, [index]))
        following = b.add(index, I64(1))
        index.add_incoming(following, block["copy"])
        b.cbranch(b.icmp_signed("<", following, count), block["copy"], block["copied"])
        b.position_at_end(block["copied"])
        b.branch(block["arm"])

        b.position_at_end(block["arm"])
        current = b.load(arm)
        has_more = b.icmp_signed("<", current, b.load(table))
        b.cbranch(has_more, block["start"], block["miss"])
        b.position_at_end(block["start"])
        entry = b.gep(table, [b.add(I64(2), b.mul(current, I64(3)))])
        words = b.gep(table, [b.load(b.gep(entry, [I64(2)]))])
        b.store(b.load(b.gep(entry, [I64(1)])), program_counter)
        b.branch(block["loop"])
        write_ops(self, function, b, block, table, slots, words, program_counter)

        b.position_at_end(block["fail"])
        b.store(b.add(b.load(arm), I64(1)), arm)
        b.branch(block["arm"])
        for name, at in (("chosen", None), ("miss", I64(1))):
            b.position_at_end(block[name])
            address = b.load(entry) if at is None else b.load(b.gep(table, [at]))
            b.call(self.external("Py_IncRef", ir.VoidType(), I64), [address])
            b.ret(address)
