"""Functions of ``torch.jit.script`` are interpreted; where TorchScript differs it runs itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal

if sys.version_info >= (3, 14):
    pytest.skip("TorchScript ends with Python 3.13", allow_module_level=True)

script: Callable[..., Any] = torch.jit.script


def scaled(x: torch.Tensor, n: int, scale: float = 0.5) -> torch.Tensor:
    if x.size(0) > 3:
        return x.sin() * n * scale
    return x.cos() // n


def nested(x: torch.Tensor, n: int) -> torch.Tensor:
    return scripted_scaled(x, n) + torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * n)


def power(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (n**2)  # a fraction in TorchScript, as here, for whole numbers


def asks(x: torch.Tensor, n: int) -> torch.Tensor:
    if torch.jit.is_scripting():
        return x + n
    return x - n


def appends(x: torch.Tensor, kept: list[int]) -> torch.Tensor:
    kept.append(3)
    return x * kept[0]


def by_square(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (n**2)


def halved(x: torch.Tensor, by: float) -> torch.Tensor:
    return x // by


def calls_power(x: torch.Tensor, n: int) -> torch.Tensor:
    return by_square(x, n) + 1


def calls_converting(x: torch.Tensor, n: int) -> torch.Tensor:
    return halved(x, 2.0) * n


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def calls_plain(x: torch.Tensor, n: int) -> torch.Tensor:
    return doubled(x).sin() + n


scripted_scaled = script(scaled)


def breaks(fn: Callable[..., Any], *args: Any) -> int:
    """Compiled twice called as in eager; how often the graph breaks."""
    compiled = jitney.compile(fn)
    for _ in range(2):
        assert_equal(compiled(*args), fn(*args))
    return len(jitney.explain(fn)(*args).breaks)


@pytest.mark.parametrize("rows", [2, 5])
def test_inside_the_graph(rows: int) -> None:
    outer = script(nested)
    x = torch.randn(rows, 4, requires_grad=True)
    assert breaks(lambda x, n: outer(x + 1, n) * 2, x, 3) == 0
    assert breaks(lambda x, n: scripted_scaled(x, n=n, scale=0.25), x, 2) == 0


def test_plain_functions_that_it_calls() -> None:
    outer = script(calls_plain)
    assert breaks(lambda x: outer(x + 1, 3) * 2, torch.randn(4)) == 0


def test_a_number_that_changes() -> None:
    compiled = jitney.compile(lambda x, n: scripted_scaled(x, n))
    x = torch.randn(5)
    for n in (1, 2, 3, 2):
        assert_equal(compiled(x, n), scripted_scaled(x, n))


@pytest.mark.parametrize("fn", [power, asks, calls_power, calls_converting])
def test_left_to_torchscript(fn: Callable[..., Any]) -> None:
    scripted = script(fn)
    assert breaks(lambda x: scripted(x + 1, 3) * 2, torch.arange(6)) == 1


def test_arguments_that_are_converted_or_copied() -> None:
    taken, x = script(appends), torch.randn(3)
    kept = [2]
    assert breaks(lambda x: taken(x, kept), x) == 1
    assert kept == [2]
    assert breaks(lambda x: scripted_scaled(x, 2, 1), x) == 1


def test_wrong_arguments_raise_as_in_eager() -> None:
    x = torch.randn(3)
    for args in ((x,), (x, 1, 0.5, 2)):
        with pytest.raises(RuntimeError) as expected:
            scripted_scaled(*args)
        with pytest.raises(RuntimeError) as found:
            jitney.compile(lambda *a: scripted_scaled(*a))(*args)
        assert str(found.value) == str(expected.value)


def test_a_traced_function_is_what_was_traced() -> None:
    def by_sign(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    traced = torch.jit.trace(by_sign, (torch.ones(3),))
    for x in (torch.ones(3), -torch.ones(3)):
        compiled = jitney.compile(lambda x: traced(x) * 2)
        assert_equal(compiled(x), (x + 1) * 2)


# ---------------------------------------------------------------- what differs


def raises(x: torch.Tensor, n: int) -> torch.Tensor:
    if n > 2:
        raise ValueError("large")
    return x + n


def asserts(x: torch.Tensor, n: int) -> torch.Tensor:
    assert n < 3
    return x + n


def divides(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (1 // (n - 3))


def overflows(x: torch.Tensor, n: int) -> torch.Tensor:
    return x + (n * n * n * n)


def shifts(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * ((n << 62) + 1)


def folded_power(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (2**2) * n


def comprehends(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * [i**2 for i in [n, 4]][0]


def measures(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * len("é") * n


def its_shape(x: torch.Tensor, n: int) -> list[int]:
    return x.shape  # type: ignore[return-value]


def its_dtype(x: torch.Tensor, n: int) -> torch.dtype:
    return x.dtype


def tells_kinds(x: torch.Tensor, n: int) -> torch.Tensor:
    return x + 1 if isinstance(x.shape, list) else x - 1


def rounds_down(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (0.3 * n // 0.1)


DIFFERENT = [raises, asserts, divides, overflows, shifts, folded_power, comprehends, measures,
             its_shape, its_dtype, tells_kinds, rounds_down]  # fmt: skip


def attempt(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        found = fn(*args)
    except Exception as error:  # noqa: BLE001 - its name is compared
        return type(error).__name__
    return found.tolist() if isinstance(found, torch.Tensor) else found


@pytest.mark.parametrize("fn", DIFFERENT)
@pytest.mark.parametrize("number", [2, 3, 2**20])
def test_what_torchscript_means_by_it(fn: Callable[..., Any], number: int) -> None:
    scripted = script(fn)

    def handled(x: torch.Tensor, n: int) -> Any:
        try:
            found = scripted(x + 1, n)
        except (ValueError, ArithmeticError, AssertionError):
            return "handled"
        return type(found), found

    compiled = jitney.compile(handled, backend="eager")
    x = torch.arange(6)
    for n in (1, number, number):
        assert repr(attempt(compiled, x, n)) == repr(attempt(handled, x, n))


def flagged(x: torch.Tensor, flag: bool) -> torch.Tensor:
    return x * 2 if flag else x


def untyped(x, y):  # type: ignore[no-untyped-def]
    return x + y


def converted_default(x: torch.Tensor, by: float = 1) -> torch.Tensor:
    return x * by


@pytest.mark.parametrize(
    "fn, args",
    [
        (flagged, (3,)),
        (scaled, (True,)),
        (scaled, (torch.tensor([2]),)),
        (untyped, (2.0,)),
        (untyped, (torch.ones(6),)),
        (converted_default, ()),
        (converted_default, (2,)),
    ],
)
def test_what_it_is_given(fn: Callable[..., Any], args: Any) -> None:
    scripted = script(fn)
    compiled = jitney.compile(lambda x: scripted(x, *args), backend="eager")
    x = torch.arange(6, dtype=torch.int8)
    for _ in range(2):
        found, want = attempt(compiled, x), attempt(scripted, x, *args)
        assert repr(found) == repr(want)
    if not isinstance(want, str):
        assert compiled(x).dtype is scripted(x, *args).dtype


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def other(x: torch.Tensor) -> torch.Tensor:
    return x + 7


def helped(x: torch.Tensor) -> torch.Tensor:
    return helper(x) * 2 + other(x)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_what_was_compiled_stays(monkeypatch: pytest.MonkeyPatch, is_compiled: bool) -> None:
    scripted, x = script(helped), torch.ones(3)
    compiled = jitney.compile(lambda x: scripted(x) * 3, backend="eager")
    assert len(jitney.explain(lambda x: scripted(x) * 3)(x).breaks) == 0
    want = scripted(x) * 3

    def another(x: torch.Tensor) -> torch.Tensor:
        return x + 100

    another.__name__ = "helper"
    if is_compiled:
        script(another)
    names = globals()
    for replaced in ({}, {"helper": another}, {"helper": other, "other": helper}, {}):
        for name, value in replaced.items():
            monkeypatch.setitem(names, name, value)
        assert_equal(compiled(x), want)
        monkeypatch.undo()


def bucketed(relative, size: int, most: int):  # type: ignore[no-untyped-def]
    mid = size // 2
    near = (relative < mid) & (relative > -mid)
    distance = torch.where(near, torch.tensor(mid - 1).type_as(relative), torch.abs(relative))
    ratio = torch.log(distance / mid) / torch.log(torch.tensor((most - 1) / mid))
    return torch.where(distance <= mid, relative.type_as(ratio), torch.ceil(ratio * (mid - 1)))


def positions(query, key, size: int = -1, most: int = -1):  # type: ignore[no-untyped-def]
    rows = torch.arange(query.size(-2), dtype=torch.long, device=query.device)
    columns = torch.arange(key.size(-2), dtype=torch.long, device=key.device)
    relative = rows[:, None] - columns[None, :]
    if size > 0 and most > 0:
        relative = bucketed(relative, size, most)
    return relative.to(torch.long)[: query.size(-2), :].unsqueeze(0)


def relative_positions(query, key, given, size: int, most: int):  # type: ignore[no-untyped-def]
    if key.size(-2) != query.size(-2):
        return positions(key, key, size=size, most=most)
    else:
        return given.expand(query.size()[:1] + (query.size(-2), key.size(-1)))


def spans(query: torch.Tensor, key: torch.Tensor, most: int) -> torch.Tensor:
    if most == 0:
        raise ValueError(f"{most} is too few")
    return torch.tensor(min(max(query.size(-2), key.size(-2)), most))


@pytest.mark.parametrize("rows", [4, 6])
def test_attention_by_position_stays_in_the_graph(rows: int) -> None:
    """As DeBERTa's functions are written."""
    query, key, given = torch.randn(2, rows, 8), torch.randn(2, 4, 8), torch.randn(1, 1, 1)
    relative, span = script(relative_positions), script(spans)
    assert breaks(lambda q, k, g: relative(q, k, g, 4, 16) * span(q, k, 5), query, key, given) == 0
