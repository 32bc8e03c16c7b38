"""Random programs of authors' ops that write, among views, writes of ATen's, Python's own changes
and errors; and what their caller sees."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import jitney


@torch.library.custom_op("written_fuzz::each", mutates_args=("xs",))
def each(xs: list[Tensor], y: Tensor) -> None:
    """Writes to all of a list."""
    for place, x in enumerate(xs):
        x.mul_(0.9).add_(y.sum() + place)


@torch.library.custom_op("written_fuzz::picky", mutates_args=("x",))
def picky(x: Tensor, y: Tensor) -> None:
    """Raises for some values, having written."""
    x.add_(0.25)
    if y.numel() and y.flatten()[0] > 1:
        raise ValueError("picky")
    x.mul_(0.75)


_LIBRARY = torch.library.Library("written_fuzz_defined", "FRAGMENT")
_LIBRARY.define("halve(Tensor(a!) x, Tensor y) -> Tensor(a!)")
_LIBRARY.impl("halve", lambda x, y: x.mul_(0.7).sub_(y.amin()), "CPU")
_LIBRARY.impl("halve", lambda x, y: x, "Meta")
halve = torch.ops.written_fuzz_defined.halve
LOG: list[int] = []

STEPS = {
    "view": "{a}[1:]|{a}[:2]|{a}.transpose(0, -1)|{a}.view(-1)|{a}[0]|{a}[:, 1:3]|{a}.detach()|"
    "{a}[..., None]|{a}.unbind(0)[1]|{a}[::2]|{a}.diagonal()|{a}.flatten()|{a}.split(2)[0]",
    "value": "{a} + 1|{a}.sin()|{a}.clone()|{a}.relu()|torch.empty_like({a}).fill_(0.5)|{a}.sum(0)|"
    "{a}.contiguous()|torch.linalg.cholesky({a} @ {a}.transpose(-1, -2) - 2)",
    "change": "{a}.add_(1)|{a}.mul_(0.5)|{a}[0] = 3.0|{a}.copy_({a}.flip(0))|{a}.zero_()|"
    "LOG.append(len(LOG))",
    "call": "scale({a}, {b})|{n} = added({a}, {b}, 0.5)|both({a}, {b}, {c})|both({a}, {b})|"
    "each([{a}, {c}], {b})|{n} = halve({a}, {b})|scale({a}, {a})|picky({a}, {b})",
}
_LIKELY = ["view"] * 6 + ["value"] * 4 + ["change"] * 3 + ["call"] * 8


def program(seed: int) -> tuple[Callable[..., Any], str]:
    """A function of three tensors, and its text."""
    choose = random.Random(seed).choice
    names, lines = ["x", "y", "z"], []
    for number in range(choose(range(3, 10))):
        kind, new = choose(_LIKELY), f"t{number}"
        step = choose(STEPS[kind].split("|"))
        step = step.format(a=choose(names), b=choose(names), c=choose(names), n=new)
        if kind in ("view", "value"):
            step = f"{new} = {step}"
        lines.append(step)
        if step.startswith(f"{new} ="):
            names.append(new)
    results = ", ".join(choose(names) for _ in range(3))
    text = "def made(x, y, z):\n    " + "\n    ".join([*lines, f"return {results}"]) + "\n"
    space = dict(globals())
    exec(text, space)
    return space["made"], text


def inputs(seed: int, size: int) -> list[Tensor]:
    """Three tensors, some with gaps; some share memory."""
    choose = random.Random(seed).choice
    torch.manual_seed(seed)
    whole = torch.randn(3, size, size)
    made = [
        choose(
            [torch.randn(size, size), torch.randn(size, size).t(), torch.randn(2 * size, size)[::2]]
        )
        for _ in range(3)
    ]
    if choose(range(12)) == 0:
        made[1] = made[0][:]
    return list(whole) if choose(range(8)) == 0 else made


def seen(function: Callable[..., Any], seed: int, size: int) -> tuple[Any, ...]:
    """What a call gives or raises, and leaves: values, strides, who shares memory, notes. Behind an
    error writes are not asked to be counted (docs/limits.md)."""
    LOG.clear()
    given, error = inputs(seed, size), ""
    results: Any = ()
    try:
        results = function(*given)
    except Exception as raised:  # noqa: BLE001 - compared
        error = type(raised).__name__
    tensors = [*given, *results]
    memory = [x.untyped_storage().data_ptr() for x in tensors]
    shared = [memory.index(at) for at in memory]
    written = [x._version > 0 for x in given if not error]
    return (
        [x.detach().clone() for x in tensors],
        [x.stride() for x in results],
        shared,
        written,
        (
            [*LOG],
            error,
        ),
    )


def check(seed: int) -> None:
    """Compares a program's calls with eager's."""
    function, text = program(seed)
    options: Any = ({}, {"dynamic": True}, {"backend": "eager"})[seed % 3]
    compiled = jitney.compile(function, **options)
    for number, size in enumerate((4, 4, 5)):
        with torch.set_grad_enabled(seed % 2 == 0):
            (ours, *mine), (right, *facts) = (
                seen(f, 10 * seed + number, size) for f in (compiled, function)
            )
        assert mine == facts, f"call {number} of\n{text}{mine}, not {facts}"
        for at, (a, b) in enumerate(zip(ours, right, strict=True)):
            alike = torch.allclose(a, b, 1e-4, 1e-4, equal_nan=True)
            assert alike, f"call {number} of\n{text}{at}: {a}, not {b}"
