"""Gradients from eager's own backward pass, where a compiled one is not enough: to be
differentiated again (gradient penalties, forces), or of a custom function whose backward reads
what has changed since its forward. The torch-level graph runs once more, on what its call was
given.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from jitney.capture.custom_gradient import CustomGradient
from jitney.events import log
from jitney.graph.ambient import Ambient
from jitney.graph.region import Input, RegionFacts, Result, View
from jitney.graph.run_torch_graph import flat


class CannotRepeat(Exception):
    """What a call was given is not there any more; the message says what."""


@dataclass(frozen=True)
class Given:
    """What a call was given. ``inputs``: numbers, and of tensors that are not saved for the
    backward pass (weak reference, version), so that none is kept alive for this alone. ``old``:
    copies of inputs that the call writes to; ``random``: the generators' states by device."""

    inputs: tuple[Any, ...]
    old: Mapping[int, torch.Tensor]
    random: Mapping[torch.device, torch.Tensor]


class EagerGradients:
    """The gradients of a region traced from ``gm`` under ``ambient``, by eager."""

    def __init__(self, gm: fx.GraphModule, facts: RegionFacts, ambient: Ambient) -> None:
        self._gm, self._facts, self._ambient = gm, facts, ambient
        rules = [n.target for n in gm.graph.nodes if isinstance(n.target, CustomGradient)]
        self._checks = [rule.holds for rule in rules if rule.holds is not None]
        self._saved = {p.index: at for at, p in enumerate(facts.saved_tensors) if _is_input(p)}
        self._written = frozenset(mutation.input for mutation in facts.mutations)
        devices = {r.device for r in facts.results if r.device is not None}
        self._devices = tuple(devices | {torch.device("cpu")}) if facts.draws else ()

    def are_wanted(self) -> bool:
        """Whether the compiled backward does not do: its gradients are to be differentiated again,
        or a custom backward reads what has changed since its forward."""
        return torch.is_grad_enabled() or not all(holds() for holds in self._checks)

    def note(self, inputs: tuple[Any, ...]) -> Given:
        """What `gradients` needs to know of a call, before it runs."""
        saved = self._saved
        return Given(
            tuple([None if i in saved else _referred(x) for i, x in enumerate(inputs)]),
            {i: inputs[i].detach().clone() for i in self._facts.old_values},
            {device: _generator_state(device) for device in self._devices},
        )

    def gradients(
        self, given: Given, saved: Sequence[Any], tangents: Mapping[int, torch.Tensor]
    ) -> tuple[Any, ...]:
        """The gradients of ``grad_inputs`` from those of results, by index, differentiable if
        grad mode is on. Raises CannotRepeat."""
        create_graph = torch.is_grad_enabled()
        what = "gradients are to be differentiated again"
        reason = what if create_graph else "what a custom backward reads has changed"
        log.emit("rerun_eagerly", reason=reason)
        wanted = self._facts.grad_inputs
        if self._written.intersection(wanted):
            raise CannotRepeat("an input that requires grad was written to")
        with torch.enable_grad():
            fed = [self._fed(i, given, saved) for i in range(self._facts.input_count)]
            with self._ambient.restored(), _generators(given.random):
                outputs = flat(self._gm.forward(*fed))
            results = self._results(outputs, tangents)
        return torch.autograd.grad(
            [results[i] for i in tangents],
            [fed[i] for i in wanted],
            list(tangents.values()),
            create_graph=create_graph,
            allow_unused=True,
        )

    def _fed(self, index: int, given: Given, saved: Sequence[Any]) -> Any:
        """An input as the call was given it; one that requires grad as a view, at which the
        gradient is taken."""
        if index in given.old:
            return given.old[index].clone()
        at = self._saved.get(index)
        written = index in self._written
        value = saved[at] if at is not None else _fetched(given.inputs[index], not written)
        if not isinstance(value, torch.Tensor):
            return value
        if index not in self._facts.grad_inputs:
            return value.detach().clone() if written else value.detach()
        if not value.requires_grad:
            raise CannotRepeat("an input requires no grad any more")
        return value.view_as(value)

    def _results(self, outputs: Sequence[Any], wanted: Mapping[int, Any]) -> dict[int, Any]:
        """The tensors that stand for the region's results ``wanted``, by index."""
        found: dict[int, Any] = {}
        for rule, output in zip(self._facts.outputs, outputs, strict=True):
            if isinstance(rule, Result):
                found[rule.index] = output
            elif isinstance(rule, View) and isinstance(rule.base, Result):
                found.setdefault(rule.base.index, output._base)
        for i in wanted:
            value, facts = found.get(i), self._facts.results[i]
            if value is None or not value.requires_grad or value.dtype is not facts.dtype:
                raise CannotRepeat("a result has no counterpart in eager")
        return found


def _is_input(place: Input | Result) -> bool:
    return isinstance(place, Input)


def _referred(value: Any) -> Any:
    return (weakref.ref(value), _version(value)) if isinstance(value, torch.Tensor) else value


def _fetched(kept: Any, unwritten: bool) -> Any:
    """An input noted down; ``unwritten``: it must hold what it held."""
    if not isinstance(kept, tuple):
        return kept
    value = kept[0]()
    if value is None:
        raise CannotRepeat("an input is not alive any more")
    if unwritten and _version(value) != kept[1]:
        raise CannotRepeat("an input was written to")
    return value


def _version(value: torch.Tensor) -> int:
    return 0 if value.is_inference() else value._version


def _generator_state(device: torch.device) -> torch.Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


@contextmanager
def _generators(states: Mapping[torch.device, torch.Tensor]) -> Iterator[None]:
    """A scope in which the generators are as they were."""
    gpus = [device for device in states if device.type == "cuda"]
    with torch.random.fork_rng(gpus, enabled=bool(states)):
        for device, state in states.items():
            if device.type == "cuda":
                torch.cuda.set_rng_state(state, device)
            else:
                torch.set_rng_state(state)
        yield
