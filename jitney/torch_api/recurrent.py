"""Recurrent networks on a GPU as ops of their own, ``jitney::lstm`` and so on.

torch takes them apart in C++, where it asks for the addresses of the weights, which fake tensors
lack; and the layout it foretells for cuDNN's results is not the one they have.
"""

from __future__ import annotations

from typing import Any

import torch

RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))

_LIBRARY = torch.library.Library("jitney", "FRAGMENT")


def recurrent_op(name: str) -> Any:
    """The op that runs torch's function of that name whole; it takes what that one takes, not
    packed."""
    return getattr(torch.ops.jitney, name).default


def _define(name: str) -> None:
    whole = getattr(torch.ops.aten, name).input
    schema = str(whole._schema)
    _LIBRARY.define(name + schema[schema.index("(") :])
    _LIBRARY.impl(name, lambda *args: whole(*args), "CompositeExplicitAutograd")
    torch.library.register_fake(f"jitney::{name}", _foretold, lib=_LIBRARY)


def _foretold(
    x: torch.Tensor,
    states: torch.Tensor | list[torch.Tensor],
    weights: list[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """The results, steps outermost in memory: ``x`` [steps, batch, features], or [batch, steps,
    features] if ``batch_first``; ``states`` [layers * directions, batch, hidden]."""
    given = [states] if isinstance(states, torch.Tensor) else states
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    out = x.new_empty((steps, batch, given[0].shape[-1] * (2 if bidirectional else 1)))
    out = out.transpose(0, 1) if batch_first else out
    return (out, *(state.new_empty(state.shape) for state in given))


for _name in RECURRENT:
    _define(_name)
