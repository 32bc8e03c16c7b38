"""Random programs of the other modules on a GPU, one for each seed, against eager there.

python -m tests.fuzz.on_a_gpu exact|shape|view [--seed N] [--count N] [--seconds S]
"""

from __future__ import annotations

import os
import sys

from jitney.events import log
from tests.fuzz import exact_programs, test_shape_programs, test_view_programs
from tests.fuzz.command_line import run_seeds
from tests.fuzz.shape_programs import shape_program
from tests.fuzz.view_programs import view_program


def exact(seed: int, length: int) -> int:
    """Many dtypes and layouts, results equal to the bit."""
    return exact_programs.check(seed, length, "cuda")


def shape(seed: int, length: int) -> int:
    """Symbolic sizes, with gradients."""
    log.clear()
    program = shape_program(seed, length, calls=4)
    for number in range(len(program.series)):
        try:
            program(*program.inputs(number, "cuda"))
        except (RuntimeError, TypeError, IndexError, ValueError):
            return 0
    test_shape_programs.check(program, (True, None)[seed % 2], "cuda")
    return len(log.events("program"))


def view(seed: int, length: int) -> int:
    """Views and writes, and what their caller sees."""
    log.clear()
    test_view_programs.check(view_program(seed, length, calls=4), "jitney", "cuda")
    return len(log.events("program"))


if __name__ == "__main__":
    os.environ.setdefault("JITNEY_EAGER_ON_BUG", "0")
    run_seeds({"exact": exact, "shape": shape, "view": view}[sys.argv.pop(1)], __doc__, length=6)
