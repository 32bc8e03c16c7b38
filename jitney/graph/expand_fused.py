"""``torch._fused_adam_`` and its siblings: a whole optimizer's step is plain ops on each tensor.

Eager's kernels compute in float32 at least, the sizes of steps in 64 bits, and round once, when
they write. On a CPU they walk through memory whatever the strides say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported

_HALVES = (torch.bfloat16, torch.float16)
_Number = torch.Tensor | float
_List = Sequence[torch.Tensor]


def expand_fused(target: Any) -> Callable[..., None] | None:
    """What a call of ``target`` is written out as; None unless it is such a step's function.

    Its calls raise Unsupported for what eager's kernels treat in a way of their own.
    """
    name = torch_api.fused_step(target)
    return None if name is None else _EXPANDED[name]


def _adam(
    params: _List,
    grads: _List,
    averages: _List,
    squares: _List,
    largest: _List,
    steps: _List,
    *,
    lr: _Number,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
    decoupled: bool,
) -> None:
    """``largest`` is empty unless ``amsgrad``."""
    lists = (params, grads, averages, squares, *((largest,) if amsgrad else ()))
    _refuse("Adam", lists, steps, (grad_scale, found_inf), _HALVES)
    lr = _number(lr)
    for at, p in enumerate(params):
        step = _number(steps[at])
        x, m, v = (_wide(t[at]) for t in (params, averages, squares))
        g, unscaled = _gradient(grads[at], grad_scale, maximize)
        if weight_decay != 0 and decoupled:
            x = x * (1 - lr * weight_decay)
        elif weight_decay != 0:
            g = g + x * weight_decay
        m = torch.lerp(m, g, 1 - beta1)
        v = v * beta2 + g * g * (1 - beta2)
        new = [unscaled, m, v]
        old = [grads[at], averages[at], squares[at]]
        if amsgrad:
            v = torch.maximum(_wide(largest[at]), v)
            new.append(v)
            old.append(largest[at])
        below = v.sqrt() / (1 - beta2**step) ** 0.5 + eps
        x = x - m * (lr / (1 - beta1**step)) / below
        _write([p, *old], [x, *new], found_inf)


def _sgd(
    params: _List,
    grads: _List,
    buffers: _List,
    *,
    weight_decay: float,
    momentum: float,
    lr: _Number,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """``buffers`` is empty without momentum; at the first step nobody reads them."""
    if bool(buffers) != (momentum != 0):
        raise Unsupported("fused-step", "a fused SGD with momentum or buffers, not both")
    lists = (params, grads, buffers) if buffers else (params, grads)
    _refuse("SGD", lists, (), (grad_scale, found_inf))
    lr = _number(lr)
    for at, p in enumerate(params):
        x = _wide(p)
        g, unscaled = _gradient(grads[at], grad_scale, maximize)
        if weight_decay != 0:
            g = g + x * weight_decay
        if not buffers:
            _write([p, grads[at]], [x - g * lr, unscaled], found_inf)
            continue
        b = g if is_first_step else _wide(buffers[at]) * momentum + g * (1 - dampening)
        g = g + b * momentum if nesterov else b
        _write([p, grads[at], buffers[at]], [x - g * lr, unscaled, b], found_inf)


def _adagrad(
    params: _List,
    grads: _List,
    sums: _List,
    steps: _List,
    *,
    lr: _Number,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    _refuse("Adagrad", (params, grads, sums), steps, (grad_scale, found_inf))
    lr = _number(lr)
    for at, p in enumerate(params):
        x = _wide(p)
        g, unscaled = _gradient(grads[at], grad_scale, maximize)
        if weight_decay != 0:
            g = g + x * weight_decay
        s = _wide(sums[at]) + g * g
        size = lr / (1 + (_number(steps[at]) - 1) * lr_decay)
        x = x - g * size / (s.sqrt() + eps)
        _write([p, grads[at], sums[at]], [x, unscaled, s], found_inf)


_EXPANDED: dict[str, Callable[..., None]] = {
    "adam": partial(_adam, decoupled=False),
    "adamw": partial(_adam, decoupled=True),
    "sgd": _sgd,
    "adagrad": _adagrad,
}


def _number(value: _Number) -> _Number:
    """A tensor of one element as a number of 64 bits."""
    return value.double().reshape(()) if isinstance(value, torch.Tensor) else value


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in _HALVES else x


def _gradient(
    given: torch.Tensor, scale: torch.Tensor | None, maximize: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradient to go against, and what is to be written as the one ``given``, if anything."""
    g = unscaled = _wide(given)
    if scale is not None:
        g = unscaled = g / scale.reshape(())
    return -g if maximize else g, None if scale is None else unscaled


def _write(
    old: Sequence[torch.Tensor], new: Sequence[torch.Tensor | None], found: torch.Tensor | None
) -> None:
    """Gives the ``old`` tensors their new values, unless an infinite gradient was ``found``."""
    for to, value in zip(old, new, strict=True):
        if value is None:
            continue
        value = value.to(to.dtype)
        to.copy_(value if found is None else torch.where(found.reshape(()) == 1, to, value))


def _refuse(
    name: str,
    lists: Sequence[_List],
    steps: _List,
    of_scaler: Sequence[torch.Tensor | None],
    halves: tuple[torch.dtype, ...] = (),
) -> None:
    """Unsupported unless tensors that belong together lie alike, and eager's arithmetic is ours.

    ``lists``: parameters, gradients and states, of float32, float64, or on a CPU ``halves``; a
    GPU's kernels take all 16-bit dtypes alike. ``steps``, ``of_scaler``: of float32, one element.
    """

    def no(why: str) -> Unsupported:
        return Unsupported("fused-step", f"a fused {name} of {why} runs as torch's own kernel")

    if torch.is_grad_enabled() and any(p.requires_grad for p in lists[0]):
        raise no("parameters under autograd")
    known = (torch.float32, torch.float64, *halves)
    for p, *others in zip(*lists, strict=True):
        if p.dtype not in ((*known, *_HALVES) if p.device.type == "cuda" else known):
            raise no(f"{p.dtype} on a {p.device.type.upper()}")
        if any((t.shape, t.dtype, t.device) != (p.shape, p.dtype, p.device) for t in others):
            raise no("parameters, gradients and states of several shapes or dtypes")
        if not torch_api.lie_alike_without_gaps((p, *others)):
            raise no("parameters, gradients and states that lie in memory each in its own way")
    for one in (*steps, *(t for t in of_scaler if t is not None)):
        if one.dtype != torch.float32 or one.numel() != 1:
            raise no("steps or scales other than one float32 element")
    if steps and len(steps) != len(lists[0]):
        raise no("parameters without steps")
