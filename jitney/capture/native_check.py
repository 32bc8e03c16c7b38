"""The guard check that every call runs, as one LLVM-compiled C function.

``pick(function, *locals)`` walks the programs of the armed entries and returns the callable of
the first that holds, else the miss handler. A program is a list of four-word instructions over
slots that start as the call's arguments; see `Op`. It is data, so that arming compiles nothing.
Compiled once per process; `run/arms.is_supported` tells whether this CPython and torch are laid
out as it needs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from llvmlite import binding, ir

from jitney import torch_api
from jitney.capture.layouts import BYTES_DATA, OB_TYPE, read_word
from jitney.capture.native_loops import require, rounds
from jitney.capture.native_ops import write_ops
from jitney.native_code import Calls, NativeCode, address_in_python, once, python_function

SLOTS = 4096
PREFETCH = 48  # words ahead that are asked for: a cold check is bound by latency
ANY = -(1 << 63)  # a size or stride that may be anything


class Op(enum.IntEnum):
    """Instructions ``(op, a, b, c)``; s[i] is a slot, *x the 8 bytes at x, all integers 64-bit."""

    END = 0  # all holds
    IS = 1  # s[a] == b
    FIELD = 2  # *(s[a] + b) == c
    WORDS = 3  # *x == y for the n pairs in words a, in order: [n, x, y, …]
    LOAD = 4  # s[c] = *(s[a] + b); fails on NULL
    LOAD2 = 5  # s[c] = *(*(s[a] + 24) + b): an item of a list
    DICT_ITEM = 6  # s[c] = dict s[a] [b]; fails if absent
    DICT_KEYS = 7  # the keys of dict s[a] are the n objects in words b: [n, key, …]
    EQUAL = 8  # s[a] is b, or an int, str or float of the same type and value
    TENSOR = 9  # tensor s[a] is as words b say: see `tensor_words`
    CONST = 10  # s[c] = b
    CALL = 11  # a(words[b]) & words[b + 1] == words[b + 2]
    ABSENT = 12  # b not in dict s[a]
    NONE_OF = 13  # s[a] is none of the objects in words b: see `object_words`
    DIFFER = 14  # s[a] is not s[b]
    QUIET = 15  # *x == *y, or WORDS of what follows in words a, *y being set: [x, y, n, …]
    APART = 16  # tensor s[a], laid out as words b say (`apart_words`), is apart from spans: words c
    GETATTR = 17  # s[c] = getattr(a, b), which something else keeps alive; fails where that raises
    UNEQUAL = 18  # the slots that words a tell of hold different objects: see `slot_words`
    NO_MEETING = 19  # nor do two tensors in slots share memory: see `meeting_words`
    AT_LEAST = 20  # *(s[a] + b) >= c


@dataclass
class Program:
    """What must hold for ``callable`` to be picked; ``keep`` owns every object named by address."""

    code: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)

    def add(self, op: Op, a: int = 0, b: int = 0, c: int = 0) -> None:
        """Appends an instruction."""
        self.code += (int(op), a, b, c)

    def data(self, words: Sequence[int]) -> int:
        """Appends operands; their index among the words."""
        start = len(self.words)
        self.words += words
        return start


def apart_words(tensor: torch.Tensor) -> list[int] | None:
    """Operands of `Op.APART` for tensors laid out like ``tensor``: where torch keeps a tensor's
    memory, bytes of an element and of all."""
    layout, (start, end) = torch_api.storage_layout(), torch_api.span(tensor)
    if layout is None:
        return None
    words = [layout.handle, layout.storage, layout.memory, layout.offset]
    return [*words, tensor.element_size(), end - start]


def tensor_words(tensor: torch.Tensor, sizes: Sequence[int | None],
                 strides: Sequence[int | None] | None) -> list[int]:  # fmt: skip
    """Operands of `Op.TENSOR` for tensors like ``tensor`` with these sizes and strides."""
    layout = tensor_layout()
    assert layout is not None
    impl = read_word(id(tensor) + layout.handle)
    words = [
        id(type(tensor)),
        read_word(impl + layout.key_set),
        torch_api.scalar_type(tensor.dtype),
    ]
    words += [-1 if tensor.device.index is None else tensor.device.index]
    words += [int(tensor.requires_grad), len(sizes)]
    for extents in (sizes, strides if strides is not None else [None] * len(sizes)):
        words += [ANY if n is None else n for n in extents]
    return words


@dataclass(frozen=True)
class TensorLayout:
    """Byte offsets: of the C++ tensor in its Python object, of the key set in its impl."""

    handle: int
    key_set: int


@lru_cache(maxsize=1)
def tensor_layout() -> TensorLayout | None:
    """Found by looking for known values in sample tensors; None if they are not there, or torch
    lacks a function that the check calls."""
    try:
        for name in _TORCH:
            torch_api.c_symbol(name)
    except LookupError:
        return None
    samples = [torch.ones(3), torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.int8)]
    samples.append(torch.ones(2, dtype=torch.complex64).conj())
    handles, keys = set(range(16, 64, 8)), set(range(0, 320, 8))
    for sample in samples:
        impl, key_set = torch_api.impl_address(sample), torch_api.raw_key_set(sample)
        handles &= {o for o in range(16, 64, 8) if read_word(id(sample) + o) == impl}
        keys &= {o for o in range(0, 320, 8) if read_word(impl + o) == key_set}
    if len(handles) != 1 or len(keys) != 1:
        return None
    return TensorLayout(handles.pop(), keys.pop())


# ---------------------------------------------------------------- the table and its function


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
    symbols |= {name: torch_api.c_symbol(name) for name in _TORCH}
    return NativeCode(str(_Builder(layout).module), symbols)


I64, I32, I8, I1 = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.IntType(1)
PTR = I64.as_pointer()
REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
_EXTENTS = ("aoti_torch_get_sizes", "aoti_torch_get_strides")
_TORCH = (
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_index",
    "aoti_torch_get_dim",
    *_EXTENTS,
    REQUIRES_GRAD,
)


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
        for nth, name in enumerate(_EXTENTS):
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
