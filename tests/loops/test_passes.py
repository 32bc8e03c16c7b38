"""The small passes one by one: folding, simplifying, sharing, planning, verifying, printing."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from jitney.errors import CompilerBug
from jitney.loops import ir
from jitney.loops.fold_values import fold, fold_block
from jitney.loops.index import Axis, Dim, Index, Value, index
from jitney.loops.interpret import interpret
from jitney.loops.invert_index import invert_index, same_iteration
from jitney.loops.masked_ranges import axis_ranges, invert_masked
from jitney.loops.plan_memory import plan_memory
from jitney.loops.print_program import print_program
from jitney.loops.share_values import share_values
from jitney.loops.simplify_nest import simplify_nest, split_divided_axes
from jitney.loops.verify import verify
from tests.loops.programs import lowered, optimised

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
CPU = torch.device("cpu")


def op(name: str, *args: ir.Expr, dtype: torch.dtype | None = None) -> ir.Op:
    return ir.Op(name, args, dtype or args[-1].dtype)


def buffer(name: str, kind: str, *shape: int, dtype: torch.dtype = F32) -> ir.Buffer:
    strides, step = [], 1
    for n in reversed(shape):
        strides.insert(0, index(step))
        step *= n
    return ir.Buffer(name, kind, dtype, CPU, tuple(map(index, shape)), tuple(strides))


def whole(b: ir.Buffer) -> ir.Output:
    return ir.Output(ir.BufferView(b.name, b.shape, b.strides))


def double(source: str, target: str, n: int = 8) -> ir.LoopNest:
    i = Axis("i", index(n))
    load = ir.Load(source, index(i), F32)
    return ir.LoopNest(f"{target}_nest", (i,), (ir.Store(target, index(i), op("add", load, load)),))


def chain(length: int) -> ir.LoopProgram:
    names = [f"t{n}" for n in range(length)]
    buffers = [buffer("x", "input", 8), *(buffer(n, "temp", 8) for n in names[:-1])]
    buffers.append(buffer(names[-1], "output", 8))
    nodes = [double(a, b) for a, b in zip(["x", *names], names, strict=False)]
    return ir.LoopProgram(("x",), tuple(buffers), tuple(nodes), (whole(buffers[-1]),))


# ---------------------------------------------------------------- verifier and printer


def test_valid_program_passes_and_prints():
    program = chain(3)
    verify(program)
    text = print_program(program)
    assert "t1[i] = (t0[i] + t0[i])" in text and text.startswith("def program(x):")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (ir.Store("t0", index(9), ir.Const(1.0, F32)), "reaches 9..9"),
        (ir.Store("nowhere", index(0), ir.Const(1.0, F32)), "unknown buffer"),
        (ir.Store("t0", index(0), ir.Const(1, I64)), "accessed as"),
        (ir.Store("t0", index(Axis("z", index(4))), ir.Const(1.0, F32)), "not in scope"),
        (ir.Store("t0", index(0), ir.Ref("r", F32)), "r is not bound"),
        (ir.Store("t0", index(Value("p")), ir.Const(1.0, F32)), "p of p is not bound"),
        (ir.Store("t0", index(0), ir.Load("t1", index(0), F32)), "before it is written"),
        (ir.Store("t0", index(0), op("add", ir.Const(1.0, F32))), "has 1 operands"),
        (ir.Store("t0", index(0), op("frobnicate", ir.Const(1.0, F32))), "unknown opcode"),
        (
            ir.Store("t0", index(0), op("add", ir.Const(1, I64), ir.Const(1.0, F32))),
            "differ in dtype",
        ),
        (ir.Let("i", ir.Const(1.0, F32)), ""),
    ],
)
def test_each_breach_is_a_compiler_bug(broken, message):
    program = chain(3)
    nest = program.nodes[0]
    assert isinstance(nest, ir.LoopNest)
    bad = replace(program, nodes=(replace(nest, body=(broken, *nest.body)), *program.nodes[1:]))
    if not message:
        verify(bad)
        return
    with pytest.raises(CompilerBug, match=message) as raised:
        verify(bad)
    assert "t0_nest" in str(raised.value)


@pytest.mark.parametrize(
    "start",
    [
        index(1),
        -1 * index(Dim("s", low=0, high=4, hint=2)),
        index(Dim("s", low=0, high=4, hint=2)) - 1,  # at 0 alone
    ],
)
def test_a_library_is_given_no_memory_outside_of_a_buffer(start):
    program = chain(3)
    view = ir.BufferView("t0", (index(8),), (index(1),), start)
    call = ir.Extern("sort", "aten.sort.default", (view,), (), (), effectful=True)
    bad = replace(program, nodes=(program.nodes[0], call, *program.nodes[1:]))
    with pytest.raises(CompilerBug, match="a view of t0 reaches"):
        verify(bad)


def test_a_start_that_only_its_bounds_put_before_a_buffer_is_a_library_s():
    s = Dim("s", low=0, high=4, hint=2)
    program = chain(3)
    half = ir.BufferView("t0", (index(1),), (index(1),), index(s) - index(s) // 2)
    call = ir.Extern("sort", "aten.sort.default", (half,), (), (), effectful=True)
    assert half.offset.bounds()[0] < 0
    verify(replace(program, nodes=(program.nodes[0], call, *program.nodes[1:])))


def test_overlapping_slots_are_a_compiler_bug():
    program = chain(3)
    slots = (("t0", index(0)), ("t1", index(0)))
    verify(replace(program, slots=slots))  # t0 ends where t1 begins: in place
    longer = replace(chain(4), slots=(*slots, ("t2", index(64))))
    nodes = (*longer.nodes[:2], double("t0", "t2"), longer.nodes[3])
    with pytest.raises(CompilerBug, match="overlap"):
        verify(replace(longer, nodes=nodes))


# ---------------------------------------------------------------- memory


def test_a_chain_runs_in_place():
    planned = plan_memory(chain(6))
    verify(planned)
    assert int(planned.workspace) == 64


def test_places_are_reused_and_results_kept():
    def f(x, y):
        a = (x @ y).tanh() @ y
        b = (a @ y).tanh() @ y
        return b @ y + a.sum()

    args = (torch.randn(16, 16), torch.randn(16, 16))
    program, constants = lowered(f, args)
    planned = optimised(program)
    assert int(planned.workspace) <= 4 * 16 * 16 * 4
    torch.testing.assert_close(interpret(planned, constants, args)[0], f(*args))


def test_symbolic_sizes_share_places_of_equal_size():
    n = Dim("s0")
    program = chain(5)
    sized = tuple(replace(b, shape=(index(n) * 8,)) for b in program.buffers)
    planned = plan_memory(replace(program, buffers=sized))
    assert planned.workspace.hint() == 2 * n.hint * 8 * 4
    offsets = [o.hint() for _, o in planned.slots]
    assert sorted(set(offsets)) == [0, n.hint * 8 * 4]


# ---------------------------------------------------------------- indices


def test_invert_index_finds_the_point():
    h, s, d = (Axis(n, index(e)) for n, e in (("h", 12), ("s", 128), ("d", 64)))
    where = index(h) * 8192 + index(s) * 64 + d
    m, n = Axis("m", index(128)), Axis("n", index(768))
    target = index(n) // 64 * 8192 + index(m) * 64 + index(n) % 64
    at = dict(invert_index(where, (h, s, d), target) or ())
    assert at == {h: index(n) // 64, s: index(m), d: index(n) % 64}
    assert invert_index(index(s) + index(d), (s, d), index(0)) is None


def test_invert_index_needs_no_signs_where_terms_show_the_digits():
    n = Dim("n", low=-100)
    rows, columns = index(n) + 5, index(n) + 7
    store = Axis("c", index(3)), Axis("h", rows), Axis("w", columns)
    load = Axis("i", index(3)), Axis("j", rows), Axis("k", columns)

    def at(c, h, w):
        return index(c) * rows * columns + index(h) * columns + index(w)

    found = dict(invert_index(at(*store), store, at(*load)) or ())
    assert found == {a: index(b) for a, b in zip(store, load, strict=True)}
    turned = dict(invert_index(at(*store), store, at(load[0], load[1], 2)) or ())
    assert turned[store[2]] != index(2)  # nothing says that there are three columns


def test_masks_narrow_axes():
    i = Axis("i", index(16))
    position = ir.IndexValue(index(i), I64)
    low = op("lt", position, ir.Const(8, I64), dtype=BOOL)
    high = op("ge", position, ir.Const(8, I64), dtype=BOOL)
    assert axis_ranges(low) == {i: (0, 8)} and axis_ranges(high) == {i: (8, 16)}
    s, d = Axis("s", index(4)), Axis("d", index(16))
    where = index(s) * 16 + d
    at = dict(invert_masked(where, (s, d), index(i) + 24, low) or ())
    assert at == {s: index(1), d: index(i) + 8}


# ---------------------------------------------------------------- folding, sharing, simplifying


def test_positions_fold():
    i = ir.IndexValue(index(Axis("i", index(8))), I64)
    zero, eight = ir.Const(0, I64), ir.Const(8, I64)
    less = fold(op("lt", i, zero, dtype=BOOL))
    assert less == ir.Const(False, BOOL)
    assert fold(op("where", less, zero, i)) == i
    assert fold(op("min", i, eight)) == i and fold(op("max", i, eight)) == eight
    assert fold(op("add", i, eight)) == ir.IndexValue(i.index + 8, I64)
    assert fold(op("eq", i, eight, dtype=BOOL)) == ir.Const(False, BOOL)
    assert isinstance(fold(op("eq", i, zero, dtype=BOOL)), ir.Op)


def test_positions_counted_from_known_positions_fold():
    i = index(Axis("i", index(8)))
    a = ir.Let("a", ir.Const(3, I64))
    b = ir.Let("b", ir.IndexValue(index(Value("a")) * 8 + i, I64))
    assert fold_block((a, b, ir.Store("t", index(Value("b")) % 16, ir.Const(0.0, F32)))) == (
        ir.Store("t", (i + 24) % 16, ir.Const(0.0, F32)),
    )


def test_shared_values_are_named_and_invariants_leave_loops():
    r = Axis("r", index(8))
    row = ir.Load("s", index(Axis("i", index(4))), F32)
    scale = op("rsqrt", op("exp", row))
    body = ir.Store("y", index(r), op("mul", ir.Load("x", index(r), F32), scale))
    shared = share_values((ir.Loop((r,), (body,)), ir.Store("z", index(0), scale)))
    assert [type(s) for s in shared] == [ir.Let, ir.Loop, ir.Store]
    assert shared[2].value == ir.Ref(shared[0].name, F32)
    stored = share_values((ir.Store("x", index(0), row), ir.Loop((r,), (body,))))
    assert any(isinstance(s, ir.Loop) for s in stored)


def test_axes_merge_split_and_vanish():
    a, b, one = Axis("a", index(4)), Axis("b", index(6)), Axis("o", index(1))
    where = index(a) * 6 + index(b) + index(one) * 24
    store = ir.Store("y", where, ir.Load("x", where, F32))
    simple = simplify_nest(ir.LoopNest("n", (one, a, b), (store,)))
    assert [int(x.extent) for x in simple.axes] == [24]
    n = Axis("n", index(24))
    heads = ir.Store("y", index(n) // 6 * 100 + index(n) % 6, ir.Load("x", index(n), F32))
    split = simplify_nest(ir.LoopNest("n", (n,), (heads,)))
    assert [int(x.extent) for x in split.axes] == [4, 6]
    assert all(not t[0][1:] for t in split.body[0].index.terms)


def test_one_of_several_divisors_is_taken_whatever_names_hash_to():
    for name in "abcdefghijklmnopqrst":
        n = Axis(name, index(64))
        where = index(n) // 32 * 1000 + index(n) // 16 * 10
        store = ir.Store("y", index(n), ir.Load("x", where, F32))
        assert [int(x.extent) for x in split_divided_axes(ir.LoopNest("n", (n,), (store,))).axes][
            -1
        ] == 16


# ---------------------------------------------------------------- data


def test_programs_survive_pickle_and_compare():
    program = chain(3)
    table = program.buffer_table()
    again = pickle.loads(pickle.dumps(program))
    assert again == program and hash(again.nodes[0]) == hash(program.nodes[0])
    assert again.buffer("x") == table["x"]


def test_out_of_bounds_access_is_seen_by_the_interpreter():
    i = Axis("i", index(4))
    p = ir.Let("p", ir.Load("at", index(i), I64))
    store = ir.Store("y", index(i), ir.Load("x", index(Value("p")), F32))
    buffers = (buffer("x", "input", 4), buffer("at", "input", 4, dtype=I64))
    out = buffer("y", "output", 4)
    nest = ir.LoopNest("gather", (i,), (p, store))
    program = ir.LoopProgram(("x", "at"), (*buffers, out), (nest,), (whole(out),))
    verify(program)
    x = torch.arange(4.0)
    (result,) = interpret(program, {}, [x, torch.tensor([3, 2, 1, 0])])
    assert result.tolist() == [3, 2, 1, 0]
    with pytest.raises(CompilerBug, match=r"accessed at 0\.\.4"):
        interpret(program, {}, [x, torch.tensor([4, 2, 1, 0])])


def test_reductions_give_eagers_values():
    cases = {
        "sum": torch.sum,
        "prod": torch.prod,
        "max": torch.amax,
        "min": torch.amin,
        "argmax": torch.argmax,
        "argmin": torch.argmin,
    }
    x = torch.randn(4, 8)
    x[1, 2] = torch.nan
    i, j = Axis("i", index(4)), Axis("j", index(8))
    for name, eager in cases.items():
        dtype = I64 if name.startswith("arg") else F32
        load = ir.Load("x", index(i) * 8 + j, F32)
        reduce = ir.Reduce((j,), (), (ir.Reduction(("r",), name, load, dtype),))
        out = buffer("y", "output", 4, dtype=dtype)
        nest = ir.LoopNest(name, (i,), (reduce, ir.Store("y", index(i), ir.Ref("r", dtype))))
        program = ir.LoopProgram(("x",), (buffer("x", "input", 4, 8), out), (nest,), (whole(out),))
        verify(program)
        (result,) = interpret(program, {}, [x])
        torch.testing.assert_close(result, eager(x, dim=-1), equal_nan=True)


def test_index_of_nothing_is_zero():
    assert Index() == index(0) and int(Index()) == 0


@pytest.mark.parametrize("known", [False, True])
def test_a_known_condition_is_negated(known):
    negated = ir.Op("not", (ir.Const(known, torch.bool),), torch.bool)
    assert fold(negated) == ir.Const(not known, torch.bool)


def test_what_two_iterations_share_is_told_by_their_axes():
    row, column = Axis("row", index(4)), Axis("column", index(8))
    here = index(row) * 8 + column
    assert same_iteration(here, (row, column), here, [row, column])
    assert not same_iteration(here, (row, column), here + 8, [row, column])
