"""What torch's functions are given reaches the graph as it is; what is no op is never skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import broken

BACKENDS = ("eager", "jitney")


def text(value: Any) -> str:
    """Values, dtypes and signs of zeros."""
    items = value if isinstance(value, tuple) else (value,)
    return str([(torch.view_as_real(x) if x.is_complex() else x, x.dtype) for x in items])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_size_is_a_shape_for_new_and_a_tuple_holds_values(backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shaped = x.new(x.shape).zero_(), x.new(x.size()[:1]).zero_()
        return *shaped, x.new(tuple(x.shape)), x.new(torch.Size([])).zero_()

    x = torch.ones(2, 3)
    assert text(jitney.compile(f, backend=backend)(x)) == text(f(x))
    symbolic = jitney.compile(f, backend=backend, dynamic=True)
    for size in (3, 5):
        x = torch.ones(size, 2)
        assert text(symbolic(x)) == text(f(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_number_types_are_dtypes(backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = (
            torch.ones(2, dtype=float),
            torch.zeros(2, dtype=complex),
            x.to(int),
            x.sum(dtype=float),
        )
        return *made, torch.ones(2, dtype=bool)

    x = torch.arange(3.0)
    assert text(jitney.compile(f, backend=backend)(x)) == text(f(x))


NAN, INF = float("nan"), float("inf")
NUMBERS = (
    complex(NAN, NAN),
    complex(INF, -1),
    complex(-0.0, 1),
    complex(0.0, -2),
    complex(1, -0.0),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_complex_numbers_that_no_text_stands_for(backend: str, number: complex) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + number, torch.full((1,), number)

    x = torch.tensor([1 + 2j, complex(-0.0, 0)])
    assert text(jitney.compile(f, backend=backend)(x)) == text(f(x))


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_that_change_the_process_run_in_every_call(backend: str, threads: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(threads + 1)
        return x + 1

    compiled = jitney.compile(f, backend=backend)
    for _ in range(2):
        torch.set_num_threads(threads)
        compiled(torch.ones(2))
        assert torch.get_num_threads() == threads + 1


def test_anomaly_mode_ends_with_its_block() -> None:
    def f(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
        try:
            with torch.autograd.detect_anomaly(check_nan=False):
                y = x * 2
                raise ValueError
        except ValueError:
            return torch.is_anomaly_enabled(), y

    compiled = jitney.compile(f, backend="eager")
    with pytest.warns(UserWarning, match="Anomaly"):
        assert [compiled(torch.ones(2))[0] for _ in range(2)] == [False, False]
    assert not torch.is_anomaly_enabled()


@torch.compiler.disable
def noted(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return args, kwargs


class Counted:
    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count > 3:
            raise StopIteration
        return self.count


STARRED: list[Callable[[torch.Tensor], Any]] = [
    lambda x: noted(*(n for n in range(x.dim() + 1))),
    lambda x: noted(*(n for n in range(2)), **dict(a=x.dim())),
    lambda x: noted(*map(str, x.shape)),
    lambda x: noted(*Counted()),
    lambda x: noted(*{1: 2}),
]


@pytest.mark.parametrize("function", STARRED)
def test_what_stars_went_over_is_there_behind_a_break(function: Any) -> None:
    x = torch.ones(2, 3)
    assert broken(function, x).kind == "disabled"
    compiled = jitney.compile(function, backend="eager")
    assert [compiled(x), compiled(x)] == [function(x)] * 2


def test_an_iterator_that_stars_went_over_is_at_its_end() -> None:
    def f(x: torch.Tensor) -> tuple[int, list[int]]:
        counted = Counted()
        noted(*counted)
        return counted.count, list(counted)

    assert jitney.compile(f, backend="eager")(torch.ones(2)) == f(torch.ones(2)) == (4, [])


class Wrapped:
    """No tensor, but torch's functions ask it, as they do tensordict's."""

    asked: list[Any] = []

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append((func.__name__, types, len(args), sorted(kwargs or {})))
        if func is torch.exp:
            return NotImplemented
        plain = [_unwrapped(a) for a in args]
        return cls(func(*plain, **{k: _unwrapped(v) for k, v in (kwargs or {}).items()}))


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_unwrapped(item) for item in value]
    return value.tensor if isinstance(value, Wrapped) else value


def test_an_argument_handles_torchs_functions() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        w = Wrapped(x)
        joined = torch.cat([w, torch.add(w, 1)], dim=0)
        made = [
            torch.nn.functional.softmax(joined, dim=-1),
            torch.nn.functional.relu(w, inplace=False),
            torch.nn.functional.linear(w, torch.ones(2, 3)),
            torch.matmul(x, Wrapped(x.T)),
            torch.where(x > 0, w, x),
            torch.sum(joined, 0, keepdim=True),
        ]
        return [m.tensor for m in made]

    compiled = jitney.compile(f, fullgraph=True)
    for rows in (4, 4, 5):
        x = torch.randn(rows, 3)
        Wrapped.asked.clear()
        expected, told = f(x), list(Wrapped.asked)
        Wrapped.asked.clear()
        torch.testing.assert_close(compiled(x), expected)
        assert Wrapped.asked == told


def test_an_argument_that_does_not_handle_a_function_is_asked_once() -> None:
    def f(x: torch.Tensor) -> str:
        try:
            return str(torch.exp(Wrapped(x)))
        except TypeError as error:
            return str(error)

    compiled = jitney.compile(f)
    for _ in range(2):
        x = torch.randn(3)
        Wrapped.asked.clear()
        expected = f(x)
        assert compiled(x) == expected
        assert len(Wrapped.asked) == 2


def test_arguments_of_two_classes_that_handle_functions_break_the_graph() -> None:
    class Other(Wrapped):
        pass

    def f(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        made = torch.add(Wrapped(x), Other(x))
        return type(made).__name__, made.tensor

    x = torch.randn(3)
    name, result = jitney.compile(f)(x)
    assert name == f(x)[0] == "Other"
    torch.testing.assert_close(result, f(x)[1])
