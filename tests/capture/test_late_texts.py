"""Texts of numbers that change from call to call: no compile for each number."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log

LOSSES = [0.5, 1.5, 2.25, -3.7, 0.0, 1.0, 1e-9, 1e10, 3.0, 2.675, float("nan"), 1e300]
STEPS = [5, 7, 8, 9, 10, -3, 0, 1, 1000, 2**40, 7, True]


def returned(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    return f"step {step:>5}: {loss:.3f} {loss!r:>9} {step!s} {step + 1} {-loss}"


def beside_a_tensor(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    return x + step, f"{step}", {"text": "%d of %s %.1f%%" % (step, 9, loss)}  # noqa: UP031


def added_up(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    text = "{} of {:>4}: ".format("step", step)
    for n in range(40):
        text += f"{n}={loss:.2f} "
    state.last = text + "{0:.1f} {0}".format(loss) + str(step)  # noqa: UP032
    return x + 1


def over_a_break(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    text = f"{step}"
    total = x.sum().item()
    state.last = f"{text} {total:.4f} {step}"
    return x + 1


def printed(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    print(step, loss, f"{step}/{loss:.2e}", str(step), sep="; ")
    return x * 2


def of_an_item(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    total = x.sum().item()
    print(f"{step}: {total:.4f}")
    return x * 2


def kept(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    state.step += 1
    state.last = f"{state.step} {round(loss, 2)}"
    state.texts.append(str(step))
    return x * state.step


def looked_at(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    text = f"{step}"
    return x + 1 if text == "7" else x - 1, len(text), text[0], int(text)


def of_one_character(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    return f"{step + 60:c}", "%c" % (step + 60), "{:c}".format(step + 60), x  # noqa: UP031, UP032


def keys(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    return {f"k{step}": x}, f"{step}" in {"7": 1}, {f"{loss:.0f}"}


def raised(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    y = x * 2
    if step > 8:
        raise ValueError(f"step {step} is late")
    return y


def caught(state: Any, x: torch.Tensor, step: int, loss: float) -> Any:
    try:
        raise KeyError(f"{step}")
    except KeyError as error:
        return x + 1, str(error)


def calls(f: Callable[..., Any]) -> list[Any]:
    torch.manual_seed(0)
    state, seen, out = SimpleNamespace(step=2, last="", texts=[]), [], io.StringIO()
    for step, loss in itertools.chain(zip(STEPS, LOSSES)):
        x = torch.randint(-4, 5, (4,)).float()
        with redirect_stdout(out):
            try:
                result: Any = f(state, x, step, loss)
            except (ValueError, KeyError, OverflowError) as error:
                result = type(error), str(error)
        seen.append((repr(result), repr(state), out.getvalue()))
    return seen


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "fn",
    [returned, beside_a_tensor, added_up, over_a_break, printed, of_an_item, kept, looked_at]
    + [of_one_character, keys, raised, caught],
)
def test_texts_are_eagers(fn: Callable[..., Any], dynamic: bool | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the special numbers take entries of their own
        assert calls(jitney.compile(fn, dynamic=dynamic)) == calls(fn)


@pytest.mark.parametrize(
    "fn", [returned, beside_a_tensor, added_up, over_a_break, printed, of_an_item, kept]
)
def test_a_number_in_a_text_compiles_nothing_anew(fn: Callable[..., Any]) -> None:
    compiled, made = jitney.compile(fn), []
    state = SimpleNamespace(step=2, last="", texts=[])
    for n in range(9):
        log.clear()
        with redirect_stdout(io.StringIO()):
            compiled(state, torch.rand(4), n + 5, n + 2.125)
        made.append(len(log.events("entry")))
    assert not any(made[4:])


def test_fullgraph_takes_the_number_as_it_is() -> None:
    compiled = jitney.compile(beside_a_tensor, fullgraph=True)
    for step in (5, 6, 7):
        assert compiled(None, torch.ones(2), step, 0.25)[1] == f"{step}"


def unused(x: torch.Tensor, out: list[Any]) -> Any:
    message = f"the sum is {x.sum()}, of {len(out)}: {x.shape}"

    def told() -> str:
        return message

    return x + 1 if len(out) < 90 else told()


def written_since(x: torch.Tensor, out: list[Any]) -> Any:
    y = x * 2
    text = f"{y}"
    y.add_(1)
    return y, text


def over_a_later_break(x: torch.Tensor, out: list[Any]) -> Any:
    text = f"before {x.sum()}"
    if x.sum() > 0:
        return x + 1, text
    return x - 1, text


def left_behind(x: torch.Tensor, out: list[Any]) -> Any:
    out.append(f"{x}")
    print(f"printed {x.sum()}")
    return x + 1


def closed_over(x: torch.Tensor, out: list[Any]) -> Any:
    def told(text: str) -> Any:
        return lambda: text

    return x + 1, told(f"{x}")()


def compared(x: torch.Tensor, out: list[Any]) -> Any:
    return x + 1 if f"{x[0]}" == "0.0" else x - 1


def with_a_format(x: torch.Tensor, out: list[Any]) -> Any:
    try:
        text = f"{x:.3f}"
    except TypeError as error:
        return x, str(error)
    return x, text


OF_TENSORS = [unused, written_since, over_a_later_break, left_behind, closed_over, compared]


@pytest.mark.parametrize("fn", [*OF_TENSORS, with_a_format])
def test_texts_of_tensors_are_eagers(fn: Any) -> None:
    def run(function: Any) -> Any:
        kept: list[Any] = []
        with redirect_stdout(io.StringIO()) as out:
            found = [function(torch.arange(3.0) + n, kept) for n in (0, 1, -5)]
        return repr(found), kept, out.getvalue()

    assert run(jitney.compile(fn)) == run(fn)


def test_a_text_of_a_tensor_that_nobody_looks_at_breaks_nothing() -> None:
    assert jitney.compile(unused, fullgraph=True)(torch.ones(2), []).tolist() == [2, 2]
    with pytest.raises(jitney.errors.Unsupported, match="turned into text"):
        jitney.compile(compared, fullgraph=True)(torch.ones(2), [])
