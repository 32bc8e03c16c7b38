"""Globals of modules: watched while they stand still, looked up once they have changed."""

from __future__ import annotations

import types

import pytest
import torch

import jitney
from jitney.capture.layouts import HAS_DICT_VERSION
from jitney.capture.native_program import Op
from jitney.run import stance
from jitney.run.arms import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="layouts differ on this interpreter")


def test_a_module_whose_globals_stand_still_is_watched_not_looked_up():
    quiet, busy = types.ModuleType("quiet"), types.ModuleType("busy")
    for module in (quiet, busy):
        module.__loader__, module.scale = None, 2.0
        exec("def times(x):\n    return x * scale", vars(module))
    compiled = jitney.compile(lambda x: quiet.times(busy.times(x)), backend="eager")
    x = torch.ones(3)
    compiled(x)
    for calls in range(1 if HAS_DICT_VERSION else 2):  # what is not watched yet has no versions
        busy.calls = calls  # since the entry was made
        assert compiled(x).tolist() == [4.0] * 3
    (code,) = (c for c in stance.everything if c.namespace is compiled.__globals__)
    live, *_ = code.arms._live
    words = live.arm.program.code
    looked_up = [w for op, w in zip(words[::4], words[2::4]) if op == Op.CONST]
    assert id(vars(busy)) in looked_up and id(vars(quiet)) not in looked_up
    busy.scale = 3.0
    assert compiled(x).tolist() == [6.0] * 3
    quiet.scale = 5.0
    assert compiled(x).tolist() == [15.0] * 3
    quiet.scale = 7.0
    assert compiled(x).tolist() == [21.0] * 3
