"""Random Python over numbers that are symbols (arguments, sizes, truth values of them), called with
others each time; what they come to, and raise, is eager's.

    python -m tests.fuzz.number_programs [--seed 0] [--count 200] [--calls 6] [--seconds S]
"""

from __future__ import annotations

import math
import operator
import random
import re
from collections.abc import Callable
from typing import Any

import torch

import jitney
from jitney.events import log
from tests.fuzz import number_grammar as grammar
from tests.fuzz.command_line import run_seeds
from tests.fuzz.run_text import run_text

#: What a program is called with: its tensor's sizes, two ints and two floats.
DRAWN = (
    (2, 3, 4, 5, 7), (1, 2, 3, 5), (-3, -1, 0, 1, 2, 3, 4, 5, 8, 100), (0, 1, 2, 3, 5, 6),
    (0.5, 1.0, 2.0, -1.5, 3.25, 0.0, 0.1, 1e10), (0.5, 1.0, 2.5, -2.0, 0.3),
)  # fmt: skip


def number_program(seed: int) -> str:
    """The source of a random program."""
    draw = random.Random(seed)
    lines = ["def program(x, n, k, a, b):", "told = []"]
    for number in range(draw.randint(1, 4)):
        kind = draw.choice("iifb")
        made = expression(draw, kind, draw.randint(1, 2))
        name = {"i": "n", "f": "a"}.get(kind) if draw.random() < 0.4 else None
        name = name or f"v{number}"
        way = draw.random()
        if way < 0.6:
            lines.append(f"{name} = {made}; told.append({name})")
        elif way < 0.8:
            lines.append(f"if {expression(draw, 'a', 1)}: told.append({made})")
        elif way < 0.9:
            lines.append(f"told.append(f'{{{made}}} {{{expression(draw, 'i', 1)}}}')")
        else:
            lines.append(f"x = x * ({expression(draw, draw.choice('if'), 1)})")
    return "\n    ".join([*lines, "return x * 2, told"])


def expression(draw: random.Random, kind: str, depth: int) -> str:
    """One of a kind (``a``: any), of ``depth`` levels."""
    kind = draw.choice("iiifbb") if kind == "a" else kind
    template = draw.choice((grammar.EXPRESSIONS if depth else grammar.LEAVES)[kind])
    inner = max(depth - 1, 0)
    return re.sub(r"\{([ifba])\}", lambda hole: f"({expression(draw, hole[1], inner)})", template)


def function_of(text: str, name: str) -> Callable[..., Any]:
    """The program whose source this is; SyntaxError where it is none."""
    names: dict[str, Any] = {"math": math, "operator": operator}
    run_text(text, name, names)
    made: Callable[..., Any] = names["program"]
    return made


def seen(function: Callable[..., Any], given: tuple[Any, ...]) -> str:
    """What a call gives, or raises."""
    x = torch.arange(float(given[0] * given[1])).view(given[:2])
    try:
        result, told = function(x, *given[2:])
    except Exception as error:  # noqa: BLE001 - of the program's
        return f"{type(error).__name__}: {error}"
    return f"{result.tolist()} {told!r}"


def check(seed: int, calls: int) -> bool:
    """Holds one program against eager at all its calls; whether something was captured."""
    text = number_program(seed)
    try:
        function = function_of(text, f"<numbers {seed}>")
    except SyntaxError:  # before 3.12: quotes inside an f-string's
        return False
    jitney.reset()
    log.clear()
    draw = random.Random(seed)
    options = {"eager_on_bug": False, "recompile_limit": 64}
    backend = "jitney" if seed % 4 == 0 else "eager"
    dynamic = draw.choice((None, True, True))
    compiled = jitney.compile(function, backend=backend, dynamic=dynamic, options=options)
    for _ in range(calls):
        given = tuple(draw.choice(values) for values in DRAWN)
        eager, found = seen(function, given), seen(compiled, given)
        assert found == eager, f"{given}, dynamic={dynamic}: {found}, not {eager}\n{text}"
    return bool(log.events("entry"))


if __name__ == "__main__":
    run_seeds(check, __doc__, calls=6)
