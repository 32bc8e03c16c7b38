"""Random programs of the other modules on a GPU, one for each seed, against eager there.

python -m tests.fuzz.on_a_gpu exact|shape|view|slice|gradient|code|state [--seed N] [--count N]
    [--seconds S]

`tests.fuzz.on_a_pretended_gpu` runs the same programs where there is no GPU.
"""

from __future__ import annotations

import os
import sys

from jitney.events import log
from tests.fuzz import (
    code_programs,
    exact_programs,
    gradient_programs,
    slice_programs,
    state_programs,
    test_shape_programs,
    test_view_programs,
)
from tests.fuzz.command_line import has_lost_its_gpu, run_seeds
from tests.fuzz.shape_programs import shape_program
from tests.fuzz.view_programs import view_program


def exact(seed: int, length: int, device: str = "cuda") -> int:
    """Many dtypes and layouts, results equal to the bit."""
    return exact_programs.check(seed, length, device)


def shape(seed: int, length: int, device: str = "cuda") -> int:
    """Symbolic sizes, with gradients."""
    log.clear()
    program = shape_program(seed, length, calls=4)
    for number in range(len(program.series)):
        try:
            program(*program.inputs(number, device))
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            if has_lost_its_gpu(error):
                raise  # eager, which may: torch 2.11's attention of memory that is not aligned
            return 0
    test_shape_programs.check(program, (True, None)[seed % 2], device, nearby=True)
    return len(log.events("program"))


def view(seed: int, length: int, device: str = "cuda") -> int:
    """Views and writes, and what their caller sees."""
    log.clear()
    test_view_programs.check(view_program(seed, length, calls=4), "jitney", device)
    return len(log.events("program"))


def slice_(seed: int, length: int, device: str = "cuda") -> int:
    """Slices of larger tensors, of changing sizes, each fourth with infinities and NaN."""
    return slice_programs.check(seed, length, 5, device, special=seed % 4 == 3)


def gradient(seed: int, length: int, device: str = "cuda") -> int:
    """Views and writes with gradients, once or twice, each other program in all its ways, each
    fourth with infinities and NaN."""
    return gradient_programs.check(seed, length, 4, seed % 2, device, special=seed % 4 == 2)


def code(seed: int, length: int, device: str = "cuda") -> int:
    """Python around tensors: branches, handlers, containers, objects and breaks."""
    return code_programs.check(seed, length, device=device)


def state(seed: int, length: int, device: str = "cuda") -> int:
    """Layers that write to tensors in between."""
    return state_programs.check(seed, length, 3, device)


KINDS = {"exact": exact, "shape": shape, "view": view, "slice": slice_, "gradient": gradient}
KINDS |= {"code": code, "state": state}


if __name__ == "__main__":
    os.environ.setdefault("JITNEY_EAGER_ON_BUG", "0")
    run_seeds(KINDS[sys.argv.pop(1)], __doc__, length=6)
