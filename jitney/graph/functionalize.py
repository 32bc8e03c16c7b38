"""How the recorder sees the user's tensors: directly, or through torch's functionalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.leaves import is_authors, overlaps_itself
from jitney.errors import Unsupported
from jitney.graph.recorder import Decompositions, OpKind, Recorder, functional_form, op_kind
from jitney.graph.written_calls import call_functional
from jitney.torch_api import OpOverload


class FunctionalRecorder(Recorder):
    """A recorder that stands where torch's own tracer does: under functionalization."""

    def __init__(
        self, decompositions: Decompositions, fake_mode: Any, symbolic: bool = False
    ) -> None:
        super().__init__(decompositions, fake_mode, symbolic)
        torch_api.make_infra_mode(self, self.known_node)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """What torch asks: whether the mode is no user's."""
        return True

    def __sym_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)


class Direct:
    """The graph runs on fakes as they are; the recorder takes simple mutations out itself.
    ``settle`` has inputs hold what they hold in eager by now: it is called before what may raise.
    """

    def __init__(self) -> None:
        self.settle: Callable[[], None] = lambda: None

    def enter(self, stack: ExitStack) -> None:
        """Called once the recorder is entered."""

    def feed(self, fake: torch.Tensor) -> torch.Tensor:
        """The tensor the graph is given for a fake that the recorder knows."""
        return fake

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake that the recorder knows for a tensor of the graph."""
        return tensor

    def give(self, recorder: Recorder, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Gives a tensor of the graph, and its views, the values of a fake of the recorder's."""
        recorder.give(tensor, value)

    def clones_inputs(self) -> bool:
        """Whether inputs that require grad are cloned, so that mutating them is differentiable."""
        return False


class Functionalized(Direct):
    """The graph runs on functional tensors, under torch's functionalization mode."""

    def enter(self, stack: ExitStack) -> None:
        """Enters the mode, which ``stack`` leaves."""
        stack.enter_context(torch_api.functional_mode(partial(_instead, self), _notice))

    def feed(self, fake: torch.Tensor) -> torch.Tensor:
        """A functional tensor around it."""
        return torch_api.to_functional(fake)

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is inside."""
        return torch_api.from_functional(tensor)

    def give(self, recorder: Recorder, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """By functionalization."""
        torch_api.replace_functional(tensor, value)

    def clones_inputs(self) -> bool:
        """Always."""
        return True


def _instead(layer: Direct, op: OpOverload, args: Any, kwargs: Any) -> tuple[Any] | None:
    """(What a call gives) that functionalization would not see as what it is: a write of an
    author's op, and what `_found_instead` gives."""
    if op_kind(op) is OpKind.MUTATES and is_authors(op) and not torch_api.is_composite(op):
        layer.settle()
        return (_written(op, args, kwargs),)
    found = _found_instead(op, args, kwargs)
    return None if found is None else (found,)


def _found_instead(op: OpOverload, args: Any, kwargs: Any) -> torch.Tensor | None:
    """What a call gives that functionalization would take for another: a write whose result lies
    otherwise, and an ``expand`` or ``unfold`` in which each element stands once, which it would
    write through by sums (of one: -0.0 becomes 0.0)."""
    if op is torch.ops.aten.unfold.default and _stand_once(*args):
        x, d, size, _ = args
        return x.unflatten(d, (x.shape[d] // size, size)).movedim(d % x.dim() + 1, -1)
    if op is torch.ops.aten.expand.default:
        added = len(args[1]) - args[0].dim()
        return None if _repeats(args[0], args[1]) else _unsqueezed(args[0], added)
    found = _made_elsewhere(op, args, kwargs)
    return None if found is None else found[0].copy_(found[1])


def _written(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """What an author's op gives, whose writes give new values to what it writes to."""
    result, bases, values = call_functional(
        op, args, kwargs, torch_api.whole_of, torch_api.from_functional
    )
    for base, value in zip(bases, values, strict=True):
        torch_api.replace_functional(base, value)
    return result


def _repeats(x: torch.Tensor, sizes: Sequence[Any]) -> bool:
    """Whether ``x.expand(sizes)`` may have elements that share memory, or none: a symbolic size may
    be 1."""
    known = (*[1] * (len(sizes) - x.dim()), *x.shape)
    pairs = zip(known, sizes, strict=True)
    asked = [(old, new) for old, new in pairs if type(new) is not int or new != -1]
    return not all(torch_api.surely_equal(old, new) for old, new in asked)


def _stand_once(x: torch.Tensor, d: int, size: Any, step: Any) -> bool:
    """Whether the windows, of sizes that are known, hold each element of ``x`` once."""
    if x.dim() == 0 or any(type(n) is not int for n in (x.shape[d], size, step)):
        return False
    return bool(size == step and x.shape[d] and x.shape[d] % size == 0)


def _unsqueezed(x: torch.Tensor, times: int) -> torch.Tensor:
    """A view of ``x`` with so many dimensions of size 1 in front."""
    if times == 0:
        return torch.ops.aten.alias.default(x)
    for _ in range(times):
        x = x.unsqueeze(0)
    return x


def _notice(op: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
    """Marks views through which functionalization does not write what eager does (it adds up what
    shares memory, or takes the last, and makes zeros of what no window holds), and views of those;
    raises Unsupported where one is written to. Counts the writes of ``_foreach_…_``."""
    kind = op_kind(op)
    if kind in (OpKind.VIEW, OpKind.ALIAS):
        if getattr(args[0], "repeats_or_skips", False) or _repeats_or_skips(op, args, result):
            for view in result if isinstance(result, list | tuple) else (result,):
                view.repeats_or_skips = True  # type: ignore[attr-defined]
    elif kind is not OpKind.PLAIN and any(
        getattr(tensor, "repeats_or_skips", False) for tensor in _written_to(op, args, kwargs)
    ):
        raise Unsupported("repeated-write", f"{op} through a view that repeats or skips elements")
    if kind is OpKind.FOREACH:  # autograd leaves that to the kernels, which functionalization drops
        torch_api.bump_versions(tuple(_written_to(op, args, kwargs)))


def _written_to(op: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that a call writes to."""
    found: list[torch.Tensor] = []
    for at, argument in enumerate(torch_api.schema_of(op).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[at] if at < len(args) else kwargs.get(argument.name)
            found += given if isinstance(given, list | tuple) else [given]
    return found


def _repeats_or_skips(op: OpOverload, args: Any, result: Any) -> bool:
    if op is torch.ops.aten.expand.default:
        return _repeats(args[0], args[1])
    if op is torch.ops.aten.unfold.default:
        return bool(args[2] > args[3]) or result.numel() != args[0].numel()
    return op is torch.ops.aten.as_strided.default and overlaps_itself(result)


def _made_elsewhere(
    op: OpOverload, args: Any, kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What ``op`` writes to, and what it gives in memory of its own, where that lies otherwise:
    functionalization would take it for the tensor itself (`masked_fill` gives rows)."""
    found = _form_elsewhere(op)
    if found is None:
        return None
    form, name = found
    kwargs = dict(kwargs)
    target = args[0] if name is None else kwargs.pop(name)
    given = [item for a in args for item in (a if isinstance(a, list | tuple) else (a,))]
    tensors = [a for a in (target, *given) if isinstance(a, torch.Tensor)]
    if all(map(torch_api.lies_in_rows, tensors)):
        return None
    made = form(*args, **kwargs)
    if made.shape != target.shape or made.dtype != target.dtype:
        return None
    return None if torch_api.lie_alike(made, target) else (target, made)


@lru_cache(maxsize=4096)
def _form_elsewhere(op: OpOverload) -> tuple[OpOverload, str | None] | None:
    """``op`` without its write, and the name of the argument that it writes where that is not the
    first; None if it writes several or draws numbers."""
    arguments = torch_api.schema_of(op).arguments
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    drawn = torch.Tag.nondeterministic_seeded in op.tags
    if len(written) != 1 or drawn or torch.Tag.inplace_view in op.tags:
        return None
    if not written[0].kwarg_only:
        simple = op_kind(op) is OpKind.IN_PLACE and op is not torch.ops.aten.copy_.default
        form = functional_form(op) if simple else None
        return None if form is None else (form, None)
    packet = getattr(getattr(torch.ops, op.namespace), torch_api.op_name(op))
    wanted = [(a.name, str(a.type)) for a in arguments if a is not written[0]]
    for name in packet.overloads():
        form = getattr(packet, name)
        if [(a.name, str(a.type)) for a in torch_api.schema_of(form).arguments] == wanted:
            return form, written[0].name
    return None
