"""What torch warns of while a graph is captured and traced names the program's line, once."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitney

SOFTMAX = torch.nn.Softmax()


@pytest.fixture(autouse=True)
def every_warning() -> Iterator[None]:
    """Those, too, that torch gives once in a process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def warned(function: Callable[..., Any], x: Tensor) -> list[tuple[str, str, int]]:
    """Text, file and line of what two calls of ``function`` warn of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        function(x)
        function(x)
    return [(str(w.message), w.filename, w.lineno) for w in told]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softmax(x) + 1,
        lambda x: F.mse_loss(x, x[0, 0]) + 1,
        lambda x: x.T + 1,
    ],
)
def test_a_warning_names_the_programs_line_once(function: Callable[[Tensor], Any]) -> None:
    x = torch.randn(3, 3, 3)
    right = warned(function, x)
    assert len(right) == 1
    assert warned(jitney.compile(function, fullgraph=True), x) == right


def test_a_warning_through_a_module_names_the_line_of_its_call() -> None:
    def program(x: Tensor) -> Any:
        return SOFTMAX(x + 1)

    ((_, file, line),) = warned(jitney.compile(program, fullgraph=True), torch.ones(2, 3))
    assert (file, line) == (__file__, program.__code__.co_firstlineno + 1)


def test_a_program_without_a_module_is_let_go() -> None:
    class Held:
        """What the globals of a program hold."""

    source = "def program(x):\n    y = x.sin().mean()\n    return F.mse_loss(x * 2, y)\n"
    globals_: dict[str, Any] = {"F": F, "held": Held(), "__name__": "made_up"}
    exec(compile(source, "made_up.py", "exec"), globals_)
    compiled = jitney.compile(globals_["program"])
    x = torch.ones(3, requires_grad=True)
    assert {tuple(told[1:]) for told in warned(compiled, x)} == {("made_up.py", 3)}
    result, held = compiled(x), weakref.ref(globals_["held"])
    del compiled
    globals_.clear()
    gc.collect()
    assert held() is None
    result.backward()
    assert x.grad is not None
