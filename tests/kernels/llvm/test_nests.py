"""Compiled loop nests against eager: dtypes, shapes, strides, reductions, indexing; both ISAs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.events import log
from jitney.kernels.llvm.emit_node import NodeEmitter
from tests.kernels.llvm.compiled import (
    HOST,
    avx2_target,
    check,
    compile_function,
    program_of,
)

TARGETS = {"host": HOST, "avx2": avx2_target()}
FLOATS = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def ints(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


FLOAT_CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "broadcast": (lambda x, y: x * y + 1, [randn(33, 1, 17), randn(5, 1)]),
    "softmax row": (lambda x: x.softmax(-1), [randn(7, 129)]),
    "softmax column": (lambda x: x.softmax(0), [randn(37, 29)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (100,), w, b),
                   [randn(13, 100), randn(100), randn(100)]),
    "column sum": (lambda x: x.sum(0), [randn(300, 77)]),
    "row mean": (lambda x: x.mean(1), [randn(30, 77)]),
    "sum of middle": (lambda x: x.sum((0, 2)), [randn(10, 11, 12)]),
    "extremes": (lambda x: (x.amax(1), x.amin(0), x.argmax(1), x.argmin(0)), [randn(40, 50)]),
    "transpose": (lambda x, y: x.t() + y, [randn(129, 70), randn(70, 129)]),
    "transpose to last": (lambda x: x.permute(0, 3, 1, 2).contiguous() * 2, [randn(2, 9, 11, 3)]),
    "rotary": (_rotary, [randn(2, 3, 50, 64), randn(50, 64), randn(50, 64)]),
    "cat": (lambda x, y: torch.cat([x, y], 1) * 2, [randn(9, 40), randn(9, 13)]),
    "pad": (lambda x: F.pad(x, (2, 3, 1, 0)), [randn(9, 40)]),
    "strided": (lambda x: x[:, ::2] + x[:, 1::2].flip(1), [randn(20, 40)]),
    "where": (lambda x: torch.where(x > 0, x, x.exp() - 1), [randn(30, 21)]),
    "scalar": (lambda x: x * 3 + 1, [torch.tensor(2.0)]),
    "empty": (lambda x: (x + 1, x.sum(0)), [randn(0, 5)]),
}  # fmt: skip

OTHER_CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "embedding": (lambda i, w: F.embedding(i, w), [ints(0, 99, 3, 17), randn(99, 40)]),
    "gather": (lambda x, i: x.gather(1, i), [randn(9, 40), ints(0, 40, 9, 7)]),
    "index add": (lambda x, i, v: x.index_add(0, i, v),
                  [randn(10, 33), ints(0, 10, 50), randn(50, 33)]),
    "scatter add": (lambda x, i, v: x.scatter_add(1, i, v),
                    [randn(10, 33), ints(0, 33, 10, 70), randn(10, 70)]),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), [randn(30, 200), ints(0, 200, 30)]),
    "bool": (lambda x: (x.any(1), x.all(0), ~x, x.sum(1), x.t().contiguous()), [randn(30, 20) > 0]),
    "mutation": (lambda x: x.add_(1), [randn(10, 33)]),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
                   [randn(4, 8, 10, 10), randn(8), randn(8)]),
    "pools": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2)), [randn(2, 4, 11, 10)]),
    "rounding": (lambda x: (x.round(), x.floor(), x.sign(), x % 1.5, x // 0.7, torch.fmod(x, 0.7)),
                 [randn(50) * 3]),
    "gelu": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x)), [randn(30, 20) * 3]),
    "powers": (lambda x: (x**2, x.abs() ** 0.5, x.abs() ** 1.7, x**3), [randn(50) * 3]),
    "library": (lambda x: (x.tan(), x.atan(), x.log1p(), x.lgamma()), [randn(53).abs()]),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FLOAT_CASES)
def test_floats(name: str, dtype: str, target: str) -> None:
    function, args = FLOAT_CASES[name]
    narrow = dtype in ("bf16", "f16")
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if narrow else {"rtol": 2e-5, "atol": 2e-5}
    check(function, *(a.to(FLOATS[dtype]) for a in args), target=TARGETS[target], **tolerance)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", OTHER_CASES)
def test_others(name: str, target: str) -> None:
    function, args = OTHER_CASES[name]
    check(function, *args, target=TARGETS[target], lowered=False, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers(dtype: torch.dtype, target: str) -> None:
    low = 0 if dtype == torch.uint8 else -50
    x, y = ints(low, 50, 77, dtype=dtype), ints(1, 9, 77, dtype=dtype)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        whole = (x // y, x % y, torch.fmod(x, y), x * y - 3, x & y, x ^ y, x << 1, x >> 1)
        return (*whole, -x, x.abs(), x > y, x.float() / 3, x.sum(), x.amax(), x.argmin())

    check(function, x, y, target=TARGETS[target], lowered=False)
    check(lambda x: (x // 3, x % 7, torch.fmod(x, 5)), x, target=TARGETS[target])


@pytest.mark.parametrize("length", [1, 3, 15, 16, 17, 33, 100, 1025])
@pytest.mark.parametrize("target", TARGETS)
def test_tails(length: int, target: str) -> None:
    """Every length gives the elements it has, and nothing is written behind them."""
    compiled = compile_function(lambda x: x.mul_(2), randn(length), target=TARGETS[target])
    memory = torch.ones(length + 40)
    compiled(memory[:length])
    assert torch.equal(memory[:length], torch.full((length,), 2.0))
    assert torch.equal(memory[length:], torch.ones(40))


def test_nan_and_zero() -> None:
    special = torch.tensor([[float("nan"), 1.0, -0.0, 0.0], [-float("inf")] * 4, [0.0, -0.0, 2, 2]])
    check(lambda x: (x.amax(1), x.argmax(1), x.argmin(1), x.relu(), torch.maximum(x, -x)), special)
    check(lambda x: (x.bfloat16(), x.half(), x.bool(), x.abs(), x.neg()), special)


def test_bfloat16_rounds_to_even() -> None:
    bits = torch.arange(0, 1 << 16, 7, dtype=torch.int32) + 0x3F800000
    x = torch.cat([bits, bits + 0x8000, bits | 0x7F800000]).view(torch.float32)
    for target in TARGETS.values():
        ours = compile_function(lambda x: x.bfloat16(), x, target=target)(x)[0]
        assert torch.equal(ours.nan_to_num(7.0), x.bfloat16().nan_to_num(7.0))


@pytest.mark.parametrize("shape,dim", [((3_000_017,), 0), ((70_001, 13), 0), ((3, 300_007), 1)])
def test_long_sums_are_accurate(shape: tuple[int, ...], dim: int) -> None:
    """The error is at most twice eager's, plus 1e-6 of the sum of sizes."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    exact = x.double().sum(dim)
    ours = compile_function(lambda x: x.sum(dim), x)(x)[0].double()
    eager = x.sum(dim).double()
    bound = 2 * (eager - exact).abs().max() + 1e-6 * exact.abs().max()
    assert (ours - exact).abs().max() <= bound


def test_long_reductions_find_positions() -> None:
    x = randn(3, 300_007)
    check(lambda x: (x.argmax(1), x.argmin(), x.amax(1), x.softmax(1)), x, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("change", [torch.sub, torch.div])
def test_what_long_rows_depend_on_is_not_found_anew_from_changed_rows(change: Any) -> None:
    """A short reduction stands before a loop long enough to be run in chunks."""

    def over_its_beginning(x: torch.Tensor) -> torch.Tensor:
        return x.copy_(change(x, x[:, :100].amax(1, keepdim=True)))

    x = randn(8, 20_000)
    expected = over_its_beginning(x.clone())
    log.clear()
    jitney.compile(over_its_beginning, options={"cache": False})(x)
    assert not log.events("interpreted_node")
    torch.testing.assert_close(x, expected)


def test_threads_do_not_change_results() -> None:
    x = randn(1000, 1001)
    compiled = compile_function(lambda x: (x.sum(), x.sum(0), x.exp()), x)
    before = torch.get_num_threads()
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(compiled(x))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_no_lane_wanted_reads_from_elsewhere(target: str) -> None:
    """A part of a concatenation is far outside the other's memory: its address is not used."""
    program, _ = program_of(
        lambda x, y: F.pad(torch.cat([x, y], 0), (1, 1)), randn(2, 40), randn(1, 40)
    )
    text = "".join(NodeEmitter(TARGETS[target]).emit(node).ir for node in program.nodes)
    addresses = set(re.findall(r"(%p\d+) = select i1 %[\w.]+, ptr %p\d+, ptr [%@][\w.]+", text))
    loads = re.findall(r"@llvm\.masked\.load\.\w+\.p0\(ptr (%\w+)", text)
    loads += re.findall(r"load <\d+ x float>, ptr (%\w+)", text)
    assert loads and addresses.issuperset(loads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_one_mask_for_all_lanes_needs_no_masked_access(dtype: torch.dtype) -> None:
    """AVX2 masks vectors of 32 and 64 bits alone; an edge of an image is one choice of address."""

    def edges(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 0, 1, 2, 3, 1), value=1)

    x = randn(2, 5, 7, 40).to(dtype)
    check(edges, x, target=avx2_target())
    program, _ = program_of(edges, x)
    text = "".join(NodeEmitter(avx2_target()).emit(node).ir for node in program.nodes)
    assert "masked" not in text and "@jitney.other." in text


def test_a_scalar_tail_is_shorter_than_a_vector() -> None:
    """Without masks, what is left of the unrolled steps runs by single vectors first."""
    program, _ = program_of(lambda x: x.sum(-1), randn(8, 61))
    text = "".join(NodeEmitter(avx2_target()).emit(node).ir for node in program.nodes)
    wanted = [("16", "48"), ("8", "56"), ("1", "61")]
    loops = re.findall(r"= add nsw i64 %i\d+, (\d+)\n.* = icmp slt i64 %e\d+, (\d+)", text)
    assert [pair for pair in loops if pair[1] != "8"] == wanted


def test_positions_become_floats_by_their_low_bits() -> None:
    """AVX2 converts no vectors of 64-bit integers; a position that may be longer stays whole."""

    def positions(x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(-20, 30) + torch.arange(50) * (1 << 27) // 2

    x = randn(3, 50)
    check(positions, x, target=avx2_target())
    program, _ = program_of(lambda x: x * torch.arange(-20, 30), x)
    text = "".join(NodeEmitter(avx2_target()).emit(node).ir for node in program.nodes)
    assert "sitofp <8 x i32>" in text and "sitofp <8 x i64>" not in text


STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pairs": lambda x: x[:, ::2].clone(),
    "second of pairs": lambda x: x[:, 1::2].clone(),
    "of three": lambda x: x[:, 2::3].clone(),
    "of five": lambda x: x[:, ::5].clone(),
    "backwards": lambda x: x.flip(1),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("length", [1, 2, 9, 15, 16, 31, 34, 77])
@pytest.mark.parametrize("dtype", [*FLOATS.values(), *INTS, torch.bool])
def test_lanes_a_step_apart(name: str, length: int, dtype: torch.dtype) -> None:
    """Read without gathers where there are no masked instructions, of every length."""
    x = ints(0, 100, 3, length).to(dtype)
    check(STRIDED[name], x, target=avx2_target())


def test_nothing_beside_lanes_a_step_apart_is_read() -> None:
    """What ends a tensor ends the last vector read of it."""
    for name, fn in STRIDED.items():
        program, _ = program_of(fn, randn(3, 80))
        text = "".join(NodeEmitter(avx2_target()).emit(node).ir for node in program.nodes)
        assert "gather" not in text, name
    program, _ = program_of(STRIDED["pairs"], randn(1, 16))
    text = "".join(NodeEmitter(avx2_target()).emit(node).ir for node in program.nodes)
    shared = "<i32 0, i32 2, i32 4, i32 6, i32 9, i32 11, i32 13, i32 15>"
    assert shared in text and re.search(r"getelementptr float, ptr \S+, i64 7\n", text)


def test_the_rest_of_a_row_runs_by_narrower_vectors() -> None:
    """15 elements without masks: 8, 4, 2 and 1."""
    program, _ = program_of(lambda x: x + 1, randn(3, 15))
    text = "".join(NodeEmitter(avx2_target()).emit(node).ir for node in program.nodes)
    assert re.findall(r"= fadd (<. x float>|float) ", text)[:4] == [
        "<8 x float>", "<4 x float>", "<2 x float>", "float",
    ]  # fmt: skip


WINDOWS = [
    (2, 9, 14, 14, 7, 1),
    (1, 16, 7, 7, 7, 1),
    (3, 5, 13, 11, 5, 1),
    (1, 40, 28, 28, 5, 2),
    (1, 4, 112, 112, 3, 1),  # long loops, cut into chunks
    (2, 64, 9, 9, 3, 1),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", WINDOWS)
def test_windows_at_several_points_at_once(
    shape: tuple[int, ...], channels_last: bool, target: str
) -> None:
    n, channels, height, width, size, step = shape
    x, weight = randn(n, channels, height, width), randn(channels, 1, size, size)
    x[0, 0, 0, 0], x[-1, -1, -1, -1] = torch.nan, torch.inf
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    tolerance = {"rtol": 2e-5, "atol": 2e-5}
    check(
        lambda x, w: F.conv2d(x, w, None, step, size // 2, 1, channels),
        *(x, weight), target=TARGETS[target], **tolerance,
    )  # fmt: skip
    check(lambda x: F.avg_pool2d(x, 3, 1, 1), x, target=TARGETS[target], **tolerance)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8, torch.int64])
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_the_first_of_equals_in_any_layout(order: tuple[int, ...], kind: torch.dtype) -> None:
    """Lanes run over the axis that lies densest, which is not the last in logical order."""
    x = (torch.rand(7, 20, 5) > 0.8).to(kind).permute(order)
    check(lambda x: (x.argmax(), x.argmin(), (x + 1).flatten().argmax(), x[..., 0].argmax()), x)
    if kind.is_floating_point:
        check(lambda x: (x.argmax(), x.argmin()), torch.where(x > 0, torch.nan, x))
        check(lambda x: (x.argmax(), x.argmin()), torch.full_like(x, -torch.inf))
