"""The autograd node of a compiled region: what torch calls when the user calls ``backward()``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.events import log
from jitney.graph.eager_gradients import CannotRerun, EagerGradients
from jitney.graph.region import Input, RegionFacts, Result, ResultFacts
from jitney.graph.separate_parts import Parts, filled_in, keep_rest, keep_saved, parts_of, saved_for
from jitney.graph.tangent_variants import TangentVariants

Compiled = Callable[..., Any]
Backward = Compiled | TangentVariants
_NEITHER = (
    "gradients cannot come from the compiled graph (many at a time, within a transform, what a"
    " custom backward reads has changed, or it cannot be traced for just the results that were"
    " used), and eager cannot run"
)


def autograd_function(
    facts: RegionFacts,
    forward: Compiled,
    backward: Backward,
    eager: EagerGradients,
) -> Compiled:
    """``call(*inputs) -> results`` whose gradients ``backward`` computes, or ``eager`` those that
    it has to.

    Saved tensors go through ``save_for_backward``, so that a later write to one of them is an
    error and saved-tensor hooks see them. Where ``eager`` cannot, differentiating the gradients
    raises torch's error for a function that can be differentiated once.
    """
    node = _node_class(facts, forward, backward, eager)
    apply = torch_api.node_apply(node)
    differentiated = _picker(facts.grad_inputs)

    def call(*inputs: Any) -> Any:
        if torch_api.functorch_is_active():
            return node.apply(inputs, *differentiated(inputs))
        return apply(inputs, *differentiated(inputs))

    return call


def _picker(positions: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that picks the items at ``positions`` of a tuple."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda values: tuple([values[position] for position in positions])


def _place(facts: RegionFacts, place: Input | Result) -> int:
    """Where a saved value is found in (*inputs, *forward outputs)."""
    return place.index if isinstance(place, Input) else facts.input_count + place.index


def _node_class(
    facts: RegionFacts, forward: Compiled, backward: Backward, eager: EagerGradients
) -> Any:
    count = len(facts.results)
    tensors = tuple(i for i, r in enumerate(facts.results) if r.dtype)
    fixed = tuple(i for i, r in enumerate(facts.results) if r.tangent is None and r.dtype)
    saved_tensors = _picker([_place(facts, place) for place in facts.saved_tensors])
    saved_sizes = _picker([_place(facts, place) for place in facts.saved_sizes])
    dynamic = tuple(i for i in facts.tangents if None in _shape_of(facts.results[i]))
    parts = parts_of(facts)
    add_at_results = _adding_at_results(facts, eager, parts)
    run = _either(
        _compiled_backward(facts, backward, dynamic, parts), _eagers(facts, eager, parts), eager
    )
    is_view = torch_api.is_view

    class CompiledRegion(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: tuple[Any, ...], *_: Any) -> Any:
            ctx.given = eager.note(inputs)
            values = list(forward(*inputs))
            for i in tensors:  # a view made in here is one that autograd lets nobody write to
                if is_view(values[i]):
                    values[i] = values[i].detach()
            ctx.set_materialize_grads(False)
            everything = (*inputs, *values)
            ctx.save_for_backward(*saved_tensors(everything))
            ctx.sizes = saved_sizes(everything)
            ctx.rest, ctx.watched = None, ()
            if dynamic:
                ctx.like = {i: torch.empty_like(values[i], device="meta") for i in dynamic}
            if fixed:
                ctx.mark_non_differentiable(*[values[i] for i in fixed])
            return tuple(values[:count])

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            tangents = {i: g for i, g in enumerate(grads) if g is not None}
            if not tangents:  # passed on the way to another node, by what comes from none of ours
                return keep_saved(ctx, parts, len(facts.grad_inputs))
            if any(each.is_looked_at() for each in ctx.watched):
                add_at_results(ctx, tangents)
            return run(ctx, grads, tangents)

    torch_api.hide_from_dynamo(CompiledRegion.backward)  # compiled autograd calls it as it is
    return CompiledRegion


def _adding_at_results(
    facts: RegionFacts, eager: EagerGradients, parts: Parts
) -> Callable[[Any, dict[int, Any]], None]:
    """``add(ctx, gradients of results by index)``: to results that are looked at what comes to them
    through others. Raises RuntimeError where that cannot be."""
    bits = {index: 1 << position for position, index in enumerate(facts.tangents)}

    def add(ctx: Any, tangents: dict[int, Any]) -> None:
        looked_at = [each for each in ctx.watched if each.is_looked_at()]
        asked = [(each, each.asked_of(tangents)) for each in looked_at]
        asked = [(each, through) for each, through in asked if through]
        if not asked:
            return
        saved = saved_for(ctx, sum(bits[i] for i in tangents), parts, "eager")
        wanted = [(each.position, through) for each, through in asked]
        try:
            found = eager.at_outputs(ctx.given, filled_in(saved), wanted)
        except CannotRerun as error:
            raise asked[0][0].refused(f"eager cannot run again ({error})") from None
        for (each, _), part in zip(asked, found, strict=True):
            if part is not None:
                each.add(part)

    return add


def _eagers(facts: RegionFacts, eager: EagerGradients, parts: Parts) -> Callable[..., Any]:
    """``run(ctx, gradients of results by index)``, by eager's own backward pass."""
    bits = {index: 1 << position for position, index in enumerate(facts.tangents)}

    def run(ctx: Any, tangents: dict[int, Any]) -> tuple[Any, ...]:
        present = sum(bits[i] for i in tangents)
        saved = saved_for(ctx, present, parts, "eager")
        gradients = eager.gradients(ctx.given, filled_in(saved), tangents)
        keep_rest(ctx, saved, present, parts)
        _release(ctx)
        return (None, *gradients)

    return run


def _either(
    compiled: Callable[..., Any], eagers: Callable[..., Any], eager: EagerGradients
) -> Callable[..., Any]:
    """``run(ctx, gradients of results, those that are given by index)``: eager where it is needed,
    and where modes have changed and it can; else compiled."""

    def run(ctx: Any, grads: tuple[Any, ...], tangents: dict[int, Any]) -> tuple[Any, ...]:
        needed = eager.are_needed(tangents.values())
        if not needed and eager.modes_have_changed():
            with suppress(CannotRerun):
                return eagers(ctx, tangents)
        if not needed:
            try:
                return compiled(ctx, grads)
            except Unsupported as no:  # the graph for just these gradients cannot be traced
                log.emit("eager_graph", reason_kind=no.kind, reason=str(no))
        try:
            return eagers(ctx, tangents)
        except CannotRerun as error:
            reason = _known_reason(error, tangents)
        with torch.no_grad():
            gradients = compiled(ctx, grads)
        return torch_api.not_differentiable(gradients, reason, [ctx])

    return run


def _known_reason(error: CannotRerun, tangents: dict[int, Any]) -> str:
    """The reason why gradients cannot be differentiated. Raises where there can be no gradients at
    all."""
    wrapped = any(map(torch_api.is_more_than_its_memory, tangents.values()))
    if wrapped or not torch.is_grad_enabled():
        raise RuntimeError(f"{_NEITHER} again: {error}") from None
    return str(error)


def _compiled_backward(
    facts: RegionFacts, backward: Backward, dynamic: Collection[int], parts: Parts
) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]:
    """``run(ctx, gradients of results)``, which gives what the node's backward returns."""
    expected, one = facts.tangents, parts.are_one()

    def run_backward(ctx: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        run: Any = backward
        missing = [position for position, i in enumerate(expected) if grads[i] is None]
        left_out: Collection[int] = ()
        if isinstance(run, TangentVariants):
            run, left_out = run.without(missing)
        present = parts.everything - sum(1 << position for position in missing)
        values = [*ctx.sizes]
        if not missing and one and ctx.rest is None:
            values += ctx.saved_tensors  # by no other name: `consume` frees them one by one
        else:
            saved = saved_for(ctx, present, parts, "whole" if missing and not left_out else "part")
            if not one or ctx.rest is not None:
                keep_rest(ctx, saved, present, parts)
            values += filled_in(saved)
            del saved
        values += [
            _prepared(grads[i], facts.results[i], ctx.like.get(i) if dynamic else None)
            for position, i in enumerate(expected)
            if position not in left_out
        ]
        ctx.maybe_clear_saved_tensors()
        _release(ctx)
        gradients = run.consume(values) if hasattr(run, "consume") else run(*values)
        if missing:
            pairs = zip(gradients, facts.grad_tangents, strict=True)
            gradients = [g if reached & present else None for g, reached in pairs]
        return (None, *gradients)

    return run_backward


def _release(ctx: Any) -> None:
    """Lets go what is kept for eager, if no pass comes after this one."""
    left = ctx.rest is not None and ctx.rest.tangents
    if ctx.given.kept and not left and not torch_api.keeps_graph():
        ctx.given.kept.clear()


def _shape_of(result: ResultFacts) -> tuple[int | None, ...]:
    return (*(result.sizes or ()), *(result.strides or ()))


def _prepared(grad: Any, result: ResultFacts, like: torch.Tensor | None) -> torch.Tensor:
    """The gradient, with the sizes and strides for which the backward graph was compiled, and its
    elements as they are in memory."""
    sizes = result.sizes if like is None else like.shape
    strides = result.tangent_strides if like is None else like.stride()
    if grad is not None and grad.stride() == strides and not (grad.is_neg() or grad.is_conj()):
        return grad
    fresh = torch.empty_strided(sizes, strides, dtype=result.dtype, device=result.device)  # type: ignore[arg-type]
    return fresh.zero_() if grad is None else fresh.copy_(grad)
