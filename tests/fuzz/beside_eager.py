"""What the caller of a random program sees, beside what eager's caller sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from jitney.diagnostics.equality import visible_strides
from tests.fuzz.command_line import has_lost_its_gpu


class Program(Protocol):
    def seen(self, function: Callable[..., Any], number: int, device: str) -> dict[str, Any]: ...


def is_as_eager(
    program: Program,
    number: int,
    functions: tuple[Callable[..., Any], Callable[..., Any]],
    device: str,
    where: str,
) -> bool:
    """Holds call ``number`` of the first of ``functions`` on ``device`` against the second's,
    eager's; whether eager's says anything. On a GPU it does not where eager cannot do there what
    it does on a CPU, or gives other values than there: threads race to write one place.

    Raises AssertionError where they differ, and what the first raised, with ``where``."""
    ours, eager = functions
    try:
        right = program.seen(eager, number, device)
    except Exception as error:
        if device == "cpu" or has_lost_its_gpu(error):
            raise
        return False
    try:
        found = differences(program.seen(ours, number, device), right)
    except Exception as error:
        error.add_note(where)
        raise
    if found and device != "cpu":
        torch.set_default_device(None)
        if differences(_values(right), _values(program.seen(eager, number, "cpu"))):
            return False
    assert not found, "\n".join([*(line[:300] for line in found[:4]), where])
    return True


def _values(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: fact.cpu() for name, fact in facts.items() if isinstance(fact, Tensor)}


def differences(mine: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Of what ours was seen to do from eager."""
    found = []
    for name, wanted in right.items():
        got = mine.get(name)
        if isinstance(wanted, Tensor) and isinstance(got, Tensor):
            if not _same_values(got, wanted):
                found.append(f"{name}: {got.tolist()}, not {wanted.tolist()}")
            elif name.startswith("gradient") and visible_strides(got) != visible_strides(wanted):
                found.append(f"{name} strides: {got.stride()}, not {wanted.stride()}")
        elif type(got) is not type(wanted) or got != wanted:
            found.append(f"{name}: {got}, not {wanted}")
    return found


def _same_values(mine: Tensor, right: Tensor) -> bool:
    if mine.shape != right.shape or mine.dtype != right.dtype:
        return False
    if right.is_complex():
        return _same_values(*(torch.view_as_real(t.resolve_conj()) for t in (mine, right)))
    if not right.is_floating_point():
        return torch.equal(mine, right)
    close = 1e-9 if right.dtype is torch.float64 else 1e-4
    scale = float(right.abs().nan_to_num(0, 0, 0).max()) if right.numel() else 0.0
    return torch.allclose(mine, right, close, close * max(scale, 1.0), equal_nan=True)
