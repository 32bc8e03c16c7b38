"""Runs a program eager and compiled, each in a world of its own, and compares what can be seen."""

from __future__ import annotations

import contextlib
import io
import random
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import jitney
from tests.conformance.random_python.generate import STEPS, generate
from tests.conformance.random_python.visible import Seen, Visitor, describe, difference

NAME = "random_program"
#: Between seeds of attempts at one program.
APART = 10**9
Compile = Callable[[Any], Any]


@dataclass(frozen=True)
class Setting:
    """How a program is compiled."""

    backend: str = "eager"
    dynamic: bool | None = None

    def compile(self, model: Any) -> Any:
        """An error of the compiler is an error, not a call that runs eager."""
        with jitney.options(eager_on_bug=False):
            return jitney.compile(model, backend=self.backend, dynamic=self.dynamic)


def judge(text: str, setting: Setting) -> str:
    """The first difference between a program compiled and eager, with its step; empty if none."""
    eager = run(text, lambda model: model)
    ours = run(text, setting.compile)
    lines = text.partition(STEPS)[2].strip().split("\n")
    for number, (line, mine, right) in enumerate(zip(["", *lines], ours, eager)):
        if found := difference(mine, right, bitwise=setting.backend == "eager"):
            return f"step {number}, {line}: {found}"
    return ""


def program(seed: int) -> str:
    """The program of a seed: where most of its calls only raise, another one."""
    for attempt in range(4):
        text = generate(seed + attempt * APART)
        raising = [facts[0].fact != "none" for facts in run(text, lambda model: model)]
        if sum(raising) < len(raising) / 3:
            break
    return text


def run(text: str, compile_: Compile) -> list[list[Seen]]:
    """What can be seen after the definitions and after each step."""
    definitions, _, steps = text.partition(STEPS)
    module = types.ModuleType(NAME)
    module.__dict__["compile_"] = compile_
    before = torch.get_default_dtype()
    sys.modules[NAME] = module
    seed()
    try:
        seen = [step(compile(definitions, NAME, "exec"), module.__dict__)]
        for line in steps.strip().split("\n"):
            seed()
            seen.append(step(compile(line, NAME, "exec"), module.__dict__))
        return seen
    finally:
        del sys.modules[NAME]
        torch.set_default_dtype(before)
        torch.set_grad_enabled(True)
        jitney.reset()


def step(code: types.CodeType, names: dict[str, Any]) -> list[Seen]:
    """Runs one line of a program; its output, its error and then the whole state."""
    printed, error = io.StringIO(), "none"
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(code, names)
        except Exception as raised:  # noqa: BLE001 - compared as any other result
            error = describe(raised)
        facts = [Seen("error", error), Seen("printed", printed.getvalue()), Seen("modes", modes())]
        hidden = ("__builtins__", "__warningregistry__", "compile_", "entry", "Entry", "Holder")
        shown = {k: v for k, v in names.items() if k not in hidden and not is_library(v)}
        return facts + Visitor().visit({"results": shown.pop("results", None), **shown})


def is_library(value: Any) -> bool:
    """Modules and what was imported from them."""
    return isinstance(value, types.ModuleType) or (
        isinstance(value, type) and value.__module__ != NAME
    )


def modes() -> str:
    """What is set for the whole thread, the random states too."""
    drawn = torch.random.get_rng_state().sum().item(), hash(random.getstate())
    grad, cast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    return f"grad {grad} autocast {cast} {torch.get_default_dtype()} random {drawn}"


def seed() -> None:
    """The same random numbers and names of hooks on both sides."""
    random.seed(0)
    torch.manual_seed(0)
    torch.utils.hooks.RemovableHandle.next_id = 0
