"""Why a call that no entry serves is not compiled: to ask changes nothing, the call itself does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import jitney
from jitney.run import stance
from jitney.run.dispatch import CompiledCode
from jitney.run.may_compile import LimitReached, NotAFrame, Observed, Stance, why_not_compiled


def code_of(compiled: Any) -> CompiledCode:
    (code,) = (c for c in stance.everything if c.namespace is compiled.__globals__)
    return code


def grown(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def items(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x + 1


def state_of(code: CompiledCode) -> tuple[Any, ...]:
    return code.skipped, code.entries, code.dynamic, code.namespace["_jitney_pick"]


REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[[], Any], type, bool]] = {
    "generator": (items, {}, nullcontext, NotAFrame, True),
    "mode": (grown, {}, lambda: FlopCounterMode(display=False), Observed, False),
    "stance": (grown, {}, lambda: jitney.set_stance("eager_on_recompile"), Stance, False),
    "limit": (grown, {"recompile_limit": 0}, nullcontext, LimitReached, True),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:jitney")
def test_to_ask_changes_nothing_and_a_call_acts(name: str) -> None:
    function, options, surroundings, kind, skips = REFUSED[name]
    compiled = jitney.compile(function, backend="eager", **options)
    code = code_of(compiled)
    with surroundings():
        before = state_of(code)
        asked = [why_not_compiled(code) for _ in range(3)]
        assert all(isinstance(refusal, kind) for refusal in asked) and len({*asked}) == 1
        assert state_of(code) == before
        compiled(torch.ones(2))
    assert (code.skipped, code.entries) == (skips, ())


def test_the_first_call_counts_and_not_the_question() -> None:
    code = code_of(compiled := jitney.compile(grown, backend="eager"))
    with jitney.set_stance("eager_then_compile"):
        for _ in range(3):
            assert why_not_compiled(code) == Stance("eager_then_compile")
        compiled(torch.ones(2))
        assert why_not_compiled(code) is None
        compiled(torch.ones(2))
    assert len(code.entries) == 1


def test_a_limit_says_which_it_is() -> None:
    code = code_of(jitney.compile(grown, options={"accumulated_recompile_limit": 0}))
    refusal = why_not_compiled(code)
    assert isinstance(refusal, LimitReached)
    assert refusal.reason == "accumulated_recompile_limit of 0 reached"
