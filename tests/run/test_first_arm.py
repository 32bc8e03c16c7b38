"""The first arm of a process holds: arming itself changes nothing that guards watch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jitney.run.arms import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="layouts differ on this interpreter")

PROGRAM = """
import torch
import jitney
from jitney.run import arms

armings = 0
arm_guards = arms.arm_guards

def counted(*arguments):
    global armings
    armings += 1
    return arm_guards(*arguments)

arms.arm_guards = counted
compiled = jitney.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
for _ in range(4):
    with torch.no_grad():
        compiled(torch.ones(2, 4))
print(armings)
"""


def test_the_first_arm_of_a_process_serves_the_next_call():
    """A module imported while it was built changed ``sys.modules``: all was built again."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1"]
