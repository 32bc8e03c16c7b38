"""Calls of builtin types' methods and of the standard library, in several forms, against eager;
and that their judge sees what differs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.call_forms import judge as judging
from tests.conformance.call_forms.judge import FORMS, Row, judge, rows

ROWS = rows()
FEW = range(0, len(ROWS), 40)
#: What was wrong once.
WRONG = (
    ("inside", "o.difference([k], (n,))"),
    ("inside", "o.bit_count()"),
    ("given", "o.__round__(-1)"),
    ("inside", "o.sort(key=None)"),
    ("inside", "o.join([x])"),
    ("given", "round(n, -1)"),
    ("given", "str(object=n)"),
    ("given", "area(n)"),
    ("given", "statistics.mean(o)"),
    ("inside", "[(a, list(b)) for a, b in itertools.groupby(o, type)]"),
    ("bound_early", "list(itertools.dropwhile(lambda v: v is x, o))"),
    ("given", "setattr(o, 'n', k) or copy.copy(o).n"),
    ("inside", "dict(collections.ChainMap({k: n}, {k: x}))"),
    ("unbound", "o.__class__(z=x)"),
    ("inside", "n > True"),
)


@pytest.mark.parametrize(("form", "call"), WRONG)
def test_a_call_that_was_wrong_once(form: str, call: str) -> None:
    for row in [row for row in ROWS if row.call == call]:
        assert FORMS[form](row)
        assert not judge(row, form)


@pytest.mark.parametrize(
    "index",
    [i if i in FEW else pytest.param(i, marks=pytest.mark.slow) for i in range(len(ROWS))],
)
def test_a_call_in_every_form(index: int) -> None:
    found = {form: difference for form in FORMS if (difference := judge(ROWS[index], form))}
    assert not found, f"{ROWS[index]}: {found}"


def test_the_table_has_the_calls_that_were_wrong_once() -> None:
    assert {call for _, call in WRONG} <= {row.call for row in ROWS}


def test_the_judge_sees_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(function: Any, backend: str) -> Any:
        return lambda x, y, n, *rest: function(x, y, 2, *rest)

    monkeypatch.setattr(judging.jitney, "compile", forgetful)
    assert "call 3" in judge(Row("[n]", "o.append(n)"), "inside")
    assert not judge(Row("[k]", "o.append(x)"), "inside")
