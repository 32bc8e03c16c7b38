"""Loops that go on behind a graph break: eager's items, order and errors; iterators that others
hold stand where eager's would; and no break by reason of the loop."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.capture.look_ahead import MOST_ITEMS, look_ahead
from jitney.events import log as events

X = torch.ones(2)


def outcome(function: Any, *args: Any) -> Any:
    log: list[Any] = []
    try:
        result = function(log, *args)
    except Exception as error:  # noqa: BLE001 - eager's is compared with ours
        result = repr(error)
    return result, log


def breaks_of(call: Callable[[], Any]) -> list[str]:
    """The kinds of the breaks that captures met meanwhile."""
    found: list[str] = []
    stop = events.listen(lambda e: e.kind == "graph_break" and found.append(e.data["reason"]))
    try:
        call()
    finally:
        stop()
    return found


def same(function: Any, *given: Callable[[], tuple[Any, ...]]) -> list[str]:
    """Compares calls on what each of ``given`` makes, twice each; the reasons of breaks."""
    compiled = jitney.compile(function, backend="eager")

    def call() -> None:
        for make in given:
            for _ in range(2):
                ours, eagers = make(), make()
                assert outcome(compiled, *ours) == outcome(function, *eagers)
                assert repr(ours) == repr(eagers)

    return breaks_of(call)


def is_of_loops(reason: str) -> bool:
    return "iterator" in reason or "loop" in reason


OVER: dict[str, Callable[[Any], Any]] = {
    "list": lambda n: list(range(5, 5 + n)),
    "tuple": lambda n: tuple(range(n)),
    "range": lambda n: range(3, 3 + 2 * n, 2),
    "long range": lambda n: range(1 << 70, (1 << 70) + n),
    "str": lambda n: "abcde"[:n],
    "wide str": lambda n: "\u0100b\u1000de"[:n],
    "bytes": lambda n: b"abcde"[:n],
    "reversed": lambda n: reversed([1, 2, 3, 4, 5][:n]),
    "dict": lambda n: dict.fromkeys("abcde"[:n], 1),
    "values": lambda n: {k: [k] for k in range(n)}.values(),
    "items": lambda n: {k: k for k in range(n)}.items(),
    "reversed items": lambda n: reversed({k: k for k in range(n)}.items()),
    "ordered": lambda n: collections.OrderedDict((k, k) for k in range(n)).items(),
    "enumerate": lambda n: enumerate("abcde"[:n], 7),
    "zip": lambda n: zip(range(n), "abcde", strict=False),
    "strict": lambda n: zip(range(n), "abcde"[:n], strict=True),
    "nested": lambda n: enumerate(zip([1, 2, 3, 4, 5][:n], {k: k for k in range(n)}.values())),
}


@pytest.mark.parametrize("kind", OVER)
@pytest.mark.parametrize("when", ["first", "each", "last"])
def test_the_rest_of_a_loop(kind: str, when: str) -> None:
    def f(log: Any, owner: Any, x: Any) -> Any:
        rounds = 0
        for item in owner:
            rounds += 1
            if when == "each" or rounds == (1 if when == "first" else 4):
                jitney.graph_break()
            log.append(item)
            x = x + rounds
        else:
            log.append("end")
        return x.tolist()

    def f_of(n: int) -> Any:
        return lambda: (OVER[kind](n), X)

    compiled = jitney.compile(f, backend="eager")
    for n in (4, 4, 2, 0, 5):
        assert outcome(compiled, OVER[kind](n), X) == outcome(f, OVER[kind](n), X)


def test_one_graph_behind_the_first_round() -> None:
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(12))

    def f(log: Any, x: Any) -> Any:
        for number, layer in enumerate(layers):
            if number == 0:
                jitney.graph_break()
            x = layer(x)
        return x

    compiled = jitney.compile(f, backend=backend)
    reasons = breaks_of(lambda: [compiled([], X) for _ in range(3)])
    assert len(reasons) == 1
    assert len(graphs) <= 2 and max(graphs) >= 11
    torch.testing.assert_close(compiled([], X), f([], X))


def test_a_break_in_each_layer_costs_no_entry_per_layer() -> None:
    class Layer(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.linear, self.number = torch.nn.Linear(2, 2), number

        def forward(self, x: Any) -> Any:
            x = self.linear(x)
            jitney.graph_break()
            return torch.relu(x)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer(n) for n in range(12))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    model = Model()
    compiled = jitney.compile(model, backend="eager")
    entries: list[Any] = []
    stop = events.listen(lambda e: e.kind == "entry" and entries.append(e))
    reasons = breaks_of(lambda: [compiled(X) for _ in range(3)])
    stop()
    assert not any(map(is_of_loops, reasons)) and len(entries) <= 5
    torch.testing.assert_close(compiled(X), model(X))


def test_what_others_hold_stands_where_eagers_does() -> None:
    def f(log: Any, iterator: Any, stop: int) -> Any:
        for item in iterator:
            if item == 1:
                jitney.graph_break()
            log.append(item)
            if item == stop:
                break
        else:
            log.append("else")
        return log.append(next(iterator, "none"))

    compiled = jitney.compile(f, backend="eager")
    for stop in (3, 3, 4, 6, 9):
        made = []
        for function in (compiled, f):
            items = [1, 2, 3, 4, 5, 6]
            iterator = iter(items)
            found = outcome(function, iterator, stop)
            items.append(7)  # an iterator at its end stays there
            made.append((found, list(iterator)))
        assert made[0] == made[1]


def test_iterators_that_advance_each_other() -> None:
    def f(log: Any, items: Any) -> None:
        one = iter(items)
        for pair in zip(one, one):
            log.append(pair)
            jitney.graph_break()
            log.append(next(one, None))
        again = iter(items)
        for number, item in enumerate(again):
            jitney.graph_break()
            log.append((number, item))
            for inner in again:
                log.append(inner)
                jitney.graph_break()
                break

    same(f, lambda: ([1, 2, 3, 4, 5, 6, 7],), lambda: ([1, 2],), lambda: ((1, 2, 3, 4),))


def test_one_of_two_zipped_is_one_further() -> None:
    def f(log: Any, numbers: Any, short: Any) -> Any:
        long = iter(numbers)
        for pair in zip(long, short):
            if pair[0] == 0:
                jitney.graph_break()
            log.append(pair)
        return list(long)

    same(f, lambda: (range(6), [1, 2, 3]), lambda: ([0, 1, 2, 3], "a"))


def test_a_list_that_changes_in_its_loop() -> None:
    def f(log: Any, items: Any, other: Any) -> None:
        for item in items:
            if item < 3:
                jitney.graph_break()
            log.append(item)
            if len(other) < 6:
                other.append(item + 10)
            elif len(other) > 8:
                del other[4:]

    def alias() -> Any:
        items = [1, 2, 3]
        return items, items

    def long() -> Any:
        items = [5, 2, 7, 8, 9, 10, 11, 12, 13]
        return items, items

    same(f, lambda: ([1, 2, 3], []), alias, lambda: ([1, 2, 3, 4], [1]), long)
    same(f, alias, lambda: ([1, 2, 3], []))


def test_a_dict_that_changes_in_its_loop() -> None:
    def f(log: Any, table: Any, other: Any, key: str) -> None:
        for name, value in table.items():
            if name == "a":
                jitney.graph_break()
            log.append((name, value))
            other[key] = len(log)

    def given(key: str, is_same: bool) -> Any:
        table = {"a": 1, "b": 2, "c": 3}
        return table, table if is_same else {}, key

    for makers in ([("b", False), ("b", True), ("z", True)], [("c", True), ("c", False)]):
        same(f, *[lambda args=args: given(*args) for args in makers])


def test_grown_behind_the_break() -> None:
    def grow(items: Any) -> None:
        jitney.graph_break()
        if len(items) < 5:
            items.append(len(items))

    def f(log: Any, items: Any) -> None:
        for item in items:
            log.append(item)
            grow(items)

    assert not any(map(is_of_loops, same(f, lambda: ([1, 2],), lambda: ([],))))


def test_nested_loops_and_ways_out() -> None:
    def f(log: Any, rows: Any, x: Any) -> Any:
        for row in rows:
            for number, item in enumerate(row):
                if number == 0:
                    jitney.graph_break()
                if item == 0:
                    continue
                if item < 0:
                    break
                x = x * item
                log.append(item)
            else:
                log.append("whole")
                continue
            if row[-1] == -2:
                break
        else:
            log.append("all")
        return x.tolist()

    rows = ([1, 2], (3, 0, 4), [5, -1, 6], range(2), [], [7, -2])
    reasons = same(f, lambda: (rows, X), lambda: (rows[:5], X), lambda: (rows[::-1], X))
    assert not any(map(is_of_loops, reasons))


def test_exceptions_in_a_loop() -> None:
    def f(log: Any, items: Any, fails: int) -> Any:
        iterator = iter(items)
        try:
            for item in iterator:
                if item == 1:
                    jitney.graph_break()
                log.append(item)
                if item == fails:
                    raise KeyError(item)
        except KeyError as error:
            log.append(repr(error))
        return list(iterator)

    same(f, lambda: ([1, 2, 3, 4], 3), lambda: ([1, 2, 3, 4], 9), lambda: ([1, 2], 1))


def test_longer_than_is_looked_at() -> None:
    def f(log: Any, owner: Any) -> None:
        for item in owner:
            if item == 0:
                jitney.graph_break()
            log.append(item)

    for n in (MOST_ITEMS - 1, MOST_ITEMS, MOST_ITEMS + 1, 3 * MOST_ITEMS):
        same(f, lambda n=n: (range(n),), lambda n=n: (dict.fromkeys(range(n)),))


def test_generators_are_not_looked_at() -> None:
    def numbers(log: Any) -> Any:
        for number in range(3):
            log.append(("yields", number))
            yield number

    def f(log: Any) -> None:
        for pair in zip("abcd", numbers(log)):
            jitney.graph_break()
            log.append(pair)

    same(f, lambda: ())


def test_threads_have_their_own_loops() -> None:
    def f(items: Any, x: Any) -> Any:
        for item in items:
            if item % 2:
                jitney.graph_break()
            x = x + item
        return x.tolist()

    compiled = jitney.compile(f, backend="eager")
    compiled([1, 2], X)
    found: dict[int, Any] = {}

    def work(n: int) -> None:
        found[n] = [compiled(list(range(n)), X) for _ in range(8)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, results in found.items():
        assert results == [f(list(range(n)), X)] * 8


def test_looking_advances_nothing() -> None:
    items = [1, 2, 3]
    iterator, shared = iter(items), iter(items)
    both = enumerate(shared)
    assert look_ahead((7, iterator, both)) == (
        None,
        ((1, 2, 3), items),
        (((0, 1), (1, 2), (2, 3)), items),
    )
    assert look_ahead((shared, both)) == (None, None)
    assert look_ahead((iterator, iterator)) == (None, None)
    assert list(iterator) == items == [item for _, item in both]

    class Own(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError

    table = {"a": 1, "b": 2}
    changed, own = iter(table), list.__iter__(Own([1]))
    table["c"] = 3
    strict = zip([1, 2], [1], strict=True)
    assert look_ahead((changed,)) == look_ahead((own,)) == look_ahead((strict,)) == (None,)
    assert list(strict.__reduce__()[1][1]) == [1]
