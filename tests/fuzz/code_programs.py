"""Random Python programs around tensors, against eager: branches, loops, handlers, generators,
closures, containers, objects that keep what they are given, and breaks between all of these.

    python -m tests.fuzz.code_programs [--seed 0] [--count 200] [--length 8] [--seconds S]

Compared after each call: results and errors, the order of side effects, which objects are the same
one, what the objects given and the module's globals hold, and gradients.
"""

from __future__ import annotations

import os
import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.fuzz.code_world import WORLD
from tests.fuzz.code_writer import Writer
from tests.fuzz.command_line import run_seeds
from tests.fuzz.run_text import run_text


@dataclass(frozen=True)
class CodeProgram:
    """A program's text, and what its calls are given."""

    seed: int
    steps: tuple[str, ...]
    calls: tuple[tuple[int, bool, int, int], ...]  # n, flag, rows, what the caller did before
    device: str = "cpu"

    def text(self) -> str:
        """The program's source."""
        lines = "\n".join(self.steps).split("\n")
        head = "def program(state, x, w, n, flag, items, table):"
        return "\n".join([head, *(f"    {line}" for line in lines)])

    def side(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Any]:
        """What is seen of all calls in a world of their own."""
        name = f"code_program_{self.seed}"
        world = types.ModuleType(name)
        sys.modules[name] = world
        text = WORLD + self.text()
        try:
            with torch.device(self.device):
                run_text(text, f"<{name}>", world.__dict__)
                function, state = wrap(world.program), world.State()
                w = torch.nn.Parameter(torch.tensor([1.0, -1.0, 2.0, 0.0]))
                return [self._call(function, world, state, w, call) for call in self.calls]
        finally:
            del sys.modules[name]

    def raising(self) -> int | None:
        """Which step eager raises at in the first call that raises; not the first ones."""
        where: list[int] = []

        def watched(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                try:
                    return function(*given)
                except Exception as error:
                    where.append(error.__traceback__.tb_next.tb_lineno)  # type: ignore[union-attr]
                    raise

            return call

        self.side(watched)
        if not where:
            return None
        line = where[0] - WORLD.count("\n") - 2
        for number, step in enumerate(self.steps):
            line -= step.count("\n") + 1
            if line < 0:
                return number if number > 1 else None
        return None

    def _call(
        self, function: Any, world: Any, state: Any, w: Tensor, call: tuple[int, bool, int, int]
    ) -> Any:
        n, flag, rows, before = call
        generator = torch.Generator("cpu").manual_seed(rows + 10 * n)
        drawn = torch.randint(-2, 3, (3, rows, 4), generator=generator, device="cpu").float()
        x, a, b = (part.clone() for part in drawn.to(self.device))
        items = [x if before == 1 else a, b]
        table = {"a": a, "b": b} if before != 2 else {"b": b, "c": items[0]}
        if before == 3:
            state.count, world.COUNT = n, n
        elif before == 4:
            world.double = lambda t, by=3: t - by
        given = (state, x, w, n, flag, items, table)
        result, error = None, None
        try:
            result = function(*given)
        except Exception as raised:  # noqa: BLE001 - compared
            error = raised
        seen = _Snapshot()
        facts = [
            seen.of(part)
            for part in (result, given, world.COUNT, world.COUNTED, world.State.shared)
        ]
        facts += [world.counted.calls, _error(error), torch.is_grad_enabled()]
        facts += _gradients(result, items, w)
        if before % 2 and isinstance(result, tuple) and isinstance(result[0], Tensor):
            result[0].detach().add_(1)  # seen by what shares its memory, in later calls too
        return facts


def _error(error: BaseException | None) -> Any:
    """What is compared of an error and those that it was raised from."""
    if error is None:
        return None
    text = str(error).split("\n")[0] if type(error).__module__ == "builtins" else ""
    return type(error).__name__, text, _error(error.__cause__), _error(error.__context__)


def _gradients(result: Any, items: Any, w: Tensor) -> list[Any]:
    tensors = [t for t in torch.utils._pytree.tree_leaves((result, items)) if isinstance(t, Tensor)]
    w.grad = None
    try:
        asked = {id(t): t.sum() for t in tensors if t.requires_grad and not t.is_leaf}
        if asked:
            torch.autograd.backward(list(asked.values()))
    except RuntimeError as error:
        return [type(error).__name__]
    return [None if w.grad is None else w.grad.tolist()]


class _Snapshot:
    """Values as plain data, an object met again as a number."""

    def __init__(self) -> None:
        self.met: dict[int, int] = {}
        self.alive: list[Any] = []

    def of(self, value: Any) -> Any:
        if isinstance(value, (int, float, str, type, type(None), types.FunctionType)):
            return type(value).__name__, value.__name__ if callable(value) else value
        if isinstance(value, tuple):  # which of equal ones it is, is no promise
            return type(value).__name__, [self.of(part) for part in value]
        if id(value) in self.met:
            return "again", self.met[id(value)]
        self.met[id(value)] = len(self.met)
        self.alive.append(value)
        if isinstance(value, Tensor):
            memory = self.met.setdefault(value.untyped_storage()._cdata, len(self.met))
            facts = tuple(value.shape), value.dtype, value.requires_grad, memory
            return "tensor", facts, value.detach().tolist(), self.of(getattr(value, "tag", None))
        if isinstance(value, list):
            return "list", [self.of(part) for part in value]
        if isinstance(value, dict):
            return "dict", [(self.of(k), self.of(v)) for k, v in value.items()]
        if type(value).__name__ == "count":
            return "count", repr(value)
        if isinstance(value, torch.nn.Module):
            own = {k: v for k, v in vars(value).items() if k.islower() and k[0] != "_"}
            return "module", self.of(own), self.of(dict(value.state_dict(keep_vars=True)))
        return type(value).__name__, self.of(dict(getattr(value, "__dict__", {})))


def _difference(path: str, ours: Any, theirs: Any) -> str:
    """The first place at which they differ, and what is there."""
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return _difference(f"{path}.{number}", a, b)
        ours, theirs = ours[len(theirs) :], theirs[len(ours) :]
    return f"{path}: {str(ours)[:200]} is not {str(theirs)[:200]}"


def code_program(seed: int, length: int, calls: int, device: str = "cpu") -> CodeProgram:
    """A random program of ``length`` statements and the blocks within them."""
    draw = random.Random(seed)
    forms = [
        (draw.randrange(4), draw.random() < 0.5, draw.choice((1, 2, 3)), draw.randrange(12))
        for _ in range(3)
    ]
    steps = Writer(seed, seed % 2 == 1).program(length)
    program = CodeProgram(seed, steps, tuple(draw.choice(forms) for _ in range(calls)), device)
    for _ in range(2 * length):  # without most of what eager refuses
        raising = program.raising()
        if raising is None or draw.random() < 0.1:
            break
        before, after = program.steps[:raising], program.steps[raising + 1 :]
        program = replace(program, steps=(*before, *(after or ("return x, y, items, table, m,",))))
    return program


def check(seed: int, length: int = 8, calls: int = 6, device: str = "cpu") -> int:
    """Compares one program with eager: how many of its graphs were compiled."""
    try:
        program = code_program(seed, length, calls, device)
    except SyntaxError:  # `:=` in what a comprehension iterates over
        return 0
    expected = program.side(lambda function: function)
    jitney.reset()
    log.clear()
    dynamic = (None, None, True, False)[seed % 4]
    actual = program.side(lambda function: jitney.compile(function, dynamic=dynamic))
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if theirs[-1] == "RuntimeError":  # a write to what eager keeps for its backward pass
            ours[-1:] = theirs[-1:]
        if ours != theirs:
            where = f"call {number} {program.calls[number]}: "
            error = AssertionError(where + _difference("", ours, theirs))
            error.add_note(program.text())
            raise error
    return len(log.events("program"))


if __name__ == "__main__":
    os.environ.setdefault("JITNEY_EAGER_ON_BUG", "0")
    run_seeds(check, __doc__, length=8)
