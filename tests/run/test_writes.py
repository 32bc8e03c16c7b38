"""Writes that eager refuses, or does not count: what they leave of values, versions, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitney
from jitney import torch_api
from jitney.events import log
from tests.equal import assert_equal, assert_equal_to_eager


def expanded(x: torch.Tensor) -> torch.Tensor:
    x[:1].expand(4).add_(1)
    return x * 2


def given_for_a_result(x: torch.Tensor) -> torch.Tensor:
    return torch.neg(torch.ones(4, 4), out=x.expand(4, 4))


def strided(x: torch.Tensor) -> torch.Tensor:
    x.clone().as_strided((2, 2), (1, 1)).add_(1)
    y = x.clone().as_strided((2, 2), (1, 1))
    y += 1
    return y


def windows(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.unfold(0, 3, 1).mul_(2)
    return y


def windows_of_an_input(x: torch.Tensor) -> torch.Tensor:
    x.unfold(0, 2, 1).add_(1)
    return x * 2


def windows_apart(x: torch.Tensor) -> torch.Tensor:
    """The last elements are in no window, nor those between two."""
    x.unfold(0, 2, 2)[1:].add_(1)
    y = x * 2
    y.unfold(-1, 2, 3).mul_(3)
    return y


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("function", [strided, windows, windows_of_an_input, windows_apart])
def test_a_write_goes_to_one_element_after_the_other(function: Any, dynamic: bool | None) -> None:
    compiled = jitney.compile(function, dynamic=dynamic)
    for size in (7, 6, 9):
        x = torch.arange(float(size))
        given = x.clone()
        assert_equal(compiled(given), function(x))
        assert_equal(given, x)


def first_window(x: torch.Tensor) -> torch.Tensor:
    x.unfold(0, 3, 2)[0].add_(1)
    return x * 2


def gaps(x: torch.Tensor) -> torch.Tensor:
    """Places between the elements of a slice with a step."""
    x.as_strided((3,), (1,)).mul_(2)
    return x + 1


def gaps_by_name(x: torch.Tensor) -> torch.Tensor:
    torch.as_strided(stride=(2, 1), size=(2, 2), input=x).add_(1)
    return x + 1


def past_the_end(x: torch.Tensor) -> torch.Tensor:
    """Places that the slice is no part of."""
    y = x.as_strided((x.shape[0] + 4,), (2,))
    y.add_(1)
    return y * 2


def read_past_the_end(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 3), (x.shape[0], 3), x.storage_offset() + 1).flip(0)


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize(
    "function", [first_window, gaps, gaps_by_name, past_the_end, read_past_the_end]
)
@pytest.mark.parametrize("step", [1, 2])
def test_places_are_those_of_the_whole_tensor(
    function: Any, step: int, dynamic: bool | None
) -> None:
    compiled = jitney.compile(function, dynamic=dynamic, options={"eager_on_bug": False})
    for size in (7, 6, 9):
        whole, given = torch.arange(40.0), torch.arange(40.0)
        wanted = function(whole[3 : 3 + step * size : step])
        assert_equal(compiled(given[3 : 3 + step * size : step]), wanted)
        assert_equal(given, whole)


@pytest.mark.parametrize("dynamic", [None, True])
def test_writes_to_parts_that_lie_apart_are_captured(dynamic: bool | None) -> None:
    def parts(x: torch.Tensor) -> torch.Tensor:
        made = x.new_zeros(4, 3 * x.shape[0])
        made[:, : x.shape[0]] = x
        made.T[1:3].add_(1)
        made.diagonal().fill_(3)
        made.view(-1)[::2].mul_(2)
        made.unfold(1, 3, 3).sub_(1)
        return made

    compiled = jitney.compile(parts, dynamic=dynamic, fullgraph=True)
    for size in (7, 6, 9):
        x = torch.randn(size)
        assert_equal(compiled(x), parts(x))


@pytest.mark.parametrize("function", [expanded, given_for_a_result])
def test_a_write_to_elements_that_share_memory_is_refused(function: Any) -> None:
    x = torch.ones(4)
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        jitney.compile(function)(x)
    assert_equal(x, torch.ones(4))


def diagonal(x: torch.Tensor) -> torch.Tensor:
    x.diagonal().add_(1)
    return x * 2


def row(x: torch.Tensor) -> torch.Tensor:
    x[:1, 1:2].mul_(3)
    return x + 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [diagonal, row])
@pytest.mark.parametrize("window", [(1, 0), (1, 1), (2, 2), (2, 3)])
def test_a_write_through_a_view_of_what_overlaps_itself(
    window: tuple[int, int], function: Any, dynamic: bool
) -> None:
    found = []
    for call in (function, jitney.compile(function, dynamic=dynamic)):
        memory = torch.arange(16.0)
        result = call(memory.as_strided((3, 4), window))
        found.append((memory, result))
    assert_equal(found[1], found[0])


@pytest.mark.parametrize(
    "relaid",
    [
        lambda x: x.squeeze().contiguous(),
        lambda x: x[:].reshape(-1),
        lambda x: torch.flatten(x.t().t()),
        lambda x: x[:].contiguous().mul_(3),
        lambda x: x[1:] * 2,
    ],
)
def test_a_copy_of_a_written_input_that_has_gaps(relaid: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return relaid(x)

    found = []
    for call in (f, jitney.compile(f)):
        x = torch.arange(30.0).view(5, 6)[1:, ::2]
        result = call(x)
        found.append((x.clone(), result, result.stride(), result.data_ptr() == x.data_ptr()))
    assert_equal(found[1], found[0])


def test_an_alias_that_counts_for_itself_is_returned() -> None:
    found = []
    for wrap in (lambda f: f, jitney.compile):
        x = torch.ones(4)
        data, part, detached = wrap(lambda x: (x.data, x.data[1:], x.detach()))(x)
        versions = []
        for alias in (data, part, detached):
            alias.add_(1)
            versions.append(x._version)
        found.append((x, versions))
    assert_equal(found[1], found[0])


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_a_loss_whose_rows_end_early(reduction: str, shape: tuple[int, ...]) -> None:
    """torch's decomposition counts the labels behind the end, its forecast has a row too many."""
    loss = torch.nn.MultiLabelMarginLoss(reduction=reduction)
    labels = torch.tensor([3, 0, -1, 1]).expand(shape).contiguous()
    x = torch.linspace(-1, 1, labels.numel()).view(shape).requires_grad_()
    found = []
    for call in (lambda x: loss(x, labels) * 2, jitney.compile(lambda x: loss(x, labels) * 2)):
        y = call(x)
        found.append((y, torch.autograd.grad(y.sum(), x)))
    assert_equal(found[1], found[0])


def test_a_result_that_is_a_view_can_be_written() -> None:
    weight = torch.randn(4, 4)

    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = x @ weight
        return torch.nn.functional.linear(hidden, weight, weight[0]), hidden

    def run(call: Any) -> tuple[torch.Tensor, ...]:
        x = torch.ones(2, 3, 4, requires_grad=True)
        out, hidden = call(x)
        out += hidden
        return out, *torch.autograd.grad(out.sin().sum(), x)

    assert_equal(run(jitney.compile(two)), run(two))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.repeat_interleave(1),
        lambda x: x.t().flatten(),
        lambda x: (x * 2)[1:],
        lambda x: (x @ x.t()).view(-1),
        lambda x: torch.nn.functional.linear(x[None], torch.ones(5, 3)),
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_result_takes_a_write_that_has_gradients(function: Any, requires_grad: bool) -> None:
    found = []
    for call in (function, jitney.compile(function)):
        x = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_(requires_grad)
        w = torch.tensor(3.0, requires_grad=True)
        result = call(x)
        result.mul_(w)
        result.sum().backward()
        found.append((result.detach(), w.grad, x.grad))
    assert_equal(found[1], found[0])


@pytest.mark.filterwarnings("ignore")
def test_one_of_several_views_takes_no_write() -> None:
    """A graph's result would: behind a break it is no such view."""

    def write(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).unbind()[1].mul_(2)

    for call in (write, jitney.compile(write)):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            call(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("shape", [(0,), (2, 3), (50,), (5, 8)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("into", [lambda out: out, lambda out: out[:1]])
def test_memory_given_for_a_result_of_another_shape(
    shape: tuple[int, ...], dynamic: bool, into: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Eager gives it the result's shape, and more memory where it takes it."""

    def write(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return torch.exp(y, out=into(out)) * 2

    compiled = jitney.compile(write, dynamic=dynamic, options={"eager_on_bug": False})
    assert_equal_to_eager(write, compiled, (torch.randn(5, 8), torch.zeros(shape)))


@pytest.mark.parametrize("turned", [False, True])
def test_memory_made_for_a_result_keeps_its_strides(turned: bool) -> None:
    def write(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.empty(5, 8).t() if turned else torch.empty(8, 5)
        return torch.sin(x.t(), out=made), made, made[1:] + 1

    compiled = jitney.compile(write, options={"eager_on_bug": False})
    for x in (torch.randn(5, 8), torch.randn(8, 5).t()):
        assert_equal_to_eager(write, compiled, (x,))


def test_a_part_of_memory_is_given_for_a_result() -> None:
    def write(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.zeros(8, 9)
        return torch.sin(x.t(), out=made[:, 2:7]), made

    compiled = jitney.compile(write, fullgraph=True, options={"eager_on_bug": False})
    assert_equal_to_eager(write, compiled, (torch.randn(5, 8),))


def test_memory_given_for_several_results() -> None:
    def ordered(x: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.sort(x, out=(values, places))[0] * 2

    compiled = jitney.compile(ordered, options={"eager_on_bug": False})
    for size in (0, 8):
        inputs = torch.randn(5, 8), torch.zeros(5, size), torch.zeros(5, size, dtype=torch.long)
        assert_equal_to_eager(ordered, compiled, inputs)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch_api.set_state("filled_memory", True)


def unset(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Memory made in each way that leaves it unset, some of it written."""
    part = torch.empty(4, 5)
    part[:, :3] = x
    return (
        part, part.isnan().sum(), torch.empty_like(x), x.new_empty(3),
        torch.empty_strided((2, 3), (1, 2)), torch.empty_permuted((2, 3), (1, 0)),
        *(torch.empty(3, dtype=d) for d in (torch.bfloat16, torch.int64, torch.uint8, torch.bool)),
    )  # fmt: skip


@pytest.mark.usefixtures("deterministic")
def test_unset_memory_is_filled_where_algorithms_are_deterministic() -> None:
    compiled = jitney.compile(unset, options={"eager_on_bug": False})
    x = torch.randn(4, 3)
    assert_equal(compiled(x), unset(x))
    torch_api.set_state("filled_memory", False)
    assert not compiled(x)[1]
    torch_api.set_state("filled_memory", True)
    assert_equal(compiled(x), unset(x))


def written_slices(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:] = y
    return x[0]


def written_numbers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:] = y * 2
    x.mul_(y[0])
    return x[0] + y


@pytest.mark.parametrize(
    ("f", "dtype"),
    [
        (written_slices, torch.float8_e5m2),
        (written_slices, torch.uint16),
        (written_numbers, torch.complex64),
        (written_numbers, torch.complex128),
    ],
)
def test_writes_to_inputs_whose_dtype_no_nest_holds(f: Any, dtype: torch.dtype) -> None:
    compiled = jitney.compile(f, options={"eager_on_bug": False})
    for rows in (4, 5, 4):
        x, y = (torch.randn(n, 3).abs().to(dtype) for n in (rows, rows - 1))
        assert_equal_to_eager(f, compiled, (x, y))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_strides_that_leave_a_part_for_what_surrounds_it(
    dynamic: bool | None, requires_grad: bool
) -> None:
    """What a graph is given is the part; that such a call runs eager is no bug of ours."""

    def f(x: torch.Tensor) -> Any:
        return x.as_strided((2, 2), (x.shape[-1], 1)) * 2, x.as_strided((2,), (1,), 2) + 1

    found = []
    for call in (f, jitney.compile(f, dynamic=dynamic, options={"eager_on_bug": False})):
        whole = torch.arange(24.0, requires_grad=requires_grad)
        results = call(whole[15:18])
        if requires_grad:
            (results[0].sum() + results[1].sum()).backward()
        found.append(([r.detach() for r in results], whole.grad))
    assert_equal(found[1], found[0])


def test_slices_of_one_tensor_that_lie_apart_are_compiled() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a.add_(b * 2)
        b[1:].mul_(a[1:] * 2)
        return a + b, b

    def run(g: Any, halves: Any) -> Any:
        base = torch.arange(16.0).reshape(4, 4) / 7
        sum_, b = g(*halves(base))
        return base, sum_, b._base is base, b.storage_offset()

    compiled = jitney.compile(f)
    apart = lambda x: (x[:2], x[2:]), lambda x: (x[2:], x[:2])
    meeting = lambda x: (x[:2], x[1:3]), lambda x: (x[:, :2], x[:, 2:]), lambda x: (x[:2], x[:2])
    log.clear()
    for halves in apart:
        torch.testing.assert_close(run(compiled, halves), run(f, halves))
    assert len(log.events("entry")) == 1 and not log.events("eager_graph")
    for halves in (*meeting, *apart, *meeting):  # what met at its capture may lie apart later
        torch.testing.assert_close(run(compiled, halves), run(f, halves))


def test_slices_of_one_tensor_are_eagers_where_autograd_watches() -> None:
    def f(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = (w * b).sum()
        a.add_(1)  # counts as a write to b, as both are of one tensor
        return product

    w, base = torch.ones(4, requires_grad=True), torch.arange(8.0)
    loss = jitney.compile(f)(w, base[:4], base[4:])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_saved_of_an_input_written_twice_is_not_that_input() -> None:
    """Lowering once wrote it over the input, whose count of writes goes up behind."""

    def step(state: Tensor, data: Tensor, weight: Tensor) -> Tensor:
        state[:, 0] += data[:, -1]
        state[:, 1:] = data[:, :-1] * 0.5
        data.copy_(F.conv2d(state, weight, padding=1))
        return data.square().mean() + state.mean()

    seen = []
    for call in (step, jitney.compile(step)):
        torch.manual_seed(0)
        state, data = torch.rand(2, 4, 6, 6), torch.rand(2, 4, 6, 6)
        weight = torch.rand(4, 4, 3, 3, requires_grad=True)
        call(state, data, weight).backward()
        seen.append((weight.grad, state, data))
    torch.testing.assert_close(*seen)


def test_calls_whose_inputs_overlap_leave_others_to_a_graph() -> None:
    def shift(x: Tensor, y: Tensor) -> Tensor:
        total = x.sum(0)
        y[1:] += 1
        return total + y.sum()

    compiled = jitney.compile(shift)
    for rows, columns in ((4, 3), (60, 10), (5, 3), (6, 3)):
        mine, eagers = torch.ones(rows, columns), torch.ones(rows, columns)
        log.clear()
        if rows in (4, 60):
            assert_equal(compiled(mine, mine[: rows // 2]), shift(eagers, eagers[: rows // 2]))
            assert not log.events("program")
        else:
            assert_equal(compiled(mine, mine.clone()), shift(eagers, eagers.clone()))
            assert bool(log.events("program")) == (rows == 5)
        assert_equal(mine, eagers)
