"""Generators of the frame: what is sent, thrown and closed, also through ``yield from``."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import adder, same_as_eager

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)


class Stop(BaseException):
    """No `Exception`: it passes those who catch only these."""


class Numbers:
    """An iterator of the program's, with an attribute."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.given += 1
        if self.given > 3:
            raise StopIteration
        return self.given


class Receiver(Numbers):
    """What may be sent and thrown to where a generator delegates to it."""

    def send(self, value: Any) -> Any:
        return ("sent", value)

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        if isinstance(kind, KeyError):
            raise StopIteration("ended")
        return ("thrown", repr(kind), value)

    def close(self) -> None:
        self.given = -1


class Failing:
    """Its ``__next__`` raises with a cause."""

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        raise ValueError("a") from KeyError("b")


def told(error: BaseException) -> Any:
    """An exception and its chain."""
    links = error.__cause__, error.__context__
    return repr(error), [repr(link) for link in links], error.__suppress_context__


@program()
def what_a_generator_that_has_not_started_takes():
    def numbers():
        yield (yield 1)

    generator, found = numbers(), []
    try:
        generator.send(5)
    except TypeError as error:
        found.append(str(error))
    return found, next(generator), generator.send(6)


@program()
def what_a_generator_ends_with():
    def giving(value):
        yield
        return value

    found = []
    for value in (None, 1, (2,), ValueError(3), StopIteration(4)):
        generator = giving(value)
        next(generator)
        try:
            generator.send(0)
        except StopIteration as error:
            found.append((repr(error), repr(error.value)))
    return found


@program()
def what_is_thrown():
    def catching():
        while True:
            try:
                yield 1
            except ValueError as error:
                yield error.args

    generator, found = catching(), []
    next(generator)
    for given in ((ValueError, "m"), (ValueError, (1, 2)), (ValueError,), (ValueError("i"),)):
        found.append(generator.throw(*given))
        next(generator)
    for given in ((5,), (ValueError("i"), 3), (ValueError, None, 4)):
        try:
            generator.throw(*given)
        except TypeError as error:
            found.append(str(error))
    return found, next(generator)


@program()
def what_is_thrown_goes_to_where_it_delegates():
    def inner():
        try:
            yield 1
        except ValueError as error:
            yield f"inner {error}"
        except KeyError:
            return "returned"
        finally:
            log.append("end")

    def outer():
        try:
            yield "from", (yield from inner())
        except TypeError as error:
            yield told(error)

    log: list[Any] = []
    for thrown in (ValueError("v"), KeyError("k"), TypeError("t")):
        generator = outer()
        log += [next(generator), generator.throw(thrown)]
        generator.close()
    return log


@program()
def what_closes_where_it_delegates():
    def inner():
        try:
            yield 1
        finally:
            log.append("inner")
            if fails:
                raise KeyError("in the end")

    def outer():
        try:
            yield from inner()
        finally:
            log.append("outer")

    log: list[Any] = []
    for fails, closes in itertools.product((False, True), (False, True)):
        generator = outer()
        log += [fails, next(generator)]
        try:
            if closes:
                generator.close()
            else:
                generator.throw(GeneratorExit)
        except (KeyError, GeneratorExit) as error:
            log.append(repr(error))
    return log


@program()
def an_object_that_is_delegated_to():
    def outer():
        yield "result", (yield from receiver)

    receiver = Receiver()
    generator = outer()
    found = [next(generator), generator.send(7), generator.throw(ValueError("v"))]
    found.append(generator.throw(KeyError("k")))
    other = outer()
    found.append(next(other))
    other.close()

    def plain():
        try:
            yield from Numbers()
        except ValueError as error:
            yield repr(error)

    third = plain()
    return found, receiver.given, next(third), third.throw(ValueError("v"))


@program()
def a_generator_that_runs_or_has_ended():
    def running():
        for act in (lambda: next(generator), generator.close, lambda: generator.throw(KeyError)):
            try:
                act()
            except ValueError as error:
                found.append(str(error))
        yield 1

    def ignoring():
        while True:
            try:
                yield 1
            except GeneratorExit:
                yield 2

    found: list[Any] = []
    generator = running()
    found += list(generator)
    for act in (
        lambda: next(generator),
        lambda: generator.send(3),
        lambda: generator.throw(KeyError),
    ):
        try:
            act()
        except (StopIteration, KeyError) as error:
            found.append(repr(error))
    stubborn = ignoring()
    next(stubborn)
    try:
        stubborn.close()
    except RuntimeError as error:
        found.append(str(error))
    return found


@program()
def exceptions_keep_their_chain_on_the_way_out():
    def raising():
        yield 1
        raise ValueError("a") from KeyError("b")

    def stopping():
        yield next(iter([]))

    def stopped():
        yield 1

    def handling(value):
        try:
            raise KeyError("b")
        except KeyError:
            raise ValueError("a")  # noqa: B904

    generator, found = stopped(), []
    next(generator)
    for act in (
        lambda: list(raising()),
        lambda: list(stopping()),
        lambda: generator.throw(StopIteration(3)),
        lambda: list(map(handling, [1])),
        lambda: list(filter(handling, [1])),
        lambda: list(Failing()),
        lambda: [*itertools.takewhile(handling, [1])],
    ):
        try:
            act()
        except (ValueError, RuntimeError) as error:
            found.append(told(error))
    return found


@program()
def what_is_handled_inside_and_outside():
    def generator():
        try:
            raise KeyError("in")
        except KeyError:
            yield repr(sys.exception())
            yield repr(sys.exception())
        yield repr(sys.exception())
        try:
            raise
        except ValueError as error:
            yield repr(error)

    running = generator()
    found = [next(running), repr(sys.exception())]
    try:
        raise ValueError("out")
    except ValueError:
        found += [next(running), repr(sys.exception()), next(running), next(running)]
    return found, repr(sys.exception())


@program()
def exceptions_that_are_no_exception_pass_through_c_code():
    def stopping():
        yield 1
        raise Stop("s")

    found: list[Any] = []
    for consume in (list, lambda g: [*g], lambda g: sum(map(int, g))):
        try:
            consume(stopping())
        except Stop as error:
            found.append(repr(error))
    generator = stopping()
    next(generator)
    for kind in (GeneratorExit, KeyboardInterrupt):
        try:
            generator.throw(kind("k"))
        except kind as error:
            found.append(repr(error))
    return found


@program()
def what_is_asked_of_a_generator():
    def delegating():
        yield from [1, 2]

    generator = delegating()
    found = [generator.__name__, generator.gi_running, generator.gi_frame is None]
    next(generator)
    return found, hasattr(generator, "frame"), generator.gi_yieldfrom is None, list(generator)


@program()
def an_iterator_of_the_programs_is_itself():
    numbers = Numbers()
    iterator = iter(numbers)
    found = [iterator is numbers, type(iterator).__name__, next(iterator), iterator.given]
    for number in numbers:
        found.append(number)
        jitney.graph_break()
    pairs = Numbers()
    return (
        found, list(zip(pairs, pairs)), pairs.given, dict(zip("abc", Numbers())),
        list(itertools.chain.from_iterable([Numbers(), Numbers()])), [*map(str, Numbers())],
    )  # fmt: skip


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_a_generator_is_eagers(function: Any, args: Any, kwargs: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    assert compiled() == function() == compiled()


def test_tensors_through_generators_that_are_sent_thrown_and_closed() -> None:
    def source(x: torch.Tensor, log: list[Any]) -> Any:
        try:
            for i in range(4):
                try:
                    got = yield x * i
                    x = x if got is None else x + got
                except ValueError:
                    x = x - 1
        finally:
            log.append(x.sum())

    def through(generator: Any) -> Any:
        result = yield from generator
        return result

    def f(x: torch.Tensor) -> Any:
        log: list[Any] = []
        generator = through(source(x, log))
        found = [next(generator), generator.send(x), generator.throw(ValueError())]
        jitney.graph_break()
        found.append(next(generator) + 1)
        generator.close()
        return found, log

    x = torch.arange(3.0)
    (want, ends), (got, ended) = f(x), jitney.compile(f, backend="eager")(x)
    assert all(map(torch.equal, want + ends, got + ended)) and len(ends) == len(ended) == 1


@pytest.mark.parametrize("looked_at", ["inside", "outside", "ended"])
@pytest.mark.parametrize("own", [False, True])
def test_a_generator_has_the_names_that_its_function_has_when_it_is_made(
    looked_at: str, own: bool
) -> None:
    def program(compile: Any) -> Any:
        def numbers() -> Any:
            yield 1

        def f(x: torch.Tensor, name: str) -> Any:
            made = numbers
            if own:

                def made() -> Any:
                    yield 1

                made.__name__ = name
            generator = made()
            x = x + next(generator)
            if own:
                made.__qualname__ = "later"
            if looked_at == "ended":
                generator.close()
            if looked_at == "inside":
                return x, generator.__name__, generator.__qualname__
            return x, generator

        def names(first: Any, *rest: str) -> Any:
            return (first, *rest) if rest else (first.__name__, first.__qualname__)

        compiled, found = compile(f), []
        for name in ("a", "b", "a"):
            numbers.__name__ = name
            found.append(names(*compiled(torch.ones(2), name)[1:]))
        numbers.__qualname__ = "elsewhere"
        return found, names(*compiled(torch.ones(2), "a")[1:])

    same_as_eager(program)
