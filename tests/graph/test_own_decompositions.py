"""Decompositions of our own give what eager's kernels give, layouts included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

import jitney
from jitney import torch_api
from jitney.diagnostics.report import report
from jitney.events import log
from jitney.graph.own_decompositions import OWN
from tests.equal import assert_equal_to_eager

SHUFFLES: dict[str, tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = {
    "shuffle": (torch.ops.aten.pixel_shuffle.default, lambda x: F.pixel_shuffle(x, 2)),
    "unshuffle": (torch.ops.aten.pixel_unshuffle.default, lambda x: F.pixel_unshuffle(x, 2)),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffled_pixels_of_a_gpu_are_contiguous(name: str) -> None:
    """Eager has a kernel that keeps channels last on a CPU alone."""
    op, _ = SHUFFLES[name]
    with FakeTensorMode():
        x = torch.empty(2, 8, 4, 6, device="cuda").to(memory_format=torch.channels_last)
        assert OWN[op](x, 2).is_contiguous()
        assert torch_api.forecast(op, (x, 2), {}).is_contiguous()


@pytest.mark.parametrize("name", SHUFFLES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_shuffled_pixels_lie_as_in_eager(device: str, name: str) -> None:
    _, call = SHUFFLES[name]

    def shuffle(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        out = call(x)
        return out, out.stride()

    x = torch.randn(2, 8, 4, 6, device=device).to(memory_format=torch.channels_last)
    assert_equal_to_eager(shuffle, jitney.compile(shuffle, fullgraph=True), (x,))
    y = x.requires_grad_()
    assert_equal_to_eager(call, jitney.compile(call, fullgraph=True), (y,), training=True)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_gradients_are_unscaled_in_the_graph(dtype: torch.dtype, dynamic: bool | None) -> None:
    def unscale(
        a: torch.Tensor, b: torch.Tensor, found: torch.Tensor, inverse: torch.Tensor
    ) -> torch.Tensor:
        torch._amp_foreach_non_finite_check_and_unscale_([a, b], found, inverse)
        return found + 1

    log.clear()
    compiled = jitney.compile(unscale, fullgraph=True, dynamic=dynamic)
    for rows, odd in ((3, 1.0), (3, float("inf")), (4, float("nan")), (5, 2.0)):
        a = torch.randn(rows, 2, dtype=dtype).t()
        b = torch.tensor(odd, dtype=dtype)
        given = (a, b, torch.zeros(1), torch.tensor(0.3))
        assert_equal_to_eager(unscale, compiled, given)
    assert not report(log.events()).fallbacks


@pytest.mark.parametrize("dynamic", [None, True])
def test_logsigmoid_of_transposed_operands_is_in_rows(dynamic: bool | None) -> None:
    """On a CPU."""

    def logs(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        y = torch.nn.functional.logsigmoid(x)
        return y, y.stride()

    compiled = jitney.compile(logs, dynamic=dynamic)
    for shape in [(4, 6), (6, 4), (1, 5), (5, 1), (3, 2)]:
        x = torch.randn(shape).t().requires_grad_()
        assert_equal_to_eager(logs, compiled, (x,), training=True)
    last = torch.randn(2, 3, 1, 5).contiguous(memory_format=torch.channels_last)
    assert_equal_to_eager(logs, compiled, (last,))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_split_of_nothing(training: bool, dynamic: bool) -> None:
    def rest(x: torch.Tensor) -> torch.Tensor:
        return x[:, 3:].split(1, 1)[0]

    compiled = jitney.compile(rest, dynamic=dynamic, options={"eager_on_bug": False})
    for width in (3, 5, 3):
        x = torch.randn(2, width, requires_grad=training)
        assert_equal_to_eager(rest, compiled, (x,), training=training)


def _scores(*shape: int) -> torch.Tensor:
    """With a NaN in each row, and infinities in the first."""
    scores = torch.randn(shape)
    scores[..., 1] = torch.nan
    scores.view(-1)[2:4] = torch.tensor([torch.inf, -torch.inf])
    return scores


MARGINS = {
    "rows": lambda n: (_scores(n, n + 4), torch.randint(0, n + 4, (n,))),
    "row": lambda n: (torch.randn(n + 4), torch.tensor(2)),
    "row and a list": lambda n: (torch.randn(n + 4), torch.tensor([2])),
    "one row": lambda n: (_scores(1, n + 4), torch.tensor(2)),
    "too few labels": lambda n: (torch.randn(n, 4), torch.zeros(n - 1, dtype=torch.int64)),
    "labels in rows": lambda n: (torch.randn(n, 4), torch.zeros(n, 1, dtype=torch.int64)),
    "three dimensions": lambda n: (torch.randn(1, n, 4), torch.zeros(n, dtype=torch.int64)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("given", MARGINS)
def test_margins_of_what_is_not_a_number(given: str, reduction: str, dynamic: bool | None) -> None:
    """Eager leaves them out."""

    def losses(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> tuple[Any, ...]:
        options: dict[str, Any] = {"reduction": reduction}
        plain = F.multi_margin_loss(x, target, **options)
        return plain, F.multi_margin_loss(x, target, 2, 0.3, weight, **options)

    compiled = jitney.compile(losses, dynamic=dynamic)
    for n in (3, 5):
        x, target = MARGINS[given](n)
        weight = torch.rand(x.shape[-1])
        weight[0] = torch.nan
        assert_equal_to_eager(losses, compiled, (x, target, weight))
        assert_equal_to_eager(losses, compiled, (x.requires_grad_(), target, weight), True)
        with pytest.raises(RuntimeError):
            compiled(x.detach(), target, weight[1:])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_slope_of_a_smooth_loss_where_there_is_none(dtype: torch.dtype, reduction: str) -> None:
    """torch's decomposition gives 0 where eager's gradient is NaN."""

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.smooth_l1_loss(x, target, reduction=reduction, beta=0.5)

    x = torch.tensor([torch.nan, torch.inf, torch.inf, 1, 0.25, 0.5, -0.5, -3], dtype=dtype)
    target = torch.tensor([0, torch.inf, 1, torch.nan, 0, 0, 0, -torch.inf], dtype=dtype)
    compiled = jitney.compile(loss, fullgraph=True)
    assert_equal_to_eager(loss, compiled, (x.requires_grad_(), target), training=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_added_up_in_16_bits_is_rounded_first(dtype: torch.dtype) -> None:
    """70000 is no float16, and 1 + 2**-12 is 1."""

    def sums(x: torch.Tensor) -> tuple[Any, ...]:
        whole = x.sum(dtype=dtype), x.prod(dtype=dtype), x.mean(dtype=dtype), x.nansum(dtype=dtype)
        rows = x.sum(1, dtype=dtype), x.prod(0, dtype=dtype), x.mean(1, True, dtype=dtype)
        return *whole, *rows, x.cumsum(1, dtype=dtype), x.cumprod(0, dtype=dtype)

    compiled = jitney.compile(sums, fullgraph=True)
    many = torch.full((4, 256), 1 + 2**-12)
    for x in (torch.tensor([[70000, -70000, 3], [1, 2, 3]]), many, many.double(), many.half()):
        assert_equal_to_eager(sums, compiled, (x,))


@pytest.mark.parametrize("dynamic", [None, True])
def test_running_sums_of_rounded_elements(dynamic: bool | None) -> None:
    def running(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.cumsum(0, dtype=torch.float32), x.cumsum(0, dtype=torch.int32), x.cumsum(0)

    compiled = jitney.compile(running, dynamic=dynamic)
    large = torch.tensor([1.2e9 + 0.3, -1.2e9, 3], dtype=torch.float64)
    for x in (torch.tensor([2**24 + 1, -(2**24)]), large):
        assert_equal_to_eager(running, compiled, (x,))
        assert all(map(torch.equal, compiled(x), running(x)))  # what is left is small beside x


def test_members_of_a_set_lie_in_rows() -> None:
    def members(x: torch.Tensor, y: torch.Tensor) -> Any:
        found = torch.isin(x, y), torch.isin(x, 3), torch.isin(x.double(), y, invert=True)
        return *found, *(each.stride() for each in found)

    given = torch.arange(21).reshape(3, 7).t(), torch.arange(5)
    assert_equal_to_eager(members, jitney.compile(members, fullgraph=True), given)


@pytest.mark.parametrize("factors", [(2, 0), (0, 3), (0, 0), (1, 1), (2, 3)])
def test_a_factor_of_zero_hides_what_is_not_finite(factors: tuple[int, int]) -> None:
    beta, alpha = factors
    x, a, b = torch.rand(4, 5), torch.rand(3, 4, 2), torch.rand(3, 2, 5)
    if alpha == 0:
        a[0, 0], b[0, 0, 0] = torch.inf, torch.nan
    if beta == 0:
        x[1, 1] = torch.nan

    def product(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addbmm(x, a, b, beta=beta, alpha=alpha)

    for dynamic in (None, True):
        assert_equal_to_eager(product, jitney.compile(product, dynamic=dynamic), (x, a, b))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8])
def test_a_soft_margin_loss_has_the_dtype_of_the_scores(dtype: torch.dtype, reduction: str) -> None:
    x, target = torch.randn(3, 4, requires_grad=True), torch.tensor([1, 0, 1, 1]).to(dtype)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.soft_margin_loss(x, target, reduction=reduction)

    compiled = jitney.compile(loss)
    assert_equal_to_eager(loss, compiled, (x, target.expand(3, 4)), training=True)


@pytest.mark.parametrize("shapes", [((3, 1), (3, 4)), ((1,), (3,))])
def test_a_soft_margin_loss_does_not_broadcast_the_scores(shapes: Any) -> None:
    x, target = (torch.ones(shape) for shape in shapes)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        jitney.compile(F.soft_margin_loss)(x, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1)])
def test_an_outer_product_is_added_to_a_number_as_to_a_matrix(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, u, v = torch.ones(shape).double(), torch.ones(2).to(dtype), torch.ones(3).to(dtype)
    for dynamic in (None, True):
        assert_equal_to_eager(torch.addr, jitney.compile(torch.addr, dynamic=dynamic), (x, u, v))


@pytest.mark.parametrize("bounds", [(-1, 1), (-1.5, 2.7), (-300, 300), (-300.5, -1.5), (0, 0)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64], ids=str)
def test_a_hardtanh_of_integers_has_the_installed_torchs_bounds(
    dtype: torch.dtype, bounds: tuple[float, float]
) -> None:
    x = torch.tensor([0, 1, 2, 3, 100, -1, -100]).to(dtype)

    def limited(x: torch.Tensor) -> torch.Tensor:
        return F.hardtanh(x, *bounds)

    try:
        expected = limited(x)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            jitney.compile(limited)(x)
    else:
        assert torch.equal(jitney.compile(limited)(x), expected)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.expand(3, *x.shape).view(torch.int16),
        lambda x: x.unsqueeze(1).expand(4, 5, 2).view(torch.int64),
        lambda x: torch.view_as_complex(x.expand(3, *x.shape)),
        lambda x: torch.view_as_real(torch.complex(x, x).expand(3, *x.shape)),
        lambda x: torch.complex(x, x).expand(3, *x.shape).imag,
        lambda x: x[:0].expand(3, 0, 2).view(torch.int16),
    ],
)
def test_what_is_repeated_in_memory_stays_so_as_other_elements(view: Any, dynamic: Any) -> None:
    def shown(x: torch.Tensor) -> torch.Tensor:
        return view(x * 2)

    x = torch.randn(4, 2)
    expected, found = shown(x), jitney.compile(shown, dynamic=dynamic)(x)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
