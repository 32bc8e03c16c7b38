"""The callable the user's tensors go through: compiled graphs inside, eager's meaning outside.

A small function is written for each region, so that a call pays for what the region needs and
nothing else: an inference graph whose outputs are its results is called as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.build_glue import Bindable
from jitney.errors import LeftToEager
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
from jitney.graph.watched_results import watching

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
            return torch.enable_grad()(_Epilogue(facts, run, grad=True).function())
    plain = facts.outputs == tuple(Result(i) for i in range(len(facts.outputs)))
    silent = all(m.value is None and not m.counted for m in facts.mutations)
    silent = silent and not facts.made_into
    if plain and len(facts.results) == len(facts.outputs) and silent:
        return run
    return _Epilogue(facts, run, facts.grad_enabled).function()


@dataclass(frozen=True)
class Stitched:
    """What `stitch` makes of a graph that can be bound: it can be, too (`Bindable`)."""

    call: Compiled
    bind: Callable[[tuple[Any, ...]], Compiled | None]

    def __call__(self, *inputs: Any) -> Any:
        """As ``call``."""
        return self.call(*inputs)


class _Epilogue:
    """Writes the source of the function round ``run``, which is called in the mode ``grad``."""

    def __init__(self, facts: RegionFacts, run: Compiled, grad: bool) -> None:
        self.facts, self.grad = facts, grad
        self.names: dict[str, Any] = {
            "run": run,
            "bump_versions": torch_api.bump_versions,
            "refuses_writes": torch_api.refuses_writes,
            "LeftToEager": LeftToEager,
            "watch": watching(facts),
        }
        self.counted = [m.input for m in facts.mutations if m.value is None and m.counted]
        self.used: set[int] = set()
        self.lines: list[str] = []
        #: The name of a call of a view op of several results, and the items taken of it.
        self.parts: dict[tuple[str, ViewStep, bool | None], tuple[str, set[int]]] = {}

    def function(self) -> Compiled:
        body = self._body()
        take = f"{self._constant(itemgetter(*self.counted))}(inputs)" if self.counted else ""
        written = take if len(self.counted) > 1 else f"({take},)"  # of one alone it makes no tuple
        call = self._define("*inputs", written, body, self.names)
        if isinstance(self.names["run"], Bindable):
            return Stitched(call, partial(self._bind, body))
        return call

    def _bind(self, body: list[str], known: tuple[Any, ...]) -> Compiled | None:
        """The function of the inputs that are ``...`` in ``known``; None where it looks at one of
        them itself, or ``run`` cannot be bound."""
        run = self.names["run"].bind(known)
        if run is None or any(known[i] is ... for i in {*self.counted, *self.used}):
            return None
        written = tuple([known[i] for i in self.counted])
        names = {**self.names, "run": run, "inputs": known, "written": written}
        return self._define("*given", "written", body, names)

    def _define(
        self, parameters: str, written: str, body: list[str], names: dict[str, Any]
    ) -> Compiled:
        refused = [f"refuses_writes({self._input(index)})" for index, _ in self.facts.copied]
        lines = [f"def call({parameters}):"]
        if refused:
            lines.append(f"    if {' or '.join(refused)}: raise LeftToEager('a write is refused')")
        lines.append(f"    r = run({parameters})")
        if self.counted:
            lines.append(f"    bump_versions({written})")
        names = dict(names)
        exec(compile("\n".join([*lines, *body]), "<jitney stitch>", "exec"), names)
        call: Compiled = names["call"]
        return call

    def _body(self) -> list[str]:
        """All that follows once the versions of the inputs which ``run`` has written are counted
        up."""
        lines = self.lines
        for index, value in self.facts.copied:
            lines.append(f"    {self._input(index)}.copy_({self._output(value)})")
        rules = enumerate(self.facts.outputs)
        for position, rule in sorted(rules, key=lambda item: _is_of_output(item[1])):
            lines.append(f"    o{position} = {self._output(rule)}")
        outputs = "".join(f"o{position}, " for position in range(len(self.facts.outputs)))
        if self.facts.made_into:
            lines.append(f"    watch(r[{self.facts.tangents[0]}], ({outputs}))")
        return [*lines, f"    return ({outputs})"]

    def _input(self, index: int) -> str:
        self.used.add(index)
        return f"inputs[{index}]"

    def _output(self, rule: OutputRule) -> str:
        if isinstance(rule, Repeat):
            return f"o{rule.position}"
        if isinstance(rule, Literal):
            return self._constant(rule.value)
        if isinstance(rule, Result):
            return f"r[{rule.index}]"
        if isinstance(rule, Input):
            return self._input(rule.index)
        return self._view(rule)

    def _view(self, rule: View) -> str:
        text = self._output(rule.base)
        for step in rule.steps:
            text = self._step(text, step, rule.grad)
        if rule.uncounted:
            return f"{text}.data"
        if rule.detached:
            return f"{text}.detach()"
        if rule.steps:
            return text
        return f"{self._operation(torch.Tensor.view_as, rule.grad)}({text}, {text})"

    def _operation(self, function: Callable[..., Any], grad: bool | None) -> str:
        """The name of ``function``, called in the grad mode ``grad``."""
        if grad is not None and grad is not self.grad:
            function = torch.set_grad_enabled(grad)(function)
        return self._constant(function)

    def _step(self, base: str, step: ViewStep, grad: bool | None) -> str:
        if step.item is not None:
            return self._part(base, step, grad)
        return self._applied(base, step, grad)

    def _part(self, base: str, step: ViewStep, grad: bool | None) -> str:
        """An item of what the step gives; those of one step come from one call, as in eager, but
        not one of them twice: they would be one object."""
        assert step.item is not None
        key = base, replace(step, item=None), grad
        name, taken = self.parts.get(key, ("", {step.item}))
        if step.item in taken:
            name, taken = f"m{len(self.lines)}", set()
            self.lines.append(f"    {name} = {self._applied(base, step, grad)}")
            self.parts[key] = name, taken
        taken.add(step.item)
        return f"{name}[{step.item}]"

    def _applied(self, base: str, step: ViewStep, grad: bool | None) -> str:
        operation = self._operation(torch_api.find_op(step.target), grad)
        arguments = [base, *(self._argument(a) for a in step.args)]
        arguments += [f"{name}={self._argument(value)}" for name, value in step.kwargs]
        return f"{operation}({', '.join(arguments)})"

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


def _is_of_output(rule: OutputRule) -> bool:
    return isinstance(rule, View) and isinstance(rule.base, Repeat)
