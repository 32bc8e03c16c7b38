"""The instructions of the native guard check, one block each."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from jitney.capture.layouts import FLOAT_VALUE, LIST_ITEMS, OB_TYPE
from jitney.capture.native_loops import require, rounds
from jitney.capture.native_program import Op
from jitney.capture.native_sets import FACTOR, SHIFT

I64, I32, I1 = ir.IntType(64), ir.IntType(32), ir.IntType(1)
PTR = I64.as_pointer()
_METHODS = {"IS": "is_"}


def write_ops(
    builder: Any, function: Any, b: Any, block: dict[str, Any], table: Any, slots: Any,
    words: Any, program_counter: Any,
) -> None:  # fmt: skip
    """The dispatch loop: ``block["loop"]`` reads an instruction, goes to its block; each goes back
    to the loop, to ``fail`` or, for END, to ``chosen``."""
    b.position_at_end(block["loop"])
    counter = b.load(program_counter)
    op, *operands = (b.load(b.gep(table, [b.add(counter, I64(i))])) for i in range(4))
    b.store(b.add(counter, I64(4)), program_counter)
    switch = b.switch(op, block["fail"])
    writer = _Ops(builder, function, b, block, slots, words)
    for code in Op:
        target = block["chosen"]
        if code is not Op.END:
            target = function.append_basic_block(code.name)
            b.position_at_end(target)
            condition = getattr(writer, _METHODS.get(code.name, code.name.lower()))(*operands)
            if condition is None:
                b.branch(block["loop"])
            else:
                b.cbranch(condition, block["loop"], block["fail"])
        switch.add_case(I64(int(code)), target)


class _Ops:
    """One method per instruction; returns the condition that must hold, or None."""

    def __init__(
        self, builder: Any, function: Any, b: Any, block: Any, slots: Any, words: Any
    ) -> None:
        self.builder, self.function, self.b, self.block = builder, function, b, block
        self.slots, self.operands = slots, words

    def _slot(self, index: Any) -> Any:
        return self.b.load(self.b.gep(self.slots, [index]))

    def _store(self, index: Any, value: Any) -> None:
        self.b.store(value, self.b.gep(self.slots, [index]))

    def _word(self, address: Any) -> Any:
        return self.b.load(self.b.inttoptr(address, PTR))

    def _same(self, x: Any, y: Any) -> Any:
        return self.b.icmp_signed("==", x, y)

    def _store_unless_null(self, slot: Any, value: Any) -> Any:
        self._store(slot, value)
        return self.b.icmp_signed("!=", value, I64(0))

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kinds = [argument.type for argument in arguments]
        return self.b.call(self.builder.external(name, result, *kinds), list(arguments))

    def is_(self, a: Any, expected: Any, _: Any) -> Any:
        return self._same(self._slot(a), expected)

    def field(self, a: Any, offset: Any, expected: Any) -> Any:
        return self._same(self._word(self.b.add(self._slot(a), offset)), expected)

    def at_least(self, a: Any, offset: Any, least: Any) -> Any:
        return self.b.icmp_signed(">=", self._word(self.b.add(self._slot(a), offset)), least)

    def load(self, a: Any, offset: Any, to: Any) -> Any:
        return self._store_unless_null(to, self._word(self.b.add(self._slot(a), offset)))

    def load2(self, a: Any, offset: Any, to: Any) -> Any:
        items = self._word(self.b.add(self._slot(a), I64(LIST_ITEMS)))
        return self._store_unless_null(to, self._word(self.b.add(items, offset)))

    def const(self, _: Any, value: Any, to: Any) -> None:
        self._store(to, value)

    def dict_item(self, a: Any, key: Any, to: Any) -> Any:
        found = self._call("PyDict_GetItemWithError", I64, self._slot(a), key)
        missing, present = self.function.append_basic_block(), self.function.append_basic_block()
        self.b.cbranch(self._same(found, I64(0)), missing, present)
        self.b.position_at_end(missing)
        self._call("PyErr_Clear", ir.VoidType())
        self.b.branch(self.block["fail"])
        self.b.position_at_end(present)
        self._store(to, found)
        return I1(1)

    def absent(self, a: Any, key: Any, _: Any) -> Any:
        found = self._call("PyDict_Contains", I32, self._slot(a), key)
        return self.b.icmp_signed("==", found, I32(0))

    def tensor(self, a: Any, index: Any, _: Any) -> Any:
        words = self.b.gep(self.operands, [index])
        return self.b.call(self.builder.tensor_ok, [self._slot(a), words])

    def call(self, address: Any, index: Any, _: Any) -> Any:
        kind = ir.FunctionType(I64, [I64]).as_pointer()
        given, mask, expected = (
            self.b.load(self.b.gep(self.operands, [self.b.add(index, I64(i))])) for i in range(3)
        )
        result = self.b.call(self.b.inttoptr(address, kind), [given])
        return self._same(self.b.and_(result, mask), expected)

    def equal(self, a: Any, expected: Any, _: Any) -> Any:
        """Identity, else equality of two exact ints or strs, else equal bits of two floats."""
        b, blocks = self.b, [self.function.append_basic_block() for _ in range(5)]
        other, same_type, is_float, compare, done = blocks
        value, here = self._slot(a), b.block
        b.cbranch(self._same(value, expected), done, other)
        b.position_at_end(other)
        kind = self._word(b.add(value, I64(OB_TYPE)))
        wanted = self._word(b.add(expected, I64(OB_TYPE)))
        b.cbranch(self._same(kind, wanted), same_type, self.block["fail"])
        b.position_at_end(same_type)
        b.cbranch(self._same(kind, I64(id(float))), is_float, compare)
        b.position_at_end(is_float)
        bits = [self._word(b.add(x, I64(FLOAT_VALUE))) for x in (value, expected)]
        equal_bits = self._same(*bits)
        b.branch(done)
        b.position_at_end(compare)
        answer = self._call("PyObject_RichCompareBool", I32, value, expected, I32(2))
        equal_values = b.icmp_signed("==", answer, I32(1))
        b.branch(done)
        b.position_at_end(done)
        result = b.phi(I1)
        for given, block in ((I1(1), here), (equal_bits, is_float), (equal_values, compare)):
            result.add_incoming(given, block)
        return result

    def words(self, index: Any, _: Any, __: Any) -> Any:
        return self.b.call(self.builder.words_ok, [self.b.gep(self.operands, [index])])

    def quiet(self, index: Any, _: Any, __: Any) -> Any:
        """While the count is what was noted nothing has changed; else the words tell."""
        b = self.b
        look, note, done = (self.function.append_basic_block() for _ in range(3))
        count_at, noted_at = (
            b.load(b.gep(self.operands, [b.add(index, I64(i))])) for i in range(2)
        )
        count = self._word(count_at)
        b.cbranch(self._same(count, self._word(noted_at)), done, look)
        b.position_at_end(look)
        pairs = b.gep(self.operands, [b.add(index, I64(2))])
        b.cbranch(b.call(self.builder.words_ok, [pairs]), note, self.block["fail"])
        b.position_at_end(note)
        b.store(count, b.inttoptr(noted_at, PTR))
        b.branch(done)
        b.position_at_end(done)
        return I1(1)

    def _operand(self, index: Any, further: Any = 0) -> Any:
        further = I64(further) if isinstance(further, int) else further
        return self.b.load(self.b.gep(self.operands, [self.b.add(index, further)]))

    def _span(self, layout: Any, tensor: Any, size: Any, length_at: Any) -> tuple[Any, Any]:
        """Where a tensor's elements begin and end in memory; ``layout``: words of offsets."""
        b = self.b
        handle, storage, memory, offset = (self._operand(layout, i) for i in range(4))
        impl = self._word(b.add(tensor, handle))
        first = self._word(b.add(self._word(b.add(impl, storage)), memory))
        first = b.add(first, b.mul(self._word(b.add(impl, offset)), size))
        return first, b.add(first, self._operand(length_at))

    def no_meeting(self, index: Any, _: Any, __: Any) -> Any:
        """In the order in which they begin, each ends before the next."""
        b = self.b
        layout, tensors = b.add(index, I64(2)), b.add(index, I64(6))
        count, memory = (self._operand(index, i) for i in range(2))
        table = b.inttoptr(memory, PTR)
        with rounds(b, count) as seen:
            at = b.add(tensors, b.mul(seen, I64(3)))
            slot, size = (self._operand(at, i) for i in range(2))
            span = self._span(layout, self._slot(slot), size, b.add(at, I64(2)))
            for nth, edge in enumerate(span):
                b.store(edge, b.gep(table, [b.add(b.mul(seen, I64(2)), I64(nth))]))
        by_first = b.ptrtoint(self.builder.by_first, I64)
        self._call("qsort", ir.VoidType(), memory, count, I64(16), by_first)
        with rounds(b, b.sub(count, I64(1))) as seen:
            at = b.mul(seen, I64(2))
            end, following = (b.load(b.gep(table, [b.add(at, I64(i))])) for i in (1, 2))
            require(b, b.icmp_unsigned("<=", end, following), self.block["fail"])
        return I1(1)

    def apart(self, a: Any, index: Any, spans: Any) -> Any:
        """The first span that ends behind the tensor's beginning starts behind its end."""
        b = self.b
        first, end = self._span(index, self._slot(a), self._operand(index, 4), b.add(index, I64(5)))
        count = self._operand(spans)
        starts = b.add(spans, I64(1))
        ends = b.add(starts, count)
        before, head, look, found, done = b.block, *self._blocks(4)
        b.branch(head)
        b.position_at_end(head)
        low, high = b.phi(I64), b.phi(I64)
        low.add_incoming(I64(0), before)
        high.add_incoming(count, before)
        b.cbranch(b.icmp_signed("<", low, high), look, found)
        b.position_at_end(look)
        middle = b.lshr(b.add(low, high), I64(1))
        behind = b.icmp_unsigned(">", self._operand(ends, middle), first)
        low.add_incoming(b.select(behind, low, b.add(middle, I64(1))), look)
        high.add_incoming(b.select(behind, middle, high), look)
        b.branch(head)
        b.position_at_end(found)
        require(b, b.icmp_signed("<", low, count), done)
        apart = b.icmp_unsigned(">=", self._operand(starts, low), end)
        b.cbranch(apart, done, self.block["fail"])
        b.position_at_end(done)
        return I1(1)

    def _blocks(self, count: int) -> list[Any]:
        return [self.function.append_basic_block() for _ in range(count)]

    def getattr(self, owner: Any, name: Any, to: Any) -> Any:
        b, (missing, present) = self.b, self._blocks(2)
        found = self._call("PyObject_GetAttr", I64, owner, name)
        b.cbranch(self._same(found, I64(0)), missing, present)
        b.position_at_end(missing)
        self._call("PyErr_Clear", ir.VoidType())
        b.branch(self.block["fail"])
        b.position_at_end(present)
        self._store(to, found)
        self._call("Py_DecRef", ir.VoidType(), found)
        return I1(1)

    def differ(self, a: Any, b: Any, _: Any) -> Any:
        return self.b.icmp_signed("!=", self._slot(a), self._slot(b))

    def _place(self, value: Any, mask: Any) -> Any:
        b = self.b
        return b.and_(b.lshr(b.mul(value, I64(FACTOR)), I64(SHIFT)), mask)

    def none_of(self, a: Any, index: Any, _: Any) -> Any:
        """From the object's place on, up to an empty one, there are others."""
        b, value = self.b, self._slot(a)
        mask, first = self._operand(index), b.add(index, I64(1))
        start, before, head, done = self._place(value, mask), b.block, *self._blocks(2)
        b.branch(head)
        b.position_at_end(head)
        place = b.phi(I64)
        place.add_incoming(start, before)
        known = self._operand(first, place)
        require(b, b.not_(self._same(known, value)), self.block["fail"])
        place.add_incoming(b.and_(b.add(place, I64(1)), mask), b.block)
        b.cbranch(self._same(known, I64(0)), done, head)
        b.position_at_end(done)
        return I1(1)

    def unequal(self, index: Any, _: Any, __: Any) -> Any:
        """Each is noted in a table, unless it was in this run."""
        b = self.b
        count, mask, memory = (self._operand(index, i) for i in range(3))
        table = b.inttoptr(memory, PTR)
        run = b.add(b.load(table), I64(1))
        b.store(run, table)
        with rounds(b, count) as seen:
            value = self._slot(self._operand(index, b.add(seen, I64(3))))
            start, before, head, taken, free = self._place(value, mask), b.block, *self._blocks(3)
            b.branch(head)
            b.position_at_end(head)
            place = b.phi(I64)
            place.add_incoming(start, before)
            at = b.add(b.mul(place, I64(2)), I64(1))
            address, noted = (b.gep(table, [b.add(at, I64(i))]) for i in range(2))
            b.cbranch(self._same(b.load(noted), run), taken, free)
            b.position_at_end(taken)
            require(b, b.not_(self._same(b.load(address), value)), self.block["fail"])
            place.add_incoming(b.and_(b.add(place, I64(1)), mask), b.block)
            b.branch(head)
            b.position_at_end(free)
            b.store(value, address)
            b.store(run, noted)
        return I1(1)

    def dict_keys(self, a: Any, index: Any, _: Any) -> Any:
        """The same key objects in the same order, the dict's size being checked on the way."""
        b = self.b
        position, key, value = (b.alloca(I64) for _ in range(3))
        b.store(I64(0), position)
        head, more, step, done = (self.function.append_basic_block() for _ in range(4))
        count = b.load(b.gep(self.operands, [index]))
        owner, before = self._slot(a), b.block
        b.branch(head)
        b.position_at_end(head)
        seen = b.phi(I64)
        seen.add_incoming(I64(0), before)
        found = self._call("PyDict_Next", I32, owner, position, key, value)
        b.cbranch(b.icmp_signed("!=", found, I32(0)), more, done)
        b.position_at_end(more)
        b.cbranch(b.icmp_signed("<", seen, count), step, self.block["fail"])
        b.position_at_end(step)
        following = b.add(seen, I64(1))
        seen.add_incoming(following, step)
        wanted = b.load(b.gep(self.operands, [b.add(index, following)]))
        b.cbranch(self._same(b.load(key), wanted), head, self.block["fail"])
        b.position_at_end(done)
        return self._same(seen, count)
