"""From a recorded graph and what its outputs mean to a `Region`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.errors import CompilerBug
from jitney.events import log
from jitney.graph.describe_outputs import Results
from jitney.graph.effects import draws_random, is_effect, may_raise, memory_owner
from jitney.graph.expose_statistics import expose_statistics
from jitney.graph.lay_out_channels_last import lay_out_channels_last
from jitney.graph.pack_draws import pack_draws
from jitney.graph.partition import Partition, ancestors, partition
from jitney.graph.recorder import Recorder
from jitney.graph.region import (
    Input,
    Mutation,
    OutputRule,
    Region,
    RegionFacts,
    Result,
    ResultFacts,
)
from jitney.graph.settle import refuse_old_values
from jitney.graph.simplify import simplify

#: Elements from which a result that is also kept for the backward pass is not copied (GPU).
LARGE_RESULT = 1 << 24


@dataclass(frozen=True)
class Gradients:
    """What autograd recorded: ``inputs`` that get the gradients ``nodes`` compute (None: zero)
    from the ``tangents`` of ``results``; ``reaching``: for each, the tangents that reach it, as
    bits; ``freed_together``, ``made_into``: see `RegionFacts`."""

    inputs: tuple[int, ...]
    results: tuple[int, ...]
    tangents: tuple[fx.Node, ...]
    nodes: list[fx.Node | None]
    reaching: tuple[int, ...]
    freed_together: tuple[int, ...]
    made_into: tuple[tuple[int, int], ...]


def join_region(
    recorder: Recorder,
    input_count: int,
    rules: tuple[OutputRule, ...],
    results: Results,
    mutations: tuple[Mutation, ...],
    copies: list[tuple[fx.Node, fx.Node]],
    gradients: Gradients | None,
) -> Region:
    """Ends the graph with the copies into inputs and its outputs, cleans it, splits it."""
    graph = recorder.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    written = [inputs[mutation.input] for mutation in mutations]
    _end_graph(graph, results, copies, gradients, written)
    loose = _loose(inputs[:input_count], gradients)
    _rewrite(graph, recorder, gradients, [*written, *loose])
    output = graph.output_node()
    results_and_gradients: Any = output.args[0]
    result_nodes, gradient_nodes = results_and_gradients
    facts = RegionFacts(input_count, rules, (), mutations)
    backward = None
    kept: list[fx.Node] = []
    tangents = {r: i for i, r in enumerate(gradients.results)} if gradients else {}
    if gradients is not None:
        with log.stage("partition"):
            split = partition(
                graph, result_nodes, gradient_nodes, gradients.tangents, written, loose
            )
        own_gradients(split.backward)
        backward = torch_api.graph_module(recorder.constants, split.backward)
        kept, facts = _with_backward(facts, split, gradients, inputs, result_nodes)
        facts = replace(facts, recorded=_digest(graph, kept))
    draws = any(draws_random(n.target, n.args, n.kwargs) for n in graph.nodes)
    graph.erase_node(output)
    kept = [_unshared(graph, node, result_nodes) for node in kept]
    graph.output((*result_nodes, *kept))
    _drop_late(graph)
    refuse_old_values(graph)
    described = tuple(
        _result_facts(node.meta["val"], tangents.get(index))
        for index, node in enumerate(result_nodes)
    )
    return Region(
        torch_api.graph_module(recorder.constants, graph),
        backward,
        replace(facts, results=described, draws=draws),
    )


def _digest(graph: fx.Graph, kept: list[fx.Node]) -> str:
    """Of what is computed from what, and of what is kept, with its strides."""
    rows = [f"{n.name} {n.target} {[a.name for a in n.all_input_nodes]}" for n in graph.nodes]
    rows += [f"{n.name} {_result_facts(n.meta['val'], None)}" for n in kept]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _loose(inputs: list[fx.Node], gradients: Gradients | None) -> list[fx.Node]:
    """What the program may write to before the backward pass, all but parameters. None where
    there is no backward pass."""
    if gradients is None:
        return []
    return [node for node in inputs if not node.meta.get("is_parameter")]


def _rewrite(
    graph: fx.Graph, recorder: Recorder, gradients: Gradients | None, changing: list[fx.Node]
) -> None:
    """The passes over the joint graph, none of which may change how a result lies in memory, nor
    take a copy of a ``changing`` placeholder for the placeholder."""
    traced = _strides_of_results(graph)
    simplify(graph, recorder.constants, changing)
    lay_out_channels_last(graph)
    if gradients is not None:
        on_gpu = any(node.meta["val"].device.type == "cuda" for node in gradients.tangents)
        expose_statistics(graph, of_rows=on_gpu)
        pack_draws(graph)
    if _strides_of_results(graph) != traced:
        raise CompilerBug("a pass over the graph changed a result's strides")


def _read_by(
    results: Sequence[fx.Node], inputs: list[fx.Node], mutations: tuple[Mutation, ...]
) -> tuple[int, ...]:
    """The inputs written to that ``results`` depend on."""
    read = ancestors(results)
    written = [m.input for m in mutations if inputs[m.input] in read]
    return tuple(i for i in written if not _becomes_statistics(inputs[i], results))


def _becomes_statistics(node: fx.Node, results: Sequence[fx.Node]) -> bool:
    """Whether batch norms alone read it in the forward pass, in training, and nothing but a copy
    back reads the running statistics that they make of it."""
    norm, copy = torch.ops.aten._native_batch_norm_legit_functional, torch.ops.aten.copy_.default
    forward = [user for user in node.users if not user.meta.get("backward")]
    readers = [user for user in forward if user.target is not copy]
    if node in results or any(r.target is not norm.default or not r.args[5] for r in readers):
        return False
    updated = [item for reader in readers for item in reader.users if item.args[1] in (3, 4)]
    return all(_becomes_statistics(item, results) for item in updated)


def _end_graph(
    graph: fx.Graph,
    results: Results,
    copies: list[tuple[fx.Node, fx.Node]],
    gradients: Gradients | None,
    written: list[fx.Node],
) -> None:
    for placeholder in written:
        _keep_old_value(graph, placeholder)
    for placeholder, value in copies:
        node = graph.call_function(torch.ops.aten.copy_.default, (placeholder, value))
        node.meta["val"] = placeholder.meta["val"]
    graph.output((tuple(results.nodes), tuple(gradients.nodes if gradients else ())))


def _strides_of_results(graph: fx.Graph) -> list[tuple[int, ...] | None]:
    """None for a tensor whose sizes are or were symbolic: to compare those would make guards."""
    results: Any = graph.output_node().args[0]
    values = [node.meta["val"] for node in results[0]]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [None if torch_api.was_symbolic(value) else value.stride() for value in tensors]


def _keep_old_value(graph: fx.Graph, placeholder: fx.Node) -> None:
    """The backward graph must not see an input's new value where it wants the old one."""
    readers = [user for user in placeholder.users if user.meta.get("backward")]
    if readers:
        first = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(first):
            copy = graph.call_function(torch.ops.aten.clone.default, (placeholder,))
        copy.meta["val"] = placeholder.meta["val"]
        for reader in readers:
            reader.replace_input_with(placeholder, copy)


def _with_backward(
    facts: RegionFacts,
    split: Partition,
    gradients: Gradients,
    inputs: list[fx.Node],
    results: Sequence[fx.Node],
) -> tuple[list[fx.Node], RegionFacts]:
    """What the forward graph returns beyond its results, and the facts of the backward graph
    added to ``facts``."""
    position = {node: index for index, node in reversed(list(enumerate(results)))}
    kept: list[fx.Node] = []

    def place(node: fx.Node) -> Input | Result:
        if node.op == "placeholder":
            return Input(inputs.index(node))
        if node not in position:
            position[node] = len(results) + len(kept)
            kept.append(node)
        return Result(position[node])

    return kept, replace(
        facts,
        grad_inputs=gradients.inputs,
        grad_tangents=gradients.reaching,
        saved_tensors=tuple(place(node) for node in split.saved_tensors),
        saved_tangents=_tangents_beside(split),
        freed_together=gradients.freed_together,
        made_into=gradients.made_into,
        saved_sizes=tuple(place(node) for node in split.saved_sizes),
        old_values=_read_by(results, inputs, facts.mutations),
    )


def _unshared(graph: fx.Graph, node: fx.Node, results: Sequence[fx.Node]) -> fx.Node:
    """A kept value in memory of its own: in-place writes to a result must not reach it unseen.

    A large one on a GPU is not copied (a model's logits are as large as all else it keeps): a
    write to it then makes ``backward`` raise torch's error for a saved tensor that was written to.
    """
    owner = memory_owner(node)
    if owner.op != "placeholder":
        if all(memory_owner(r) is not owner for r in results) or _is_large_on_gpu(node.meta["val"]):
            return node
    copy, value = _copied(graph, node), node.meta["val"]
    # The backward graph was traced with these strides, gaps and all.
    copy.meta["val"] = value.new_empty_strided(value.size(), value.stride())
    return copy


def _is_large_on_gpu(value: torch.Tensor) -> bool:
    return value.device.type == "cuda" and torch_api.hint_of(value.numel()) >= LARGE_RESULT


def own_gradients(graph: fx.Graph) -> None:
    """Gives each gradient memory of its own: ``.grad`` keeps it, and may be added to in place."""
    output = graph.output_node()
    owners: set[fx.Node] = set()
    gradients = []
    for node in output.args[0]:  # type: ignore[union-attr]
        if isinstance(node, fx.Node):
            owner = memory_owner(node)
            if owner in owners or owner.op in ("placeholder", "get_attr"):
                with graph.inserting_before(output):
                    node = _copied(graph, node)
            owners.add(owner)
        gradients.append(node)
    output.args = (tuple(gradients),)


def computed_from(graph: fx.Graph, tangents: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """The tangents, as bits, that each node depends on; those that depend on none are left out."""
    reach = {node: 1 << i for i, node in enumerate(tangents)}
    for node in graph.nodes:
        mask = reach.get(node, 0)
        for source in node.all_input_nodes:
            mask |= reach.get(source, 0)
        if mask:
            reach[node] = mask
    return reach


def _tangents_beside(split: Partition) -> tuple[int, ...]:
    """For each saved tensor, the tangents, as bits, of the gradients that it helps to compute."""
    placeholders = [node for node in split.backward.nodes if node.op == "placeholder"]
    first = len(split.saved_sizes)
    saved = placeholders[first : first + len(split.saved_tensors)]
    tangents = computed_from(split.backward, placeholders[first + len(saved) :])
    beside = dict.fromkeys(split.backward.nodes, 0)
    for node in reversed(split.backward.nodes):
        for source in node.all_input_nodes if node.op != "output" else ():
            # What is computed with a tangent takes part in its gradients alone.
            beside[source] |= tangents.get(node, 0) or beside[node]
    return tuple(beside[node] for node in saved)


def _copied(graph: fx.Graph, node: fx.Node) -> fx.Node:
    copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta["val"] = torch.empty_like(node.meta["val"])
    return copy


def _drop_late(graph: fx.Graph) -> None:
    """Removes what only the backward graph needs, the tangents' placeholders among it. A pass may
    have put nodes of its own behind an effect of the backward pass (attention's gradient)."""
    for node in reversed(graph.nodes):
        unread = not node.users and node.op in ("call_function", "get_attr")
        if unread and (node.meta.get("backward") or not (is_effect(node) or may_raise(node))):
            graph.erase_node(node)
    for node in graph.find_nodes(op="placeholder"):
        if not node.users and node.name.startswith("tangent_"):
            graph.erase_node(node)


def _result_facts(value: Any, tangent: int | None) -> ResultFacts:
    if not isinstance(value, torch.Tensor):
        return ResultFacts()
    gradient = None if tangent is None else torch.empty_like(value)
    return ResultFacts(
        _known(value.shape),
        _known(value.stride()),
        value.dtype,
        value.device,
        tangent,
        None if gradient is None else _known(gradient.stride()),
    )


def _known(sizes: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(None if torch_api.is_symbolic(size) else int(size) for size in sizes)
