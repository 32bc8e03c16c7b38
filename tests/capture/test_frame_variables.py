# ruff: noqa: S102, S307
"""``locals``, ``vars``, ``dir`` and texts that are run in a frame."""

from __future__ import annotations

from typing import Any

import pytest

import jitney
from tests.capture.run_capture import X, assert_same

y = 10


def made(x: Any) -> Any:
    exec("made_here = 3")
    return x * 2, eval("made_here")


def listed(x: Any) -> Any:
    exec("made_here = 4")
    return x * 2, locals()["made_here"]


def hidden(x: Any) -> Any:
    exec("y = 5")
    return x * 2, eval("y")


def put_in(x: Any) -> Any:
    locals()["w"] = 6
    try:
        return x * 2, eval("w")
    except NameError:  # Python 3.13 and later
        return x * 2, None


def given(x: Any) -> Any:
    names: dict[str, Any] = {"x": x}
    exec("z = x + 1", names)
    return x * 2, eval("z", names), eval("x.shape[0]"), sorted(locals()), dir()


@pytest.mark.parametrize("function", [made, listed, hidden, put_in, given])
def test_texts_see_what_they_see_in_eager(function: Any) -> None:
    def outcome(call: Any) -> Any:
        try:
            return call(X)
        except (NameError, KeyError) as error:  # Python 3.13 and later
            return repr(error)

    compiled = jitney.compile(function)
    for _ in range(2):
        found = outcome(compiled)
        if function is given:
            assert found[3:] == function(X)[3:]
        assert_same(found, outcome(function))
