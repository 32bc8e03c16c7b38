"""Random programs that read the state of Python and torch in many ways, and whose world changes
between their calls and within them, against eager: what they tell is that no guard is missing.

    python -m tests.fuzz.world_programs [--seed 0] [--count 200] [--length 8] [--steps 8]
        [--seconds S] [--reduce 1]

Compared after each call and each change: results and errors, and all of the world. With
``--reduce 1`` what differs is printed without the statements that it differs without.
"""

from __future__ import annotations

import os
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import jitney
from jitney.events import log
from tests.fuzz.command_line import run_seeds
from tests.fuzz.run_text import run_text
from tests.fuzz.world_process import process_as_it_was
from tests.fuzz.world_seen import Snapshot, difference
from tests.fuzz.world_state import OTHER, WORLD
from tests.fuzz.world_writer import CALL, GLOBALS, WorldWriter

CELLS = ("cell_s", "cell_o", "cell_l", "cell_t")
ENTRIES = ("program_", "program_", "program_", "Entry()", "Holder().call",
           "functools.partial(program_)")  # fmt: skip
TAIL = """
class Entry(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, *args, **kwargs):
        return program_(*args, **kwargs)

class Holder:
    def call(self, *args, **kwargs):
        return program_(*args, **kwargs)

program_, helper_, cells = make(1, obj, [1, 2], T2)
"""


@dataclass(frozen=True)
class WorldProgram:
    """A program as text. ``inside``: changes that its statements make; ``steps``: calls and
    changes between them."""

    seed: int
    helper: tuple[str, ...]
    body: tuple[str, ...]
    inside: tuple[str, ...]
    steps: tuple[str, ...]

    def text(self) -> str:
        """The source of the functions."""
        names = f"global {', '.join(GLOBALS)}"
        shared = f"nonlocal {', '.join(CELLS)}"
        helper = [names, shared, *self.helper, "return x"]
        body = [names, shared, "out = []", *self.body, "return x, out"]
        lines = [f"def make({', '.join(CELLS)}):", "    def helper(x, out, by=1):"]
        lines += _indented(helper, 8)
        lines += ["    def program(x, n=1, d_s=1, *, kw_s=2):", *_indented(body, 8)]
        cells = ", ".join(f"{n!r}: helper.__closure__[{k}]" for k, n in enumerate(sorted(CELLS)))
        lines += [f"    return program, helper, {{{cells}}}"]
        for number, change in enumerate(self.inside):
            lines += [f"def change_{number}():", *_indented([names, change], 4)]
        return "\n".join(lines) + TAIL

    def side(self, compile_: Callable[..., Any]) -> list[Any]:
        """What is seen of all steps in a world of their own."""
        name = f"world_program_{self.seed}"
        world, other = types.ModuleType(name), types.ModuleType(name + "_other")
        text = WORLD + self.text()
        with process_as_it_was({name: world, name + "_other": other}):
            run_text(OTHER, f"<{other.__name__}>", other.__dict__)
            world.__dict__["other"] = other
            run_text(text, f"<{world.__name__}>", world.__dict__)
            entry = eval(ENTRIES[self.seed % len(ENTRIES)], world.__dict__)
            world.__dict__["entry_"] = compile_(entry)
            return [self._step(number, world) for number in range(len(self.steps))]

    def _step(self, number: int, world: types.ModuleType) -> Any:
        step, names = self.steps[number], world.__dict__
        result, error, run = None, None, names["entry_"]
        torch.manual_seed(number)
        torch.utils.hooks.RemovableHandle.next_id = 10 * number
        x = torch.randint(-2, 3, (3,), dtype=torch.int64).to(torch.float32)
        try:
            if step.startswith(CALL):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    given = eval(f"dict({step.removeprefix(CALL)})", names)
                    result = run(x.requires_grad_() if number % 5 == 4 else x, **given)
            else:
                exec(step, names)
        except RecursionError:
            raise
        except Exception as raised:  # noqa: BLE001 - compared
            error = raised
        last = number == len(self.steps) - 1
        seen = Snapshot(world.__name__, last)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            told = [seen.of(result), seen.error(error)]
            if last or number % 8 == 7:  # it takes most of the time
                told += seen.names({k: v for k, v in names.items() if k not in _HIDDEN})
            return told


_HIDDEN = {"entry_", "Entry", "Holder", "make", "cells", "__builtins__", "__warningregistry__"}


def _indented(statements: list[str], columns: int) -> list[str]:
    return [" " * columns + line for statement in statements for line in statement.split("\n")]


def world_program(seed: int, length: int, steps: int) -> WorldProgram:
    """A random program of ``length`` statements, with ``steps`` changes between its calls."""
    writer = WorldWriter(seed)
    helper = writer.statements(2, nested=True)
    body = writer.statements(length)
    return WorldProgram(seed, helper, body, tuple(writer.inside), writer.steps(steps))


def found(program: WorldProgram) -> str:
    """The first difference between the program compiled and in eager; empty if there is none."""
    try:
        expected = program.side(lambda function: function)
    except RecursionError:
        return ""
    jitney.reset()
    log.clear()
    backend = "jitney" if program.seed % 16 == 7 else "eager"
    dynamic = (None, None, True, False)[program.seed % 4]

    def compile_(function: Any) -> Any:
        return jitney.compile(function, backend=backend, dynamic=dynamic)

    with jitney.options(eager_on_bug=False, recompile_limit=64):
        actual = program.side(compile_)
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if ours != theirs:
            where = f"step {number} {program.steps[number]}: "
            return where + difference("", ours, theirs)
    return ""


def reduced(program: WorldProgram) -> WorldProgram:
    """The program without the statements and steps that it differs without."""

    def fails(smaller: WorldProgram) -> bool:
        try:
            return bool(found(smaller))
        except SyntaxError:
            return False

    size = 0
    while size != len(program.text()) + len(program.steps):
        size = len(program.text()) + len(program.steps)
        for part in ("steps", "body", "helper"):
            for number in reversed(range(len(getattr(program, part)))):
                kept = getattr(program, part)
                smaller = replace(program, **{part: kept[:number] + kept[number + 1 :]})
                program = smaller if fails(smaller) else program
        for number in range(len(program.inside)):
            changes = [*program.inside]
            changes[number] = "pass"
            smaller = replace(program, inside=tuple(changes))
            program = smaller if fails(smaller) else program
    return program


def check(seed: int, length: int = 8, steps: int = 8, reduce: int = 0) -> int:
    """Compares one program with eager: how many of its graphs were compiled."""
    program = world_program(seed, length, steps)
    try:
        told = found(program)
        if not told:
            return len(log.events("entry"))
        error = AssertionError(told)
    except Exception as raised:  # noqa: BLE001 - the compiler's own
        error = AssertionError(f"{type(raised).__name__}: {raised}")
        error.__cause__ = raised
    smaller = reduced(program) if reduce else program
    lines = [*smaller.text().removesuffix(TAIL).split("\n"), "# steps", *smaller.steps]
    told = [line for line in lines if not line.lstrip().startswith(("global", "nonlocal"))]
    error.add_note("\n".join(told))
    raise error


if __name__ == "__main__":
    os.environ.setdefault("JITNEY_EAGER_ON_BUG", "0")
    sys.setrecursionlimit(2000)
    run_seeds(check, __doc__, length=8, steps=8, reduce=0)
