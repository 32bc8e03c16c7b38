"""Programs as users write them, compiled for a GPU that Triton's interpreter stands in for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import jitney
from jitney import gpu_pipeline
from jitney.kernels.triton.kernel_source import KernelSource
from tests.equal import assert_equal
from tests.pretend_gpu import SMALL_GPU, GpuLost, pretend_gpu


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[KernelSource]:
    return pretend_gpu(monkeypatch)


def test_training_runs_through_kernels_of_a_gpu(kernels: list[KernelSource]) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    compiled = jitney.compile(layer)
    weights = torch.randn(16)
    for rows in (4, 6, 7):
        x = torch.randn(rows, 8)
        found, wanted = (
            torch.autograd.grad((f(x) - weights).square().sum(), list(layer.parameters()))
            for f in (compiled, layer)
        )
        assert_equal(found, wanted)
    assert kernels


@pytest.mark.parametrize(
    ("capability", "dtype", "why"),
    [((7, 0), torch.float32, "compute capability 7.0"), ((7, 5), torch.bfloat16, "no bfloat16")],
)
def test_a_gpu_that_is_too_old_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype, why: str
) -> None:
    check = gpu_pipeline.check_runnable
    pretend_gpu(monkeypatch, replace(SMALL_GPU, capability=capability))
    monkeypatch.setattr(gpu_pipeline, "check_runnable", check)
    compiled, x = jitney.compile(torch.special.expm1), torch.ones(3, dtype=dtype)
    with pytest.warns(UserWarning, match=f"runs eager: a GPU has {why}"):
        assert torch.equal(compiled(x), torch.special.expm1(x))


class Cache:
    """Keys and values of the tokens so far, in memory for 16."""

    def __init__(self) -> None:
        self.keys, self.values, self.filled = torch.zeros(1, 2, 16, 8), torch.zeros(1, 2, 16, 8), 0


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: Cache) -> torch.Tensor:
    end = cache.filled + k.size(2)
    cache.keys[:, :, cache.filled : end] = k
    cache.values[:, :, cache.filled : end] = v
    cache.filled = end
    return F.scaled_dot_product_attention(q, cache.keys[:, :, :end], cache.values[:, :, :end])


def test_attention_over_the_filled_part_of_a_cache(kernels: list[KernelSource]) -> None:
    ours, eagers = Cache(), Cache()
    compiled = jitney.compile(attend)
    for seed in range(5):
        torch.manual_seed(seed)
        step = [torch.randn(1, 2, 1, 8) for _ in range(3)]
        assert_equal(compiled(*step, ours), attend(*step, eagers))
        assert_equal(ours.keys, eagers.keys)
    assert kernels


def test_training_through_attention(kernels: list[KernelSource]) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(3))

    def attend() -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True).sin()

    found, wanted = (
        torch.autograd.grad(f().sum(), (q, k, v))
        for f in (jitney.compile(attend, fullgraph=True), attend)
    )
    assert_equal(found, wanted)
    assert kernels


def test_numbers_that_change_reach_kernels(kernels: list[KernelSource]) -> None:
    def weigh(x: torch.Tensor, by: float, more: int) -> torch.Tensor:
        return x.clamp(-by, by) + x.long() * more

    compiled = jitney.compile(weigh, fullgraph=True, dynamic=True)
    x = torch.randn(9) * 9
    for by, more in ((0.1, 3), (1.7, 2**40), (3.3, -5)):
        assert_equal(compiled(x, by, more), weigh(x, by, more))
    assert kernels


def test_bfloat16_is_rounded(kernels: list[KernelSource]) -> None:
    def mix(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.bfloat16(), x.double().bfloat16(), n.bfloat16() * 2, x.bfloat16().exp()

    x, n = torch.randn(99) * 3, torch.arange(99) * 1001
    x[0], x[1] = math.nan, math.inf
    assert_equal(jitney.compile(mix, fullgraph=True)(x, n), mix(x, n))
    assert kernels


def test_bfloat16_is_compared_by_value(kernels: list[KernelSource]) -> None:
    def compare(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.bool(), x.logical_not(), x.count_nonzero(), x == x.flip(0)

    x = torch.tensor([0.0, -0.0, math.nan, -math.inf, 1e-40, 0.0]).bfloat16()
    assert_equal(jitney.compile(compare, fullgraph=True)(x), compare(x))
    assert kernels


def test_a_product_of_bfloat16(kernels: list[KernelSource]) -> None:
    x, w = torch.randn(2, 64, 64).bfloat16()

    def multiply() -> torch.Tensor:
        return torch.relu(x @ w.t())

    assert_equal(jitney.compile(multiply, fullgraph=True)(), multiply())
    assert any("tl.dot" in one.text(interpret=True) for one in kernels)


def test_sums_of_bfloat16_in_memory(kernels: list[KernelSource]) -> None:
    def collect(rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 3, dtype=rows.dtype).index_add(0, at, rows)

    rows, at = torch.randint(9, (8, 3)).bfloat16(), torch.tensor([1, 3, 1, 1, 0, 3, 3, 3])
    assert_equal(jitney.compile(collect, fullgraph=True)(rows, at), collect(rows, at))
    assert any("atomic_add" in one.text(interpret=True) for one in kernels)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("shape", [(3, 400), (400, 3), (2, 3000)], ids=str)
def test_sums_of_few_bits_wrap_before_more_is_made_of_them(
    shape: tuple[int, int], dtype: torch.dtype, kernels: list[KernelSource]
) -> None:
    def sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = x.sum(1, dtype=dtype), x.sum(0, dtype=dtype)
        return rows.float(), rows // 3, columns.float(), columns > 100

    x = torch.randint(100, 127, shape)
    assert_equal(jitney.compile(sums, fullgraph=True)(x), sums(x))
    assert kernels


def test_an_index_out_of_range_ends_a_gpu(kernels: list[KernelSource]) -> None:
    def pick(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] * 2

    x, compiled = torch.randn(5), jitney.compile(pick)
    assert_equal(compiled(x, torch.tensor([1, 4])), pick(x, torch.tensor([1, 4])))
    with pytest.raises(GpuLost):
        compiled(x, torch.tensor([1, 7]))
    assert kernels


def test_errors_are_eagers(kernels: list[KernelSource], monkeypatch: pytest.MonkeyPatch) -> None:
    # `torch.compile`, once used, turns validation off for the process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def density(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(0.0, scale).log_prob(x)

    x, compiled = torch.randn(5), jitney.compile(density)
    assert_equal(compiled(x, torch.tensor(2.0)), density(x, torch.tensor(2.0)))
    with pytest.raises(ValueError, match="Expected parameter scale"):
        compiled(x, torch.tensor(-1.0))
    assert kernels


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_index_into_rows_that_are_none(dynamic: bool, kernels: list[KernelSource]) -> None:
    """Where nothing is read or written, eager checks no index on a GPU."""

    def columns(x: torch.Tensor, y: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
        i = torch.arange(y.shape[0])
        few = x[rows:]
        wide = few.gather(1, i.expand(few.shape[0], -1))
        return few[:, i], wide, few.index_fill(1, i, 2.0), few.index_put((i[:0], i[:0]), y[:0])

    compiled = jitney.compile(columns, dynamic=dynamic, options={"verify": True})
    for rows, size in ((1, 3), (2, 4), (4, 9), (4, 8)):
        x, y = torch.randn(4, 5), torch.randn(size)
        assert_equal(compiled(x, y, rows), columns(x, y, rows))
    assert kernels


def test_a_second_fusion_gives_names_of_its_own(kernels: list[KernelSource]) -> None:
    def averaged(x: torch.Tensor) -> torch.Tensor:
        return -x.index_reduce(0, torch.arange(x.shape[0]) % 2, x, "mean")

    x = torch.randn(2)
    compiled = jitney.compile(averaged, options={"verify": True, "eager_on_bug": False})
    assert_equal(compiled(x), averaged(x))
    assert kernels


def test_the_one_of_a_row_that_counts_is_gathered(kernels: list[KernelSource]) -> None:
    """By an index that the sum's own body names."""

    def chosen(table: torch.Tensor, places: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        columns = torch.arange(places.shape[0])
        return torch.where(columns == which[:, None], table[places], 0).sum(1)

    table, places, which = torch.randn(50), torch.randint(0, 50, (33,)), torch.arange(0, 33, 5)
    found = jitney.compile(chosen, fullgraph=True)(table, places, which)
    assert_equal(found, chosen(table, places, which))
    assert kernels


def test_a_table_by_codes_times_a_vector(kernels: list[KernelSource]) -> None:
    """The weights are a table's, which codes of rows look up: they cannot be loaded before."""

    def product(table: torch.Tensor, codes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (table[codes] * x).sum(1)

    table, x = torch.randint(-4, 5, (16,)).float(), torch.randint(-4, 5, (1024,)).float()
    codes = torch.randint(0, 16, (300, 1024))
    found = jitney.compile(product, fullgraph=True)(table, codes, x)
    assert_equal(found, product(table, codes, x))
    assert kernels


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_long_reductions_of_any_length_are_dealt_out(
    dynamic: bool, kernels: list[KernelSource]
) -> None:
    def reduced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.argmax(), x.amax(0), x.var()

    compiled = jitney.compile(reduced, dynamic=dynamic, options={"verify": True})
    for rows in (22003, 3) if dynamic else (22003,):
        x = torch.randint(-9, 10, (rows, 3)).float()  # whose sums are exact
        for mine, right in zip(compiled(x), reduced(x), strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)
    assert sum("part" in one.name for one in kernels) >= 3


def test_a_scan_of_one_long_row_is_left_to_eager(kernels: list[KernelSource]) -> None:
    def summed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2).cumsum(-1), x[:, :100].cumsum(-1)

    x = torch.randint(9, (1, 40000)).float()
    assert_equal(jitney.compile(summed)(x), summed(x))
    assert sum("associative_scan" in one.text(interpret=True) for one in kernels) == 1


def first_of_sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sums = torch.stack([row.sum() for row in x.split(1)])
    return sums[None, :1] @ y[None], sums


def test_what_is_read_back_of_a_kernel_s_results_was_written(kernels: list[KernelSource]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    found, wanted = (
        torch.autograd.grad([r.sin().sum() for r in f(x, y)], (x, y))
        for f in (jitney.compile(first_of_sums, dynamic=True), first_of_sums)
    )
    assert_equal(found, wanted)
    assert kernels
