"""Guards checked one at a time, slowly, to say which failed and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from itertools import islice
from os.path import basename
from typing import Any

import torch

from jitney.capture.compare import stored_keys
from jitney.capture.describe import said_by, short
from jitney.capture.guard import Guard, Kind, TensorFacts
from jitney.capture.source import Below, Roots, SizeOf, Source, stored_length
from jitney.capture.walk_guards import Walk, those_failing

_OF_SIZES = (Kind.TENSOR, Kind.EQUALS, Kind.EXPRESSION, Kind.TYPE)


@dataclass(frozen=True)
class Failure:
    """A guard that does not hold: ``message`` reads "source: expected …, got …"."""

    guard: Guard
    message: str


def failures(guards: Iterable[Guard], roots: Roots, limit: int = 1) -> list[Failure]:
    """The first ``limit`` guards that do not hold, explained."""
    failing = islice(those_failing(guards, roots), limit)
    return [Failure(guard, _placed(_explain(guard, roots), guard.reason)) for guard in failing]


_ON_THE_STACK, _IN_A_LOOP = re.compile(r"<stack \d+>"), re.compile(r"<ahead>(\[\d+\])*")


def _placed(message: str, line: str) -> str:
    """What has no name in the program, by the ``line`` ("path:line") that reads it."""
    place = f" of {basename(line)}" if line else ""
    message = _ON_THE_STACK.sub(lambda _: f"an intermediate value{place}", message)
    return _IN_A_LOOP.sub(lambda _: f"what is left to a loop{place}", message)


def in_brief(guard: Guard) -> tuple[str, str, str, str]:
    """A guard for lists of them: its kind, where, what is expected, the user's line."""
    source, expected = str(guard.source), guard.expected
    if guard.kind is Kind.STATE:
        source, expected = expected
    elif guard.kind in (Kind.EXPRESSION, Kind.CACHED):
        source, expected = expected[0], True
    elif guard.kind is Kind.TENSOR:
        text = f"{expected.dtype} {list(expected.sizes)} on {expected.device}"
        return guard.kind.value, source, text, guard.reason
    if isinstance(expected, type):
        return guard.kind.value, source, expected.__qualname__, guard.reason
    is_plain = guard.kind is Kind.STATE or isinstance(
        expected, str | int | float | bool | torch.dtype | None
    )
    return guard.kind.value, source, short(expected) if is_plain else "", guard.reason


def _explain(guard: Guard, roots: Roots) -> str:
    source, expected = guard.source, guard.expected
    try:
        actual = source.fetch(roots)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        return f"{source}: cannot be reached any more ({said_by(error)})"
    if guard.kind is Kind.TENSOR:
        return _explain_tensor(source, expected, actual)
    if guard.kind in (Kind.EXPRESSION, Kind.CACHED):
        text, symbols = expected
        where = ", ".join(f"{name} = {src}" for name, src in symbols.items())
        return f"{text} does not hold, where {where}"
    if guard.kind is Kind.TYPE:
        return f"{source}: {_of_class(expected.__qualname__, type(actual).__qualname__)}"
    if guard.kind is Kind.STATE:
        return f"{expected[0]}: expected {short(expected[1])}"
    if guard.kind is Kind.KEYS and isinstance(actual, dict):
        return f"{source}: its keys changed to {short(stored_keys(actual))}"
    if guard.kind is Kind.LENGTH and isinstance(actual, Sized):
        return f"{source}: expected length {expected}, got {stored_length(actual)}"
    wanted, got = short(expected), short(actual)
    if wanted == got:  # both "a ReferenceType"
        got = {Kind.IS: "another one", Kind.EQUALS: "one that is not equal"}.get(guard.kind, got)
    return f"{source}: {guard.kind.value} {wanted} expected, got {got}"


def _of_class(wanted: str, got: str) -> str:
    """What was expected, and what there is, by the names of their classes."""
    return f"expected a {wanted}, got {f'a {got}' if got != wanted else 'one of another class'}"


def _explain_tensor(source: Source, facts: TensorFacts, actual: Any) -> str:
    kind = type(actual)
    if kind is not facts.cls:
        return f"{source}: {_of_class(facts.cls.__name__, kind.__name__)}"
    if actual.dtype is not facts.dtype:
        return f"{source}: dtype expected {facts.dtype}, got {actual.dtype}"
    if actual.device != facts.device:
        return f"{source}: device expected {facts.device}, got {actual.device}"
    if actual.ndim != len(facts.sizes):
        return f"{source}: {len(facts.sizes)} dimensions expected, got {actual.ndim}"
    for dim in changed_sizes(facts, actual):
        wanted, got = facts.sizes[dim], actual.shape[dim]
        return f"{SizeOf(source, 'size', dim)}: expected {wanted}, got {got}"
    if actual.requires_grad is not facts.requires_grad:
        return f"{source}: requires_grad expected {facts.requires_grad}"
    if actual.layout is torch.strided and facts.strides is not None:
        got = tuple(actual.stride())
        if any(want not in (None, have) for want, have in zip(facts.strides, got)):
            return f"{source}: strides expected {facts.strides}, got {got}"
    return f"{source}: expected {facts}"


def changed_sizes(facts: TensorFacts, actual: Any) -> tuple[int, ...]:
    """Dimensions whose static size differs; () if it is not the same kind of tensor at all."""
    if not isinstance(actual, torch.Tensor) or actual.ndim != len(facts.sizes):
        return ()
    if actual.dtype is not facts.dtype:
        return ()
    pairs = enumerate(zip(facts.sizes, actual.shape))
    return tuple(dim for dim, (want, have) in pairs if want is not None and want != have)


def generalise(guards: Iterable[Guard], roots: Roots) -> frozenset[tuple[Source, int | None]]:
    """Sizes, ints and floats whose guards fail: what the next capture makes symbolic, or leaves
    so where an assumption about symbols failed. Pairs (source, dim) for a tensor's size, (source,
    None) for a Python number."""
    dynamic: set[tuple[Source, int | None]] = set()
    walk, others = Walk(roots), set[Source]()
    for guard in guards:
        sources = [guard.source]
        if guard.kind is Kind.EXPRESSION:
            sources = list(guard.expected[1].values())
        if guard.kind not in _OF_SIZES or any(_is_below(source, others) for source in sources):
            continue
        if walk.holds(guard):
            continue
        if guard.kind is Kind.TYPE:  # what is below it is not to be looked for: code might run
            others.add(guard.source)
            continue
        if guard.kind is Kind.EXPRESSION:
            dynamic |= {_place(source) for source in guard.expected[1].values()}
            continue
        try:
            actual = guard.source.fetch(roots)
        except (LookupError, AttributeError, TypeError, ValueError):
            continue
        if guard.kind is Kind.TENSOR:
            dynamic |= {(guard.source, dim) for dim in changed_sizes(guard.expected, actual)}
        elif type(actual) in (int, float) and type(actual) is type(guard.expected):
            dynamic.add((guard.source, None))
    return frozenset(dynamic)


def _is_below(source: Source, others: set[Source]) -> bool:
    """Whether it is reached through one of the ``others``."""
    while isinstance(source, Below):
        if source in others:
            return True
        source = source.base
    return source in others


def _place(symbol: Source) -> tuple[Source, int | None]:
    if isinstance(symbol, SizeOf) and symbol.what == "size":
        return symbol.base, symbol.dim
    return symbol, None
