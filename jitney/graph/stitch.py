"""The callable the user's tensors go through: compiled graphs inside, eager's meaning outside.

A small function is written for each region, so that a call pays for what the region needs and
nothing else: an inference graph whose outputs are its results is called as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

from jitney import torch_api
from jitney.graph.autograd_node import Backward, autograd_function
from jitney.graph.eager_gradients import EagerGradients
from jitney.graph.region import (
    Input,
    Literal,
    OutputRule,
    RegionFacts,
    Repeat,
    Result,
    View,
    ViewStep,
)

Compiled = Callable[..., Any]


def stitch(
    facts: RegionFacts,
    forward: Compiled,
    backward: Backward | None,
    eager: EagerGradients | None = None,
) -> Compiled:
    """``call(*inputs) -> tuple of outputs`` with eager's aliasing, mutation and autograd.

    ``forward`` and ``backward`` follow `region`'s calling convention and run without grad;
    with ``backward`` comes ``eager``, for the gradients that it cannot give.
    """
    run = forward
    if backward is not None and eager is not None:
        run = autograd_function(facts, forward, backward, eager)
        if not facts.grad_enabled:  # the graph itself enables grad for what it differentiates
            return torch.enable_grad()(_Epilogue(facts, run).function())
    plain = facts.outputs == tuple(Result(i) for i in range(len(facts.outputs)))
    silent = all(m.value is None and not m.counted for m in facts.mutations)
    if plain and len(facts.results) == len(facts.outputs) and silent:
        return run
    return _Epilogue(facts, run).function()


class _Epilogue:
    """Writes the source of the function round ``run``."""

    def __init__(self, facts: RegionFacts, run: Compiled) -> None:
        self.facts = facts
        self.names: dict[str, Any] = {"run": run, "bump_versions": torch_api.bump_versions}

    def function(self) -> Compiled:
        lines = ["def call(*inputs):", "    r = run(*inputs)"]
        counted = [m.input for m in self.facts.mutations if m.value is None and m.counted]
        if counted:
            several = len(counted) > 1  # of one alone there is no tuple
            chosen = (
                f"{self._constant(itemgetter(*counted))}(inputs)"
                if several
                else (f"(inputs[{counted[0]}],)")
            )
            lines.append(f"    bump_versions({chosen})")
        for mutation in self.facts.mutations:
            if mutation.value is not None:
                lines.append(f"    inputs[{mutation.input}].copy_(r[{mutation.value.index}])")
        for position, rule in enumerate(self.facts.outputs):
            lines.append(f"    o{position} = {self._output(rule)}")
        outputs = "".join(f"o{position}, " for position in range(len(self.facts.outputs)))
        lines.append(f"    return ({outputs})")
        exec(compile("\n".join(lines), "<jitney stitch>", "exec"), self.names)
        call: Compiled = self.names["call"]
        return call

    def _output(self, rule: OutputRule) -> str:
        if isinstance(rule, Repeat):
            return f"o{rule.position}"
        if isinstance(rule, Literal):
            return self._constant(rule.value)
        if isinstance(rule, Result):
            return f"r[{rule.index}]"
        if isinstance(rule, Input):
            return f"inputs[{rule.index}]"
        return self._view(rule)

    def _view(self, rule: View) -> str:
        text = self._output(rule.base)
        for step in rule.steps:
            text = self._step(text, step)
        if rule.detached:
            return f"{text}.detach()"
        return text if rule.steps else f"{text}.view_as({text})"

    def _step(self, base: str, step: ViewStep) -> str:
        operation = self._constant(torch_api.find_op(step.target))
        arguments = [base, *(self._argument(a) for a in step.args)]
        arguments += [f"{name}={self._argument(value)}" for name, value in step.kwargs]
        text = f"{operation}({', '.join(arguments)})"
        return text if step.item is None else f"{text}[{step.item}]"

    def _argument(self, value: Any) -> str:
        if isinstance(value, Result):
            return f"r[{value.index}]"
        if isinstance(value, tuple):
            return f"[{', '.join(self._argument(item) for item in value)}]"
        return repr(value) if isinstance(value, int | None) else self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name
