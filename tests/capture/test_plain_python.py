# ruff: noqa: F821, F841, UP031, UP032
"""Python that has little to do with tensors: names, cells, unpacking, generators, annotations."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import adder

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)
X = torch.tensor([1.0, 2.0, -3.0])


def counting() -> Any:
    count = 0

    def add(by: int = 1) -> int:
        nonlocal count
        count += by
        return count

    return add


@program()
def a_cell_is_read_by_name():
    add = counting()
    jitney.graph_break()
    return add(), add(2), add.__closure__[0].cell_contents


@program()
def names_without_values():
    value, found = 1, []

    def inner():
        nonlocal value
        value += 1

    del value
    for ask in (inner, lambda: value, lambda: no_such_name):
        try:
            ask()
        except NameError as error:
            found.append((type(error), str(error), error.name))
    try:
        print(value)
    except UnboundLocalError as error:
        found.append(str(error))
    jitney.graph_break()
    try:
        print(value)
    except UnboundLocalError as error:
        found.append(str(error))
    return found


@program()
def unpacking_takes_no_more_than_it_needs():
    def numbers():
        for number in range(9):
            taken.append(number)
            yield number

    taken = []
    try:
        a, b = numbers()
    except ValueError as error:
        taken.append(str(error))
    try:
        a, *b, c = [1]
    except ValueError as error:
        taken.append(str(error))
    return taken


@program()
def methods_of_a_generator_across_a_break():
    def numbers():
        try:
            found.append((yield 1))
            yield 2
        except ValueError:
            yield 3

    found = []
    generator = numbers()
    found += [next(generator), generator.send(5)]
    throw = generator.throw
    jitney.graph_break()
    return found, throw(ValueError())


@program()
def names_are_copied_to_functions_of_either_side_of_a_break():
    def wrapper(*args):
        return args

    def wrapped(x):
        """Wrapped."""

    @functools.singledispatch
    def general(value):
        """General."""

    jitney.graph_break()
    functools.update_wrapper(wrapper, wrapped)
    found = wrapper.__name__, wrapper.__doc__, wrapper.__wrapped__ is wrapped
    return found, general.__name__, general.__doc__


@program()
def what_is_read_only_and_what_has_an_address():
    value, found = object(), []
    partial = functools.partial(len, value)
    found.append(repr(partial) == f"functools.partial(<built-in function len>, {value!r})")
    jitney.graph_break()
    for name in ("func", "args"):
        try:
            setattr(partial, name, 1)
        except AttributeError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_a_program_is_eagers(function: Any, args: Any, kwargs: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    assert compiled() == function() == compiled()


def test_a_function_that_is_returned_keeps_its_annotations() -> None:
    def f(x: torch.Tensor) -> Any:
        def inner(a: int, *, b: str = "") -> float:
            """A docstring."""
            return float(a)

        return x + 1, inner

    made = jitney.compile(f, backend="eager")(X)[1]
    assert made.__annotations__ == f(X)[1].__annotations__ and made.__annotations__
    assert made.__doc__ == "A docstring."


def test_text_and_keys_of_symbolic_sizes() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        pair = (n, x.shape[0])
        texts = str(x.shape), f"{pair}", "%s" % (pair,), "{} {}".format(pair, [n])
        found = n in {3, 7}, pair in {(3, 3)}, {pair: n}[3, 3], {n, pair} == {3, (3, 3)}
        return x + 1, texts, found

    found = jitney.compile(f, backend="eager", dynamic=True)(X, 3)
    assert found[1:] == f(X, 3)[1:]


def test_annotations_for_scripts_are_in_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        parts = torch.jit.annotate(list[torch.Tensor], [])
        if torch.jit.is_scripting() or torch.jit.is_tracing():
            return x
        parts.append(torch.jit._unwrap_optional(x))
        return parts[0] * 2

    x = torch.ones(2)
    assert torch.equal(jitney.compile(f, backend="eager", fullgraph=True)(x), f(x))
