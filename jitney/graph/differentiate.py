"""Autograd runs under the recorder, from a graph's results to its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.autograd_steps import freed_together, results_through
from jitney.graph.describe_outputs import Results
from jitney.graph.functionalize import Direct
from jitney.graph.join_region import Gradients, computed_from
from jitney.graph.recorder import Recorder

#: ``ask(tangents, leaves)``: autograd's gradients at ``leaves`` of ``tangents``, all by position.
Ask = Callable[[Sequence[int], Sequence[int]], Sequence[torch.Tensor | None]]


def differentiate(
    leaves: Mapping[int, torch.Tensor],
    given_back: Sequence[Any],
    results: Results,
    recorder: Recorder,
    layer: Direct,
    fake_mode: Any,
) -> Gradients | None:
    """Records the gradients of the results that require grad at the ``leaves`` of inputs. Inputs
    that autograd does not reach are left out: what they were computed from is none of a backward
    pass's business. ``given_back``: the graph's outputs."""
    outputs = [i for i, t in enumerate(results.tensors) if t is not None and t.grad_fn is not None]
    if not outputs or not leaves:
        return None
    differentiated: list[Any] = [results.tensors[i] for i in outputs]
    ends = list(leaves.values())
    fakes = [torch_api.fake_tangent(fake_mode, layer.value(tensor)) for tensor in differentiated]
    nodes = [recorder.placeholder(f"tangent_{i}", fake) for i, fake in enumerate(fakes)]
    tangents = [layer.feed(fake) for fake in fakes]
    recorder.in_backward = True
    recorder.origin = None
    torch_api.autocast_off()

    def ask(of: Sequence[int], at: Sequence[int]) -> Sequence[torch.Tensor | None]:
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            [differentiated[i] for i in of],
            [ends[i] for i in at],
            [tangents[i] for i in of],
            retain_graph=len(tangents) > 1,
            allow_unused=True,
        )
        return found

    through = results_through(differentiated)
    together = freed_together(through)  # asked while they hold what they save
    made_into = _made_into(given_back, differentiated, through)
    every = ask(range(len(tangents)), range(len(ends)))
    gradients = [None if g is None else recorder.node_of(layer.value(g)) for g in every]
    reaching = _tangents_reaching(recorder.graph, gradients, nodes, ends, through, ask)
    kept = [i for i, node in enumerate(gradients) if node is not None] or range(len(ends))
    inputs = list(leaves)
    return Gradients(
        tuple(inputs[i] for i in kept),
        tuple(outputs),
        tuple(nodes),
        [gradients[i] for i in kept],
        tuple(reaching[i] for i in kept),
        together,
        made_into,
    )


def _made_into(
    outputs: Sequence[Any], differentiated: Sequence[torch.Tensor], through: Mapping[Any, int]
) -> tuple[tuple[int, int], ...]:
    """`RegionFacts.made_into`: the outputs through whose steps of autograd others come, too."""
    found: dict[int, tuple[int, int]] = {}
    for position, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor) or output.grad_fn is None:
            continue
        itself = sum(1 << i for i, result in enumerate(differentiated) if result is output)
        others = through.get(output.grad_fn, 0) & ~itself
        if others:
            found.setdefault(id(output), (position, others))
    return tuple(found.values())


def _tangents_reaching(
    graph: fx.Graph,
    gradients: Sequence[fx.Node | None],
    tangents: Sequence[fx.Node],
    leaves: Sequence[torch.Tensor],
    through: Mapping[Any, int],
    ask: Ask,
) -> tuple[int, ...]:
    """For each of ``gradients`` (of ``leaves``), the ``tangents`` that reach it, as bits: given one
    of those alone, eager has a gradient, without it None. ``through``: by autograd's steps, the
    tangents whose results come through them.

    That a gradient is computed from a tangent is enough, but one that is zeros whatever it is
    given (of a part of `torch.cat` without elements, of what a custom function's backward does not
    use) depends on none. Where autograd has a way from a result to an input and the recorded graph
    has none, it is asked once more; what that records is forgotten.
    """
    everything = (1 << len(tangents)) - 1
    masks = computed_from(graph, tangents)
    found = [0 if node is None else masks.get(node, 0) for node in gradients]
    unsure = [i for i, node in enumerate(gradients) if node is not None and found[i] != everything]
    if len(tangents) == 1:
        return tuple(1 if i in unsure else mask for i, mask in enumerate(found))
    edges = {i: torch.autograd.graph.get_gradient_edge(leaves[i]) for i in unsure}
    asked = {i: through.get(edge.node, 0) & ~found[i] for i, edge in edges.items()}
    last = next(iter(reversed(graph.nodes)))
    for tangent in range(len(tangents)):
        at = [i for i, way in asked.items() if way >> tangent & 1]
        for i, gradient in zip(at, ask([tangent], at) if at else (), strict=True):
            found[i] |= (gradient is not None) << tangent
    _forget_after(graph, last)
    return tuple(found)


def _forget_after(graph: fx.Graph, last: fx.Node) -> None:
    """Removes what was recorded behind ``last``, but for sizes: the recorder knows their nodes."""
    node = next(iter(reversed(graph.nodes)))
    while node is not last:
        tried, node = node, node.prev
        if not tried.users and not isinstance(tried.meta.get("val"), torch.SymInt | torch.SymFloat):
            graph.erase_node(tried)
