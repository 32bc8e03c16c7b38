"""Where warnings of ours are told."""

from __future__ import annotations

import traceback

import pytest
import torch

import jitney

CALLS: list[int] = []


def behind_a_break(x):
    """Compiled again behind the break alone."""
    jitney.graph_break()
    return x + len(CALLS)


class Model(torch.nn.Module):
    def forward(self, x):
        return behind_a_break(x)


@pytest.mark.parametrize("make", [lambda: behind_a_break, Model], ids=["function", "module"])
def test_the_limit_of_compiles_is_told_at_the_programs_line(make) -> None:
    compiled = jitney.compile(make(), backend="eager", recompile_limit=1)
    x = torch.ones(2)
    with pytest.warns(UserWarning, match="behind_a_break .* was compiled 1 times") as told:
        for _ in range(3):
            CALLS.append(1)
            assert torch.equal(compiled(x), behind_a_break(x))
    assert [each.filename for each in told] == [__file__]


def test_a_warning_names_the_file_of_equal_code() -> None:
    named = []
    for name in ("one.py", "other.py"):
        defined: dict = {}
        exec(compile("def f(x, n):\n    return x * n\n", name, "exec"), defined)
        compiled = jitney.compile(defined["f"], backend="eager", recompile_limit=0)
        with pytest.warns(UserWarning, match="is not compiled") as told:
            compiled(torch.ones(2), 1)
        named += [each.filename for each in told]
    assert named == ["one.py", "other.py"]


def test_an_error_behind_a_break_names_the_file_of_equal_code() -> None:
    text = "def f(x):\n    y = x + 1\n    print(end='')\n    return (lambda: y.view(7))()\n"
    for name in ("one.py", "other.py"):
        defined: dict = {}
        exec(compile(text, name, "exec"), defined)
        for function in (defined["f"], jitney.compile(defined["f"], backend="eager")):
            with pytest.raises(RuntimeError) as caught:
                function(torch.ones(2))
            entries = traceback.extract_tb(caught.value.__traceback__)
            assert [entry.filename for entry in entries[1:]] == [name] * 2
