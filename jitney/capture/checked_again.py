"""Python state that a checkpoint reads: eager reads it again in the backward pass.

A graph computes a checkpoint again from what was read when its frame was captured. If the frame
itself changes that state, the graph breaks. If others change it between a call and its backward
pass, the backward pass finds this when it begins, and raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import recipe as r
from jitney.capture.check_guards import Check, compile_check
from jitney.capture.emit_fetch import FUNCTION, Writer, build_function
from jitney.capture.guard import Guard, Kind
from jitney.capture.policy_table import COLLECTORS
from jitney.capture.source import Attr, DictItem, Item, Local, ModuleOf, Source

if TYPE_CHECKING:
    from jitney.capture.world import World

_ON_VALUES = frozenset({
    Kind.TYPE, Kind.IS, Kind.EQUALS, Kind.LENGTH, Kind.KEYS, Kind.HAS_KEY, Kind.NO_KEY,
    Kind.CLASS_ATTR, Kind.NO_ATTR,
})  # fmt: skip
_COLLECTORS = frozenset(
    DictItem(Attr(ModuleOf(module), "__dict__"), name)
    for module, _, name in (collector.rpartition(".") for collector in COLLECTORS)
)


@dataclass(frozen=True)
class CheckedAgain:
    """``guards`` that must hold when the backward pass begins, and the ``sources`` at which there
    must be the tensors (and symbolic numbers) that the call was given."""

    guards: tuple[Guard, ...]
    sources: tuple[Source, ...]

    def watcher(self, parameters: Sequence[str], name: str) -> Callable[..., None]:
        """``watch(results of the graph, function, *locals)``, to be called after the graph."""
        writer = Writer(parameters)
        values = [writer.fetch(source) for source in self.sources]
        body = ["try:", *(f"    {line}" for line in writer.lines)]
        body += [f"    return ({''.join(f'{value}, ' for value in values)})"]
        body += [f"except {writer.constant(Exception)}:", "    return None"]
        fetch = build_function(
            "fetch",
            [FUNCTION, *writer.parameters],
            body,
            writer.constants,
            filename=f"<jitney tensors of {name}>",
        )
        roots = {_root(source) for source in (*(g.source for g in self.guards), *self.sources)}
        needed = (True, *[Local(parameter) in roots for parameter in parameters])
        check = compile_check(self.guards, parameters, name)
        return partial(_watch, check, fetch, needed)


def checked_again(world: World, noted: Iterable[set[Source]]) -> CheckedAgain | None:
    """What to check again of what was ``noted`` while checkpoints ran; None for nothing."""
    read = set().union(*noted)
    whole = {g.source for g in world.guards.values() if g.kind in (Kind.LENGTH, Kind.KEYS)} & read

    def is_read(source: Source) -> bool:
        if _only_collects(source):
            return False
        return source in read or isinstance(source, Item | DictItem) and source.base in whole

    guards = [g for g in world.guards.values() if is_read(g.source)]
    tensors = [g.source for g in guards if g.kind is Kind.TENSOR and not _is_local(g.source)]
    exact = {g.source for g in guards if g.kind is Kind.EQUALS}
    numbers = [
        g.source
        for g in guards
        if g.kind is Kind.TYPE and g.expected in (int, float) and g.source not in exact
    ]
    checked = [g for g in guards if g.kind in _ON_VALUES and not _is_local(g.source)]
    sources = [source for source in (*tensors, *numbers) if not _is_local(source)]
    return CheckedAgain(tuple(checked), tuple(sources)) if checked or sources else None


def is_changed(effects: Iterable[r.Effect], noted: set[Source]) -> bool:
    """Whether one of a frame's effects changes what was ``noted``."""
    return any(_place(effect) in noted for effect in effects)


def _place(effect: r.Effect) -> Source | None:
    target = getattr(effect, "target", None)
    if not isinstance(target, r.Given):
        return None
    if isinstance(effect, r.StoreItem | r.DeleteItem) and isinstance(effect.key, r.Constant):
        return DictItem(target.source, effect.key.value)
    if isinstance(effect, r.StoreAttr):
        return Attr(target.source, effect.name)
    return target.source


def _root(source: Source) -> Source:
    base = getattr(source, "base", None)
    return source if base is None else _root(base)


def _only_collects(source: Source) -> bool:
    base = getattr(source, "base", None)
    return source in _COLLECTORS or base is not None and _only_collects(base)


def _is_local(source: Source) -> bool:
    return isinstance(source, Local)  # nobody binds it anew once the frame has ended


def _watch(
    check: Check,
    fetch: Callable[..., Any],
    needed: tuple[bool, ...],
    results: Sequence[Any],
    *frame: Any,
) -> None:
    tensors = [x for x in results if isinstance(x, torch.Tensor)]
    nodes = {x.grad_fn for x in tensors if x.grad_fn is not None}
    if nodes:
        kept = [value if need else None for value, need in zip(frame, needed, strict=True)]
        hook = partial(_verify, check, fetch, kept, fetch(*kept))
        for node in nodes:
            node.register_prehook(hook)


def _verify(
    check: Check, fetch: Callable[..., Any], frame: Sequence[Any], before: Any, _: Any
) -> None:
    now = fetch(*frame)
    same = before is not None and now is not None and all(map(_is_same, before, now))
    if not same or not check(*frame):
        raise RuntimeError(
            "Python state that a checkpoint reads has changed since its forward pass: eager "
            "computes the checkpoint again from what is there now, a compiled function cannot. "
            "Change it after backward(), or leave the function that it is in to eager"
        )


def _is_same(before: Any, now: Any) -> bool:
    return before is now or not isinstance(now, torch.Tensor) and before == now
