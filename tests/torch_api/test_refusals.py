"""What eager refuses and torch's fakes take breaks the graph: eager's error comes at its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney import torch_api
from jitney.events import log
from tests.equal import assert_equal_to_eager

ERRORS = (RuntimeError, IndexError)


def put(x: torch.Tensor, indices: Any, value: Any) -> None:
    x[indices] = value


def recur(x: torch.Tensor) -> torch.Tensor:
    weights = [torch.ones(9, 5), torch.ones(9, 3)]
    return torch.gru(x[None], torch.ones(1, 1, 3), weights, False, 1, 0.0, False, False, False)[0]


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "indices that do not broadcast": lambda x: put(x, ([0, 1], [0, 1, 2]), 0),
    "too many rows": lambda x: put(x, [0, 1], torch.ones(3, 5)),
    "too many dimensions": lambda x: put(x, ([0, 1], [0, 1]), torch.ones(2, 2)),
    "a short mask": lambda x: put(x, torch.tensor([True, False]), 0),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 1]),), torch.ones(3, 1)),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0.5]), 1),
    "index_reduce_": lambda x: x.index_reduce_(0, torch.tensor([0]), torch.ones(2, 5), "mean"),
    "index_copy_ by int32": lambda x: x.index_copy_(0, torch.tensor([0]).int(), x[:1].clone()),
    "index_copy of another dtype": lambda x: x.index_copy(0, torch.tensor([0]), x[:1].double()),
    "index_copy by a matrix": lambda x: x.index_copy(0, torch.tensor([[0]]), x[:1]),
    "index_select by a matrix": lambda x: x.index_select(0, torch.tensor([[0]])),
    "index_reduce by no reduction": lambda x: x.index_reduce(0, torch.tensor([0]), x[:1], "sum"),
    "one_hot of int32": lambda x: F.one_hot(torch.arange(x.shape[0], dtype=torch.int32), 5),
    "one_hot of floats": lambda x: F.one_hot(x.abs().round(), 9),
    "index_add": lambda x: x.index_add(0, torch.tensor([0]), x[:1, 1:]),
    "index_add_": lambda x: x.index_add_(-1, torch.tensor([0, 1]), torch.ones(4, 2)),
    "nll_loss": lambda x: F.nll_loss(x, torch.ones(5, dtype=torch.int32)),
    "nll_loss of places": lambda x: F.nll_loss(
        torch.stack([x, x], 2)[..., None], torch.ones(5, 1, 1).long()
    ),
    "weights of places": lambda x: F.nll_loss(
        x[:, :, None, None], torch.ones(5, 1, 1).long(), x[0, :1]
    ),
    "weights of more dimensions": lambda x: F.binary_cross_entropy(x, x, torch.ones(2, 5, 5)),
    "pos_weight of more dimensions": lambda x: F.binary_cross_entropy_with_logits(
        x, x, pos_weight=torch.ones(2, 5, 5)
    ),
    "pad": lambda x: F.pad(x, (-6, 2)),
    "pad by sizes": lambda x: F.pad(x, (2, -x.shape[0] - 1)),
    "states of another batch": recur,
    "select_scatter": lambda x: x.select_scatter(x[0, :1], 0, 0),
    "select_scatter past the end": lambda x: x.select_scatter(x[0], 0, x.shape[0]),
    "select_scatter before the first": lambda x: x.select_scatter(x[0], -4, 0),
    "slice_scatter": lambda x: x.slice_scatter(x[:1], 0, 1, 4),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[0], 1),
    "as_strided_scatter": lambda x: x.as_strided_scatter(x[:1, :1], (2, 1), (1, 1)),
    "as_strided_scatter past the end": lambda x: x.as_strided_scatter(x[:1], (1, 5), (5, 1), 21),
    "as_strided_copy": lambda x: torch.as_strided_copy(x, (2,), (1,), x.numel()),
    "as_strided_copy backwards": lambda x: torch.as_strided_copy(x, (2,), (-1,), 3),
    "cummax": lambda x: x[0, 0].cummax(1),
    "index_reduce": lambda x: x[0, 0].index_reduce(1, torch.tensor(0), x[0, 0], "amax"),
    "native_group_norm": lambda x: torch.native_group_norm(x, None, None, 5, 5, 2, 1, 0.1),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[None, :0], 2),
    "put_": lambda x: x.put_(torch.tensor([0, 1]), torch.ones(3)),
    "masked_fill_": lambda x: x.masked_fill_(torch.ones(5), 1),
    "mvlgamma_": lambda x: x.mvlgamma_(0),
    "uniform_": lambda x: x.uniform_(2, 1),
    "random_": lambda x: x.random_(5, 2),
    "bernoulli_": lambda x: x.bernoulli_(2.0),
    "bucketize": lambda x: torch.bucketize(x, x),
    "sort": lambda x: torch.sort(x, out=(x.double(), torch.zeros(5, 5).long())),
    "searchsorted": lambda x: torch.searchsorted(x, x, out=torch.zeros(5, 5)),
    "select": lambda x: x.select(1, 5),
    "multinomial": lambda x: torch.multinomial(x, 1, out=torch.zeros(5, 1)),
    "complex": lambda x: torch.complex(x, x.double()),
    "int times float": lambda x: (x.add_(1), x.int().mul_(1.5)),
    "complex number": lambda x: x.add_(1j),
    "bits of floats": lambda x: x.bitwise_and_(1),
    "order of complex numbers": lambda x: (x.add_(1), x.cfloat().lt_(2)),
    "gcd of floats": lambda x: x.gcd_(x),
    "sum of booleans": lambda x: (x.add_(1), x.bool().cumsum_(0)),
    "booleans apart": lambda x: (x.add_(1), (x > 0).sub_(True)),
    "uniform integers": lambda x: (x.add_(1), x.int().uniform_()),
    "relu of an expanded tensor": lambda x: F.relu((x[:1] * 1).expand(5, 5), inplace=True),
    "dropout of an expanded tensor": lambda x: F.dropout((x[0] * 1).expand(5, 5), 0.5, True, True),
    "inv_ex": lambda x: torch.linalg.inv_ex(x, check_errors=True),
    "cholesky_ex, unread": lambda x: (torch.linalg.cholesky_ex(-x, check_errors=True), None)[1],
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "jitney"])
def test_eager_raises_where_the_function_can_catch_it(
    name: str, backend: str, dynamic: bool | None
) -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return REFUSED[name](x)
        except ERRORS as error:
            return type(error)

    expected = f(torch.ones(5, 5))
    assert isinstance(expected, type) and issubclass(expected, ERRORS)
    compiled = jitney.compile(f, backend=backend, dynamic=dynamic)
    assert [compiled(torch.ones(5, 5)) for _ in range(2)] == [expected, expected]


TAKEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "pad": lambda x: F.pad(x, (-5, 2, -x.shape[0], 1)),
    "a number": lambda x: put(x, ([0, 1], [2, 3]), 0),
    "sizes of 1 in front": lambda x: put(x, [0, 1], torch.ones(1, 1, 2, 5)),
    "behind a slice": lambda x: put(x, (slice(None), [0, 1, 2]), torch.ones(5, 3)),
    "apart": lambda x: put(x.view(5, 1, 5), ([0, 1], slice(None), [2, 3]), torch.ones(2, 1)),
    "a mask and an index": lambda x: put(x, (torch.ones(5).bool(), torch.tensor(2)), 3),
    "a mask of two dimensions": lambda x: put(x, torch.ones(5, 5).bool(), 3),
    "of no dimension": lambda x: put(x, torch.tensor(1), torch.ones(5)),
    "random_": lambda x: x.random_(0, None).zero_(),
    "bernoulli_": lambda x: x.bernoulli_(x.clone()).zero_(),
    "sort": lambda x: torch.sort(x, out=(torch.zeros(5, 5), torch.zeros(5, 5).long())),
    "bucketize": lambda x: torch.bucketize(x, x[0], out_int32=True),
    "int plus bool": lambda x: x.int().add_(x > 0),
    "mul_ of a number of 64 bits": lambda x: x.mul_(torch.tensor(2.0, dtype=torch.float64)),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 2),
    "relu": lambda x: F.relu(x, inplace=True),
    "select_scatter": lambda x: x.select_scatter(x[:, 0], 1, -1),
    "slice_scatter": lambda x: x.slice_scatter(x[1:], 0, 0, x.shape[0] - 1),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[0]),
    "nll_loss of places": lambda x: F.nll_loss(x[:, :, None, None], torch.ones(5, 1, 1).long()),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, x, x[0]),
    "index_add": lambda x: x.index_add(-1, torch.tensor([0, 1]), x[:, 1:3]),
    "index_add_ of no dimension": lambda x: x[0, 0].index_add_(0, torch.tensor(0), x[1, 1]),
}

ROWS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "index_put_": lambda x, y: put(x, torch.tensor([0, 1]), y),
    "index_add_": lambda x, y: x.index_add_(0, torch.tensor([0, 1]), y),
    "index_add": lambda x, y: x.index_add(0, torch.tensor([0, 1]), y),
    "select_scatter": lambda x, y: x.select_scatter(y[0], 0, 1),
    "slice_scatter": lambda x, y: x.slice_scatter(y, 0, 1),
    "diagonal_scatter": lambda x, y: x.diagonal_scatter(y.flatten(), -1),
    "as_strided_scatter": lambda x, y: x.as_strided_scatter(y, (2, 4), (4, 1)),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("capture", ["jitney", "torch"])
def test_sizes_that_do_not_fit_any_more(name: str, capture: str) -> None:
    """Read past their end, they were."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return ROWS[name](x, y)

    def outcome(call: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> str:
        try:
            return str(call(x, y))
        except ERRORS:  # torch's capture raises one of its own
            return "refused"

    by_torch = torch.compile(f, dynamic=True, backend="jitney") if capture == "torch" else None
    compiled = by_torch or jitney.compile(f, dynamic=True)
    for size in ((2, 4), (2, 4), (3, 4), (2, 3), (2, 5), (2,), (2, 1), (2, 2, 4)):
        (x, expected), y = torch.zeros(2, 3, 4), torch.rand(size)
        assert outcome(compiled, x, y) == outcome(f, expected, y)
        assert torch.equal(x, expected)


PLACES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "as_strided_copy": lambda x, n: torch.as_strided_copy(x, (2,), (1,), n),
    "as_strided_copy, sizes": lambda x, n: torch.as_strided_copy(x, (n,), (2,), 1),
    "as_strided_copy, steps": lambda x, n: torch.as_strided_copy(x, (3,), (n,)),
    "as_strided_scatter": lambda x, n: x.as_strided_scatter(x[:2], (2,), (1,), n),
    "as_strided_scatter, steps": lambda x, n: x.as_strided_scatter(x[:2], (2,), (n,), 1),
    "cummin": lambda x, n: x[0].cummin(n),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_places_that_are_not_the_tensors_any_more(name: str, dynamic: bool | None) -> None:
    """Memory past its end, they were."""

    def outcome(call: Callable[..., Any], n: int) -> str:
        try:
            return str(call(torch.arange(9.0), n))
        except ERRORS:
            return "refused"

    compiled = jitney.compile(PLACES[name], dynamic=dynamic)
    for n in (2, 3, 4, 7, 8, 9, 10, 500, 1, 0, -1, -2):
        assert outcome(compiled, n) == outcome(PLACES[name], n)


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_eager_takes_stays_in_the_graph(name: str, dynamic: bool | None) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        result = TAKEN[name](x)
        return x, result

    log.clear()
    compiled = jitney.compile(f, dynamic=dynamic)
    assert str(compiled(torch.rand(5, 5) * 0)) == str(f(torch.zeros(5, 5)))
    assert not log.events("graph_break")


def test_a_row_that_is_picked_is_one_of_them() -> None:
    """Asked of the check itself: of torch's fakes, those of 2.11 alone take any row."""
    select, x = torch.ops.aten.select.int, torch.ones(5, 5)
    for row in (5, -6):
        with pytest.raises(RuntimeError, match="out of range"):
            torch_api.refuse(select, (x, 1, row), {})
    _, shapes = torch_api.new_capture_mode()
    symbol = torch_api.symbolic_number(shapes, 3, "L['t']", 1 << 31)
    torch_api.refuse(select, (x, 1, symbol), {})
    assumed = shapes.var_to_range[symbol.node.expr]
    assert (assumed.lower, assumed.upper) == (-5, 4)


@pytest.mark.parametrize("pads", [(-7, 3), (3, -7), (-6, 2), (2, -6)])
@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_what_is_reflected_beyond_a_cut(
    pads: tuple[int, int], dynamic: bool | None
) -> None:
    compiled = jitney.compile(lambda x: F.pad(x, pads, "reflect"), dynamic=dynamic)
    x, y = (torch.arange(12.0).view(2, 6).requires_grad_() for _ in range(2))
    result, expected = compiled(x), F.pad(y, pads, "reflect")
    assert torch.equal(result, expected)
    assert torch.equal(
        *(torch.autograd.grad(r.sum(), z)[0] for r, z in ((result, x), (expected, y)))
    )


GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda x: x[..., 0] * 2,
    "slice": lambda x: x[..., 1:] * 2,
    "max": lambda x: x.max(-1).values * 2,
    "unfold": lambda x: x.unfold(-1, 2, 1) * 2,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_of_fewer_dimensions_is_compiled(name: str) -> None:
    """Dimensions beside it are those of the tensor that it is the gradient for."""
    log.clear()
    x = torch.randn(2, 4, requires_grad=True)
    compiled = jitney.compile(GRADIENTS[name], fullgraph=True)
    assert_equal_to_eager(GRADIENTS[name], compiled, (x,), training=True, calls=1)
    assert not log.events("eager_graph")
