"""Instructions of guard programs that look objects and memory up, or get attributes."""

from __future__ import annotations

import ctypes

import pytest
import torch

from jitney import torch_api
from jitney.capture.native_program import Op, apart_words
from jitney.capture.native_sets import (
    meeting_words,
    object_words,
    scratch_for,
    slot_words,
    span_words,
)
from jitney.run.arms import is_supported
from tests.run.test_armed_guards import picks, program

pytestmark = pytest.mark.skipif(not is_supported(), reason="layouts differ on this interpreter")


def test_apart_instruction():
    memory = torch.zeros(40)
    fixed = [torch_api.span(memory[a:b]) for a, b in ((0, 4), (20, 30))]
    words = apart_words(memory[4:10])
    made = program((Op.APART, 1, 0, len(words)), words=[*words, *span_words(fixed)])
    for start in range(35):
        meets = start < 4 or start < 30 and start + 6 > 20
        assert picks(made, memory[start : start + 6]) is not meets


def test_many_objects_are_looked_up():
    known = [[] for _ in range(300)]
    none = program((Op.NONE_OF, 1, 0), words=object_words(map(id, known)))
    assert not any(picks(none, value) for value in known)
    assert all(picks(none, value) for value in [[] for _ in range(300)])
    mask, memory = scratch_for(60)
    words = slot_words(range(1, 61), mask, ctypes.addressof(memory))
    differ = program((Op.UNEQUAL, 0), words=words)
    assert picks(differ, *known[:60]) and picks(differ, *known[60:120])
    for one, other in ((0, 59), (3, 4), (58, 59)):
        values = known[:60]
        values[one] = values[other]
        assert not picks(differ, *values) and picks(differ, *known[:60])


def test_tensors_that_vary_meet_none():
    memory = torch.zeros(400)
    layout = apart_words(memory[:3])
    words, kept = meeting_words(layout[:4], [(n + 1, *layout[-2:]) for n in range(40)])
    made = program((Op.NO_MEETING, 0), words=words)
    random = torch.Generator().manual_seed(1)
    for meets in (False, True) * 5:
        starts = (3 * torch.randperm(100, generator=random)[:40]).tolist()
        if meets:
            starts[7] = starts[30] + 2
        assert picks(made, *[memory[s : s + 3] for s in starts]) is not meets
    assert len(kept) == 80


def test_attributes_are_got():
    weight = torch.nn.Parameter(torch.ones(2))
    made = program((Op.GETATTR, id(weight), id("grad"), 2), (Op.DIFFER, 1, 2))
    assert picks(made, 0) and not picks(made, None)
    weight.grad = torch.zeros(2)
    for _ in range(3):
        assert picks(made, None) and not picks(made, weight.grad)
    missing = program((Op.GETATTR, id(weight), id("nothing"), 2))
    assert not picks(missing, 0)
