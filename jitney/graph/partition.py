"""Splits a joint graph into forward and backward, saving few bytes and recomputing little.

What the backward graph needs of the forward pass is either saved or recomputed from what is
saved; the cheapest set to save is a minimum cut of the graph, a value's capacity being its size
(the idea of "Min-cut optimal recomputation", H. He and S. Yu, MLSys 2023). Only ops that cost next
to nothing once fused are recomputed, and what ``torch.utils.checkpoint`` asks to; everything else
runs once.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.graph.checkpoints import checkpoint_of, is_internal, is_read_again
from jitney.graph.effects import is_effect, is_view, may_raise
from jitney.graph.min_cut import INFINITE, FlowNetwork

#: Recomputed where that saves memory: one or two machine instructions an element once fused.
CHEAP = frozenset(
    "add sub rsub mul neg abs sign where eq ne lt le gt ge logical_not logical_and logical_or "
    "bitwise_and bitwise_or bitwise_not minimum maximum clamp clamp_min clamp_max relu square "
    "full full_like zeros zeros_like ones ones_like arange scalar_tensor empty_like _to_copy "
    "clone masked_fill threshold lift_fresh_copy new_zeros new_ones new_full fill isnan isinf "
    "hardtanh leaky_relu tril triu".split()
)
#: Also recomputed on a GPU, where a fused pointwise op costs the bytes it moves and little else.
CHEAP_ON_GPU = CHEAP | frozenset(
    "exp exp2 expm1 log log1p log2 sqrt rsqrt reciprocal div pow tanh sigmoid erf sin cos gelu "
    "silu elu softplus mish hardswish hardsigmoid logit addcmul addcdiv lerp".split()
)


@dataclass(frozen=True)
class Partition:
    """Two graphs over copied nodes. ``saved_tensors`` and ``saved_sizes``: nodes of the joint
    graph, in the order the backward graph takes them (sizes, tensors, then tangents)."""

    backward: fx.Graph
    saved_tensors: tuple[fx.Node, ...]
    saved_sizes: tuple[fx.Node, ...]


def partition(
    graph: fx.Graph,
    results: Sequence[fx.Node],
    gradients: Sequence[fx.Node | None],
    tangents: Sequence[fx.Node],
    written: Collection[fx.Node] = (),
    loose: Collection[fx.Node] = (),
) -> Partition:
    """Chooses what to save and makes the backward graph; the joint graph is left as it is.

    ``gradients`` are returned in order, None among them. Nodes that write (copies into inputs,
    random ops) stay in the forward graph. ``written``: placeholders that the forward graph writes
    to, which cannot be saved as they were. ``loose``: those that a program may write to before its
    backward pass (buffers, data); they are saved where autograd keeps them too, in no other place.
    """
    acts = list(filter(_is_act_of_backward, graph.nodes))
    late = _reachable([*tangents, *acts])
    early = ancestors([*results, *(n for n in graph.nodes if is_effect(n) and n not in late)])
    wanted = [node for node in gradients if node is not None]
    needed = ancestors([*wanted, *acts])
    shown = {node for node in results if is_read_again(node)}
    never = {*written, *_kept_by_none(loose, late, early)}
    saved = _choose(graph, late, early, needed, set(wanted), never, shown)
    sizes, known = _sizes_to_save(graph, late, needed)
    return _extract(gradients, acts, tangents, late, saved, sizes, known)


def _is_act_of_backward(node: fx.Node) -> bool:
    """Whether a custom function's backward acts there, with or without a gradient to read."""
    return bool(node.meta.get("authors")) and (is_effect(node) or may_raise(node))


def _reachable(starts: Sequence[fx.Node]) -> set[fx.Node]:
    found, stack = set(starts), list(starts)
    while stack:
        for user in stack.pop().users:
            if user not in found and user.op != "output":
                found.add(user)
                stack.append(user)
    return found


def ancestors(ends: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that ``ends`` are computed from, and ``ends``."""
    found, stack = set(ends), list(ends)
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                stack.append(node)
    return found


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int)


def can_recompute(node: fx.Node) -> bool:
    """Whether running the node a second time costs next to nothing."""
    if node.op == "get_attr" or node.target is operator.getitem:
        return True
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch_api.OpOverload):
        return False
    value = node.meta.get("val")
    on_gpu = isinstance(value, torch.Tensor) and value.device.type == "cuda"
    cheap = CHEAP_ON_GPU if on_gpu else CHEAP
    return is_view(node) or (
        target.namespace == "aten" and torch_api.op_name(target) in cheap and not is_effect(node)
    )


def _joins(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Pointwise nodes whose large operands lie different numbers of library calls deep.

    A residual stream is such a chain: recomputing one sum of it from the (smaller) summands would
    recompute all sums before it, and keep them all.
    """
    depth: dict[fx.Node, int] = {}
    found: set[fx.Node] = set()
    for node in nodes:
        inputs = [n for n in node.all_input_nodes if n in depth]
        large = {depth[n] for n in inputs if 4 * _numel(n) >= _numel(node) and depth[n]}
        if len(large) > 1 and not is_view(node):
            found.add(node)
        once = node.op == "call_function" and not can_recompute(node)
        depth[node] = max((depth[n] for n in inputs), default=0) + once
    return found


def _numel(node: fx.Node) -> int:
    value = node.meta.get("val")
    return torch_api.hint_of(value.numel()) if isinstance(value, torch.Tensor) else 0


def _kept_by_none(
    inputs: Collection[fx.Node], late: set[fx.Node], early: set[fx.Node]
) -> Iterator[fx.Node]:
    """Of ``inputs``, with the views of them, those that eager keeps for no backward pass: their
    values go into the forward pass alone."""
    for given in inputs:
        views = [given]
        for view in views:
            views += [user for user in view.users if is_view(user) and user not in late]
        users = {user for view in views for user in view.users}.difference(views)
        read = (user for user in users if not _is_size(user))
        if all(u in early and u not in late and not is_internal(u, early) for u in read):
            yield from views


def _choose(
    graph: fx.Graph,
    late: set[fx.Node],
    early: set[fx.Node],
    needed: set[fx.Node],
    wanted: set[fx.Node],
    refused: Collection[fx.Node],
    shown: Collection[fx.Node],
) -> list[fx.Node]:
    """The tensors to save: a minimum cut between what runs once and the backward graph. ``shown``:
    results that checkpoints read, saved themselves, so that writes to them are noticed."""
    nodes = [n for n in graph.nodes if n in needed and n not in late and not _is_size(n)]
    number = {node: 2 * i for i, node in enumerate(nodes)}  # in; out is one more
    source, sink = 2 * len(nodes), 2 * len(nodes) + 1
    joins = _joins(nodes)
    network = FlowNetwork(2 * len(nodes) + 2)
    for node, entry in number.items():
        internal = is_internal(node, early)
        never = node in refused or internal
        network.add_edge(entry, entry + 1, INFINITE if never else _cost(node))
        leaves_region = not internal and checkpoint_of(node) is not None
        once = not internal and (node in joins or not can_recompute(node))
        once = once or leaves_region or node in shown
        if node.op == "placeholder" or (node in early and once):
            network.add_edge(source, entry, INFINITE)
        if node in wanted or any(user in late for user in node.users):
            network.add_edge(entry + 1, sink, INFINITE)
        for user in node.users:
            if user in number:
                network.add_edge(entry + 1, number[user], INFINITE)
    side = network.cut(source, sink)
    saved = [node for node, entry in number.items() if entry in side and entry + 1 not in side]
    if not network.is_finite(side):
        reason = "what a checkpoint computes again reads an input that is written to afterwards"
        raise Unsupported("partition", reason)
    return saved


def _cost(node: fx.Node) -> int:
    """How many bytes it takes to keep a value; none for inputs, which live on anyway."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return INFINITE
    size = max(1, torch_api.hint_of(value.numel())) * value.dtype.itemsize
    if node.op == "placeholder":
        return 1 + size // 100
    return 16 * size + is_view(node)


def _sizes_to_save(
    graph: fx.Graph, late: set[fx.Node], needed: set[fx.Node]
) -> tuple[list[fx.Node], dict[fx.Node, fx.Node | float]]:
    """One node for each symbol, and for each ``needed`` size that is not computed from sizes; and
    the saved node, or the number, that such sizes are equal to. Tracing may have found a symbol
    to be a number, or an expression of others, after nodes were made for it."""
    found: dict[Any, fx.Node] = {}
    known: dict[fx.Node, fx.Node | float] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.SymInt | torch.SymFloat) or node in late:
            continue
        expression = torch_api.symbol_expression(value)
        if expression.is_number:
            known[node] = int(expression) if isinstance(value, torch.SymInt) else float(expression)
        elif not expression.args or (node in needed and not _is_of_sizes(node)):
            known[node] = found.setdefault(expression, node)
    return list(found.values()), known


def _is_of_sizes(node: fx.Node) -> bool:
    return node.op == "call_function" and all(map(_is_size, node.all_input_nodes))


def _extract(
    gradients: Sequence[fx.Node | None],
    acts: list[fx.Node],
    tangents: Sequence[fx.Node],
    late: set[fx.Node],
    saved: list[fx.Node],
    sizes: list[fx.Node],
    known: dict[fx.Node, fx.Node | float],
) -> Partition:
    """Copies what the gradients and ``acts`` need, each recomputed value right before its first
    use; ``known`` sizes are numbers or equal to one of ``sizes``."""
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in (*sizes, *saved, *tangents):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for node, same in known.items():
        copies[node] = copies[same] if isinstance(same, fx.Node) else same
    wanted = [node for node in gradients if node is not None]
    for node in _in_order([*wanted, *acts], copies, late):
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(None if node is None else copies[node] for node in gradients))
    return Partition(graph, tuple(saved), tuple(sizes))


def _in_order(
    wanted: list[fx.Node], known: dict[fx.Node, fx.Node], late: set[fx.Node]
) -> list[fx.Node]:
    """The ancestors of ``wanted`` that are not known, inputs before users; backward nodes in the
    joint graph's order, others where they are first needed."""
    order: list[fx.Node] = []
    done = set(known)

    def visit(start: fx.Node) -> None:
        stack = [(start, iter(start.all_input_nodes))]
        while stack:
            node, inputs = stack[-1]
            following = next((n for n in inputs if n not in done), None)
            if following is not None:
                stack.append((following, iter(following.all_input_nodes)))
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                order.append(node)

    needed = ancestors(wanted)
    graph = wanted[0].graph if wanted else None
    for node in graph.nodes if graph is not None else ():
        if node in needed and node in late and node not in done:
            visit(node)
    for node in wanted:
        if node not in done:
            visit(node)
    return order
