"""Gradients from eager's own backward pass, where a compiled one is not enough: to be
differentiated again (gradient penalties, forces), or of a custom function whose backward reads
what has changed since its forward. The torch-level graph runs once more, on what its call was
given.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.capture.custom_gradient import CustomGradient
from jitney.events import log
from jitney.graph.ambient import Ambient
from jitney.graph.region import Input, RegionFacts, Result, View
from jitney.graph.run_torch_graph import flat


class CannotRerun(Exception):
    """What a call was given is not there any more; the message says what."""


@dataclass(frozen=True)
class Given:
    """What a call was given. ``numbers``, and weak references to the tensors that are not saved for
    the backward pass, with their ``versions``. Of them those that were computed with gradients,
    which may be nobody else's (another graph's results), are ``kept`` by index, until the pass that
    frees the graph. ``old``: copies of inputs that the call writes to; ``random``: the generators'
    states by device."""

    numbers: tuple[Any, ...]
    tensors: tuple[weakref.ref[torch.Tensor], ...]
    kept: dict[int, torch.Tensor]
    versions: Sequence[int]
    old: Mapping[int, torch.Tensor]
    random: Mapping[torch.device, torch.Tensor]


class EagerGradients:
    """The gradients of a region traced from ``gm`` under ``ambient``, by eager."""

    def __init__(self, gm: fx.GraphModule, facts: RegionFacts, ambient: Ambient) -> None:
        self._gm, self._facts, self._ambient = gm, facts, ambient
        rules = [n.target for n in gm.graph.nodes if isinstance(n.target, CustomGradient)]
        self._custom = any(_is_custom(n.target) for n in gm.graph.nodes)
        self._checks = [rule.holds for rule in rules if rule.holds is not None]
        saved = enumerate(facts.saved_tensors)
        self._saved = {place.index: at for at, place in saved if isinstance(place, Input)}
        self._numbers = _numbers(gm)
        known = {*self._saved, *self._numbers, *facts.old_values}
        self._loose = tuple(i for i in range(facts.input_count) if i not in known)
        self._written = frozenset(mutation.input for mutation in facts.mutations)
        self._kept = tuple({*self._loose}.intersection(facts.grad_inputs) - self._written)
        devices = {r.device for r in facts.results if r.device is not None}
        self._devices = tuple(devices | {torch.device("cpu")}) if facts.draws else ()

    def are_needed(self, tangents: Collection[torch.Tensor]) -> bool:
        """Whether the compiled backward does not do: its gradients are to be differentiated again,
        it is given many at a time, or a transform's, or a custom backward reads what has changed
        since its forward."""
        if torch.is_grad_enabled() or any(map(torch_api.is_more_than_its_memory, tangents)):
            return True
        return not all(holds() for holds in self._checks)

    def modes_have_changed(self) -> bool:
        """Whether there is a custom backward, recorded without autocast and under the forward's
        default dtype, and autocast is on now or the default dtype another one."""
        if not self._custom:
            return False
        return torch_api.autocast_is_on() or torch.get_default_dtype() is not self._ambient.default

    def note(self, inputs: tuple[Any, ...]) -> Given:
        """What `gradients` needs to know of a call, before it runs."""
        loose = [inputs[i] for i in self._loose]
        return Given(
            tuple([inputs[i] for i in self._numbers]),
            tuple(map(weakref.ref, loose)),
            self._kept_of(inputs),
            torch_api.versions(loose),
            {i: inputs[i].detach().clone() for i in self._facts.old_values},
            {device: _generator_state(device) for device in self._devices},
        )

    def _kept_of(self, inputs: tuple[Any, ...]) -> dict[int, torch.Tensor]:
        """What stands for inputs that were computed with gradients, by index: not the tensors
        themselves, which may come to depend on the node that keeps them (``x += block(x)``)."""
        if not self._kept or torch_api.functorch_is_active():
            return {}
        computed = [i for i in self._kept if inputs[i].grad_fn is not None]
        return {i: torch_api.with_its_history(inputs[i]) for i in computed}

    def gradients(
        self, given: Given, saved: Sequence[Any], tangents: Mapping[int, torch.Tensor]
    ) -> tuple[Any, ...]:
        """The gradients of ``grad_inputs`` from those of results, by index, differentiable if
        grad mode is on. Raises CannotRerun."""
        create_graph = torch.is_grad_enabled()
        sources, outputs = self._rerun(given, saved)
        results = self._results(outputs, tangents)
        what = "are to be differentiated again" if create_graph else "are not those recorded"
        log.emit("rerun_eagerly", reason=f"gradients {what}")
        return torch.autograd.grad(
            [results[i] for i in tangents],
            sources,
            list(tangents.values()),
            create_graph=create_graph,
            allow_unused=True,
        )

    def at_outputs(
        self,
        given: Given,
        saved: Sequence[Any],
        wanted: Sequence[tuple[int, Mapping[int, torch.Tensor]]],
    ) -> list[torch.Tensor | None]:
        """For each ``(position, gradients of results)`` what these give the output there. Raises
        CannotRerun."""
        create_graph = torch.is_grad_enabled()
        _, outputs = self._rerun(given, saved)
        log.emit("rerun_eagerly", reason="gradients of a result from another made of it are asked")
        found: list[torch.Tensor | None] = []
        for position, tangents in wanted:
            results = self._results(outputs, tangents)
            found += torch.autograd.grad(
                [results[i] for i in tangents],
                [outputs[position]],
                list(tangents.values()),
                retain_graph=True,
                create_graph=create_graph,
                allow_unused=True,
            )
        return found

    def _rerun(self, given: Given, saved: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """``grad_inputs`` and the outputs of the region, run again in eager."""
        wanted = self._facts.grad_inputs
        if self._written.intersection(wanted):
            raise CannotRerun("an input that requires grad was written to")
        with torch.enable_grad(), torch_api.outside_of_transforms():
            values = self._values(given, saved)
            fed = [self._fed(i, values[i]) for i in range(self._facts.input_count)]
            sources = [fed[i] for i in wanted]
            before = torch_api.versions(sources)
            with self._ambient.restored(), _generators(given.random):
                outputs = flat(self._gm.forward(*fed))
            if torch_api.versions(sources) != before:  # another shape for a view: a new history
                raise CannotRerun("an input that requires grad was changed in place")
        return sources, outputs

    def _values(self, given: Given, saved: Sequence[Any]) -> dict[int, Any]:
        """The inputs as the call was given them; those that it writes to may be changed."""
        values = {i: saved[at] for i, at in self._saved.items()}
        values |= zip(self._numbers, given.numbers, strict=True)
        values |= {i: value.clone() for i, value in given.old.items()}
        weak = zip(self._loose, given.tensors, strict=True)
        tensors = [given.kept[i] if i in given.kept else refer() for i, refer in weak]
        if any(tensor is None for tensor in tensors):
            raise CannotRerun("an input is not alive any more")
        now = torch_api.versions([tensor for tensor in tensors if tensor is not None])
        for i, tensor, version, before in zip(
            self._loose, tensors, now, given.versions, strict=True
        ):
            if version != before and i not in self._written:
                raise CannotRerun("an input was written to")
            values[i] = tensor
        return values

    def _fed(self, index: int, value: Any) -> Any:
        """An input for the graph: a view, at which the gradient is taken, if it requires grad."""
        if not isinstance(value, torch.Tensor):
            return value
        if index not in self._facts.grad_inputs:
            return value.detach().clone() if index in self._written else value.detach()
        if not value.requires_grad:
            raise CannotRerun("an input requires no grad any more")
        return value.view_as(value)

    def _results(self, outputs: Sequence[Any], wanted: Mapping[int, Any]) -> dict[int, Any]:
        """The tensors that stand for the region's results ``wanted``, by index."""
        found: dict[int, Any] = {}
        for rule, output in zip(self._facts.outputs, outputs, strict=True):
            if isinstance(rule, Result):
                found[rule.index] = output
            elif isinstance(rule, View) and isinstance(rule.base, Result):
                found.setdefault(rule.base.index, torch_api.base_of(output))
        for i in wanted:
            value, facts = found.get(i), self._facts.results[i]
            if value is None or not value.requires_grad or value.dtype is not facts.dtype:
                raise CannotRerun("a result has no counterpart in eager")
        return found


torch_api.hide_from_dynamo(EagerGradients.gradients)  # autograd calls it where a graph broke


def _is_custom(target: Any) -> bool:
    """Whether a call's gradient may be Python of its author's."""
    if isinstance(target, torch_api.OP_TYPES):
        return str(target).split(".")[0] not in ("aten", "prims")
    named = getattr(target, "__name__", "") == "autograd_function_apply"  # of torch's capture
    return named or isinstance(target, CustomGradient)


def _numbers(gm: fx.GraphModule) -> tuple[int, ...]:
    """The inputs that are no tensors."""
    values = [
        n.meta.get("example_value", n.meta.get("val"))
        for n in gm.graph.find_nodes(op="placeholder")
    ]
    return tuple(i for i, x in enumerate(values) if not isinstance(x, torch.Tensor | None))


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
