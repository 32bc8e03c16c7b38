"""What a program may put in another's place: methods of tensors and modules, streams, builtins,
the process group, the default device. It is seen as in eager, before a call and within it."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import jitney

X = torch.ones(2)
SPECIAL = [f"__{name}__" for name in "add getitem lt abs".split()]


@pytest.mark.parametrize("name", [*"sum view real exp".split(), *SPECIAL])
def test_a_method_of_tensors_that_is_replaced_between_calls(name: str) -> None:
    uses: dict[str, Callable[[Tensor], Any]] = {
        "sum": lambda x: x.sum(),
        "view": lambda x: x.view(1, 2),
        "real": lambda x: x.real,
        "exp": lambda x: x.exp(),
        "__add__": lambda x: x + x,
        "__getitem__": lambda x: x[0],
        "__lt__": lambda x: x < x,
        "__abs__": lambda x: abs(x),
    }
    f = uses[name]
    compiled = jitney.compile(f)
    before = compiled(X).tolist()
    other = property(lambda self: 7) if name == "real" else (lambda self, *rest: 7)
    with mock.patch.object(torch.Tensor, name, other):
        assert f(X) == compiled(X) == 7
        first_under_it = jitney.compile(f)
        assert first_under_it(X) == 7
    assert compiled(X).tolist() == first_under_it(X).tolist() == before


@pytest.mark.parametrize(
    ("name", "f", "other"),
    [
        ("__len__", lambda x: x + len(x), lambda self: 7),
        ("__iter__", lambda x: torch.stack([2 * row for row in x]), lambda self: iter([self])),
    ],
)
def test_how_tensors_are_counted_and_gone_over(name: str, f: Any, other: Any) -> None:
    compiled = jitney.compile(f)
    before = compiled(X).tolist()
    with mock.patch.object(torch.Tensor, name, other):
        assert compiled(X).tolist() == f(X).tolist() != before
    assert compiled(X).tolist() == before


def test_a_method_that_the_program_gives_tensors() -> None:
    compiled = jitney.compile(lambda x: x.twice() if hasattr(x, "twice") else x)
    assert compiled(X).tolist() == [1, 1]
    with mock.patch.object(torch.Tensor, "twice", lambda self: self * 2, create=True):
        assert compiled(X).tolist() == [2, 2]
    assert compiled(X).tolist() == [1, 1]


def test_a_process_group_that_comes_later() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 100 if torch.distributed.is_initialized() else x + 1

    compiled = jitney.compile(f, fullgraph=True)
    assert compiled(X).tolist() == [2, 2]
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert compiled(X).tolist() == [100, 100]
    finally:
        torch.distributed.destroy_process_group()
    assert compiled(X).tolist() == [2, 2]


def test_the_default_device_of_a_scope() -> None:
    def around(x: Tensor) -> str:
        return str(torch.get_default_device())

    def within(x: Tensor) -> str:
        with torch.device("meta"):
            return str(torch.get_default_device())

    compiled = jitney.compile(around)
    assert compiled(X) == "cpu"
    with torch.device("meta"):
        assert compiled(X) == "meta"
    assert compiled(X) == "cpu"
    assert jitney.compile(within)(X) == "meta"


def test_a_module_s_call_that_is_replaced() -> None:
    seen: list[str] = []
    call = torch.nn.Module.__call__

    def told(self: Any, *args: Any) -> Any:
        seen.append(type(self).__name__)
        return call(self, *args)

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    compiled = jitney.compile(model)
    compiled(X)
    with mock.patch.object(torch.nn.Module, "__call__", told):
        compiled(X)
    assert seen == ["Sequential", "Linear", "ReLU"]


def test_a_compiled_module_s_forward_can_be_put_back() -> None:
    model = jitney.compile(torch.nn.Linear(2, 2))
    expected = model(X)
    model.forward = lambda x: x * 3
    assert model(X).tolist() == [3, 3]
    del model.forward
    assert torch.equal(model(X), expected)


class Tee:
    """Counts what it is given."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, text: str) -> None:
        self.count += len(text)

    def flush(self) -> None:
        pass


def redirected(x: Tensor) -> Any:
    kept = io.StringIO()
    with contextlib.redirect_stdout(kept):
        print("hidden")
    print("seen")
    return x + 1, kept.getvalue()


def replaced(x: Tensor) -> Any:
    kept, before = io.StringIO(), sys.stdout
    sys.stdout = kept
    print("hidden")
    sys.stdout = before
    return x + 1, kept.getvalue()


def told(x: Tensor) -> Any:
    print("a")
    return x + 1, getattr(sys.stdout, "count", None)


def closed(x: Tensor) -> Any:
    try:
        print("a")
    except ValueError as error:
        return x, str(error)
    return x + 1, ""


@pytest.mark.parametrize("f", [redirected, replaced, told])
@pytest.mark.parametrize("stream", [io.StringIO, Tee])
def test_what_is_printed_goes_where_eager_prints_it(f: Any, stream: Any) -> None:
    def seen(call: Any) -> list[Any]:
        with contextlib.redirect_stdout(stream()) as to:
            made = [(call(X)[1], to.count if stream is Tee else to.getvalue()) for _ in range(2)]
        return made

    assert seen(jitney.compile(f)) == seen(f)


def test_printing_to_a_closed_stream_raises_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, shut = jitney.compile(closed), io.StringIO()
    shut.close()
    assert compiled(X)[1] == ""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", shut)
        actual = compiled(X)
    assert "closed" in actual[1]


def test_warnings_that_the_program_shows() -> None:
    shown: list[str] = []

    def f(x: Tensor) -> Any:
        warnings.warn("slow", stacklevel=1)
        return x + 1, len(shown)

    compiled = jitney.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest: shown.append(str(message))
        assert [compiled(X)[1], compiled(X)[1]] == [1, 2]


def test_no_class_of_warnings() -> None:
    def f(x: Tensor) -> Any:
        try:
            warnings.warn("a", int)  # type: ignore[arg-type]
        except TypeError as error:
            return x, str(error)
        return x, ""

    assert jitney.compile(f)(X)[1] == f(X)[1] != ""


def test_a_builtin_that_is_replaced_within_the_function() -> None:
    def f(x: Tensor) -> Any:
        before, builtins.abs = builtins.abs, lambda _: 42
        try:
            return x + 1, abs(-1)
        finally:
            builtins.abs = before

    assert jitney.compile(f)(X)[1] == 42
    assert abs(-1) == 1


def test_records_of_logging_s_own_functions_name_the_line_that_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter = logging.LoggerAdapter(logging.getLogger("jitney.test"), {})

    def f(x: Tensor) -> Tensor:
        logging.warning("of the module")
        adapter.warning("of an adapter")
        return x + 1

    f(X)
    jitney.compile(f)(X)
    places = [(record.funcName, record.lineno) for record in caplog.records]
    assert places[:2] == places[2:] and places[0][0] == "f"


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="no time zones to set")
def test_the_time_zone_is_asked_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jitney.compile(lambda x: (x, datetime.datetime.fromtimestamp(0).hour))
    for zone, hour in (("UTC0", 0), ("XXX-9", 9)):
        monkeypatch.setitem(os.environ, "TZ", zone)
        time.tzset()
        assert compiled(X)[1] == hour
    monkeypatch.undo()
    time.tzset()
