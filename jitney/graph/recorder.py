"""Writes down every ATen call made below autograd, on fake tensors, as an FX graph.

This is the tracer of torch's AOT path, made lean: one dispatch mode, one dictionary from fake
tensors to nodes. In-place calls become their functional forms here where no view of the tensor
is alive; anything harder raises `NeedsFunctionalization`, and the region is traced again with
torch's functionalization above this mode.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.capture.leaves import is_authors
from jitney.errors import Unsupported
from jitney.graph.ask_eager import ask_eager
from jitney.graph.check_numbers import check_numbers
from jitney.graph.draw_in_order import draw_in_order
from jitney.graph.expand_foreach import expand_foreach, is_foreach
from jitney.graph.number_ranges import check_ranges
from jitney.graph.op_arguments import Part, first_tensor, with_defaults
from jitney.graph.refuse_reach import refuse_reach
from jitney.graph.symbol_nodes import SymbolNodes
from jitney.graph.written_calls import call_functional, retaken
from jitney.torch_api import OpOverload

Decompositions = Mapping[OpOverload, Callable[..., Any]]


class NeedsFunctionalization(Exception):
    """A mutation that only torch's functionalization can take out."""


class OpKind(Enum):
    """What it takes to record a call, by the op's schema."""

    PLAIN = "plain"
    VIEW = "view"  # results share the first tensor argument's memory
    ALIAS = "alias"  # a view that is the tensor itself: detach, alias
    IN_PLACE = "in_place"  # writes its first argument and returns it
    MUTATES = "mutates"  # writes in any other way
    COMPOSITE = "composite"
    FOREACH = "foreach"  # a plain op on lists of tensors
    BATCH_NORM = "batch_norm"  # updates its running statistics, whatever the schema says
    QUERY = "query"  # metadata of a tensor


_REAL = (torch.Tensor, torch.nn.Parameter)
_AS_STRIDED = torch.ops.aten.as_strided.default
_DETACH = torch.ops.aten.detach.default
_ALIASES = ("aten.detach.default", "aten.alias.default")
_LIFT = torch.ops.aten.lift_fresh.default
_CONJ = torch.ops.aten._conj.default
_NUMBER = torch.ops.aten.scalar_tensor.default
_LIFT_COPY = torch.ops.aten.lift_fresh_copy.default
_BATCH_NORMS = ("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default")


@lru_cache(maxsize=4096)
def op_kind(op: OpOverload) -> OpKind:
    """How calls of ``op`` are recorded."""
    if op.namespace == "prim" or op is _SIZE:
        return OpKind.QUERY
    if str(op) in _ALIASES:
        return OpKind.ALIAS
    if str(op) in _BATCH_NORMS:
        return OpKind.BATCH_NORM
    if is_foreach(op):
        return OpKind.FOREACH
    schema = torch_api.schema_of(op)
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if written and is_authors(op):  # whatever it is called, and other ops of its author's
        return OpKind.MUTATES
    if written:
        in_place = len(written) == 1 and written[0] is schema.arguments[0]
        name = torch_api.op_name(op)
        in_place = in_place and name.endswith("_") and not name.endswith("__")
        simple = in_place and torch.Tag.inplace_view not in op.tags and functional_form(op)
        return OpKind.IN_PLACE if simple else OpKind.MUTATES
    if torch_api.is_composite(op):
        return OpKind.COMPOSITE
    if any(r.alias_info is not None for r in schema.returns):
        return OpKind.VIEW
    return OpKind.PLAIN


_FUNCTIONAL_NAMES = {
    "aten.bernoulli_.float": "aten.bernoulli.p",
    "aten.normal_.default": "aten.normal_functional.default",
}


#: What torch 2.11 calls where C++ takes sizes as numbers, which they become: a guard.
_SIZE = torch.ops.aten.size.default

#: The gradient of recurrent networks: torch's fake result for the workspace it reads is empty.
_READS_HIDDEN_STATE = torch.ops.aten._cudnn_rnn_backward.default


@lru_cache(maxsize=1024)
def functional_form(op: OpOverload) -> OpOverload | None:
    """``aten.pow_.Scalar`` -> ``aten.pow.Tensor_Scalar``; None if no overload takes the same."""
    if str(op) in _FUNCTIONAL_NAMES:
        found: OpOverload = torch_api.find_op(_FUNCTIONAL_NAMES[str(op)])
        return found
    packet = getattr(getattr(torch.ops, op.namespace), torch_api.op_name(op)[:-1], None)
    if packet is None:
        return None
    names = [torch_api.overload_name(op), *packet.overloads()]
    forms = [getattr(packet, name) for name in names if name in packet.overloads()]
    return next((form for form in forms if _argument_types(form) == _argument_types(op)), None)


def _argument_types(op: OpOverload) -> list[str]:
    return [str(argument.type) for argument in torch_api.schema_of(op).arguments]


_FEW_PARTS = 64


class Recorder(torch_api.dispatch_mode_class()):  # type: ignore[misc]
    """Records into ``graph``; ``origin`` is the torch-level node being run (kept in node meta).

    Every recorded node has ``meta["val"]`` (its fake value) and ``meta["origin"]``; a view has in
    ``meta["of"]`` the fake that it was taken of (what a pass puts in that one's place holds the
    same values, and may lie elsewhere). Enter a fake mode below it.
    """

    def __init__(
        self, decompositions: Decompositions, fake_mode: Any, symbolic: bool = False
    ) -> None:
        super().__init__()
        self._fake_mode = fake_mode
        self._fakes = None if symbolic else torch_api.FakeResults(fake_mode)
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.symbols = SymbolNodes(self.graph)
        self.origin: fx.Node | None = None
        self.in_backward = False
        self._decompositions = decompositions
        self._nodes: dict[int, fx.Node] = {}
        self._roots: dict[int, torch.Tensor] = {}  # of views only
        self._alive: list[torch.Tensor] = []  # ids stay unique while tensors live
        self._families: dict[int, list[torch.Tensor]] = {}  # root id -> views of it
        self._stale: dict[int, fx.Node] = {}  # id of a view -> what its root was when it was taken
        self.settle: Callable[[], None] = lambda: None  # `graph/settle`
        self.detached: set[int] = set()  # ids of what `detach` gave
        self.moved: set[int] = set()  # ids of copies of inputs that lie otherwise than those

    # ------------------------------------------------------------ tensors and nodes

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """Adds an input (before every other kind of node) holding the fake ``value``."""
        with self._before_first(("get_attr", "call_function")):
            node = self.graph.placeholder(name)
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self.track(value, node)
            self.symbols.define_sizes(value, node)
        elif isinstance(value, torch.SymInt | torch.SymFloat):
            self.symbols.define(value, node)
        return node

    def track(self, tensor: torch.Tensor, node: fx.Node, root: torch.Tensor | None = None) -> None:
        """From now on ``tensor`` is computed by ``node``; ``root`` owns its memory if it is a
        view."""
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)
        if root is not None:
            self._roots[id(tensor)] = root
            self._families.setdefault(id(root), []).append(tensor)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that computes ``tensor`` now; a real tensor becomes a constant."""
        if id(tensor) in self._stale:
            return self._take_again(tensor)
        node = self._nodes.get(id(tensor))
        if node is None:
            node = self._lift(tensor)
        return node

    def known_node(self, tensor: torch.Tensor) -> fx.Node:
        """As `node_of`, but raises KeyError for a tensor that was never seen."""
        return self._nodes[id(tensor)]

    def root_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor whose memory ``tensor`` is a view of; itself if of none."""
        return self._roots.get(id(tensor), tensor)

    def lift(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake that stands for a real tensor, which becomes a constant of the graph."""
        node = self.node_of(tensor)
        if not torch_api.fake_mode_of(node.meta["val"]):
            with torch_api.dispatch_modes_off():
                node.meta["val"] = torch_api.fake_of(self._fake_mode, tensor.detach())
        fake: torch.Tensor = node.meta["val"]
        self.track(fake, node)
        return fake

    def _lift(self, tensor: torch.Tensor) -> fx.Node:
        if torch_api.fake_mode_of(tensor) is not None:
            raise Unsupported("foreign-fake", "a fake tensor that this trace did not make")
        if torch_api.is_tensor_subclass(tensor):
            raise Unsupported("subclass", f"a tensor of type {type(tensor).__name__}")
        name = f"constant_{len(self.constants)}"
        with torch_api.dispatch_modes_off():
            self.constants[name] = tensor.detach()
        with self._before_first(("call_function",)):
            node = self.graph.create_node("get_attr", name)
        node.meta["val"] = tensor
        self.track(tensor, node)
        return node

    def _before_first(self, ops: tuple[str, ...]) -> Any:
        anchor = next((n for n in self.graph.nodes if n.op in ops), None)
        return nullcontext() if anchor is None else self.graph.inserting_before(anchor)

    def argument(self, value: Any) -> Any:
        """A call's argument as a graph argument."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.symbols.node_of(value)
        if isinstance(value, list | tuple):
            items = [self.argument(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    # ------------------------------------------------------------ calls

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # called a thousand times a trace: no wrapper that switches Dynamo off

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = torch_api.naming_gpu(kwargs or {})
        if any(type(a) in _REAL or type(a) is list for a in args):
            args = tuple(self._faked(a) for a in args)
        func = _LIFT_COPY if func is _LIFT else func  # every call has a tensor of its own
        if func is _CONJ and not isinstance(args[0], torch.Tensor):  # in the gradient of `x * 2j`
            func, args = _NUMBER, (args[0].conjugate(),)
            kwargs = {"dtype": torch.complex128}
        kind = op_kind(func)
        ask_eager(func, args, kwargs)
        check_ranges(func, args, kwargs)
        check_numbers(func, args, kwargs)
        try:
            torch_api.refuse_operands(func, args, kwargs)
        except RuntimeError as error:
            raise Unsupported("eager-refuses", f"{func}: {error}") from error
        if kind is OpKind.PLAIN or kind is OpKind.VIEW:
            expand = self._decompositions.get(func)
            if expand is not None:
                with self:
                    out = expand(*args, **kwargs)
                if out is not NotImplemented:
                    if kind is OpKind.PLAIN:
                        return self._laid_out(func, args, kwargs, self._apart(func, args, out))
                    if isinstance(out, tuple | list):
                        self._remember_parts(func, args, kwargs, out)
                    return out
            return self._record(func, args, kwargs, kind is OpKind.VIEW)
        if kind is OpKind.QUERY:
            return _query(func, args, kwargs)
        if kind is OpKind.ALIAS:
            return self._record_alias(func, args, kwargs)
        if kind is OpKind.IN_PLACE:
            return self._record_in_place(func, args, kwargs)
        if kind is OpKind.COMPOSITE:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
            return self._record(func, args, kwargs, False)
        if kind is OpKind.FOREACH:
            with self:
                return expand_foreach(func, args, kwargs)
        if kind is OpKind.BATCH_NORM:
            return self._record_batch_norm(func, args, kwargs)
        if is_authors(func) and not torch_api.is_composite(func):
            return self._record_written(func, args, kwargs)
        raise NeedsFunctionalization(str(func))

    def _apart(self, func: OpOverload, args: Any, out: Any) -> Any:
        """The result of decomposing ``func``, which gives no views, in memory of its own."""
        if not isinstance(out, torch.Tensor) or "unsafe" in torch_api.op_name(func):
            return out
        root = self.root_of(out)
        if not any(isinstance(a, torch.Tensor) and self.root_of(a) is root for a in args):
            return out
        with self:
            return out.clone()

    def _laid_out(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> Any:
        """The result of decomposing ``func``, in the layout that eager's own kernel gives it:
        row-major if the operands are row-major."""
        given = [a for a in args if isinstance(a, torch.Tensor)]
        if all(map(torch_api.lies_in_rows, given)) or not torch_api.has_examples(*given):
            return out
        if torch_api.is_data_dependent(func):
            return out
        wanted = self._fake_result(func, args, kwargs, False)
        if isinstance(out, torch.Tensor):
            return self._in_layout_of(wanted, out)
        if isinstance(out, tuple | list):
            # Some decompositions return named tuples, which are not made from one iterable.
            return tuple(map(self._in_layout_of, wanted, out))
        return out

    def _in_layout_of(self, wanted: Any, out: Any) -> Any:
        known = isinstance(out, torch.Tensor) and isinstance(wanted, torch.Tensor)
        if not known or wanted.dim() != out.dim() or torch_api.lie_alike(wanted, out):
            return out
        outwards = sorted(range(out.dim()), key=lambda d: (wanted.stride(d), wanted.shape[d]))
        order = outwards[::-1]
        with self:
            rows = out.permute(order).clone(memory_format=torch.contiguous_format)
            return rows.permute([order.index(d) for d in range(len(order))])

    def _faked(self, value: Any) -> Any:
        if type(value) is list:
            return [self._faked(item) for item in value]
        return self.lift(value) if type(value) in _REAL else value

    def _record(self, func: OpOverload, args: Any, kwargs: Any, view: bool) -> Any:
        if str(func) in _FUNCTIONAL_NAMES.values() and not first_tensor(func, args).is_contiguous():
            # Eager draws in another order, or by another method (`draw_in_order`).
            raise Unsupported("strided-random", f"{func} of a tensor that is not contiguous")
        if torch.is_grad_enabled():
            func = torch_api.trained_kernel(func)
        if func is _READS_HIDDEN_STATE:
            raise Unsupported("hidden-state", f"{func} reads a workspace of unknown size")
        if torch_api.is_shape_unforeseen(func):
            raise Unsupported("data-dependent", f"{func} gives as many elements as it finds")
        if "as_strided" in torch_api.op_name(func) and id(self.root_of(args[0])) in self.moved:
            raise Unsupported("as-strided", f"{func} of a copy of a part of a larger tensor")
        out = self._fake_result(func, args, kwargs, view)
        if func is _AS_STRIDED:
            refuse_reach(out, self.root_of(args[0]))
        if torch_api.is_layout_unforeseen(func):
            out = torch_api.laid_out_by_eager(func, args, kwargs, out)
        if torch_api.is_assertion(func):
            self._call(func, args, kwargs, None)
        if not isinstance(out, torch.Tensor | tuple | list | torch.SymInt | torch.SymFloat):
            return out
        if isinstance(out, torch.SymInt | torch.SymFloat) and self.symbols.knows(out):
            return out
        node = self._call(func, args, kwargs, out)
        root = None
        if view:
            node.meta["of"] = first_tensor(func, args)
            root = self.root_of(node.meta["of"])
        if isinstance(out, torch.Tensor):
            self.track(out, node, root)
        elif isinstance(out, tuple | list):
            self._track_items(out, node, root)
        else:
            self.symbols.define(out, node)
        return out

    def _fake_result(self, func: OpOverload, args: Any, kwargs: Any, view: bool) -> Any:
        if self._fakes is None or torch_api.is_data_dependent(func):
            return torch_api.forecast(func, args, kwargs)
        return self._fakes.call(func, args, kwargs, view)

    def _call(self, func: Any, args: Any, kwargs: Any, out: Any) -> fx.Node:
        node_args = tuple(self.argument(a) for a in args)
        node_kwargs = {k: self.argument(v) for k, v in kwargs.items()}
        name = torch_api.op_name(func) or "item"
        node = self.graph.create_node("call_function", func, node_args, node_kwargs, name)
        node.meta["val"] = out
        node.meta["origin"] = self.origin
        if self.in_backward:
            node.meta["backward"] = True
        return node

    def _track_items(self, out: Any, node: fx.Node, root: torch.Tensor | None) -> None:
        for position, item in enumerate(out):
            if isinstance(item, torch.Tensor):
                self.track(item, self._call(operator.getitem, (), {}, item), root)
                self._nodes[id(item)].args = (node, position)

    def _remember_parts(self, func: OpOverload, args: Any, kwargs: Any, out: Sequence[Any]) -> None:
        """Notes at the nodes of ``out``, which other ops than ``func`` compute, whose results they
        are: autograd tells parts of a tensor that come together from others. Not where they are
        so many that one of them is had sooner without."""
        if len(out) > _FEW_PARTS:
            return
        given = tuple(map(self.argument, args)), {k: self.argument(v) for k, v in kwargs.items()}
        for position, item in enumerate(out):
            node = self.node_of(item)
            if node is not given[0][0]:  # the operand itself, under another name
                node.meta["part"] = Part(func, *given, position)

    def _record_alias(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        source = args[0]
        out = self._fake_result(func, args, kwargs, True)
        if func is _DETACH:
            self.detached.add(id(out))
        self.track(out, self.node_of(source), self.root_of(source))
        return out

    # ------------------------------------------------------------ mutation

    def _record_in_place(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        target, functional = args[0], functional_form(func)
        assert functional is not None
        if str(func) in _FUNCTIONAL_NAMES:
            args = with_defaults(func, args)
        with self:
            out = draw_in_order(functional, target, args[1:], kwargs)
            if out is None:
                out = functional(*args, **kwargs)
            if out.dtype != target.dtype:
                out = torch.ops.aten._to_copy.default(out, dtype=target.dtype)
            if out.shape == target.shape and out.stride() != target.stride():
                out = torch.ops.aten.copy.default(target, out)  # lies as the target does
        if out.shape != target.shape or out.stride() != target.stride():
            raise NeedsFunctionalization(str(func))
        self._rebind(target, self.node_of(out), func)
        return target

    def _rebind(self, target: torch.Tensor, node: fx.Node, func: OpOverload) -> None:
        """From now on ``target`` and its aliases are computed by ``node``."""
        root, old = self.root_of(target), self.node_of(target)
        family = [root, *self._families.get(id(root), ())]
        if any(self._nodes[id(member)] is not old for member in family):
            raise NeedsFunctionalization(str(func))
        for member in family:
            self._nodes[id(member)] = node

    def _record_written(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """A call of an author's op that writes, as one that gives new values."""
        self.settle()
        with self:
            results, bases, values = call_functional(func, args, kwargs, self.root_of)
        for base, value in zip(bases, values, strict=True):
            self.give(base, value)
        return results

    def give(self, base: torch.Tensor, value: torch.Tensor) -> None:
        """From now on ``base`` and what is in its memory have the values of ``value``."""
        old, new = self._nodes[id(base)], self._nodes[id(value)]
        for member in (base, *self._families.get(id(base), ())):
            if self._nodes[id(member)] is old:
                self._nodes[id(member)] = new
            else:
                self._stale.setdefault(id(member), old)

    def copied_back(self, placeholder: fx.Node, node: fx.Node) -> torch.Tensor:
        """A copy of what ``node`` computes into an input, and the input from then on."""
        fake = placeholder.meta["val"]
        with torch_api.dispatch_modes_off(), self._fake_mode:
            now: torch.Tensor = torch.empty_strided(
                fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device
            )
        self.track(now, self._call(torch.ops.aten.copy_.default, (), {}, now))
        self._nodes[id(now)].args = (placeholder, node)
        return now

    def _take_again(self, view: torch.Tensor) -> fx.Node:
        """The node of a view whose root has been written to since it was taken."""
        old, root = self._stale.pop(id(view)), self.root_of(view)
        node = retaken(self.graph, self._nodes[id(view)], old, self._nodes[id(root)])
        self._nodes[id(view)] = node
        return node

    def _record_batch_norm(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """``args``: input, weight, bias, running mean, running variance, training, …"""
        if args[3] is None or not args[5]:
            return self._record(func, args, kwargs, False)
        functional = torch.ops.aten._native_batch_norm_legit_functional.default
        with self:
            *results, mean, variance = functional(*args, **kwargs)
        for statistic, updated in ((args[3], mean), (args[4], variance)):
            self._rebind(statistic, self.node_of(updated), func)
        return tuple(results)


def _query(op: OpOverload, args: Any, kwargs: Any) -> Any:
    if op is torch.ops.prim.device.default and torch_api.fake_mode_of(args[0]) is not None:
        return args[0].fake_device
    if op is _SIZE:
        return tuple([int(size) for size in args[0].shape])
    return op(*args, **kwargs)
