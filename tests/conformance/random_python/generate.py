"""Random programs from the grammar: a function, a driver of its calls, and changes in between."""

from __future__ import annotations

import inspect
import random
import re
import textwrap

from tests.conformance.random_python import world
from tests.conformance.random_python.grammar import RULES

HOLE = re.compile(r"<(\w+)>")
#: Line after which every line is one step of the driver: a call or a change.
STEPS = "# steps"
WORLD = inspect.getsource(world)

HEAD = """
later = []
scratch_t = torch.zeros(3)


def make_f(cell_n, cell_t):
    def f(x0, y0=base[2:5], n=1, flag=True, *rest, who=thing, **options):
        nonlocal cell_n, cell_t
        global scale, thing, other, point, numbers
        t0, t1, t2, n0, n1, n2, l0, l1 = x0, y0, x0, n, 1, 2, [x0], weights
"""
TAIL = """
    def set_cells(n=None, t=None):
        nonlocal cell_n, cell_t
        cell_n = cell_n if n is None else n
        cell_t = cell_t if t is None else t

    return f, set_cells


def cell_of(function, name):
    return function.__closure__[function.__code__.co_freevars.index(name)]


class Entry(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net

    def forward(self, *args, **kwargs):
        return f(*args, **kwargs)


class Holder:
    def call(self, *args, **kwargs):
        return f(*args, **kwargs)


f, set_cells = make_f(2, ramp(3) + 2)
entry_f = f
"""
ENTRIES = ["f", "f", "f", "Entry()", "Holder().call", "torch.no_grad()(f)", "functools.partial(f)"]


class Writer:
    """Fills holes at random, ever plainer with depth."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.names = 0

    def program(self) -> str:
        """The text of a whole program: the world, a function, steps; it compiles."""
        while True:
            body = self.block(self.choose.choice([2, 4, 6, 8]), depth=0)
            function = textwrap.indent(f"{body}\n{self.fill('return <result>', 1)}\n", " " * 8)
            entry = f"entry = compile_({self.choose.choice(ENTRIES)})\n"
            text = WORLD + HEAD + function + TAIL + entry + self.steps()
            try:
                compile(text, "program", "exec")
            except SyntaxError:
                continue  # a walrus where none may stand, and the like
            return text

    def steps(self) -> str:
        """Calls, each after the first one behind up to two changes."""
        lines = [STEPS, self.fill("<call>", 0)]
        for _ in range(self.choose.choice([2, 4, 6])):
            lines += [self.fill("<change>", 0) for _ in range(self.choose.choice([0, 1, 1, 1, 2]))]
            lines.append(self.fill("<call>", 0))
        return "\n".join(lines) + "\n"

    def block(self, count: int, depth: int, in_loop: bool = False) -> str:
        """That many statements, one after the other."""
        lines = [self.statement(depth) for _ in range(count)]
        if in_loop and self.choose.random() < 0.4:
            condition = self.choose.choice(["", "if <b>: "])
            place = self.choose.randrange(len(lines) + 1)
            lines.insert(place, self.fill(f"{condition}<exit>", 2))
        return "\n".join(lines)

    def statement(self, depth: int) -> str:
        """One, simple where it is deep."""
        simple = depth > 2 or self.choose.random() < 0.7
        return self.fill(self.choose.choice(RULES["simple" if simple else "compound"]), depth)

    def fill(self, text: str, depth: int) -> str:
        """``text`` without holes."""
        own = f"u{self.names}"
        self.names += "<u>" in text
        if "<same>" in text:  # a loop ends by the length of the list that it goes over
            text = text.replace("<same>", self.hole("L", own, depth))
        lines = []
        for line in text.split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            if line.strip() in ("<block>", "<loop>"):
                count = self.choose.choice([1, 1, 2, 3])
                filled = self.block(count, depth + 1, line.strip() == "<loop>")
                lines.append(textwrap.indent(filled, indent))
            else:
                lines.append(HOLE.sub(lambda hole: self.hole(hole[1], own, depth), line))
        return "\n".join(lines)

    def hole(self, kind: str, own: str, depth: int) -> str:
        """What stands in a hole."""
        if kind in ("u", "nothing"):
            return own if kind == "u" else ""
        plain = f"{kind}, plain"
        if plain in RULES and self.choose.random() < 0.3 + 0.2 * depth:
            kind = plain
        return self.fill(self.choose.choice(RULES[kind]), depth + 1)


def generate(seed: int) -> str:
    """The program of a seed."""
    return Writer(seed).program()
