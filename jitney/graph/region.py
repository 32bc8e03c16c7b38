"""What tracing a region gives: ATen graphs, and how their results become what the user sees.

The graphs are pure but for copies into mutated inputs. Everything aliasing, autograd and Python
would notice is data here, which `stitch` turns into one callable. All of it but the graphs is
plain frozen data without tensors, so that a cache can keep it.

Calling convention: ``forward(*inputs) -> (*results, *kept for backward)`` and
``backward(*saved sizes, *saved tensors, *tangents) -> gradients``, one for each of ``grad_inputs``.
Inputs are the placeholders of the torch-level graph in order: tensors, ints for symbolic sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class Result:
    """The forward graph's ``index``-th result; results never share memory with each other or
    with an input."""

    index: int


@dataclass(frozen=True)
class Input:
    """The ``index``-th input itself, the same Python object, mutations applied."""

    index: int


@dataclass(frozen=True)
class ViewStep:
    """One ATen view op: ``target(base, *args, **kwargs)``, then ``[item]`` of a many-valued one.

    ``target`` names an overload ("aten.view.default"). ``args`` may hold `Result`: a size.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    item: int | None = None


@dataclass(frozen=True)
class View:
    """``base`` with view ops taken again at run time, so that aliasing and autograd are eager's.

    ``detached``: then detached from autograd; ``uncounted``: so that writes to it count as none of
    ``base``; ``grad``: the grad mode they are taken in, None where it is the same. No steps: an
    alias of ``base``. A base that is an output (`Repeat`) is no such view itself.
    """

    base: Result | Input | Repeat
    steps: tuple[ViewStep, ...]
    detached: bool
    uncounted: bool = False
    grad: bool | None = None


@dataclass(frozen=True)
class Literal:
    """A value known when tracing: None, numbers, dtypes."""

    value: Any


@dataclass(frozen=True)
class Repeat:
    """The same object as output ``position``."""

    position: int


OutputRule = Result | Input | View | Literal | Repeat


@dataclass(frozen=True)
class Mutation:
    """An input written to. ``value`` None: the forward graph writes it in place, the epilogue
    bumps its version if eager does (``counted``: not for batch norm's running statistics); else
    the epilogue copies ``value`` into it, differentiably."""

    input: int
    value: Result | None = None
    counted: bool = True


@dataclass(frozen=True)
class ResultFacts:
    """A result as traced. ``sizes`` and ``strides`` hold None where symbolic; all None for ints.

    ``tangent``: the position of its gradient among the tangents, None if not differentiable;
    ``tangent_strides``: the strides the backward graph expects of it.
    """

    sizes: tuple[int | None, ...] | None = None
    strides: tuple[int | None, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    tangent: int | None = None
    tangent_strides: tuple[int | None, ...] | None = None


@dataclass(frozen=True)
class RegionFacts:
    """Everything about a region but its code.

    The forward graph's outputs are the results, then what is only kept for the backward graph;
    `saved_tensors` and `saved_sizes` name what the backward graph takes, by `Input` or by
    position among the forward graph's outputs. The compiled backward graph does not take the
    gradients `unlikely_tangents` (`TangentVariants`). ``grad_enabled``: the grad mode around the
    call. ``grad_tangents``: for each of ``grad_inputs``, bit ``i`` is set if tangent ``i`` reaches
    it; ``saved_tangents``: the same for each saved tensor, of the gradients that it helps to
    compute. ``freed_together``: sets of tangents, as bits, whose results come through one step of
    autograd that saves tensors: eager frees it with the first that is given. ``made_into``: the
    outputs from which autograd knows other results to be made, by position, with the tangents of
    those, as bits (`watched_results`). ``old_values``: the
    inputs written to that results depend on; ``draws``: whether the forward graph draws random
    numbers. ``recorded``: a digest of the joint graph of a region with a backward graph, by which
    what it keeps is known to be what another trace would.
    """

    input_count: int
    outputs: tuple[OutputRule, ...]
    results: tuple[ResultFacts, ...]
    mutations: tuple[Mutation, ...] = ()
    grad_inputs: tuple[int, ...] = ()
    grad_tangents: tuple[int, ...] = ()
    saved_tensors: tuple[Input | Result, ...] = ()
    saved_tangents: tuple[int, ...] = ()
    freed_together: tuple[int, ...] = ()
    made_into: tuple[tuple[int, int], ...] = ()
    saved_sizes: tuple[Input | Result, ...] = ()
    unlikely_tangents: tuple[int, ...] = ()
    grad_enabled: bool = True
    old_values: tuple[int, ...] = ()
    draws: bool = False
    recorded: str = ""

    @property
    def tangents(self) -> tuple[int, ...]:
        """The differentiable results, in the order the backward graph takes their gradients."""
        known = [(r.tangent, i) for i, r in enumerate(self.results) if r.tangent is not None]
        return tuple(index for _, index in sorted(known))

    @property
    def copied(self) -> tuple[tuple[int, Result], ...]:
        """The inputs that the epilogue writes differentiably, and with what."""
        return tuple((m.input, m.value) for m in self.mutations if m.value is not None)


@dataclass(frozen=True)
class Region:
    """A traced region. Constant tensors are attributes of the graph modules (``get_attr``)."""

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    facts: RegionFacts
