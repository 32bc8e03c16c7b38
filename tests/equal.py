"""The assertion that every differential test uses: a compiled callable equals eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from jitney.diagnostics.equality import Difference, differences
from tests.conformance.noise import Move, errors_nearby, suspects


def assert_equal(actual: Any, expected: Any, reference: Any = None) -> None:
    """Fails with every difference, one a line.

    Gradients that share memory in eager (of `torch.stack`, say) do so by accident: no promise.
    """
    found = promised_differences(actual, expected, reference)
    assert not found, "\n".join(map(str, found[:20]))


def promised_differences(actual: Any, expected: Any, reference: Any = None) -> list[Difference]:
    """`differences` without those that `assert_equal` forgives."""
    return [
        difference
        for difference in differences(actual, expected, reference)
        if not (difference.path.startswith("['gradients']") and "does not share" in difference.what)
    ]


def assert_equal_nearby(
    again: Callable[[Move], tuple[Any, Any]], actual: Any, expected: Any, reference: Any
) -> None:
    """`assert_equal`, with eager's error taken at inputs a rounding away too (`errors_nearby`):
    where what is summed cancels, as a norm of equal numbers does, its error at one is luck.
    ``again``: eager's result and the reference for it at inputs that were moved."""
    judged = suspects(promised_differences(actual, expected, reference), actual, reference)
    own = errors_nearby(again) if judged else {}
    found = [str(one.found) for one in judged if not one.is_noise(own)]
    assert not found, "\n".join(found[:20])


def fresh(inputs: Any, dtype: torch.dtype | None = None) -> Any:
    """Deep copies that keep aliasing, leaves and requires_grad; floats in ``dtype`` if given."""
    memo: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value if callable(value) else copy.deepcopy(value, memo)
        if dtype is None or not value.is_floating_point():
            return copy.deepcopy(value, memo) if value.is_leaf else value.detach().clone()
        return value.detach().to(dtype).requires_grad_(value.requires_grad)

    return pytree.tree_map(copied, inputs)


def run(fn: Callable[..., Any], inputs: tuple[Any, ...], training: bool) -> Any:
    """The result, the inputs after the call, and with ``training`` the inputs' gradients."""
    result = fn(*inputs)
    if not training:
        return {"result": result, "inputs": inputs}
    outputs = [
        x
        for x in pytree.tree_leaves(result)
        if isinstance(x, torch.Tensor) and x.requires_grad and x.is_floating_point()
    ]
    if outputs:
        weights = [weights_of(o) for o in outputs]
        torch.autograd.backward(outputs, weights)
    leaves = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    gradients = [x.grad for x in leaves if x.is_leaf]
    return {"result": result, "inputs": inputs, "gradients": gradients}


def weights_of(result: torch.Tensor) -> torch.Tensor:
    """A result's gradient: of both signs, or a norm's backward pass has little left of it, and of
    values that every dtype holds, so that a float64 run has the same."""
    count = result.numel()
    signs = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(count)) * 2 - 1
    made = torch.linspace(0.5, 1.5, count, dtype=torch.float32).to(torch.bfloat16) * signs
    return made.view(result.shape).to(result)


def float64_run(fn: Callable[..., Any], inputs: tuple[Any, ...], training: bool) -> Any:
    """The same in float64, None where the function does not run in it."""
    if isinstance(fn, torch.nn.Module):
        fn = copy.deepcopy(fn).double()
    try:
        return run(fn, fresh(inputs, torch.float64), training)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None


def assert_equal_to_eager(
    fn: Callable[..., Any],
    compiled: Callable[..., Any],
    inputs: tuple[Any, ...],
    training: bool = False,
    calls: int = 2,
    nearby: bool = False,
) -> None:
    """Runs both on copies of ``inputs`` ``calls`` times and compares everything a user can see.

    Results, inputs after the call (mutations, aliasing) and, with ``training``, the gradients of
    the inputs and of a module's parameters. An error must be raised by both, of the same type.
    ``nearby``: results by `assert_equal_nearby`.
    """
    reference = float64_run(fn, inputs, training)

    def again(move: Move) -> tuple[Any, Any]:
        moved = pytree.tree_map(move, fresh(inputs))
        return seeded(fn, moved, training), float64_run(fn, moved, training)

    for _ in range(calls):
        before = buffers(fn)
        try:
            expected = seeded(fn, inputs, training)
        except Exception as error:
            try:
                compiled(*fresh(inputs))
            except type(error):
                return
            raise AssertionError(f"eager raises {error!r}, the compiled call does not") from error
        expected_state = take_gradients(fn), buffers(fn)
        restore(fn, before)
        actual = seeded(compiled, inputs, training)
        if nearby and reference is not None:
            assert_equal_nearby(again, actual, expected, reference)
        else:
            assert_equal(actual, expected, reference)
        assert_equal((take_gradients(fn), buffers(fn)), expected_state)
        restore(fn, before)


def seeded(fn: Callable[..., Any], inputs: tuple[Any, ...], training: bool) -> Any:
    """`run` on fresh copies with the same random numbers every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return run(fn, fresh(inputs), training)


def buffers(fn: Callable[..., Any]) -> dict[str, torch.Tensor]:
    """Copies of a module's buffers (running statistics, caches) by name."""
    if not isinstance(fn, torch.nn.Module):
        return {}
    return {name: buffer.clone() for name, buffer in fn.named_buffers()}


def restore(fn: Callable[..., Any], values: dict[str, torch.Tensor]) -> None:
    """Writes earlier values of the buffers back in place."""
    if isinstance(fn, torch.nn.Module):
        with torch.no_grad():
            for name, buffer in fn.named_buffers():
                buffer.copy_(values[name])


def take_gradients(fn: Callable[..., Any]) -> dict[str, torch.Tensor]:
    """Gradients of a module's parameters, which are then cleared."""
    if not isinstance(fn, torch.nn.Module):
        return {}
    gradients = {n: p.grad for n, p in fn.named_parameters() if p.grad is not None}
    fn.zero_grad(set_to_none=True)
    return gradients
