"""Random programs of views and writes with gradients, of mixed dtypes, against eager.

    python -m tests.fuzz.gradient_programs [--seed 0] [--count 200] [--length 6] [--seconds S]
        [--ways 1] [--special 1]

Inputs are leaves, results of an operation, or without gradients; sizes change from call to call,
among them none, zero and one. Gradients are taken once, or are differentiated again. With
``--ways 1`` they may be of some results, of one after the other or asked for twice, inputs may be
given twice or alias each other and have hooks, and float64 ones go through functions that round.
With ``--special 1`` some elements are infinite, NaN or -0.0.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

import jitney
from jitney.events import log
from tests.fuzz import gradient_grammar as grammar
from tests.fuzz.beside_eager import is_as_eager
from tests.fuzz.command_line import run_seeds
from tests.fuzz.run_text import run_text
from tests.fuzz.slice_programs import facts_of
from tests.fuzz.special_elements import with_special_elements

DTYPES = (torch.float32,) * 6 + (
    torch.float64, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64,
    torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
SHAPES = (("n", "m"), ("n", "m"), ("m",), ("n",), (), ("m", "n"), (1, "m"), ("n", 1), ("n", 2, "m"))
WAYS = ("together", "together", "some", "apart", "twice", "each")
ALIASES = ("", "", "", "x", "x.detach()", "x.view(-1)", "x[..., None]", "x[:1]", "x.t()")
SIZES = (0, 1, 1, 2, 2, 3, 4, 5)


@dataclass(frozen=True)
class Call:
    """Sizes (``n``, ``m``, ``k``) and the dtypes of ``x``, ``y`` and ``z``."""

    sizes: tuple[int, int, int]
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True)
class GradientProgram:
    """Statements over ``x``, ``y``, ``z``, a mask ``m``, indices ``q`` and ``k``. ``kinds``: what
    the tensors are to autograd. ``again``: whether gradients are differentiated. ``way``: how they
    are taken; ``alias``: what is given for ``y``; ``hooks``: whether inputs have one; ``special``:
    some elements are infinite, NaN or -0.0."""

    seed: int
    shapes: tuple[tuple[str | int, ...], ...]
    kinds: tuple[str, ...]
    again: bool
    steps: tuple[str, ...]
    results: tuple[str, ...]
    calls: tuple[Call, ...]
    way: str = "together"
    alias: str = ""
    hooks: bool = False
    special: bool = False

    def text(self) -> str:
        """The program's source."""
        body = [line for step in self.steps for line in step.split("\n")]
        lines = ["def program(x, y, z, m, q, k):", *(f"    {line}" for line in body)]
        return "\n".join([*lines, f"    return ({', '.join(self.results)},)"])

    def function(self) -> Callable[..., Any]:
        """The program."""
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "Doubled": Doubled}
        names["checkpoint"] = torch.utils.checkpoint.checkpoint
        run_text(self.text(), f"<gradients {self.seed}>", names)
        made: Callable[..., Any] = names["program"]
        return made

    def given(self, number: int, device: str) -> tuple[list[Tensor], list[Tensor]]:
        """What gradients are taken of, and the tensors of one call."""
        generator = torch.Generator().manual_seed(number)
        call = self.calls[number]
        sizes = dict(zip("nm", call.sizes, strict=False))
        leaves, inputs = [], []
        for spec, kind, dtype in zip(self.shapes, self.kinds, call.dtypes, strict=True):
            shape = tuple(sizes[s] if isinstance(s, str) else s for s in spec)
            made = torch.randint(-2, 4, shape, generator=generator, device="cpu")
            made = (made.abs() if dtype is torch.uint8 else made).to(device, dtype)
            made = with_special_elements(made, generator) if self.special else made
            if dtype.is_complex:
                made = made * (1 + 1j)
            if kind != "none" and (dtype.is_floating_point or dtype.is_complex):
                leaves.append(made.requires_grad_())
                made = made * 1 if kind == "result" else made
            inputs.append(made)
        if self.alias:
            inputs[1] = eval(self.alias, {"x": inputs[0]})
        shapes = (inputs[0].shape, (call.sizes[0],))
        mask, indices = (
            torch.randint(0, 2, shape, generator=generator, device="cpu").to(device)
            for shape in shapes
        )
        return leaves, [*inputs, mask > 0, indices]

    def seen(
        self, function: Callable[..., Any], number: int, device: str = "cpu"
    ) -> dict[str, Any]:
        """What the caller of call ``number`` sees, by what it is."""
        leaves, inputs = self.given(number, device)
        told: list[Tensor] = []
        for t in inputs if self.hooks else ():
            if t.requires_grad:
                t.register_hook(told.append)
        results = function(*inputs, self.calls[number].sizes[2])
        named = dict(zip("xyzmq", inputs, strict=True))
        named |= {f"result {i}": t for i, t in enumerate(results)}
        facts = facts_of(named)
        facts |= self._gradients(leaves, results)
        given = sorted((g for g in told if g is not None), key=_place)
        facts |= {f"told {i}": g for i, g in enumerate(given)}
        for t in results:
            if t.numel() and (t.is_floating_point() or t.dtype is torch.int64):
                try:
                    t.detach().sub_(1)
                except RuntimeError:  # some elements are one
                    continue
                break
        return facts | {f"{name} in the end": t.detach().clone() for name, t in named.items()}

    def _gradients(self, leaves: list[Tensor], results: Sequence[Tensor]) -> dict[str, Any]:
        some = [r for r in results if r.requires_grad]
        if not some or not leaves:
            return {}
        if self.way == "some":
            some = some[::2]
        weights = [(torch.arange(r.numel()) % 3 - 1).to(r).view(r.shape) for r in some]
        if self.way == "each":
            pairs = zip(some, weights, strict=True)
            each = [
                torch.autograd.grad(r, leaves, w, retain_graph=True, allow_unused=True)
                for r, w in pairs
            ]
            return {f"asked {i}": g for i, g in enumerate(g for gs in each for g in gs)}
        if not self.again:
            if self.way == "apart":
                for r, w in zip(some, weights, strict=True):
                    r.backward(w, retain_graph=True)
            else:
                torch.autograd.backward(some, weights, retain_graph=self.way == "twice")
            if self.way == "twice":
                torch.autograd.backward(some, weights)
            return {f"gradient {i}": leaf.grad for i, leaf in enumerate(leaves)}
        first = torch.autograd.grad(some, leaves, weights, create_graph=True, allow_unused=True)
        kept = {f"first {i}": None if g is None else g.detach() for i, g in enumerate(first)}
        squares = [(g * g.conj()).real.sum() for g in first if g is not None and g.requires_grad]
        if not squares:
            return kept
        total = torch.stack([s.double() for s in squares]).sum()
        second = torch.autograd.grad(total, leaves, allow_unused=True)
        # where nothing depends on a leaf, a graph says zeros
        shown = [g if g is None or bool(g.any()) else None for g in second]
        return kept | {f"second {i}": g for i, g in enumerate(shown)}


class Doubled(torch.autograd.Function):
    """Twice its operand, which its backward reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2 + x * 0


def gradient_program(
    seed: int, length: int, calls: int, ways: bool = False, special: bool = False
) -> GradientProgram:
    """A random program of ``length`` statements that eager runs in every call."""
    draw = random.Random(seed)
    shapes = tuple(draw.choice(SHAPES[:5] if i == 0 else SHAPES) for i in range(3))
    if draw.random() < 0.4:
        shapes = (shapes[0], shapes[0], shapes[2])
    kinds = tuple(draw.choice(("leaf", "result", "result", "none")) for _ in range(3))
    mixed = draw.random() < 0.4 and not ways
    first = torch.float64 if ways else draw.choice(DTYPES[:11])
    least = draw.choice((0, 1, 1, 2, 2))
    sizes = [size for size in SIZES if size >= least]

    def dtypes() -> tuple[torch.dtype, ...]:
        return tuple(draw.choice(DTYPES) if mixed else first for _ in range(3))

    kept, made = dtypes(), []
    for _ in range(calls):
        at = (draw.choice(sizes), draw.choice(sizes), draw.choice((1, 1, 2, 3)))
        made.append(Call(at, kept if draw.random() < 0.8 else dtypes()))
    again = draw.random() < 0.25
    program = GradientProgram(seed, shapes, kinds, again, (), ("x",), tuple(made), special=special)
    if ways:
        way, alias = draw.choice(WAYS), draw.choice(ALIASES)
        program = replace(program, way=way, alias=alias, hooks=not alias and draw.random() < 0.4)
        program = program if _runs(program) else replace(program, alias="")
    values = ["x", "y", "z"]
    for number in range(length * 8):
        target, step = _drawn_step(draw, number, values, ways)
        longer = replace(program, steps=(*program.steps, step), results=(target or values[-1],))
        if _runs(longer):
            program, values = longer, [*values, *([target] if target else [])]
        if len(program.steps) == length:
            break
    others = draw.sample(values, draw.randint(0, 2))
    fuller = replace(program, results=(values[-1], *others))
    return fuller if _runs(fuller) else program


def _drawn_step(draw: random.Random, number: int, values: list[str], ways: bool) -> tuple[str, str]:
    """The name of what it makes, or none, and a statement."""
    kind, a = draw.random(), draw.choice([*values, *values[-2:] * 2])
    b, c = draw.choice(values), draw.choice(values)
    table = {
        "i": grammar.NUMBERS, "d": grammar.DIMENSIONS, "m": grammar.MASKS, "p": grammar.PLACES,
        "q": grammar.ROWS,
    }  # fmt: skip

    def filled(template: str) -> str:
        while hole := re.search(r"\{([idmpq])\}", template):
            drawn = draw.choice(table[hole[1]])
            template = template[: hole.start()] + drawn + template[hole.end() :]
        names = {"a": a, "b": b, "c": c, "n": f"t{number}"}
        return re.sub(r"\{([abcn])\}", lambda hole: names[hole[1]], template)

    target = f"v{number}"
    if ways and draw.random() < 0.4:
        if draw.random() < 0.3:
            return "", filled(draw.choice(grammar.ROUNDED_WRITES))
        return target, f"{target} = {filled(draw.choice(grammar.ROUNDED))}"
    if kind < 0.3:
        return target, f"{target} = {filled(draw.choice(grammar.VIEWS))}"
    if kind < 0.53:
        return target, f"{target} = {filled(draw.choice(grammar.COMPUTED))}"
    if kind < 0.57:
        return target, f"{target} = {filled(draw.choice(grammar.DIFFERENTIATED))}"
    if kind < 0.6:
        return "", filled(draw.choice(grammar.BLOCKS))
    write = filled(draw.choice(grammar.WRITES))
    return "", f"with torch.no_grad(): {write}" if draw.random() < 0.15 else write


def _runs(program: GradientProgram) -> bool:
    """Whether eager does, at all sizes, and what it gives is small."""
    function = program.function()
    for number in range(len(program.calls)):
        try:
            facts = program.seen(function, number)
            if "autograd.grad(" in program.text() and any(map(_is_spread, facts.items())):
                return False  # gradients have memory of their own
            short = {torch.float16, torch.bfloat16} & {*program.calls[number].dtypes}
            bound = 200 if short else 1e5  # of what they hold
            for fact in facts.values():
                if isinstance(fact, Tensor):
                    small = fact.numel() <= 2000 and fact.dim() <= 5
                    held = fact.to(torch.complex128).abs()
                    held = held.nan_to_num(0, 0, 0) if program.special else held
                    if not small or not bool((held < bound).all()):
                        return False
        except Exception:  # noqa: BLE001 - of eager's; another step is drawn
            return False
    return True


def _place(told: Tensor) -> tuple[Any, ...]:
    """By what gradients that hooks were told, in any order, are put in one: not by rounding."""
    near = torch.view_as_real(told.detach().to(torch.complex128)).mul(1e3).round()
    return tuple(told.shape), near.nan_to_num().flatten().tolist()


def _is_spread(fact: tuple[str, Any]) -> bool:
    """Whether it is the strides of a result whose elements share memory."""
    name, value = fact
    return name.startswith("result") and name.endswith("strides") and 0 in value


#: What docs/limits tells of.
_TOLD = ("to differentiate twice a function", "modified by an inplace operation")


def check(
    seed: int, length: int, calls: int, ways: int = 0, device: str = "cpu", special: int = 0
) -> bool:
    """Holds one program, compiled once, against eager at all its calls on ``device``, where its
    new tensors are made, too; whether there was a graph to compile."""
    torch.set_default_device(None)
    program = gradient_program(seed, length, calls, ways > 0, special > 0)
    jitney.reset()
    log.clear()
    function = program.function()
    dynamic = (True, None, True, False)[seed % 4]
    options = {"eager_on_bug": False, "verify": True, "recompile_limit": 64}
    compiled = jitney.compile(function, dynamic=dynamic, options=options)
    torch.set_default_device(None if device == "cpu" else device)
    for number in range(calls):
        where = f"call {number}, dynamic={dynamic}, of\n{program.text()}\n{program}"
        try:
            if not is_as_eager(program, number, (compiled, function), device, where):
                return False
        except RuntimeError as error:
            if any(told in str(error) for told in _TOLD):
                return True
            raise
    return bool(log.events("program"))


if __name__ == "__main__":
    run_seeds(check, __doc__, length=6, calls=4, ways=0, special=0)
