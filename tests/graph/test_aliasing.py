"""What the user can see besides values: aliasing, mutation, autograd state. Against eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.errors import Unsupported
from jitney.events import log
from tests.graph.regions import compiled, trace

torch.manual_seed(0)


def message_of(write: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        write()
    return str(caught.value)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("parts", [
    lambda x: x.split(2), lambda x: x.chunk(2, 1), lambda x: x.unbind(0), lambda x: tuple(x),
    lambda x: (x * 1).unbind(1), lambda x: x.split([1, 3]), lambda x: x.t().unbind(0)[:2],
])  # fmt: skip
def test_parts_that_come_together_refuse_writes_as_in_eager(parts: Any, dynamic: bool) -> None:
    x = torch.randn(4, 6).requires_grad_() * 1.0
    made, want = jitney.compile(parts, dynamic=dynamic)(x), parts(x)
    assert [made[1]._base is x, made[0] is made[1]] == [want[1]._base is x, False]
    assert message_of(lambda: made[1].add_(1)) == message_of(lambda: want[1].add_(1))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [
    lambda w: torch.zeros(3, 4), lambda w: torch.ones(3, 4).mul(2), lambda w: w.detach().tile(3, 1),
])  # fmt: skip
def test_a_row_of_a_tensor_of_the_graph_is_a_view_of_it(make: Any, dynamic: bool) -> None:
    def f(w: torch.Tensor) -> Any:
        rows = make(w)
        row, apart = rows[1], rows.detach()
        torch._dynamo.graph_break()
        row += w
        return rows * 2, row._base is rows, apart

    w = torch.randn(4, requires_grad=True)
    doubled, view, apart = jitney.compile(f, dynamic=dynamic)(w)
    assert view and torch.equal(apart * 2, doubled) and not apart.requires_grad
    doubled.sum().backward()
    assert torch.equal(w.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("f", [
    lambda x: (x.data[1:], x),
    lambda x, d=torch.Tensor.detach: (lambda y: (y[1:], y))(d(x)),
    lambda x: (lambda y: (x * 2, y.t(), y, y[:, 1:]))(x.data),
])  # fmt: skip
def test_views_of_a_detached_input_are_written_with_it(f: Any, dynamic: bool) -> None:
    call, seen = jitney.compile(f, dynamic=dynamic), []
    for made in (f, call, call):
        x, weight = torch.arange(12.0).view(3, 4), torch.tensor(2.0, requires_grad=True)
        results = made(x)
        results[-2].mul_(weight)
        sum(r.sum() for r in results if r.requires_grad).backward()
        seen.append((weight.grad.item(), [r.requires_grad for r in results]))
    assert seen[1:] == [seen[0]] * 2


@pytest.mark.parametrize("f", [
    lambda y: (y, y.t()), lambda y: (y[1:], y), lambda y: (y[None], y, y[1:].t()),
])  # fmt: skip
@pytest.mark.parametrize("given", [
    lambda x: x.t().detach(), lambda x: x[1:].data, lambda x: x[None].data[0], lambda x: x.detach(),
])  # fmt: skip
def test_views_of_a_detached_view(f: Any, given: Any) -> None:
    def call(x: torch.Tensor) -> Any:
        return f(given(x))

    x = torch.arange(12.0).view(3, 4)
    found, wanted = jitney.compile(call)(x), call(x)
    for ours, eagers in zip(found, wanted, strict=True):
        assert torch.equal(ours, eagers) and ours.stride() == eagers.stride()
        assert ours.data_ptr() == eagers.data_ptr()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_without_grad_of_what_is_let_go_of_says_that_it_requires_grad(dynamic: bool) -> None:
    def f(p: torch.Tensor) -> torch.Tensor:
        doubled = p * 2
        with torch.no_grad():
            return doubled[1:]

    p = torch.randn(4, 3, requires_grad=True)
    view, right = jitney.compile(f, dynamic=dynamic)(p), f(p)
    assert (view.requires_grad, view.is_leaf, view._is_view()) == (True, True, True)
    assert message_of(lambda: view.add_(1)) == message_of(lambda: right.add_(1))


def test_the_same_part_twice_is_two_tensors() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.unbind(0)[1], x.unbind(0)[1], x.unbind(0)[0]

    check(f, [fresh(False)])
    check(f, [fresh(True)])


def test_parts_that_are_no_views_to_autograd_can_be_written_to() -> None:
    x = torch.randn(6).requires_grad_() * 1.0
    parts = jitney.compile(lambda x: x.unsafe_chunk(3))(x)
    assert parts[1].add_(1).grad_fn.name() == "AddBackward0"


def fresh(requires_grad: bool, shape: tuple[int, ...] = (4, 6)) -> torch.Tensor:
    """A tensor that may be written to: not a leaf where it requires grad."""
    value = torch.randn(shape)
    return value.requires_grad_() * 1.0 if requires_grad else value


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def check(function: Callable[..., Any], inputs: list[Any]) -> None:
    """Same values, strides, aliasing, identity, autograd state, mutations and gradients."""

    def copies() -> tuple[list[Any], list[Any]]:
        leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        fed = [
            leaf * 1.0 if x.requires_grad and not x.is_leaf else leaf
            for x, leaf in zip(inputs, leaves)
        ]
        return leaves, fed

    leaves, mine = copies()
    call = compiled(function, *mine)
    expected_leaves, theirs = copies()
    actual, expected = as_tuple(call(*mine)), as_tuple(function(*theirs))
    assert len(actual) == len(expected)
    for a, e in zip((*actual, *mine), (*expected, *theirs)):
        assert type(a) is type(e)
        if not isinstance(a, torch.Tensor):
            assert a == e
            continue
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)
        assert a.stride() == e.stride() and a.dtype == e.dtype
        assert a.requires_grad == e.requires_grad
        if not e.requires_grad:  # a view that our node made could not be written to
            assert a._is_view() == e._is_view() or not e._is_view()
    everything = list(zip((*actual, *mine), (*expected, *theirs)))
    for (a, e), (b, f) in itertools.combinations(everything, 2):
        assert (a is b) == (e is f)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            assert shares(a, b) == shares(e, f)
    for a, e in zip(mine, theirs):
        if isinstance(a, torch.Tensor):
            assert a._version == e._version or (a._version > 0) == (e._version > 0)
    if torch.is_grad_enabled():
        compare_gradients(actual, expected, leaves, expected_leaves)


def compare_gradients(actual: Any, expected: Any, leaves: Any, expected_leaves: Any) -> None:
    totals = []
    for outputs in (actual, expected):
        wanted = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        weights = [torch.linspace(-1, 1, o.numel()).reshape(o.shape) for o in wanted]
        totals.append(sum((o * w).sum() for o, w in zip(wanted, weights)))
    if not isinstance(totals[0], torch.Tensor):
        return
    mine = [x for x in leaves if x.is_leaf and x.requires_grad]
    theirs = [x for x in expected_leaves if x.is_leaf and x.requires_grad]
    got = torch.autograd.grad(totals[0], mine, allow_unused=True)
    want = torch.autograd.grad(totals[1], theirs, allow_unused=True)
    for g, w in zip(got, want):
        zero = torch.zeros(())
        torch.testing.assert_close((zero if g is None else g).expand_as(zero if w is None else w),
                                   zero if w is None else w)  # fmt: skip


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "plain": lambda x: x.sin() + 1,
    "input itself": lambda x: (x, x * 2),
    "same tensor twice": lambda x: (lambda y: (y, y))(x * 2),
    "view of input": lambda x: x.view(-1),
    "chain of views": lambda x: x.t()[1:3].unsqueeze(0),
    "view and value": lambda x: (x.view(2, 12), x.exp()),
    "two views of one input": lambda x: (x.view(-1), x.view(-1)),
    "detached input": lambda x: (x.detach(), x * 3),
    "alias of input": lambda x: x.view_as(x),
    "all of input": lambda x: x[...],
    "all of input, twice": lambda x: (x[...], torch.ops.aten.alias(x), x * 2),
    "all of a written input": lambda x: (x.add_(1), x[...])[1],
    "detached view": lambda x: (x.view(-1).detach(), x * 3),
    "views of an intermediate": lambda x: (lambda y: (y, y.view(-1), y.t()))(x * 2),
    "chunks": lambda x: (lambda c: (c[0], c[1], c[2]))((x * 2).chunk(3, 1)),
    "chunks of input": lambda x: (lambda c: (c[0], c[1], c[2]))(x.chunk(3, 1)),
    "one view of an intermediate": lambda x: (x * 2).t(),
    "detached intermediate": lambda x: (lambda y: (y, y.detach()))(x * 2),
    "no grad output": lambda x: (x.argmax(1), x * 2),
    "comparison only": lambda x: x > 0,
    "expand": lambda x: (x.sum(1, keepdim=True) * 2).expand(4, 6),
    "one of several results, twice": lambda x: (x.topk(2)[0], x.topk(2)[0]),
    "a view of one of several results": lambda x: (x.sort(1)[0], x.sort(1)[0].t()),
    "constants": lambda x: (x * 2, 3, None),
    "in place on fresh": lambda x: (x * 2).add_(1).relu_(),
    "in place through view": lambda x: (lambda y: (y[0].add_(5), y)[1])(x * 2),
    "in place on base, view returned": lambda x: (
        lambda y: (lambda v: (y.add_(1), v)[1])(y.view(-1))
    )(x * 2),
    "mutated input": lambda x: x.mul_(2),
    "mutated and read": lambda x: x.mul_(2) + x.sin(),
    "mutated, view returned": lambda x: (lambda v: (x.add_(1), v)[1])(x.view(-1)),
    "mutated through view": lambda x: (x[1].zero_(), x.sum())[1],
    "setitem": lambda x: (lambda y: (y.select(0, 1).copy_(y.select(0, 0)), y)[1])(x * 1),
    "in place other dtype": lambda x: (x > 0).logical_not_(),
    "integer in place": lambda x: (x > 0).long().add_(2),
    "masked fill": lambda x: (x * 1).masked_fill_(x > 0, 2.0),
    "contiguous of transposed": lambda x: x.t().contiguous(),
    "clone of input": lambda x: x.clone(),
    "copy of other shape": lambda x: (x * 1).copy_(x[0]),
}  # fmt: skip


@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_input(name: str, requires_grad: bool) -> None:
    check(FUNCTIONS[name], [fresh(requires_grad)])


PAIRS: dict[str, Callable[..., Any]] = {
    "one grad, one not": lambda a, b: (a * b, b + 1),
    "plain buffer updated": lambda a, b: (b.mul_(0.9).add_(a.detach().mean() * 0.1), a * b)[1],
    "buffer takes grad": lambda a, b: (b.add_(a), b * 2)[1],
    "swap": lambda a, b: (b, a),
    "unused": lambda a, b: a * 2,
    "view of the other after write": lambda a, b: (a.add_(b), b.t(), a.t())[1:],
}


@pytest.mark.parametrize("grads", [(False, False), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_two_inputs(name: str, grads: tuple[bool, bool]) -> None:
    check(PAIRS[name], [fresh(grad) for grad in grads])


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1), (2, 3, 4)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    check(lambda x: (x.exp() * 2, x.reshape(-1), x.sum()), [fresh(True, shape)])


def test_non_contiguous_input() -> None:
    check(lambda x: (x * 2, x.t()), [torch.randn(6, 4).t()])


def test_no_grad_with_parameters() -> None:
    with torch.no_grad():
        check(lambda x: (x * 2, x.view(-1)), [torch.randn(4, 6, requires_grad=True)])


def test_leaf_written_under_no_grad() -> None:
    with torch.no_grad():
        check(lambda x: x.mul_(2), [torch.randn(4, 6, requires_grad=True)])


def test_pure_inference_graph_is_called_as_it_is() -> None:
    region = trace(lambda x: x * 2, torch.randn(3))
    from jitney.graph.stitch import stitch

    assert stitch(region.facts, region.forward, None) is region.forward


def test_overlapping_inputs_with_mutation_are_refused() -> None:
    base = torch.randn(8)
    with pytest.raises(Unsupported):
        trace(lambda a, b: a.add_(b), base[:4], base[2:6])


def test_tensor_subclass_is_refused() -> None:
    class Tagged(torch.Tensor):
        pass

    with pytest.raises(Unsupported):
        trace(lambda a: a * 2, torch.randn(3).as_subclass(Tagged))


def test_parts_of_a_product_beside_a_write() -> None:
    """They are views of what the product is seen as, no results of whose own there are."""
    weight = torch.randn(12, 6, requires_grad=True)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.new_zeros(2)
        first[0] = 1
        q, k, v = torch.nn.functional.linear(x, weight).chunk(3, -1)
        return q, k.permute(0, 2, 1), v, first

    compiled = jitney.compile(f)
    log.clear()
    for rows in (2, 3):
        x = torch.randn(rows, 5, 6, requires_grad=True)
        found = []
        for call in (compiled, f):
            q, k, v, first = call(x)
            loss = (q.sin() * k.transpose(1, 2) * v.cos()).sum()
            grads = torch.autograd.grad(loss, (x, weight))
            places = [(t.stride(), t.storage_offset()) for t in (q, k, v)]
            assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
            q.detach().zero_()
            found.append((q.detach(), k.detach(), v.detach(), first, *grads))
            found.append(places)
        torch.testing.assert_close(found[0], found[2])
        assert found[1] == found[3]
    assert not log.events("eager_graph")


def _adds_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add_(0, torch.tensor([0, 1]), x[:2])


def _scatters(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).scatter_add_(0, torch.zeros(x.shape, dtype=torch.int64), x)


@pytest.mark.parametrize("function", [_adds_rows, _scatters])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_write_keeps_the_strides_of_what_is_written(
    function: Callable[[torch.Tensor], torch.Tensor], requires_grad: bool
) -> None:
    """The functional op's result lies in rows, what eager writes to as ``x`` does."""
    x = torch.randn(4, 6).T.requires_grad_(requires_grad)
    actual, expected = jitney.compile(function, fullgraph=True)(x), function(x)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride() == (1, 6)


def test_write_keeps_the_strides_of_what_has_views() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.zeros_like(x)
        row = made[0]
        made.index_add_(0, torch.tensor([0, 1]), x[:2])
        row.mul_(2)
        return made, row

    x = torch.randn(4, 6).T
    for actual, expected in zip(jitney.compile(function)(x), function(x)):
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("leaf_is_view", [False, True])
def test_a_view_without_grad_of_a_leaf_that_is_a_view(leaf_is_view: bool, dynamic: bool) -> None:
    """Autograd asks the base of a view taken without grad whether it requires grad."""

    def f(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            turned = w.t()
        return turned * 3, w * 2

    def gradient(call: Any) -> Any:
        whole = torch.arange(16.0)
        w = (whole.view(4, 4) if leaf_is_view else whole.view(4, 4).clone()).requires_grad_()
        first, second = call(w)
        (first.sum() + second.sum()).backward()
        assert first.requires_grad is not leaf_is_view
        return w.grad

    assert torch.equal(gradient(jitney.compile(f, dynamic=dynamic)), gradient(f))


def test_a_view_of_a_detached_part_is_one_where_views_are_taken_anew() -> None:
    """Behind a write through `detach` functionalization takes every view from its base again."""

    def f(y: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        copy = y.clone()
        with torch.no_grad():
            p.add_(1)
        torch.add(copy.detach(), 1, out=copy.detach())
        part = p[::2].detach()
        return copy, part, part.unfold(0, 1, 1)

    found = []
    for call in (jitney.compile(f), f):
        weight = torch.tensor(2.0, requires_grad=True)
        _, part, view = call(torch.ones(4, 3), torch.nn.Parameter(torch.ones(4, 3)))
        part.mul_(weight)
        assert view._base is part
        found.append(torch.autograd.grad(view.sum(), weight))
    assert found[0] == found[1]
