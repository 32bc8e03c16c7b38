"""Passes over ATen graphs: what they take out, and what they must leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from jitney.graph import own_decompositions
from jitney.graph.recognise_masks import mask_kind
from tests.graph.regions import compiled, trace


def ops(function: Callable[..., Any], *inputs: Any) -> list[str]:
    """Names of the ATen ops in the forward graph."""
    graph = trace(function, *inputs).forward.graph
    return [str(node.target).removeprefix("aten.") for node in graph.nodes
            if node.op == "call_function"]  # fmt: skip


def same(function: Callable[..., Any], *inputs: Any) -> None:
    expected = function(*inputs)
    torch.testing.assert_close(compiled(function, *inputs)(*inputs), expected, rtol=0, atol=0)


def test_dead_code_goes() -> None:
    assert ops(lambda x: (x.sin(), x + 1)[1], torch.randn(3)) == ["add.Tensor"]


def test_equal_nodes_merge() -> None:
    function = lambda x: x.sin() * x.sin()  # noqa: E731
    assert ops(function, torch.randn(3)) == ["sin.default", "mul.Tensor"]
    same(function, torch.randn(3))


def test_signed_zeros_are_not_merged() -> None:
    same(lambda x: torch.stack([torch.copysign(x, 0.0), torch.copysign(x, -0.0)]), torch.ones(2))


def test_random_draws_are_not_merged() -> None:
    found = ops(lambda x: torch.rand_like(x) - torch.rand_like(x), torch.randn(3))
    assert found.count("rand_like.default") == 2


def test_equal_outputs_stay_two_tensors() -> None:
    a, b = compiled(lambda x: (x.sin(), x.sin()), torch.randn(3))(torch.randn(3))
    assert a.data_ptr() != b.data_ptr()


def test_a_copy_that_is_returned_stays_a_copy() -> None:
    x = torch.randn(2, 3)
    out = compiled(lambda x: x.clone().view(-1), x)(x)
    assert out.data_ptr() != x.data_ptr()


def test_noops_go() -> None:
    x = torch.randn(2, 3)
    function = lambda x: (x.view(3, 2).view(2, 3) * 1).float().sin()  # noqa: E731
    assert ops(function, x) == ["sin.default"]
    same(function, x)


def test_adding_a_float_zero_is_no_noop() -> None:
    x = torch.tensor([-0.0])
    out = compiled(lambda x: (x + 0).sin(), x)(x)
    assert not torch.signbit(out).any()


def positions(x: torch.Tensor) -> torch.Tensor:
    return x + (torch.arange(4) * 2 + 1).float()


def test_constants_are_folded() -> None:
    assert ops(positions, torch.randn(2, 4)) == ["add.Tensor"]
    same(positions, torch.randn(2, 4))


def test_folded_output_is_fresh_each_call() -> None:
    call = compiled(lambda x: (x * 2, torch.arange(3) * 2), torch.randn(3))
    first = call(torch.randn(3))[1]
    first.add_(5)
    assert call(torch.randn(3))[1].tolist() == [0, 2, 4]


def causal_attention(q: torch.Tensor) -> torch.Tensor:
    at = torch.arange(8)
    mask = (at[None, :] <= at[:, None])[None, None].expand(1, 2, 8, 8)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def test_causal_mask_is_recognised() -> None:
    q = torch.randn(1, 2, 8, 4)
    with torch.no_grad():
        graph = trace(causal_attention, q).forward.graph
    node = next(n for n in graph.nodes if "attention" in str(n.target))
    assert node.args[4] is True and "attn_mask" not in node.kwargs
    torch.testing.assert_close(compiled(causal_attention, q)(q), causal_attention(q))


def padded_attention(q: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    true = torch.ones(8, 1, dtype=torch.bool)
    mask = (true & keep.bool()[:, None, None, :]).expand(2, 1, 8, 8)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def test_padding_mask_stays_small() -> None:
    q, keep = torch.randn(2, 2, 8, 4), torch.ones(2, 8)
    keep[1, 5:] = 0
    graph = trace(padded_attention, q, keep).forward.graph
    where = next(n for n in graph.nodes if "where" in str(n.target))
    assert where.meta["val"].shape == (2, 1, 1, 8)
    torch.testing.assert_close(compiled(padded_attention, q, keep)(q, keep),
                               padded_attention(q, keep))  # fmt: skip


def band(width: int) -> torch.Tensor:
    behind = torch.arange(6)[:, None] - torch.arange(6)[None, :]
    return (behind >= 0) & (behind < width)


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (torch.ones(1, 1, 6, 6, dtype=torch.bool), "all"),
        (torch.zeros(6, 4), "all"),
        (band(6), "causal"),
        (torch.where(band(6), 0.0, -torch.inf), "causal"),
        (torch.where(band(6), 0.0, torch.finfo(torch.float32).min), "causal"),
        (band(3)[None, None], None),
        (torch.where(band(6), 0.0, -1.0), None),
        (torch.where(band(6), 0.5, -torch.inf), None),
        (band(6)[:4], None),
        (~band(6), None),
        (band(6).int(), None),
    ],
)
def test_mask_kind(mask: torch.Tensor, kind: str | None) -> None:
    assert mask_kind(mask) == kind


def test_cat_with_a_tensor_of_no_elements() -> None:
    function = lambda x: torch.cat([torch.tensor([]), x.t()], 0).sin()  # noqa: E731
    x = torch.randn(2, 3)
    assert "cat.default" not in ops(function, x)
    same(function, x)


def test_a_remembered_result_is_on_its_operand_s_device() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, y + 1

    graph = trace(f, torch.ones(3), torch.ones(3, device="meta")).forward.graph
    devices = [n.meta["val"].device.type for n in graph.nodes if n.op == "call_function"]
    assert devices == ["cpu", "meta"]


@pytest.mark.parametrize(("device", "channels_last"), [("cpu", True), ("cuda:0", False)])
def test_max_unpool_keeps_channels_last_where_eager_does(device: str, channels_last: bool) -> None:
    with FakeTensorMode():
        x = torch.empty_strided((2, 3, 2, 2), (12, 1, 6, 3), device=device)
        out = own_decompositions.max_unpool2d(x, x.long(), (4, 4))
    assert out.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert out.is_contiguous() is not channels_last


@pytest.mark.parametrize("training", [False, True])
def test_expanded_constants_are_folded(training: bool) -> None:
    """A filter made while the graph runs, the same for every channel."""

    def blurred(x: torch.Tensor) -> torch.Tensor:
        line = torch.exp(-torch.linspace(-1, 1, 3, dtype=torch.float64).square()).float()
        kernel = (line[:, None] * line).expand(3, 1, -1, -1)
        return F.conv2d(x, kernel, groups=3)

    x = torch.rand(2, 3, 8, 9, requires_grad=training)
    assert not {"exp.default", "expand.default"} & set(ops(blurred, x))
    torch.testing.assert_close(compiled(blurred, x)(x), blurred(x))


def a_number(value: float, dtype: torch.dtype) -> torch.Tensor:
    """Folded: nothing it is made of is an input."""
    return torch.scalar_tensor(value, dtype=dtype).sqrt() ** 2


NUMBERS: dict[str, Any] = {
    "add": lambda x, n: x + n,
    "add first": lambda x, n: n + x,
    "mul first": lambda x, n: n * x,
    "sub": lambda x, n: x - n,
    "div": lambda x, n: x / n,
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_constant_on_the_cpu_is_a_number_elsewhere(name: str, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return NUMBERS[name](x, a_number(9.0, dtype))

    def arithmetic(x: torch.Tensor) -> list[Any]:
        (node,) = (n for n in trace(f, x).forward.graph.nodes if n.op == "call_function")
        return [type(a) for a in node.args]

    assert arithmetic(torch.ones(3, device="meta")) == [torch.fx.Node, float]
    assert arithmetic(torch.ones(3)) == [torch.fx.Node, torch.fx.Node]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: a_number(9.0, torch.float64) - x,  # no such op takes a number first
        lambda x: x.long() + a_number(9.0, torch.float64),  # float64, of a number float32
        lambda x: x + a_number(torch.inf, torch.float32),
    ],
)
def test_constants_that_stay_tensors(f: Any) -> None:
    graph = trace(f, torch.ones(3, device="meta")).forward.graph
    last = [n for n in graph.nodes if n.op == "call_function"][-1]
    assert all(isinstance(a, torch.fx.Node) for a in last.args)
