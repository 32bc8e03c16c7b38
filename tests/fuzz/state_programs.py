"""Random programs of layers that keep state: products, convolutions, attention, scans and
reductions of tensors that they write to in between, whole, in part, or by rows read from memory.

    python -m tests.fuzz.state_programs [--seed 0] [--count 200] [--length 8] [--seconds S]
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.fuzz import state_grammar as grammar
from tests.fuzz.command_line import has_lost_its_gpu, run_seeds
from tests.fuzz.run_text import run_text

#: Tensors that are written, of each kind.
STATE = {"m": ("m0", "m1", "m2"), "p": ("p0", "p1"), "h": ("h0", "h1", "h2"), "v": ("v0", "v1")}
NAMES = (*(name for names in STATE.values() for name in names), *"iutfwoqgc")
SIZES = {
    "S": (5, 8, 16, 17, 33), "E": (4, 8, 8, 16), "H": (1, 2, 4), "N": (1, 2, 3), "C": (2, 4, 8, 16),
    "R": (4, 6, 9),
}  # fmt: skip


@dataclass(frozen=True)
class StateProgram:
    """Statements over NAMES. ``lies``: how each tensor of the state lies in memory; ``grads``:
    whether the weights have gradients; ``series``: the sizes of each call."""

    seed: int
    dtype: torch.dtype
    grads: bool
    lies: tuple[tuple[str, str], ...]
    series: tuple[tuple[tuple[str, int], ...], ...]
    steps: tuple[str, ...] = ()

    def text(self) -> str:
        return "\n    ".join((f"def program({', '.join(NAMES)}):", *self.steps))

    def function(self) -> Callable[..., Any]:
        """The program."""
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        run_text(self.text(), f"<state {self.seed}>", names)
        made: Callable[..., Any] = names["program"]
        return made

    def given(self, number: int, device: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inputs by name, and of those of the state what they are parts of."""
        size, lies = dict(self.series[number]), dict(self.lies)
        draw = torch.Generator().manual_seed(number)
        deep = size["H"] * size["E"]
        rows, channels = size["S"], size["C"]
        shapes = {
            "m": (rows, deep),
            "p": (size["N"], channels, size["R"], size["R"]),
            "h": (size["N"], size["H"], rows, size["E"]),
            "v": (deep,),
        }
        wholes: dict[str, Tensor] = {}
        inputs: dict[str, Tensor] = {}
        for kind, names in STATE.items():
            for name in names:
                if lies[name] == "shared" and device == "cpu":  # or who writes first is chance
                    whole = wholes[name] = wholes[names[0]]
                    offset = min(3, whole.numel() - math.prod(shapes[kind]))
                    inputs[name] = over(whole, shapes[kind], offset)
                    continue
                made, turn = laid(shapes[kind], lies[name], draw)
                wholes[name] = made.to(device, self.dtype)
                inputs[name] = turn(wholes[name])
        weights = {
            "w": torch.randn(deep, deep, generator=draw) / deep**0.5,
            "o": torch.randn(deep, deep, generator=draw).t() / deep**0.5,
            "q": torch.randn(channels, channels, 3, 3, generator=draw) / (3 * channels**0.5),
            "g": torch.rand(channels, generator=draw) + 0.5,
            "c": torch.rand(channels, generator=draw) + 0.5,
        }
        for name, weight in weights.items():
            inputs[name] = weight.to(device, self.dtype)
            inputs[name].requires_grad_(self.grads and name in "woq")
        fewer = min(rows, deep)
        positions = torch.randint(0, rows, (rows,), generator=draw)
        if device != "cpu":  # there the order of writes to one place is nobody's to know
            positions = torch.randperm(rows, generator=draw)
        inputs["i"] = positions.to(device)
        inputs["u"] = torch.randperm(fewer, generator=draw)[:3].to(device)
        inputs["t"] = torch.randint(0, fewer, (), generator=draw).to(device)
        inputs["f"] = (torch.rand(rows, deep, generator=draw) < 0.3).to(device)
        return {name: inputs[name] for name in NAMES}, wholes

    def seen(
        self, function: Callable[..., Any], number: int, device: str = "cpu"
    ) -> dict[str, Tensor]:
        """What the caller of call ``number`` sees, by what it is."""
        inputs, wholes = self.given(number, device)
        torch.manual_seed(number)
        results = function(*inputs.values())
        facts = {f"result {i}": t.detach().clone() for i, t in enumerate(results)}
        facts |= {name: whole.detach().clone() for name, whole in wholes.items()}
        facts |= {"g": inputs["g"], "c": inputs["c"], "drawn": torch.rand(2, device=device)}
        if results[0].requires_grad:
            results[0].backward()
            facts |= {f"gradient {n}": inputs[n].grad for n in "woq" if inputs[n].grad is not None}
        return facts


def over(whole: Tensor, shape: Sequence[int], offset: int) -> Tensor:
    """Rows of this shape in the memory of ``whole``, which lies there without a gap."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return whole.as_strided(shape, strides, offset)


def laid(
    shape: Sequence[int], lie: str, draw: torch.Generator
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Random numbers, and how their part of this shape is taken."""
    if lie == "part":
        whole = torch.randn([n + 2 for n in shape], generator=draw)
        return whole, lambda t: t[tuple(slice(1, 1 + n) for n in shape)]
    if lie == "turned" and len(shape) > 1:
        whole = torch.randn([*shape[:-2], *shape[:-3:-1]], generator=draw)
        return whole, lambda t: t.transpose(-1, -2)
    if lie == "last" and len(shape) > 1:
        whole = torch.randn([shape[0], *shape[2:], shape[1]], generator=draw)
        return whole, lambda t: t.movedim(-1, 1)
    return torch.randn(shape, generator=draw), lambda t: t


def state_program(seed: int, length: int, calls: int) -> StateProgram:
    """A random program of ``length`` statements that eager runs in every call."""
    draw = random.Random(seed)
    program = drawn_inputs(draw, seed, calls)
    kinds = draw.choice(("mmmv", "mmmvs", "ppm", "hhm", "hmpv", "mh", "mmvis", "mhi"))
    values = {kind: list(names) for kind, names in STATE.items()} | {"s": ["m0[0, 0]"], "i": ["i"]}
    steps: tuple[str, ...] = ()
    longest = program
    for number in range(length * 6):
        kind = draw.choice(kinds)
        written = kind in grammar.WRITES and draw.random() < 0.55
        made = "" if written else f"{kind}{10 + number}"
        choices = grammar.WRITES[kind] if written else grammar.VALUES[kind]
        step = filled(draw, draw.choice(choices), values)
        longer = (*steps, step if written else f"{made} = {step}")
        shown = [made or draw.choice(values[kind]), *(draw.choice(values[k]) for k in kinds[:2])]
        trial = ended(program, longer, shown)
        if runs(trial):
            steps, longest = longer, trial
            if made:
                values[kind].append(made)
        if len(steps) == length:
            break
    return longest


def drawn_inputs(draw: random.Random, seed: int, calls: int) -> StateProgram:
    """A program without statements."""
    first = {name: draw.choice(sizes) for name, sizes in SIZES.items()}
    series = [first]
    for _ in range(calls - 1):
        changed = {n: draw.choice(SIZES[n]) for n in draw.sample(sorted(SIZES), 2)}
        series.append({**first, **(changed if draw.random() < 0.5 else {})})
    lies = []
    for names in STATE.values():
        lies.append((names[0], draw.choice(("rows", "rows", "turned", "part", "last"))))
        kinds = ("rows", "rows", "rows", "turned", "part", "last", "shared")
        lies += [(name, draw.choice(kinds)) for name in names[1:]]
    dtype = draw.choice((torch.float32, torch.float64))
    sizes = tuple(tuple(size.items()) for size in series)
    return StateProgram(seed, dtype, draw.random() < 0.4, tuple(lies), sizes)


def ended(program: StateProgram, steps: Sequence[str], shown: Sequence[str]) -> StateProgram:
    """That program, of these statements and what it returns of ``shown``."""
    totals = [f"{name}.{'mean' if name[0] in 'ph' else 'sum'}() / 4" for name in shown]
    end = f"return {' + '.join(totals)}, {shown[0]} * 1, {shown[-1]} * 1"
    given = (program.seed, program.dtype, program.grads, program.lies, program.series)
    return StateProgram(*given, (*steps, end))


def filled(draw: random.Random, template: str, values: dict[str, list[str]], depth: int = 1) -> str:
    """The text with a tensor or an expression in each hole."""

    def hole(match: re.Match[str]) -> str:
        kind = match[2] or "i"
        expression = match[1] or (kind == "i" and draw.random() < 0.3)
        if not expression or not depth or draw.random() < 0.4:
            return draw.choice([*values[kind], values[kind][-1]])
        return f"({filled(draw, draw.choice(grammar.VALUES[kind]), values, depth - 1)})"

    return re.sub(r"\{(e:)?([mphvs])\}|\bi\b", hole, template)


def runs(program: StateProgram) -> bool:
    """Whether eager does, in each call, and what it gives is small."""
    function = program.function()
    for number in range(len(program.series)):
        try:
            facts = program.seen(function, number)
        except Exception:  # noqa: BLE001 - of eager's; another step is drawn
            return False
        if not all(bool((fact.abs() < 1e4).all()) for fact in facts.values()):
            return False
    return True


def check(seed: int, length: int, calls: int, device: str = "cpu") -> bool:
    """Holds one program against eager at all its calls; whether there was a graph to compile."""
    program = state_program(seed, length, calls)
    jitney.reset()
    log.clear()
    function = program.function()
    options = {"eager_on_bug": False, "verify": True, "recompile_limit": 64}
    compiled = jitney.compile(function, dynamic=(None, True, False)[seed % 3], options=options)
    near = 1e-8 if program.dtype is torch.float64 else 2e-3
    for number in range(calls):
        where = (
            f"call {number}, dynamic={(None, True, False)[seed % 3]}\n{program.text()}\n{program}"
        )
        try:
            eager = program.seen(function, number, device)
        except RuntimeError as error:
            if has_lost_its_gpu(error):
                raise
            return False  # torch 2.11's attention of memory that is not aligned
        try:
            mine = program.seen(compiled, number, device)
        except Exception as error:
            error.add_note(where)
            raise
        assert mine.keys() == eager.keys(), where
        for name, right in eager.items():
            scale = max(1.0, float(right.abs().max()))
            off = float((mine[name].double() - right.double()).abs().max()) / scale
            assert off <= near, f"{name} is off by {off:.1e}\n{where}"
    return bool(log.events("program"))


if __name__ == "__main__":
    run_seeds(check, __doc__, length=8, calls=3)
