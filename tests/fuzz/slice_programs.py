"""Random programs over slices of larger tensors, whose sizes change from call to call.

    python -m tests.fuzz.slice_programs [--seed 0] [--count 200] [--length 7] [--special 1]
        [--seconds S]

``--special``: with infinities, NaN and -0.0 among the elements.

Inputs are parts of up to three tensors. The caller sees results and gradients, but also what
surrounds the inputs, which results share memory with what, where they begin, and what a write to
one of them does to the others.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import jitney
from jitney.diagnostics.equality import visible_strides
from jitney.events import log
from tests.fuzz import slice_grammar as grammar
from tests.fuzz.beside_eager import is_as_eager
from tests.fuzz.command_line import run_seeds
from tests.fuzz.run_text import run_text
from tests.fuzz.slice_parts import SPACE, Call, drawn_calls
from tests.fuzz.special_elements import with_special_elements


@dataclass(frozen=True)
class Step:
    """A statement; where it is left out its ``targets`` are its ``operand``."""

    targets: tuple[str, ...]
    text: str
    operand: str

    def line(self) -> str:
        return f"{', '.join(self.targets)} = {self.text}" if self.targets else self.text


@dataclass(frozen=True)
class SliceProgram:
    """Statements over ``x``, ``y``, ``z`` and ``k``. ``grads``: what gradients are taken of: none,
    leaves (the inputs whose ``leaf`` is true, each a part of memory), or the whole tensors.
    ``special``: some elements are infinite, NaN or -0.0."""

    seed: int
    dtype: torch.dtype
    grads: str
    leaf: tuple[bool, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    calls: tuple[Call, ...]
    special: bool = False

    def text(self) -> str:
        lines = ["def program(x, y, z, k):", *(f"    {step.line()}" for step in self.steps)]
        return "\n".join([*lines, f"    return ({', '.join(self.results)},)"])

    def function(self) -> Callable[..., Any]:
        """The program."""
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        run_text(self.text(), f"<slices {self.seed}>", names)
        made: Callable[..., Any] = names["program"]
        return made

    def given(self, number: int, device: str) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The tensors that gradients are taken of, the whole tensors, and the inputs."""
        call = self.calls[number]
        generator = torch.Generator().manual_seed(number)
        sizes = call.named_sizes()
        space = max(SPACE, 100 + sum(part.elements(sizes) for part in call.parts))
        made = torch.randint(-8, 9, (3, space), generator=generator, device="cpu")
        leaves = [row.to(device, self.dtype, copy=True) for row in made]
        if self.special:
            leaves = [with_special_elements(leaf, generator) for leaf in leaves]
        bases = leaves
        if self.grads == "whole":
            leaves = [leaf.requires_grad_() for leaf in leaves]
            bases = [leaf * 1 for leaf in leaves]
        free, inputs = [5, 0, 2], []
        for part, leaf in zip(call.parts, self.leaf, strict=True):
            start = free[part.base] if part.start is None else part.start
            made = part.of(bases[part.base], start, sizes)
            free[part.base] = max(free[part.base], start + part.elements(sizes) + 1)
            if self.grads == "leaves" and leaf:
                made = made.detach().requires_grad_()
            inputs.append(made)
        if self.grads == "leaves":
            leaves = [made for made in inputs if made.is_leaf and made.requires_grad]
        return leaves if self.grads != "none" else [], bases, inputs

    def seen(
        self, function: Callable[..., Any], number: int, device: str = "cpu"
    ) -> dict[str, Any]:
        """What the caller of call ``number`` sees, by what it is."""
        leaves, bases, inputs = self.given(number, device)
        versions = [t._version for t in inputs]
        call = self.calls[number]
        with torch.no_grad() if call.off else contextlib.nullcontext():
            results = function(*inputs, call.sizes[2])
        named = {f"base {i}": t for i, t in enumerate(bases)}
        named |= zip("xyz", inputs, strict=True)
        named |= {f"result {i}": t for i, t in enumerate(results)}
        facts = facts_of(named)
        pairs = zip(inputs, versions, strict=True)
        facts["written"] = [t._version > version for t, version in pairs]
        if "_scatter(" in self.text():  # eager copies what surrounds a slice, too
            facts = {name: fact for name, fact in facts.items() if not name.endswith("begins")}
        facts |= self._gradients(leaves, results)
        for t in results:
            if t.numel():
                with contextlib.suppress(RuntimeError):  # some elements are one
                    t.detach().sub_(1.5 if t.is_floating_point() else 1)
                break
        facts |= {f"{name} in the end": t.detach().clone() for name, t in named.items()}
        return facts

    def _gradients(self, leaves: list[Tensor], results: Sequence[Tensor]) -> dict[str, Any]:
        some = [r for r in results if r.requires_grad]
        if not some or self.grads == "none":
            return {}
        weights = [(torch.arange(r.numel()) % 5).to(r).view(r.shape) for r in some]
        torch.autograd.backward(some, weights)
        return {f"gradient {i}": leaf.grad for i, leaf in enumerate(leaves)}


def facts_of(named: dict[str, Tensor]) -> dict[str, Any]:
    """What is seen of each tensor before anything is written to."""
    facts: dict[str, Any] = {}
    for name, t in named.items():
        facts[f"{name} type"] = (t.dtype, tuple(t.shape), t.requires_grad, t.is_leaf)
        facts[f"{name} strides"] = visible_strides(t)
        facts[f"{name} values"] = t.detach().clone()
        facts[f"{name} is"] = [n for n, u in named.items() if u is t]
        at = t.untyped_storage().data_ptr() if t.numel() else 0  # eager keeps some for nothing
        same = [n for n, u in named.items() if at and u.untyped_storage().data_ptr() == at]
        facts[f"{name} shares"] = same
        facts[f"{name} begins"] = t.storage_offset() if t.numel() else 0
    return facts


def slice_program(seed: int, length: int, calls: int, special: bool = False) -> SliceProgram:
    """A random program of ``length`` statements that eager runs in every call."""
    draw = random.Random(seed)
    dtype = draw.choice((torch.float64,) * 5 + (torch.float32, torch.float32, torch.int64))
    grads = "none" if dtype is torch.int64 else draw.choice(("none", "none", "leaves", "whole"))
    leaf = tuple(draw.random() < 0.6 for _ in range(3))
    called = drawn_calls(draw, calls)
    program = SliceProgram(seed, dtype, grads, leaf, (), ("x",), called, special)
    values = ["x", "y", "z"]
    for _ in range(length * 8):
        step = _drawn_step(draw, len(program.steps), values)
        shown = step.targets or (values[-1],)
        longer = replace(program, steps=(*program.steps, step), results=shown)
        if _runs(longer):
            program, values = longer, [*values, *step.targets]
        if len(program.steps) == length:
            break
    others = draw.sample(values, draw.randint(0, 2))
    fuller = replace(program, results=(values[-1], *others))
    return fuller if _runs(fuller) else program


def _drawn_step(draw: random.Random, number: int, values: list[str]) -> Step:
    kind = draw.random()
    a = draw.choice([*values, *values[-2:] * 3])
    b = draw.choice(values)

    def filled(template: str) -> str:
        while hole := re.search(r"\{([id])\}", template):
            drawn = draw.choice(grammar.NUMBERS if hole[1] == "i" else grammar.DIMENSIONS)
            template = template[: hole.start()] + drawn + template[hole.end() :]
        return template.replace("{a}", a).replace("{b}", b)

    target = (f"v{number}",)
    if kind < 0.4:
        return Step(target, filled(draw.choice(grammar.VIEWS)), a)
    if kind < 0.45:
        return Step((*target, f"u{number}"), filled(draw.choice(grammar.PAIRS)), a)
    if kind < 0.57:
        return Step(target, filled(draw.choice(grammar.DROPPED)), a)
    if kind < 0.75:
        return Step(target, filled(draw.choice(grammar.COMPUTED)), a)
    write = filled(draw.choice(grammar.WRITES))
    if draw.random() < 0.2:
        write = f"with torch.no_grad(): {write}"
    return Step((), write, a)


def _runs(program: SliceProgram) -> bool:
    """Whether eager does, at all sizes, and what it gives is small."""
    function = program.function()
    for number, call in enumerate(program.calls):
        try:
            facts = program.seen(function, number)
        except Exception:  # noqa: BLE001 - of eager's; another step is drawn
            return False
        shapes = [part.shape(call.named_sizes()) for part in call.parts]
        if [facts[f"{name} type"][1] for name in "xyz"] != shapes:
            return False  # given as out= of another size
        for name, fact in facts.items():
            if name.startswith("result") and name.endswith("values"):
                small = fact.numel() <= 3000 and fact.dim() <= 5
                held = fact.double().nan_to_num(0, 0, 0) if program.special else fact.double()
                if not small or not bool((held.abs() < 1e8).all()):
                    return False
    return True


def check(seed: int, length: int, calls: int, device: str = "cpu", special: int = 0) -> bool:
    """Holds one program, compiled once, against eager at all its calls on ``device``, where its
    new tensors are made, too; whether there was a graph to compile."""
    torch.set_default_device(None)
    program = slice_program(seed, length, calls, special > 0)
    jitney.reset()
    log.clear()
    function = program.function()
    dynamic = (True, None, True, None, False)[seed % 5]
    options = {"eager_on_bug": False, "verify": True, "recompile_limit": 64}
    compiled = jitney.compile(function, dynamic=dynamic, options=options)
    torch.set_default_device(None if device == "cpu" else device)
    for number in range(calls):
        where = f"call {number}, dynamic={dynamic}, of\n{program.text()}\n{program}"
        if not is_as_eager(program, number, (compiled, function), device, where):
            return False
    return bool(log.events("program"))


if __name__ == "__main__":
    run_seeds(check, __doc__, length=7, calls=5, special=0)
