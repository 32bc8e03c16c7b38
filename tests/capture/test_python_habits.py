# ruff: noqa: UP032
"""What CPython's own test suite showed: numbers that are one object, stopped generators, None's
methods, loggers that change, patterns, type aliases."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitney

PATTERN = re.compile(r"([a-z])(\d+)")
SIZES = (3, 4, 5, 3)


def agree(function: Callable[..., Any], *rows: tuple[Any, ...], **options: Any) -> None:
    """Fails unless compiled calls give what eager ones do, tensors among a tuple's items."""
    compiled = jitney.compile(function, backend="eager", **options)
    for size, row in zip(SIZES, rows or ((),) * len(SIZES)):
        wanted, found = (f(torch.ones(size), *row) for f in (function, compiled))
        assert repr(found) == repr(wanted)


def test_small_numbers_are_one_object() -> None:
    def f(x: torch.Tensor, order: tuple[int, ...]) -> Any:
        n, ordered = x.shape[0], sorted(order)
        found = [good is not ordered[i] for i, good in enumerate(range(4))]
        found += [n is i for i in range(6)]
        positive, many = n > 0, n * 100
        return x, found, positive is True, positive is (n < 9), many is n

    agree(f, ((2, 0, 1, 3),), ((1, 0, 3, 2),), ((3, 2, 1, 0),), ((0, 1, 3, 2),))
    agree(f, ((2, 0, 1, 3),), ((1, 0, 3, 2),), ((3, 2, 1, 0),), dynamic=True)


def stopped_in_a_handler(x: torch.Tensor) -> Any:
    def inner() -> Iterator[Any]:
        try:
            raise KeyError("a")
        except KeyError:
            yield x + 1
            yield x + 2

    def outer() -> Iterator[Any]:
        try:
            raise ValueError
        except ValueError:
            yield from inner()

    generators = inner(), outer()
    first = [next(g) for g in generators]
    jitney.graph_break()
    return first, [list(g) for g in generators]


def thrown_into_a_handler(x: torch.Tensor) -> Any:
    def generate() -> Iterator[Any]:
        try:
            raise KeyError("a")
        except KeyError:
            yield x + 1

    generator = generate()
    y = next(generator)
    try:
        generator.throw(ValueError)
    except ValueError as error:
        jitney.graph_break()
        return repr(error.__context__), y


@pytest.mark.parametrize("function", [stopped_in_a_handler, thrown_into_a_handler])
def test_a_generator_stopped_in_a_handler_goes_on_behind_a_break(function: Any) -> None:
    agree(function)


def test_methods_that_none_has_from_object() -> None:
    agree(lambda x: (x, None.__ne__(None), None.__ne__(3), None.__eq__(None)))


class Keeping:
    def __enter__(self) -> Keeping:
        return self

    def __exit__(self, *error: Any) -> bool:
        self.error = error
        return True


class Handing(Keeping):
    def __exit__(self, *error: Any) -> bool:
        return super().__exit__(*error)


@pytest.mark.parametrize("make", [Keeping, Handing, contextlib.ExitStack])
def test_a_manager_that_takes_all_in_a_tuple_gets_the_traceback(make: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        kept = Keeping() if make is contextlib.ExitStack else make()
        with make() if make is contextlib.ExitStack else kept as manager:
            if manager is not kept:
                manager.enter_context(kept)
            raise ValueError
        return x + 1, kept.error[0], kept.error[2] is None

    agree(f)


def test_an_exception_that_existed_gets_a_traceback_when_it_is_raised() -> None:
    def f(x: torch.Tensor, error: Exception) -> Any:
        with Keeping() as kept:
            raise error
        return x + 1, kept.error[1] is error, kept.error[2] is None

    def g(x: torch.Tensor, error: Exception) -> Any:
        try:
            raise error
        except ValueError as caught:
            return x + 1, caught is error, caught.__traceback__ is None

    for function in (f, g):
        compiled = jitney.compile(function, backend="eager")
        for size in SIZES:
            assert compiled(torch.ones(size), ValueError())[1:] == (True, False)


def test_text_of_a_container_does_not_keep_an_address() -> None:
    def f(x: torch.Tensor) -> Any:
        thing = object()
        return x, thing, ("%r" % [thing], "{}".format([thing]), "%s" % (lambda: 1))

    compiled = jitney.compile(f, backend="eager")
    for _ in range(2):
        _, thing, (one, other, _) = compiled(torch.ones(3))
        assert one == other == repr([thing])


def test_patterns_that_existed_are_used_without_a_break() -> None:
    def f(x: torch.Tensor, text: str) -> Any:
        found = PATTERN.search(text)
        assert found is not None
        by_name = [x * int(m[2]) for m in PATTERN.finditer(text)]
        return by_name, found.span(), PATTERN.sub(r"\2\1", text), PATTERN.split(text)

    agree(f, ("a12b34",), ("c7",), ("d9e10",), ("a12b34",), fullgraph=True)


def test_fromkeys_of_nothing() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            dict.fromkeys()  # type: ignore[call-overload]
        except TypeError as error:
            return x, str(error)

    agree(f)


class Told:
    """A logger that writes to a text, and what changes how."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        self.handler = logging.StreamHandler(self.text)
        self.logger = logging.Logger("told", logging.DEBUG)
        self.logger.addHandler(self.handler)


def of_levels(told: Told) -> None:
    told.handler.setLevel(logging.WARNING)
    told.logger.info("one")
    told.handler.setLevel(logging.NOTSET)
    told.logger.info("two")


def of_formatters(told: Told) -> None:
    told.logger.info("one")
    told.handler.setFormatter(logging.Formatter("!%(message)s"))
    told.logger.info("two")
    told.handler.setFormatter(None)


def of_filters(told: Told) -> None:
    nothing = logging.Filter("nothing")
    told.logger.addFilter(nothing)
    told.logger.info("one")
    told.logger.removeFilter(nothing)
    told.logger.info("two")


def of_attributes(told: Told) -> None:
    told.logger.disabled = True
    told.logger.info("one")
    told.logger.disabled = False
    told.handler.terminator = "|"
    told.logger.info("two")
    told.handler.terminator = "\n"


@pytest.mark.parametrize("say", [of_levels, of_formatters, of_filters, of_attributes])
def test_records_are_told_as_the_logger_was_when_they_came(say: Any) -> None:
    def f(x: torch.Tensor, told: Told) -> torch.Tensor:
        say(told)
        return x + 1

    compiled = jitney.compile(f, backend="eager")
    for size in SIZES:
        texts = []
        for function in (f, compiled):
            told = Told()
            function(torch.ones(size), told)
            texts.append(told.text.getvalue())
        assert texts[0] == texts[1]


def test_super_where_it_does_not_work() -> None:
    class Asking:
        def ask(self) -> Any:
            return super()

    def nothing() -> Any:
        return super()  # type: ignore[misc]

    cell = (lambda: Asking).__closure__

    def f(x: torch.Tensor) -> Any:
        found = []
        for ask in (nothing, lambda: Asking.ask(cell[0])):  # type: ignore[index, arg-type]
            try:
                ask()
            except (RuntimeError, TypeError) as error:
                jitney.graph_break()
                found.append(str(error))
        return x, found

    agree(f)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements")
def test_a_type_alias_is_evaluated_when_it_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    text = "def f(x):\n  type A = (print('said'), x + 1)[1]\n  y = x * 2\n  return y, A.__value__\n"
    exec(text, namespace)
    agree(namespace["f"])
    assert capsys.readouterr().out == "said\n" * 2 * len(SIZES)
