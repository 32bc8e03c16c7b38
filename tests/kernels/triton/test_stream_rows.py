"""Products whose weights are loaded ahead, in Triton's interpreter against the reference."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.kernel_source import WAIT, join_sources
from jitney.kernels.triton.schedule_nest import Schedule, schedule_nest
from jitney.loops.index import Axis, index
from jitney.loops.ir import Let, Load, LoopNest, Op, Reduce, Reduction, Ref, Store
from jitney.loops.target import Target

F32 = torch.float32
FIXED = frozenset(("w0", "w1"))


def product(rows, depth):
    """``out = (w0 @ x) * (w1 @ x)``."""
    n, k = Axis("n", index(rows)), Axis("k", index(depth))
    sums = tuple(
        Reduction(
            (f"acc{i}",),
            "sum",
            Op("mul", (Load("x", index(k), F32), Load(f"w{i}", index(n) * depth + k, F32)), F32),
            F32,
        )
        for i in range(2)
    )
    value = Op("mul", (Ref("acc0", F32), Ref("acc1", F32)), F32)
    return LoopNest("product", (n,), (Reduce((k,), (), sums), Store("out", index(n), value)))


def run(source, given):
    text = source.text(interpret=True)
    kernel = load_function(text)
    kernel[tuple(int(g) for g in source.grid)](*[given[p.name] for p in source.parameters])


@pytest.mark.parametrize("ahead", [0, 1, 2, 9])
@pytest.mark.parametrize("rows,depth,x_block", [(4, 128, 2), (5, 100, 2), (3, 32, 1)])
def test_equals_torch(rows, depth, x_block, ahead):
    source = emit_nest(product(rows, depth), Schedule(x_block, 32, 0, 1, ahead=ahead), FIXED)
    given = {"x": torch.randn(depth), "out": torch.full((rows,), 7.0)}
    given |= {f"w{i}": torch.randn(rows, depth) for i in range(2)}
    run(source, given)
    want = (given["w0"] @ given["x"]) * (given["w1"] @ given["x"])
    torch.testing.assert_close(given["out"], want, rtol=1e-4, atol=1e-3)


def normed(rows, depth):
    """``product`` of ``x * sum(x * x)``, the row before it as in a norm, plus the row's number."""
    k = Axis("k0", index(depth))
    square = Op("mul", (Load("x", index(k), F32), Load("x", index(k), F32)), F32)
    first = Reduce((k,), (), (Reduction(("ss",), "sum", square, F32),))
    nest = product(rows, depth)
    (reduce, store), n = nest.body, nest.axes[0]
    shared = Let("shared", Op("square", (Ref("ss", F32),), F32))
    root = Op("sqrt", (Ref("shared", F32),), F32)
    own = Let("own", Op("mul", (root, Load("w0", index(n) * depth + reduce.axes[0], F32)), F32))
    again = Op("mul", (Ref("own", F32), Load("x", index(reduce.axes[0]), F32)), F32)
    scaled = (
        Reduction(("acc0",), "sum", again, F32),
        Reduction(("acc1",), "sum", Op("mul", (reduce.results[1].value, root), F32), F32),
    )
    value = Op("add", (store.value, Load("b", index(n), F32)), F32)
    body = (first, Reduce(reduce.axes, (shared, own), scaled), Store("out", index(n), value))
    return LoopNest("normed", nest.axes, body)


@pytest.mark.parametrize("rows,depth,x_block", [(8, 64, 2), (7, 60, 2), (3, 32, 1)])
@pytest.mark.parametrize("turns", [2, 3])
def test_rows_in_turn(rows, depth, x_block, turns):
    schedule = Schedule(x_block, 32, 0, 1, ahead=1, turns=turns)
    source = emit_nest(normed(rows, depth), schedule, FIXED)
    assert "turn in range" in source.body
    given = {"x": torch.randn(depth) / 8, "b": torch.randn(rows), "out": torch.full((rows,), 7.0)}
    given |= {f"w{i}": torch.randn(rows, depth) for i in range(2)}
    run(source, given)
    y = given["x"] * (given["x"] ** 2).sum()
    want = (given["w0"] @ y) * (given["w1"] @ y) + given["b"]
    torch.testing.assert_close(given["out"], want, rtol=1e-4, atol=1e-3)


def test_only_weights_are_read_before_the_wait():
    source = emit_nest(product(4, 128), Schedule(2, 32, 0, 1, ahead=2), FIXED)
    before, after = source.text(early=True).split(WAIT)
    labels = {p.name: p.label for p in source.parameters}
    assert before.count("tl.load") == 4  # two tiles of each weight
    assert f"tl.load({labels['x']} " not in before and f"tl.load({labels['x']} " in after
    assert "tl.store" not in before
    written = emit_nest(product(4, 128), Schedule(2, 32, 0, 1, ahead=2), frozenset(("w0",)))
    assert written.text(early=True).split(WAIT)[0].count("tl.load") == 2


def test_a_fixed_vector_is_read_before_the_wait_and_the_row_once():
    nest = normed(8, 64)
    (reduce,) = [s for s in nest.body[1:] if isinstance(s, Reduce)]
    scaled = Op("mul", (reduce.results[0].value, Load("g", index(reduce.axes[0]), F32)), F32)
    results = (replace(reduce.results[0], value=scaled), reduce.results[1])
    body = (nest.body[0], replace(reduce, results=results), nest.body[2])
    schedule = Schedule(2, 32, 0, 1, ahead=1, turns=2)
    source = emit_nest(replace(nest, body=body), schedule, FIXED | {"g"})
    before, after = source.text(early=True).split(WAIT)
    labels = {p.name: p.label for p in source.parameters}
    assert f"tl.load({labels['g']} " in before and f"tl.load({labels['g']} " not in after
    assert f"tl.load({labels['x']} " not in before and after.count(f"tl.load({labels['x']} ") == 1
    given = {"x": torch.randn(64) / 8, "b": torch.randn(8), "out": torch.full((8,), 7.0)}
    given |= {f"w{i}": torch.randn(8, 64) for i in range(2)} | {"g": torch.randn(64)}
    run(source, given)
    y = given["x"] * (given["x"] ** 2).sum()
    want = (given["w0"] @ (y * given["g"])) * (given["w1"] @ y) + given["b"]
    torch.testing.assert_close(given["out"], want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "rows,depth,programs",
    [(14336, 4096, 1024), (1024, 4096, 512), (8192, 2048, 512), (1024, 8192, 512)],
)
def test_programs_take_rows_in_turn_for_one_round_or_two(rows, depth, programs):
    target = Target("cuda", "NVIDIA H200", multiprocessors=132, capability=(9, 0))
    nest = normed(rows, depth)
    source = emit_nest(nest, schedule_nest(nest, target), FIXED)
    assert int(source.grid[0]) == programs and "for turn in" in source.body


def test_gpus_whose_launches_cannot_overlap_get_no_wait():
    source = emit_nest(product(4, 64), Schedule(2, 32, 0, 1, ahead=2), FIXED)
    assert source.waits and WAIT in source.text(early=True) and "gdc" not in source.text()


def test_a_joined_kernel_waits_if_every_part_does():
    parts = [emit_nest(product(rows, 64), Schedule(2, 32, 0, 1, ahead=2), FIXED) for rows in (4, 6)]
    assert join_sources("both", tuple(parts)).waits
    lazy = replace(parts[0], body=parts[0].body.replace(WAIT, "pass"))
    assert not lazy.waits and not join_sources("both", (lazy, parts[1])).waits
