"""Places that a tensor tells: ``cache[:, t] = key`` is part of a graph, ``alphas[t]``, a view, is
made between two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.errors import FullGraphError
from jitney.events import log


def place(n: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(n, dtype=dtype)


def breaks() -> int:
    return len(log.events("graph_break")) + len(log.events("frame_skipped"))


def same_as_eager(function: Callable[..., Any], *inputs: Any, **options: Any) -> int:
    """Holds results, what inputs hold in the end, and errors against eager's; how many breaks."""

    def run(called: Callable[..., Any]) -> Any:
        given = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
        try:
            results: Any = called(*given)
        except (IndexError, RuntimeError, TypeError) as error:
            return f"{type(error)} {error}", given
        if isinstance(results, Tensor):
            results.add_(1)  # seen by what it is a view of
        return "", [results, *given]

    log.clear()
    (got, values), (right, kept) = run(jitney.compile(function, **options)), run(function)
    assert got == right
    torch.testing.assert_close(values, kept, rtol=0, atol=0)
    return breaks()


ROWS = torch.arange(24.0).reshape(4, 6)


def scaled(x: Tensor, t: Tensor) -> Tensor:
    return x[t] * 2


def two(x: Tensor, t: Tensor) -> Tensor:
    return x[t, t] + x[(t,)].sum()


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
@pytest.mark.parametrize("function", [scaled, two])
@pytest.mark.parametrize("n", [0, 3, -1, -4, 4, -5])
def test_a_part_is_read(
    function: Callable[..., Any], n: int, dtype: torch.dtype, dynamic: bool
) -> None:
    same_as_eager(function, ROWS, place(n, dtype), dynamic=dynamic)


def row(x: Tensor, t: Tensor, value: Any) -> None:
    x[t] = value


def column(x: Tensor, t: Tensor, value: Any) -> None:
    x[..., t] = value


def inner(x: Tensor, t: Tensor, value: Any) -> None:
    x[1:, None, t] = value


def of_one(x: Tensor, t: Tensor, value: Any) -> None:
    x[2, t] = value


@pytest.mark.parametrize("n", [0, 3, -1, -4, 5, -7])
@pytest.mark.parametrize("value", [7, 2.5, True, torch.tensor(3.0), torch.ones(1), place(2)])
@pytest.mark.parametrize("function", [row, column, inner, of_one])
def test_a_part_is_set(function: Callable[..., Any], value: Any, n: int) -> None:
    for x in (ROWS, ROWS.long()):
        assert same_as_eager(function, x, place(n), value) == 0


@pytest.mark.parametrize("value", [torch.arange(6.0), torch.arange(6).view(1, 6), torch.ones(3)])
def test_a_part_is_set_to_a_tensor(value: Tensor) -> None:
    same_as_eager(row, ROWS, place(1), value)


def written_after(x: Tensor, t: Tensor) -> Tensor:
    part = x[t]
    x.mul_(3)
    return part * 2


def written_itself(x: Tensor, t: Tensor) -> Tensor:
    part = x[t]
    part.mul_(3)
    return x + 1


def written_as_data(x: Tensor, t: Tensor) -> Tensor:
    part = x[t]
    part.data.mul_(3)
    return x + 1


def base_written_as_data(x: Tensor, t: Tensor) -> Tensor:
    data, part = x.data, x[t]
    data.mul_(3)
    return part + 1


def left_behind(x: Tensor, t: Tensor) -> Tensor:
    return x[t]


def view_left_behind(x: Tensor, t: Tensor) -> Tensor:
    return x[t][1:]


def left_by_a_break(x: Tensor, t: Tensor) -> Tensor:
    part = x[t]
    torch._dynamo.graph_break()
    part.mul_(2)
    return x + 1


def foreach_written(x: Tensor, t: Tensor) -> Tensor:
    part = x[t]
    torch._foreach_add_([x], 1)
    return part * 1


def statistics_written(x: Tensor, t: Tensor) -> Tensor:
    part = x[0][t]
    torch.nn.functional.batch_norm(x + 1, x[0], x[1].abs(), training=True)
    return part * 1


def reached_past(x: Tensor, t: Tensor) -> Tensor:
    part = x[t]
    return part.as_strided((2,), (1,), 0) * 1


def place_asked(x: Tensor, t: Tensor) -> Tensor:
    return x + x[t].storage_offset()


def mask(x: Tensor, t: Tensor) -> Tensor:
    return x[t.to(torch.uint8)] * 2


def of_columns(x: Tensor, t: Tensor) -> Tensor:
    return x.t()[t] * 2


def set_to_itself(x: Tensor, t: Tensor) -> Tensor:
    x[t] = x[0]
    x[:, t] = x[:, 1]
    return x * 2


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        written_after, written_itself, written_as_data, base_written_as_data, left_behind,
        view_left_behind, left_by_a_break, place_asked, mask, foreach_written,
        statistics_written, reached_past, of_columns, set_to_itself,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_what_tells_a_view_from_a_copy(function: Callable[..., Any], inference: bool) -> None:
    with torch.inference_mode(inference):
        same_as_eager(function, ROWS.clone(), place(2))


def test_another_alias_is_written() -> None:
    def written(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        part = x[t]
        y.mul_(3)
        return part + 1

    found = []
    for called in (written, jitney.compile(written)):
        x = ROWS.clone()
        found.append((called(x, x.detach(), place(2)), x))
    torch.testing.assert_close(*found)


def test_the_hint_says_how_to_take_a_copy() -> None:
    with pytest.raises(FullGraphError, match="at a place that a tensor tells(.|\n)*index_select"):
        jitney.compile(scaled, fullgraph=True)(ROWS, place(1))

    def copied(x: Tensor, t: Tensor) -> Tensor:
        return x.index_select(0, t.view(1)).squeeze(0) * 2

    assert torch.equal(jitney.compile(copied, fullgraph=True)(ROWS, place(1)), ROWS[1] * 2)


def test_gradients_of_parts() -> None:
    def loss(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        kept = x * 1
        kept[:, t] = y
        return (kept[1] * kept.sin()).sum()

    found = []
    for called in (loss, jitney.compile(loss, fullgraph=True)):
        x, y = ROWS.clone().requires_grad_(), torch.ones(4, requires_grad=True)
        called(x, y, place(1)).backward()
        found.append((x.grad, y.grad))
    torch.testing.assert_close(*found)


def test_an_error_is_handled_where_eager_handles_it() -> None:
    def tried(x: Tensor, t: Tensor) -> Tensor:
        try:
            x[0] = 5.0
            x[t] = 7.0
            x = x * x[t]
        except IndexError:
            x = x - 1
        return x * 2

    for n in (1, 9):
        same_as_eager(tried, ROWS, place(n))


@pytest.mark.parametrize("value", [5.0, torch.ones(0)])
def test_a_place_out_of_what_is_empty(value: Any) -> None:
    same_as_eager(row, torch.ones(4, 0), place(9), value)
    same_as_eager(lambda x, t: x[:0].__setitem__((slice(None), t), 1.0), ROWS, place(9))


def test_a_part_that_comes_to_be_empty() -> None:
    def set_below(x: Tensor, t: Tensor) -> None:
        x[2:][..., t] = 5.0

    compiled = jitney.compile(set_below, dynamic=True)
    for rows, n in ((5, 1), (6, 1), (2, 1), (2, 9), (5, 9)):
        for called in (compiled, set_below):
            if n > 3:
                with pytest.raises(IndexError):
                    called(torch.ones(rows, 4), place(n))
            else:
                called(torch.ones(rows, 4), place(n))


def test_a_cache_is_filled_by_one_graph() -> None:
    def step(cache: Tensor, position: Tensor, key: Tensor) -> Tensor:
        cache[:, position] = key
        return cache.sum(1)

    compiled = jitney.compile(step, fullgraph=True)
    got, right = torch.zeros(2, 8, 3), torch.zeros(2, 8, 3)
    log.clear()
    for n in range(8):
        key = torch.randn(2, 3)
        torch.testing.assert_close(compiled(got, place(n), key), step(right, place(n), key))
    torch.testing.assert_close(got, right)
    assert len(log.events("entry")) == 1
