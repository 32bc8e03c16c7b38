"""Indices out of range raise eager's own error, and what eager had not yet written is unwritten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitney
from jitney.backends import jitney_backend
from jitney.events import log

HERE = "test_index_errors.py"
BAD = torch.tensor([1, 12, 0])
NEGATIVE = torch.tensor([1, -11, 0])
TABLE = torch.arange(40.0).reshape(10, 4)


def embedded(x: Tensor, i: Tensor) -> Tensor:
    return F.embedding(i, x) * 2


def indexed(x: Tensor, i: Tensor) -> Tensor:
    return x[i] + 1


def indexed_inside(x: Tensor, i: Tensor) -> Tensor:
    return x.t()[1, i] + 1


def selected(x: Tensor, i: Tensor) -> Tensor:
    return x.index_select(0, i).exp()


def gathered(x: Tensor, i: Tensor) -> Tensor:
    return x.gather(0, i[:, None].expand(3, 4)) - 1


def scattered(x: Tensor, i: Tensor) -> Tensor:
    return x.scatter(0, i[:, None], 5.0) + 1


def added(x: Tensor, i: Tensor) -> Tensor:
    return x.index_add(0, i, x[:3])


def put(x: Tensor, i: Tensor) -> Tensor:
    return x.index_put((i,), torch.zeros(()))


def between_products(x: Tensor, i: Tensor) -> Tensor:
    return torch.linalg.svdvals(x @ x.t())[i] + torch.cumsum(x, 0).sum()


def lost(x: Tensor, i: Tensor) -> Tensor:
    return F.cross_entropy(x.t()[:3], i, ignore_index=-100)


CASES = (
    embedded, indexed, indexed_inside, selected, gathered, scattered, added, put, between_products,
    lost,
)  # fmt: skip


def _error(call: Callable[..., Tensor], *args: Tensor) -> tuple[type, str]:
    with pytest.raises((IndexError, RuntimeError)) as found:
        call(*args)
    return type(found.value), str(found.value).splitlines()[0]


@pytest.mark.parametrize("function", CASES)
@pytest.mark.parametrize("bad", [BAD, NEGATIVE])
def test_raises_eagers_error(function: Callable[..., Tensor], bad: Tensor) -> None:
    compiled = jitney.compile(function)
    good = torch.tensor([1, 9, 0])
    torch.testing.assert_close(compiled(TABLE, good), function(TABLE, good))
    assert _error(compiled, TABLE, bad) == _error(function, TABLE, bad)
    torch.testing.assert_close(compiled(TABLE, good), function(TABLE, good))


def test_the_error_names_the_users_line_and_shows_no_graph(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(IndexError) as found:
        jitney.compile(embedded)(TABLE, BAD)
    line = embedded.__code__.co_firstlineno + 1
    assert (found.traceback[1].path.name, found.traceback[1].lineno + 1) == (HERE, line)
    assert not [entry for entry in found.traceback if "fx" in str(entry.path)]
    assert capsys.readouterr().err == ""


def test_under_torchs_capture_a_note_names_the_line() -> None:
    with pytest.raises(IndexError) as found:
        torch.compile(embedded, backend=jitney_backend)(TABLE, BAD)
    line = embedded.__code__.co_firstlineno + 1
    (note,) = found.value.__notes__
    assert f'{HERE}", line {line}, in embedded' in note
    assert not [entry for entry in found.traceback if "fx" in str(entry.path)]


def test_negative_positions_are_allowed_where_eager_allows_them() -> None:
    i = torch.tensor([-1, -10, 3])
    assert torch.equal(jitney.compile(indexed)(TABLE, i), indexed(TABLE, i))
    assert _error(jitney.compile(gathered), TABLE, i) == _error(gathered, TABLE, i)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("take", [torch.gather, torch.index_select])
def test_of_a_scalar_there_is_one_element(take: Callable[..., Tensor], dynamic: bool) -> None:
    compiled, one = jitney.compile(take, dynamic=dynamic), torch.tensor(2.0)
    assert torch.equal(compiled(one, 0, torch.tensor([0])), take(one, 0, torch.tensor([0])))
    for bad in (torch.tensor([5]), torch.tensor([-1])):
        assert _error(compiled, one, 0, bad) == _error(take, one, 0, bad)


def test_under_grad_and_with_symbolic_sizes() -> None:
    weight = TABLE.clone().requires_grad_()
    compiled = jitney.compile(embedded, dynamic=True)
    compiled(weight, torch.tensor([1, 2])).sum().backward()
    assert _error(compiled, weight, BAD) == _error(embedded, weight, BAD)


def write_around(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    found = TABLE[i]
    y.mul_(2)
    return found


def test_mutations_are_eagers() -> None:
    """What precedes the error in program order is written once, what follows it is not."""
    compiled = jitney.compile(write_around)
    compiled(torch.ones(3), torch.ones(3), torch.tensor([0, 1, 2]))
    for call in (write_around, compiled):
        x, y = torch.ones(3), torch.ones(3)
        _error(call, x, y, BAD)
        assert (x.tolist(), y.tolist()) == ([2, 2, 2], [1, 1, 1])


def test_positions_by_arange_need_no_check() -> None:
    def positions(x: Tensor) -> Tensor:
        return F.embedding(torch.arange(5), x) + x[torch.arange(4)][:1]

    def checks(function: Callable[..., Tensor], *args: Tensor) -> int:
        log.clear()
        jitney.compile(function)(*args)
        programs = [e.data["program"] for e in log.events("program")]
        return sum(b.kind == "check" for p in programs for b in p.buffers)

    assert checks(positions, TABLE) == 0
    assert checks(indexed, TABLE, torch.tensor([0])) == 1


def test_an_error_of_a_graph_that_runs_eagerly_is_raised_and_not_printed(capfd):
    """torch's graph modules print a traceback of their own when they are called and fail."""
    flags = torch.tensor([True, False])
    with pytest.raises((RuntimeError, NotImplementedError), match="std and var only support"):
        jitney.compile(lambda x: x.std())(flags)
    assert not capfd.readouterr().err


def indexed_in_blocks(x: Tensor, i: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        return (x @ x.t())[i]


@pytest.mark.parametrize("backend", ["jitney", "eager", "aot_eager"])
def test_blocks_that_an_error_leaves_are_over(backend: str) -> None:
    compiled = jitney.compile(indexed_in_blocks, backend=backend)
    good = torch.tensor([1, 2, 0])
    for i in (good, BAD, BAD, good):
        if i is BAD:
            with pytest.raises(IndexError):
                compiled(TABLE, i)
        else:
            assert compiled(TABLE, i).dtype == torch.bfloat16
        torch.autocast_increment_nesting()
        open_scopes = torch.autocast_decrement_nesting()
        assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == (True, False)
        assert open_scopes == 0


def looked_up_in_vain(x: Tensor, i: Tensor) -> Tensor:
    x[i]
    return x + 1


def written_in_vain(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i] = 2.0
    return x * 2


@pytest.mark.parametrize("function", [looked_up_in_vain, written_in_vain])
def test_an_index_that_nobody_needs_is_refused_too(function: Callable[..., Tensor]) -> None:
    compiled = jitney.compile(function)
    for x in (TABLE, TABLE.clone().requires_grad_()):
        torch.testing.assert_close(compiled(x, BAD[:1]), function(x, BAD[:1]))
        assert _error(compiled, x, BAD) == _error(function, x, BAD)


def summed_into(x: Tensor, i: Tensor, kept: Tensor) -> Tensor:
    row = x[i]
    kept.copy_(row.sum() + x)  # one nest with the row, but for its check
    return row


def test_an_input_that_nothing_reads_is_not_written_before_the_check() -> None:
    compiled, x, kept = jitney.compile(summed_into), torch.ones(4, 3), torch.zeros(4, 3)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([9]), kept)
    assert not kept.any()
    assert torch.equal(compiled(x, torch.tensor([1]), kept), x[1:2])
    assert torch.equal(kept, x + 3)
