"""Sizes and numbers that are symbols: one capture for many shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney import config, torch_api
from jitney.capture.capture_frame import capture_frame
from jitney.capture.finish_guards import guards_of_shapes
from jitney.capture.guard import Guard
from jitney.capture.options import CaptureOptions
from jitney.capture.result import Capture, Return
from jitney.capture.source import Local, Roots
from jitney.events import log
from tests.capture.run_capture import assert_same, bound, function_of, rejects, run_again
from tests.equal import assert_equal

DYNAMIC = CaptureOptions(dynamic=True)


def captured(target: Any, *args: Any, options: CaptureOptions = DYNAMIC) -> Any:
    function, before = function_of(target)
    arguments = bound(function, (*before, *args), {})
    result = capture_frame(function, arguments, options=options)
    assert isinstance(result.exit, Return)
    return function, result


def accepts(result: Capture, function: Any, *args: Any) -> bool:
    arguments = bound(function, args, {})
    if rejects(result, function, arguments):
        return False
    return all(true(g, Roots(arguments, function)) for g in guards_of_shapes(result))


def true(guard: Guard, roots: Roots) -> bool:
    text, sources = guard.expected
    names = {name: source.fetch(roots) for name, source in sources.items()}
    return bool(eval(text, torch_api.shape_expression_names(), names))


def sizes(x: torch.Tensor, n: int) -> Any:
    b, s = x.shape
    y = x.reshape(b * s) + n
    if s > 3:
        y = y * 2
    half = y.reshape(s, b)[: s // 2, -1:]
    return half, s * 2, n + 1, torch.arange(s) % n, x.new_zeros(b, s + 1), f"{x.dim()}"


def test_one_capture_for_many_shapes() -> None:
    function, result = captured(sizes, torch.randn(4, 6), 5)
    for shape, n in (((4, 6), 5), ((7, 9), 3), ((2, 12), 8)):
        x = torch.randn(shape)
        assert accepts(result, function, x, n)
        assert_same(run_again(result, function, {"x": x, "n": n}), sizes(x, n))


def test_a_branch_on_a_size_is_guarded() -> None:
    function, result = captured(sizes, torch.randn(4, 6), 5)
    assert not accepts(result, function, torch.randn(4, 3), 5)


def test_equal_sizes_share_a_symbol() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    _, result = captured(f, torch.randn(5), torch.randn(5))
    assert accepts(result, f, torch.randn(8), torch.randn(8))
    assert not accepts(result, f, torch.randn(8), torch.randn(1))


def test_parameters_and_buffers_keep_their_sizes() -> None:
    layer = torch.nn.BatchNorm1d(6)
    function, result = captured(layer, torch.randn(4, 6))
    for given in result.inputs:
        assert all(type(s) is int for s in given.example.shape) == ("input" not in given.name)
    x = torch.randn(9, 6)
    layer.eval()
    function, result = captured(layer, torch.randn(4, 6))
    assert_same(run_again(result, function, {"self": layer, "input": x}), layer(x))


def test_marks_of_torch_are_honoured() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]

    x = torch.randn(4, 6)
    torch._dynamo.mark_dynamic(x, 0)
    _, result = captured(f, x, options=CaptureOptions())
    assert accepts(result, f, torch.randn(9, 6)) and not accepts(result, f, torch.randn(4, 7))
    y = torch.randn(4, 6)
    torch._dynamo.mark_static(y, 1)
    _, result = captured(f, y)
    assert accepts(result, f, torch.randn(9, 6)) and not accepts(result, f, torch.randn(4, 7))


def test_what_changed_once_becomes_a_symbol() -> None:
    def f(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
        return x * n + scale

    x, y = torch.randn(4), torch.randn(7)
    _, result = captured(f, x, 3, 0.5, options=CaptureOptions())
    assert not accepts(result, f, y, 3, 0.5) and not accepts(result, f, x, 4, 0.5)
    changed = frozenset({(Local("x"), 0), (Local("n"), None), (Local("scale"), None)})
    _, result = captured(f, x, 3, 0.5, options=CaptureOptions(dynamic_sources=changed))
    assert accepts(result, f, y, 9, 2.25)
    again = run_again(result, f, {"x": y, "n": 9, "scale": 2.25})
    assert_same(again, f(y, 9, 2.25))


def test_never_dynamic() -> None:
    _, result = captured(sizes, torch.randn(4, 6), 5, options=CaptureOptions(dynamic=False))
    assert all(not isinstance(i.example, torch.SymInt) for i in result.inputs)
    assert not accepts(result, sizes, torch.randn(5, 6), 5)


def test_symbols_at_the_borders_of_c_code() -> None:
    def f(x: torch.Tensor) -> Any:
        n = x.shape[0]
        table = {n: "n", 3: "three"}
        return (
            x + 1,
            isinstance(n, int),
            type(n) is int,
            table[n],
            list(range(n)),
            max(n, 2),
            "ab" * n,
            n in (n, 1),
            bool(n),
            int(n),
            x.shape == (n, 2),
        )

    _, result = captured(f, torch.randn(5, 2))
    x = torch.randn(5, 2)
    assert_same(run_again(result, f, {"x": x}), f(x))
    assert not accepts(result, f, torch.randn(6, 2))


@pytest.mark.parametrize("size", [0, 1])
def test_zero_and_one_are_not_symbols(size: int) -> None:
    _, result = captured(lambda x: x + 1, torch.randn(size, 4))
    assert result.inputs[0].example.shape[0] == size
    assert type(result.inputs[0].example.shape[0]) is int


def test_a_list_repeated_in_place_grows_once() -> None:
    def f(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int, int]:
        first, second = [x, x], [x]
        first *= n
        operator.imul(second, n)
        return x + len(first), len(first), len(second)

    compiled, x = jitney.compile(f), torch.ones(2)
    for n in (2, 3, 4, 2):
        found, expected = compiled(x, n), f(x, n)
        assert found[1:] == expected[1:] and torch.equal(found[0], expected[0])


def test_truth_values_of_sizes_are_truth_values_to_torch() -> None:
    """``is_causal=length > 1``: torch's functions take no symbol there."""

    def attend(q: torch.Tensor) -> Any:
        length = q.shape[-2]
        y = F.scaled_dot_product_attention(q, q, q, is_causal=length > 1)
        return F.dropout(y, 0.0, training=length > 3), y.sum(-1, length != 2)

    compiled = jitney.compile(attend, dynamic=True, fullgraph=True)
    with config.override(eager_on_bug=False):
        for length in (5, 2, 3):
            q = torch.randn(2, 3, length, 4)
            assert_equal(compiled(q), attend(q))


def test_a_place_below_a_size_that_is_written_into_a_text() -> None:
    def row(x: torch.Tensor, i: int) -> tuple[torch.Tensor, str]:
        return x[i] * 2, f"of {x.shape[0]}"

    for dynamic in (True, None):
        compiled = jitney.compile(row, dynamic=dynamic)
        with config.override(eager_on_bug=False):
            for n, i in ((3, 0), (3, 2), (4, 2), (4, 3), (5, 3)):
                x = torch.randn(n, 2)
                found, expected = compiled(x, i), row(x, i)
                assert found[1] == expected[1] and torch.equal(found[0], expected[0])


def test_random_numbers_of_a_symbolic_size_and_no_generator() -> None:
    def noise(x: torch.Tensor, generator: Any = None) -> Any:
        drawn = torch.randn(x.shape, generator=generator)
        return x + drawn, torch.rand(x.shape[0], 2, generator=None).bernoulli(generator=generator)

    compiled = jitney.compile(noise, dynamic=True, fullgraph=True)
    for n in (3, 5):
        x = torch.zeros(n, 2)
        torch.manual_seed(n)
        expected, after = noise(x), torch.rand(1)
        torch.manual_seed(n)
        assert_equal(compiled(x), expected)
        assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("draw", [torch.rand, torch.randn, partial(torch.randint, 3, 9)])
def test_the_default_generator_takes_symbolic_sizes(draw: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + draw((len(x), 2), generator=None)

    compiled = jitney.compile(f, dynamic=True, fullgraph=True)
    for rows in (4, 5):
        x = torch.zeros(rows, 2)
        results = [torch.manual_seed(0) and g(x) for g in (compiled, f)]
        assert_equal(*results)


def test_a_generator_that_a_function_does_not_take_is_refused() -> None:
    with pytest.raises(TypeError):
        jitney.compile(lambda x: torch.add(x, x, generator=None))(torch.randn(3))


def test_the_base_of_a_view_whose_size_changes() -> None:
    """The view's stand-in brings the base's along, with symbols for sizes that have not changed."""

    def f(y: torch.Tensor, x: torch.Tensor) -> Any:
        return y * 2, torch.zeros(x.shape[0]) + x.shape[1], x.sum()

    compiled = jitney.compile(f)
    with config.override(eager_on_bug=False):
        for apart, n, m in ((True, 4, 5), (False, 4, 5), (False, 6, 7), (True, 6, 8)):
            x = torch.randn(n, m, requires_grad=True) * 1
            y = torch.randn(7, requires_grad=True) * 1 if apart else x.view(-1)
            assert_equal(compiled(y, x), f(y, x))


TRUTHS: dict[str, Callable[[int, int], Any]] = {
    "equal to one": lambda n, k: (n > k) == 1,
    "from the left": lambda n, k: 1 == (n > k),
    "not zero": lambda n, k: (n > k) != 0,
    "beside a float": lambda n, k: (n > k) == 1.0,
    "beside a number": lambda n, k: (n != (n > k), k == (n > k)),
    "less": lambda n, k: ((n > k) < 1, (n > k) >= (n > 0)),
    "in a tuple": lambda n, k: ((n > k) in (1,), (n > k,) == (1,), [0, 1].index(n > k)),
    "beside a truth value": lambda n, k: (True in (n,), False in (0 * n, n), n - n in [False]),
    "in containers": lambda n, k: ((n, True) == (True, n), [n, True].count(True), max(True, n)),
    "a key": lambda n, k: {1: "one", 0: "none"}[n > k],
    "added": lambda n, k: ((n > k) + (n == k), sum([n > k, n == k]), (n > k) * 0.5, -(n > k)),
    "taken for a number": lambda n, k: (float(n == k), int(n > k), abs(n > k), round(n > k)),
    "bits": lambda n, k: ((n > k) & 1, (n > k) | (n == k), (n > k) ^ True, ~(n - k)),
    "a branch": lambda n, k: "one" if (n > k) == 1 else "none",
    "text": lambda n, k: (f"{n > k} {n > k:d}", str(n > k)),
    "the larger": lambda n, k: (max(n > k, 0), min(1, n > k), sorted([n > k, 0])),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("sizes", [False, True])
@pytest.mark.parametrize("name", TRUTHS)
def test_truth_values_of_symbols_are_ints(name: str, sizes: bool, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, n: int, k: int) -> Any:
        return TRUTHS[name](x.shape[0] if sizes else n, k), x * 2

    compiled = jitney.compile(program, dynamic=dynamic, options={"eager_on_bug": False})
    for n, k in ((1, 2), (2, 2), (3, 1), (5, 0), (0, 1), (4, 4)):
        expected, found = (call(torch.ones(n), n, k)[0] for call in (program, compiled))
        assert repr(found) == repr(expected), (n, k)


def test_what_is_assumed_of_a_storages_size_is_no_guard() -> None:
    """Two inputs behind the break share a storage, whose size no input shows."""

    def filled(z: torch.Tensor) -> Any:
        last, part = z[-1:].data, z[::2]
        jitney.graph_break()
        part.fill_diagonal_(1)
        return last.diagonal() * 2

    compiled = jitney.compile(filled, dynamic=True, options={"eager_on_bug": False})
    log.clear()
    for n in (4, 5):
        x, y = (torch.arange(float(n))[:, None].requires_grad_() * 1 for _ in range(2))
        assert_equal((compiled(x), x), (filled(y), y))
    assert [event.data["kind"] for event in log.events("frame_skipped")] == ["storage-size"]


def test_the_magnitude_of_a_number_that_changes() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.nn.functional.pad(x, (abs(n), 0)) + abs(n - 1)

    compiled = jitney.compile(f, fullgraph=True)
    log.clear()
    for n in (3, -2, 5, -7, 0, 1, 9):
        assert torch.equal(compiled(torch.ones(4), n), f(torch.ones(4), n))
    assert not log.events("eager_graph") and len(log.events("entry")) < 7


@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_a_head_size_that_changes_and_a_given_scale(masked: bool) -> None:
    def f(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(x, x + 1, x - 1, attn_mask=mask, scale=0.3) * 2

    compiled = jitney.compile(f, dynamic=True)
    log.clear()
    for size in (8, 16, 6):
        x, mask = torch.randn(2, 3, 5, size), torch.randn(5, 5) if masked else None
        torch.testing.assert_close(compiled(x, mask), f(x, mask), rtol=1e-4, atol=1e-5)
    assert not log.events("interpreted_node")
