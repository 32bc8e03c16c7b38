"""An op of the program's own is called once, also where an index beside it is out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.diagnostics.report import report
from jitney.events import log

CALLS: list[int] = []


@torch.library.custom_op("jitney_tests_checks::note", mutates_args=())
def note(x: Tensor) -> Tensor:
    CALLS.append(x.numel())
    return x * 2


@note.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "given": lambda x, i: note(x)[i],
    "of labels": lambda x, i: torch.nn.functional.nll_loss(note(x).log_softmax(-1), i),
    "computed by it": lambda x, i: x[note(i.float()).long() // 2],
    "beside it": lambda x, i: note(x)[(note(x).sum(-1) * 0).long() + i],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bad_index_does_not_call_the_op_again(name: str) -> None:
    program, x = PROGRAMS[name], torch.ones(3, 3)
    compiled = jitney.compile(program)

    def answer(function: Any, index: Tensor) -> tuple[Any, list[int]]:
        CALLS.clear()
        try:
            return function(x, index).sum().item(), [*CALLS]
        except IndexError as error:
            return str(error), [*CALLS]

    log.clear()
    for index in (torch.tensor([0, 1, 1]), torch.tensor([0, 1, 9])):
        given, wanted = answer(compiled, index), answer(program, index)
        assert given[1] == wanted[1] and type(given[0]) is type(wanted[0])
    reasons = [f.reason for f in report(log.events()).fallbacks]
    assert bool(reasons) == (name in ("computed by it", "beside it"))
