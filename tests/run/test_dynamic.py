"""Sizes and numbers that change: one more compile, then none, and never a wrong result."""

from __future__ import annotations

import warnings

import pytest
import torch

import jitney
from jitney import config
from jitney.errors import UserError
from jitney.events import log
from tests.equal import assert_equal, assert_equal_to_eager


def heard(kind):
    """What events of a kind say, as they come; of the test alone."""
    seen = []
    stop = log.listen(lambda e: seen.append(e.data) if e.kind == kind else None)
    yield seen
    stop()


@pytest.fixture
def entries():
    yield from heard("entry")


@pytest.fixture
def reports_eager():
    """Graphs that ran eager."""
    yield from heard("eager_graph")


def test_a_size_that_changed_becomes_symbolic(entries):
    def f(x):
        return x.reshape(-1) * x.size(0)

    compiled = jitney.compile(f, backend="eager")
    for n in (4, 5, 6, 7, 9, 4):
        x = torch.randn(n, 3)
        assert torch.equal(compiled(x), f(x))
    assert len(entries) == 2


def test_dynamic_from_the_start_and_never(entries):
    def f(x):
        return x * 2

    compiled = jitney.compile(f, backend="eager", dynamic=True)
    for n in (4, 5, 6):
        compiled(torch.ones(n, 3))
    assert len(entries) == 1
    compiled = jitney.compile(f, backend="eager", dynamic=False)
    for n in (4, 5, 6):
        compiled(torch.ones(n, 3))
    assert len(entries) == 4


def test_numbers_in_containers_become_symbols_when_dynamic(entries):
    def f(x, many):
        return x * many[0] + many[1]

    compiled = jitney.compile(f, backend="eager", dynamic=True)
    for n in (2, 5, 7, 9):
        x = torch.ones(n + 1)
        assert torch.equal(compiled(x, [n, n / 4]), f(x, [n, n / 4]))
    assert len(entries) == 2


@pytest.mark.parametrize("dynamic", [None, False])
def test_marked_dimensions(entries, dynamic):
    x = torch.ones(4, 3)
    jitney.mark_dynamic(x, 0)
    compiled = jitney.compile(lambda x: x + 1, backend="eager", dynamic=dynamic)
    compiled(x)
    assert torch.equal(compiled(torch.ones(7, 3)), torch.full((7, 3), 2.0))
    assert len(entries) == 1
    compiled(torch.ones(7, 4))
    assert len(entries) == 2


@pytest.mark.parametrize("place", [2, -1, -5])
def test_a_mark_of_no_dimension_is_none(place):
    x = torch.ones(4, 3)
    torch._dynamo.mark_dynamic(x, place)
    assert torch.equal(jitney.compile(lambda x: x * 2, fullgraph=True)(x), x * 2)


def test_marked_ranges(entries):
    x = torch.ones(4, 3)
    jitney.mark_dynamic(x, 0, min=3, max=10)
    compiled = jitney.compile(lambda x: x * x.shape[0], backend="eager")
    for n, count in ((10, 1), (3, 1), (11, 2), (2, 2), (30, 2)):
        compiled(x)
        assert torch.equal(compiled(torch.ones(n, 3)), torch.full((n, 3), float(n)))
        assert len(entries) == count


@pytest.mark.parametrize("bounds", [{"min": 5}, {"max": 3}, {"min": 5, "max": 8}])
def test_a_size_outside_its_marked_range(bounds):
    x = torch.ones(4, 3)
    jitney.mark_dynamic(x, 0, **bounds)
    with pytest.raises(UserError, match="dimension 0 of x is 4"):
        jitney.compile(lambda x: x + 1, backend="eager")(x)


def test_a_marked_range_of_one_size(entries):
    x = torch.ones(4, 3)
    jitney.mark_dynamic(x, 0, min=4, max=4)
    compiled = jitney.compile(lambda x: x + 1, backend="eager")
    for n in (4, 7, 4):
        compiled(x)
        assert torch.equal(compiled(torch.ones(n, 3)), torch.full((n, 3), 2.0))
    assert len(entries) == 2


def test_what_is_checked_of_numbers_is_assumed(entries):
    def f(x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0], lambda: f"{k} is too many")
        return x[:k].sum() + k

    compiled = jitney.compile(f, backend="eager")
    for size, k in ((10, 3), (12, 5), (14, 7), (20, 9)):
        x, n = torch.randn(size), torch.tensor(k)
        assert torch.equal(compiled(x, n), f(x, n))
    assert len(entries) == 3  # f, and what follows item() without and with symbols
    with pytest.raises(RuntimeError, match="9 is too many"):
        compiled(torch.randn(8), torch.tensor(9))


def test_branches_on_sizes_are_guarded(entries):
    def f(x, y):
        if x.size(0) > 5:
            x = x * 2
        if x.size(0) == y.size(0):
            return x + 1
        if x.size(0) % 2 == 0:
            return x - 1
        return x

    compiled = jitney.compile(f, backend="eager")
    for n in (4, 7, 8, 3, 12, 5, 6, 9):
        for m in (4, 7, 3, 9):
            x, y = torch.randn(n), torch.randn(m)
            assert torch.equal(compiled(x, y), f(x, y))
    assert len(entries) <= 8


def test_zero_and_one_are_their_own():
    def f(x):
        return x.sum(0) if x.size(0) else x.new_zeros(x.shape[1:])

    compiled = jitney.compile(f, backend="eager")
    for n in (4, 5, 1, 0, 6, 1, 0):
        x = torch.randn(n, 2)
        assert torch.equal(compiled(x), f(x))


def test_numbers_that_changed_become_symbolic(entries):
    def f(x, n, scale):
        return x * scale + n

    compiled = jitney.compile(f, backend="eager")
    for n, scale in ((2, 0.5), (3, 0.25), (4, 0.125), (5, 3.5), (9, -2.0)):
        x = torch.randn(3)
        assert torch.equal(compiled(x, n, scale), f(x, n, scale))
    assert len(entries) <= 3
    assert torch.equal(compiled(x, True, 1), f(x, True, 1))


def test_numbers_that_decide_are_guarded():
    def f(x, n, m):
        for _ in range(n):
            x = x + 1
        return x * 2 if n > m else x

    compiled = jitney.compile(f, backend="eager")
    x = torch.ones(2)
    for n, m in ((3, 2), (4, 2), (2, 4), (4, 4), (5, 3), (3, 5)):
        assert torch.equal(compiled(x, n, m), f(x, n, m))


def test_strides_and_layout_are_kept_apart():
    def f(x):
        return x.is_contiguous(), x.stride(), x + 1

    compiled = jitney.compile(f, backend="eager")
    for x in (torch.ones(4, 3), torch.ones(5, 3), torch.ones(3, 6).t(), torch.ones(7, 3)):
        got, expected = compiled(x), f(x)
        assert got[:2] == expected[:2] and got[2].stride() == expected[2].stride()


def test_sizes_under_armed_guards():
    def f(x, y):
        return x @ y

    compiled = jitney.compile(f, backend="eager")
    for _ in range(3):
        for n in (3, 4, 5, 6):
            x, y = torch.randn(n, n + 1), torch.randn(n + 1, 2)
            assert torch.equal(compiled(x, y), f(x, y))
    with pytest.raises(RuntimeError):
        compiled(torch.randn(3, 4), torch.randn(5, 2))


def test_sizes_that_the_frame_never_reads() -> None:
    """A graph without size arguments: kernels take symbolic sizes from the tensors."""

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def between_calls(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x.sin()) * 2 + x.cos().sum()

    for function in (plain, between_calls):
        compiled = jitney.compile(function)
        for rows in (3, 4, 7):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(compiled(x), function(x))


def answer(f, *arguments):
    """What a call returns, or the error it raises."""
    try:
        return f(*arguments)
    except (ArithmeticError, TypeError, ValueError, RuntimeError) as error:
        return type(error)


RUNTIME_NUMBERS = {
    "returned": lambda x, a: (x * a, a * 3.0, -a, a + 1),
    "divisor": lambda x, a: x * (1 / a),
    "divided": lambda x, a: (x * (a / 2), x.add(x, alpha=a / 2)),
    "power": lambda x, a: (x * a**0.5, x * a**-2, x * 2**a, x * a**a),
    "decay": lambda x, a: x / (1 - 0.9**a),
    "rounded": lambda x, a: (x * (a // 0.3), x * (a % 0.3), x * int(a), x * round(a, 1)),
    "library": lambda x, a: (torch.linspace(0, a * 2, 5), torch.histc(x, 4, -a - 1, a + 1)),
    "branch": lambda x, a: x * a if a > 0.5 else x - a,
}


@pytest.mark.parametrize("name", RUNTIME_NUMBERS)
def test_numbers_that_change_mean_what_they_mean_in_python(name):
    f, x = RUNTIME_NUMBERS[name], torch.randn(6)
    compiled = jitney.compile(f)
    for a in (0.1, 0.7, 0.9, 0.0, -1.3, float("inf"), float("nan"), 1e25, 3, 4, 0):
        expected, got = answer(f, x, a), answer(compiled, x, a)
        if isinstance(expected, type):
            assert got is expected, a
        else:
            torch.testing.assert_close(got, expected, equal_nan=True)


def test_a_number_that_changes_crosses_a_break():
    def f(x, a):
        y, scale = x * 2, max(0.5, a) * 3.0
        jitney.graph_break()
        return y * (-scale / 2)

    compiled, x = jitney.compile(f), torch.randn(4)
    for a in (0.1, 0.7, 0.9, 1.1):
        torch.testing.assert_close(compiled(x, a), f(x, a))


@pytest.mark.parametrize("backend", ["jitney", "eager", "aot_eager"])
@pytest.mark.parametrize("first", [0.5, 2])
def test_numbers_that_change_are_results_too(backend, first):
    programs = [
        lambda x, s: (x * s, s > 1),
        lambda x, s: (x, s * 2, -s, [s == 2.5, s + 0.5]),
        lambda x, s: x.size(0) * s > 3,
        lambda x, s: (s % 2, x.add_(1), s / 2, round(s * 1.26, 1)),
    ]
    for program in programs:
        compiled = jitney.compile(program, backend=backend)
        for i in range(4):
            given, expected = torch.zeros(3), torch.zeros(3)
            assert_equal(compiled(given, first + i), program(expected, first + i))
            assert torch.equal(given, expected)


@pytest.mark.parametrize("backend", ["jitney", "eager", "aot_eager"])
def test_gradients_beside_numbers_that_change(backend):
    def f(x, s):
        return x * s + x.sin() / s

    compiled = jitney.compile(f, backend=backend)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(4, dtype=dtype, requires_grad=True)
        for s in (0.5, 1.5, 2.5):
            ours, eagers = compiled(x, s), f(x, s)
            assert_equal(ours, eagers)
            gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, eagers)]
            assert_equal(gradients[0], gradients[1])


def test_circular_padding_by_amounts_that_change():
    def pad(x, amounts):
        return torch.nn.functional.pad(x, amounts, mode="circular")

    with config.override(verify=True), warnings.catch_warnings():
        warnings.simplefilter("error")  # a program that breaks a rule runs eager, with a warning
        compiled = jitney.compile(pad)
        for amounts in ((1, 2), (0, 1), (2, 1), (1, 3)):
            x = torch.randn(1, 3, 3)
            assert torch.equal(compiled(x, amounts), pad(x, amounts))


def test_a_size_that_the_backward_pass_makes_a_number():
    def root(x):
        return torch.linalg.cholesky(x)

    compiled = jitney.compile(root)
    for shape in ((5, 5), (2, 2), (0, 5, 5)):
        x = torch.eye(shape[-1]).mul(3).expand(shape).clone().requires_grad_()
        again = x.detach().clone().requires_grad_()
        compiled(x).sum().backward()
        root(again).sum().backward()
        assert_equal(x.grad, again.grad)


@pytest.mark.parametrize(
    "series",
    [
        ((2, 3), (7, 9), (0, 16), (16, 0), (4, 2)),  # the sum changes too
        ((2, 3, 4, 7), (7, 4, 5, 0), (0, 0, 16, 0), (4, 4, 4, 4), (1, 2, 3, 10)),
    ],
)
def test_rows_split_by_counts_that_change(series):
    def routed(x, weights, order, counts):
        rows = x[order].split(counts)
        made = torch.cat([row @ weights[i] for i, row in enumerate(rows)])
        return torch.zeros_like(x).index_add(0, order, made)

    compiled = jitney.compile(routed)
    with config.override(eager_on_bug=False):
        for counts in series:
            size = sum(counts)
            order = torch.randperm(2 * size)[:size] % size  # some rows twice, some never
            given = torch.randn(size, 8), torch.randn(len(counts), 8, 8)
            results = []
            for function in (routed, compiled):
                x, weights = (t.clone().requires_grad_() for t in given)
                out = function(x, weights, order, list(counts))
                (out * out).sum().backward()
                results.append((out, x.grad, weights.grad))
            assert_equal(*results[::-1])


def test_a_size_that_may_be_zero_in_a_stride(reports_eager):
    def f(x):
        return x.new_ones(2, x.size(0) // 3 - 1, 4) + x.sum()

    compiled = jitney.compile(f, dynamic=True)
    torch.manual_seed(0)  # the sum may come to almost -1
    for n in (9, 14, 3, 4, 20, 9):  # empty with 3 and 4
        x = torch.randn(n)
        assert_equal(compiled(x), f(x))
    assert not reports_eager


def test_the_larger_of_two_sizes(reports_eager):
    def f(x, y):
        return x.new_zeros(max(x.size(0), y.size(0)), min(x.size(0), y.size(0))) + x.sum()

    compiled = jitney.compile(f, dynamic=True)
    for n, k in ((4, 6), (7, 9), (9, 7), (5, 5), (3, 8)):
        x, y = torch.randn(n), torch.randn(k)
        assert_equal(compiled(x, y), f(x, y))
    assert not reports_eager


def test_rows_of_wider_tensors(entries, reports_eager):
    """The distance of rows is a symbol of its own, read off the tensor."""

    def f(x, w):
        return torch.softmax(x * 2, -1).sum(0), x @ w, x.t() + 1

    compiled = jitney.compile(f, dynamic=True)
    for rows, wide in ((4, 8), (6, 20), (3, 37), (9, 12)):
        x, w = torch.randn(rows, wide)[:, :5], torch.randn(5, wide)[:, 1:4]
        assert_equal(compiled(x, w), f(x, w))
    assert len(entries) == 1
    assert not reports_eager
    x, w = torch.randn(4, 1).expand(4, 5), torch.randn(3, 5).t()
    assert_equal(compiled(x, w), f(x, w))


def test_an_offset_is_read_off_its_tensor() -> None:
    def f(x: torch.Tensor) -> tuple[int, torch.Tensor]:
        return x.storage_offset(), x * x.storage_offset()

    compiled = jitney.compile(f, fullgraph=True, dynamic=True)
    for size, start in ((4, 3), (6, 3), (6, 5), (7, 0), (5, 2)):
        x = torch.arange(20.0)[start : start + size]
        assert_equal(compiled(x), f(x))


def test_settings_stay_where_numbers_are_computed_apart() -> None:
    def f(x: torch.Tensor, k: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
        with torch.no_grad():
            y = x * k
        with torch.autocast("cpu", torch.bfloat16):
            z = x @ x
        return y, z, x * k, k * 2

    compiled = jitney.compile(f, fullgraph=True)
    x = torch.randn(3, 3, requires_grad=True)
    for k in (1.5, 2.5, 3.5):
        y, z, scaled, doubled = compiled(x, k)
        assert (y.requires_grad, z.dtype, doubled) == (False, torch.bfloat16, k * 2)
        assert_equal((y, z, scaled), f(x, k)[:3])


def test_settings_that_sizes_decide() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        many = x.shape[0] > 4
        with torch.autocast("cpu", torch.bfloat16, enabled=many), torch.set_grad_enabled(not many):
            return x @ x

    compiled = jitney.compile(f, dynamic=True, fullgraph=True)
    for n in (3, 4, 5, 6, 4):
        x = torch.randn(n, n, requires_grad=True)
        ours, eagers = compiled(x), f(x)
        assert (ours.dtype, ours.requires_grad) == (eagers.dtype, eagers.requires_grad)
        assert_equal(ours, eagers)


@pytest.mark.parametrize("share", [lambda n: int(n * 0.5), lambda n: max(1, round(n * 0.3))])
def test_a_share_of_a_size_is_a_number(share, reports_eager) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.topk(share(x.shape[0]), 0).values * 2, share(x.shape[0])

    compiled = jitney.compile(f, fullgraph=True)
    for n in (8, 9, 11, 8, 12):
        x = torch.randn(n, 3)
        assert_equal(compiled(x), f(x))
    assert not reports_eager


def test_parts_of_a_row_whose_number_is_a_quotient(reports_eager) -> None:
    """One after the other, as a recurrence over chunks takes them (xLSTM)."""

    def chunks(x: torch.Tensor) -> torch.Tensor:
        rows, length = x.shape
        parts = x.view(rows, length // 4, -1)
        seen = parts[..., -1, None] - parts
        total = parts.new_zeros(rows)
        for k in range(length // 4):
            total = torch.max(total + parts[:, k, -1], seen[:, k].amax(-1))
        return (seen.exp() * total[:, None, None]).sum(-1)

    compiled = jitney.compile(chunks, dynamic=True, options={"verify": True})
    for sizes in ((3, 32), (5, 32), (2, 12), (4, 20)):
        x = torch.randn(sizes, requires_grad=True)
        assert_equal_to_eager(chunks, compiled, (x,), training=True)
    assert not reports_eager


@pytest.mark.parametrize("dynamic", [True, False])
def test_strides_of_rows_chosen_behind_a_size_of_one(dynamic) -> None:
    def f(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return z[None][:, torch.arange(2)], z[:, torch.arange(2)[:, None], None]

    compiled = jitney.compile(f, dynamic=dynamic)
    for sizes in ((3, 4, 5), (4, 6, 2), (3, 2, 9)):
        z = torch.randn(sizes).permute(2, 0, 1)
        assert_equal_to_eager(f, compiled, (z,), calls=1)


def test_a_composed_size_of_one_broadcasts() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 4) * y.view(-1, 4) + y.reshape(y.shape[0] // 4, 4)

    compiled = jitney.compile(f, dynamic=True)
    for a, b in ((4, 12), (12, 4), (12, 12), (8, 8), (4, 8)):
        x, y = torch.randn(a, requires_grad=True), torch.randn(b)
        assert_equal(compiled(x, y), f(x, y))
        ours, eagers = (torch.autograd.grad(g(x, y).sum(), x) for g in (compiled, f))
        assert_equal(ours, eagers)
