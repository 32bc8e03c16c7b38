"""Symbolic sizes through tracing, partition and stitch: one region, many sizes."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F

import jitney
from jitney.diagnostics.report import report
from jitney.events import log
from jitney.graph.trace_region import trace_region
from tests.graph.regions import stitched


def dynamic(function, *inputs, dims):  # type: ignore[no-untyped-def]
    """``function`` compiled with the given dimensions of its first input symbolic."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    gm = torch.fx.symbolic_trace(function)
    for position, (node, value) in enumerate(zip(gm.graph.nodes, inputs)):
        kinds = [
            DimDynamic.DYNAMIC if position == 0 and d in dims else DimDynamic.STATIC
            for d in range(value.dim())
        ]
        node.meta["example_value"] = mode.from_tensor(
            value,
            source=ConstantSource(f"input{position}"),
            symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds),
        )
    return stitched(gm, trace_region(gm))


def block(x, w):  # type: ignore[no-untyped-def]
    h = F.gelu(F.linear(x, w)).reshape(x.shape[0] * x.shape[1], -1)
    return h.softmax(-1).mean(0), x.view(x.shape[0], -1), x.shape[1]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
def test_many_sizes(requires_grad: bool) -> None:
    w = torch.randn(8, 8, requires_grad=requires_grad)
    call = dynamic(block, torch.randn(3, 5, 8), w, dims=(0, 1))
    for sizes in ((3, 5), (2, 7), (9, 4)):
        x = torch.randn(*sizes, 8)
        actual, expected = call(x, w), block(x, w)
        assert actual[2] == expected[2]
        for a, e in zip(actual[:2], expected[:2]):
            torch.testing.assert_close(a, e)
        assert actual[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        if requires_grad:
            weight = torch.randn(8)
            (got,) = torch.autograd.grad((actual[0] * weight).sum(), w)
            (want,) = torch.autograd.grad((expected[0] * weight).sum(), w)
            torch.testing.assert_close(got, want)


def test_a_number_alone_is_given() -> None:
    sizes = torch.tensor([3, 1])

    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.amax().item()
        return torch.arange(n) * 2 + torch.ones(n // 2).sum()

    compiled = jitney.compile(f)
    log.clear()
    for _ in range(4):
        assert torch.equal(compiled(sizes), f(sizes))
        sizes = sizes + 2
    assert not report(log.events()).fallbacks


def test_a_view_of_what_begins_at_a_symbol() -> None:
    """The second half of a cat's last step (a recurrent network both ways)."""

    def f(x: torch.Tensor) -> torch.Tensor:
        last = torch.cat((x.sin(), x.cos()), -1)[x.shape[0] - 1]
        return last[x.shape[1] - 2 :, 3:] * 2 + last[:2, :5]

    compiled = jitney.compile(f, dynamic=True)
    log.clear()
    for steps, rows in ((3, 6), (7, 4), (2, 9)):
        x = torch.randn(steps, rows, 4)
        torch.testing.assert_close(compiled(x), f(x))
    assert not report(log.events()).fallbacks


def test_convolutions_with_symbolic_steps_are_calls_inside_the_graph() -> None:
    w, v = torch.randn(4, 3, 2, 2), torch.randn(2, 4, 1, 1)

    def f(x: torch.Tensor, step: int) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, w, None, step).relu(), v, None, step, step, step)

    log.clear()
    compiled, x = jitney.compile(f), torch.randn(1, 3, 12, 12)
    for step in (1, 2, 3, 4):
        torch.testing.assert_close(compiled(x, step), f(x, step))
    assert not report(log.events()).fallbacks


def test_views_of_what_a_removed_op_gave_begin_where_its_operand_does():
    """The view of ``x * 1`` was placed before the slice ``x`` is, by where that begins."""

    def function(x, w):
        rows = x.shape[1]
        return (x[2:3] * 1).view(rows, 3) @ w, x[1:2].clone().view(rows, 3).t() + 1

    compiled = jitney.compile(function, dynamic=True)
    for rows in (2, 4):
        x, w = torch.randn(3, rows, 3), torch.randn(3, 8)
        for mine, theirs in zip(compiled(x, w), function(x, w), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_views_of_an_input_that_was_written_to_begin_in_its_new_value():
    """The new value is memory of its own; the input began behind the start of its storage."""

    def function(x, w):
        x.add_(1)
        return x[1:].view(-1, 3) @ w, x.reshape(-1)[2:] * 2, x[:-1].t() + 1

    compiled = jitney.compile(function)
    for rows in (4, 6, 5):
        mine, theirs = (torch.arange(3.0 * rows + 9).view(-1, 3) for _ in range(2))
        w = torch.randn(3, 8)
        torch.testing.assert_close(compiled(mine[2:-1], w), function(theirs[2:-1], w))
        assert mine.equal(theirs)


def test_views_of_what_lies_otherwise_than_traced_are_of_a_copy():
    """An operation on an expanded mask is done before the expand, which leaves strides of zero."""

    def function(x, mask, w):
        rows = x.shape[0]
        scaled = mask.expand(4, 4) * 2
        return scaled.expand(rows, 4, 4) @ w, scaled[:rows].sum(-1) * x, scaled.view(2, 8)[:, :rows]

    compiled = jitney.compile(function, dynamic=True)
    log.clear()
    mask, w = torch.randn(1, 4), torch.randn(4, 4)
    for rows in (2, 3, 4):
        x = torch.ones(rows)
        torch.testing.assert_close(compiled(x, mask, w), function(x, mask, w))
    assert not report(log.events()).fallbacks


def test_as_strided_of_a_removed_op_begins_where_its_operand_does():
    x = torch.arange(12.0).view(4, 3)
    for function in (
        lambda x: (x[1:] * 1).as_strided((2,), (1,), 4) + 1,
        lambda x: x[1:].clone().as_strided((2, 2), (1, 1), 1) + 1,
        lambda x: (x[1:] * 1).t().as_strided((2,), (1,), 3) + 1,
    ):
        for dynamic_sizes in (False, True):
            compiled = jitney.compile(function, dynamic=dynamic_sizes)
            torch.testing.assert_close(compiled(x), function(x))


def test_the_sizes_of_a_constant_are_numbers() -> None:
    """torch's capture found symbols of theirs among its own, and none of its inputs had them."""

    def is_holiday(day: torch.Tensor) -> torch.Tensor:
        return torch.isin(day % 30, torch.tensor([0, 25]))

    day = torch.arange(5) * 25
    assert torch.equal(torch.compile(is_holiday, backend="jitney")(day), is_holiday(day))


def test_a_view_that_eager_copies_where_it_is_none() -> None:
    """torch's form of it for symbolic sizes raises."""

    def viewed(x: torch.Tensor) -> torch.Tensor:
        return torch.view_copy(x, (x.numel(),)) * 3

    compiled = jitney.compile(viewed, dynamic=True, options={"eager_on_bug": False})
    for size in (5, 6):
        x = torch.randn(size, 4).t()
        assert torch.equal(compiled(x), viewed(x))
