"""How the outputs of a traced graph relate to its inputs and to each other.

Decides which values the forward graph returns (results), and which outputs are taken again at
run time as views of an input or of a result, so that the user sees eager's aliasing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.capture.custom_gradient import CustomGradient
from jitney.errors import Unsupported
from jitney.graph.functionalize import Direct
from jitney.graph.op_arguments import Part
from jitney.graph.recorder import OpKind, Recorder, op_kind
from jitney.graph.region import Input, Literal, OutputRule, Repeat, Result, View, ViewStep


@dataclass
class Results:
    """The forward graph's results as they are found: nodes, and the tensors of the user's graph
    they stand for (None for sizes)."""

    nodes: list[fx.Node] = field(default_factory=list)
    tensors: list[torch.Tensor | None] = field(default_factory=list)

    def add(self, node: fx.Node, tensor: torch.Tensor | None) -> Result:
        """The result for ``node``, a new one unless the very tensor is one already."""
        for index, known in enumerate(self.tensors):
            if self.nodes[index] is node and (known is tensor or tensor is None):
                return Result(index)
        self.nodes.append(node)
        self.tensors.append(tensor)
        return Result(len(self.nodes) - 1)


def describe_outputs(
    outputs: Sequence[Any], fed: Sequence[Any], recorder: Recorder, layer: Direct, results: Results
) -> tuple[OutputRule, ...]:
    """A rule for each output; ``results`` receives what the forward graph must return.

    ``fed``: what the graph was run on, mutations applied.
    """
    described = _Outputs(tuple(fed), recorder, layer, results)
    described.count_sharers(outputs)
    rules: list[OutputRule] = []
    seen: dict[int, int] = {}
    for position, output in enumerate(outputs):
        if isinstance(output, torch.Tensor) and id(output) in seen:
            rules.append(Repeat(seen[id(output)]))
            continue
        seen[id(output)] = position
        rules.append(described.rule(output))
    return tuple(rules)


class _Outputs:
    def __init__(
        self, fed: tuple[Any, ...], recorder: Recorder, layer: Direct, results: Results
    ) -> None:
        self.fed, self.recorder, self.layer, self.results = fed, recorder, layer, results
        self.inputs = {id(t): i for i, t in enumerate(fed) if isinstance(t, torch.Tensor)}
        self.input_nodes = {
            recorder.node_of(layer.value(t)): i
            for i, t in reversed(list(enumerate(fed)))
            if isinstance(t, torch.Tensor)
        }
        self.sharers: dict[fx.Node, list[torch.Tensor]] = {}
        self.positions: dict[int, int] = {}  # of outputs, by the id of the tensor

    def count_sharers(self, outputs: Sequence[Any]) -> None:
        """Groups the outputs that are views of one intermediate tensor."""
        for position, output in enumerate(outputs):
            self.positions.setdefault(id(output), position)
            if isinstance(output, torch.Tensor) and id(output) not in self.inputs:
                group = self.sharers.setdefault(self._root_node(output), [])
                if not any(member is output for member in group):
                    group.append(output)

    def rule(self, output: Any) -> OutputRule:
        if isinstance(output, torch.SymInt | torch.SymFloat | torch.SymBool):
            node = self.recorder.symbols.node_of(output)
            return self.results.add(node, None) if isinstance(node, fx.Node) else Literal(node)
        if not isinstance(output, torch.Tensor):
            return Literal(output)
        if id(output) in self.inputs:
            return Input(self.inputs[id(output)])
        if not torch_api.lie_alike(output, self.layer.value(output)):
            raise Unsupported("layout", "a write gave a tensor that has views other strides")
        base_output = self._base_among_outputs(output)
        if base_output is not None:
            return self._view_of_output(output, base_output)
        root = self._root_node(output)
        if root in self.input_nodes:
            index = self.input_nodes[root]
            return self._view(Input(index), self.fed[index], output, root)
        group = self.sharers[root]
        if len(group) == 1 and not _is_without_grad(output):
            return self._own_result(output)
        if root.op == "get_attr":
            raise Unsupported("shared-outputs", "outputs share the memory of a constant")
        holder = self._holder(group, root)
        root = self.recorder.node_of(self.layer.value(holder))
        base = self.results.add(root, holder)
        if output is holder:
            return base
        return self._view(base, holder, output, root)

    def _view(
        self, base: Input | Result, owner: torch.Tensor, output: torch.Tensor, root: fx.Node
    ) -> View:
        if output.grad_fn is not None:
            _refuse_other_gradients(output, owner)
            if torch_api.base_of(output) is None and type(self.layer) is Direct:
                # `unsafe_split` gives such parts
                raise Unsupported("grad-of-view", "a part of a tensor that is no view of it")
        elif output.requires_grad and not owner.requires_grad:
            raise Unsupported("grad-of-view", "a view that requires grad where its base does not")
        steps = self._steps(output, root)
        whole = torch_api.whole_of(owner)
        if output.is_inference():  # to which autograd lets write through `detach` alone
            apart = not steps or id(self.layer.value(output)) in self.recorder.detached
        else:
            apart = torch_api.base_of(output) is not whole
        detached = not output.requires_grad and apart
        uncounted = not output.requires_grad and not torch_api.counts_with(output, owner)
        return View(base, steps, detached, uncounted, torch_api.grad_mode_of(output))

    def _base_among_outputs(self, output: torch.Tensor) -> torch.Tensor | None:
        """The output that ``output`` is a view of, if autograd takes that one for a tensor of its
        own (an input detached)."""
        base = torch_api.base_of(output)
        if base is None or id(base) not in self.positions or id(base) in self.inputs:
            return None
        if output.requires_grad or base.requires_grad or not self._is_taken_of(output, base):
            return None
        return base

    def _view_of_output(self, output: torch.Tensor, base: torch.Tensor) -> View:
        steps = self._steps(output, self.recorder.node_of(self.layer.value(base)))
        uncounted = not torch_api.counts_with(output, base)
        place = Repeat(self.positions[id(base)])
        return View(place, steps, False, uncounted, torch_api.grad_mode_of(output))

    def _own_result(self, output: torch.Tensor) -> Result:
        value = self.layer.value(output)
        if self._root_node(output).op == "get_attr":
            value = torch.clone(value)
        return self.results.add(self.recorder.node_of(value), output)

    def _holder(self, group: list[torch.Tensor], root: fx.Node) -> torch.Tensor:
        """The tensor of the user's graph that owns the memory the group shares."""
        for member in group:
            value = self.layer.value(member)
            if self.recorder.node_of(value) is root and value is self.recorder.root_of(value):
                return member
        bases = [member for member in group if self._is_base(member, group)]
        if bases:  # torch.ones(...) gives a detached alias, a write through a view a view
            seen = [torch_api.base_of(member) for member in group]
            return max(bases, key=lambda base: sum(other is base for other in seen))
        for member in group:
            base = torch_api.base_of(member) if type(self.layer) is not Direct else None
            base = base if base is not None else self.recorder.root_of(self.layer.value(member))
            if self.recorder.node_of(self.layer.value(base)) is root:
                return base
        first, *others = [torch_api.whole_of(member) for member in group]
        if all(base is first for base in others):
            return first  # the root is seen through it alone, as a product of matrices is
        raise Unsupported("shared-outputs", "outputs share memory in a way that cannot be rebuilt")

    def _is_base(self, member: torch.Tensor, group: list[torch.Tensor]) -> bool:
        """Whether ``member`` is no view, and the values of all of ``group`` are views of its."""
        if torch_api.base_of(member) is not None or member.requires_grad:
            return False
        return all(self._is_taken_of(other, member) for other in group)

    def _is_taken_of(self, view: torch.Tensor, base: torch.Tensor) -> bool:
        taken = _seen_through(self.recorder.node_of(self.layer.value(view)))
        node = self.recorder.node_of(self.layer.value(base))
        return any(_is_alike(step, node) for step in taken)

    def _root_node(self, output: torch.Tensor) -> fx.Node:
        """What the output is a view of: an input's value (itself a view, where functionalization
        wrote through one), else what owns the memory."""
        value = self.layer.value(output)
        root = self.recorder.node_of(self.recorder.root_of(value))
        taken = _seen_through(self.recorder.node_of(value))
        return next((node for node in taken if node in self.input_nodes), root)

    def _steps(self, output: torch.Tensor, root: fx.Node) -> tuple[ViewStep, ...]:
        """The view ops from ``root`` to ``output``, in order."""
        steps: list[ViewStep] = []
        node = self.recorder.node_of(self.layer.value(output))
        while not _is_alike(node, root):
            taken = node.meta.get("part")
            item = None if taken is None else taken.position
            if node.target is operator.getitem:
                node, item = node.args[0], node.args[1]  # type: ignore[assignment]
            if not _is_view_step(node):
                raise Unsupported("shared-outputs", f"an output shares memory through {node}")
            target: Any = node.target
            made = taken or Part(target, node.args, node.kwargs, 0)
            args = tuple(self._step_argument(a) for a in made.args[1:])
            kwargs = tuple((k, self._step_argument(v)) for k, v in made.kwargs.items())
            steps.append(ViewStep(str(made.func), args, kwargs, item))
            node = made.args[0]
        return tuple(reversed(steps))

    def _step_argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            if isinstance(value.meta["val"], torch.Tensor):
                raise Unsupported("shared-outputs", "a view op with two tensors")
            return self.results.add(value, None)
        if isinstance(value, list | tuple):
            return tuple(self._step_argument(item) for item in value)
        return value


def _seen_through(node: Any) -> Iterator[fx.Node]:
    """The node, then what it is a view of, and so on."""
    yield node
    while _is_view_step(node):
        node = node.args[0]
        yield node


def _is_alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether they are one view: functionalization takes views anew after a write."""
    while one is not other:
        if not _is_view_step(one) or (one.target, one.kwargs) != (other.target, other.kwargs):
            return False
        if one.args[1:] != other.args[1:] or one.meta.get("part") != other.meta.get("part"):
            return False
        one, other = one.args[0], other.args[0]  # type: ignore[assignment]
    return True


def _is_without_grad(view: torch.Tensor) -> bool:
    """Whether autograd knows of a base whose gradients ``view`` is told to require, with none."""
    return view.requires_grad and view.grad_fn is None and torch_api.base_of(view) is not None


def _is_view_step(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, torch_api.OpOverload) and op_kind(node.target) is OpKind.VIEW


def _refuse_other_gradients(view: torch.Tensor, base: torch.Tensor) -> None:
    """Unsupported unless the gradient of ``view`` goes to ``base``, as that of its view ops does:
    not where a `torch.autograd.Function` is among them, or one was taken without grad."""
    step: Any = view.grad_fn
    while step is not None and step is not base.grad_fn:
        if isinstance(getattr(step, "rule", None), CustomGradient):
            raise Unsupported("grad-of-view", "a view whose gradient its author wrote")
        if getattr(step, "variable", None) is base:
            return
        step = step.next_functions[0][0] if step.next_functions else None
    if step is None:
        raise Unsupported("grad-of-view", "a view whose gradient does not go to its base")
