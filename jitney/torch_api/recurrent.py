"""Recurrent networks as ops of their own: whole for a GPU, and for a CPU's many cells
(``jitney::lstm`` and so on); else for a CPU a layer with what its backward pass reads
(``jitney::lstm_layer``), or layer by layer (`LAYERED`).

torch decomposes them in C++, where it asks for the addresses of the weights, which fake tensors
lack; and the layout that it predicts for cuDNN's results is wrong. oneDNN's kernel of a layer asks
for the grad mode, which is off while a graph runs.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """The results for fakes, steps outermost in memory: ``x`` [steps, batch, features], or [batch,
    steps, features] if ``batch_first``; ``states`` [layers * directions, batch, hidden]."""
    given = [states] if isinstance(states, torch.Tensor) else states
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    out = x.new_empty((steps, batch, given[0].shape[-1] * (2 if bidirectional else 1)))
    out = out.transpose(0, 1) if batch_first else out
    return (out, *(state.new_empty(state.shape) for state in given))


for _name in RECURRENT:
    _define(_name)


def _define_layer() -> None:
    """Defines the op of a layer. Its last result, the workspace, has the size that oneDNN needs;
    torch predicts none."""
    layer = torch.ops.aten.mkldnn_rnn_layer.default
    schema = str(layer._schema)
    tags = (torch.Tag.dynamic_output_shape,)
    _LIBRARY.define("lstm_layer" + schema[schema.index("(") :], tags=tags)

    def trained(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
            return layer(*args)

    _LIBRARY.impl("lstm_layer", trained, "CPU")
    torch.library.register_fake("jitney::lstm_layer", lambda *args: layer(*args), lib=_LIBRARY)


_define_layer()
_LAYER = torch.ops.jitney.lstm_layer.default


def trained_kernel(op: Any) -> Any:
    """What an op is recorded as under gradients: of a layer of an LSTM, the kernel that keeps what
    the backward pass reads."""
    return _LAYER if op is torch.ops.aten.mkldnn_rnn_layer.default else op


def _layered(whole: Any) -> Any:
    """``whole`` on a CPU layer by layer. torch's Python decomposition, which it takes where sizes
    are symbols, forgets the dropout between layers, and takes every LSTM with a gradient apart
    into its steps."""

    def network(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        if kwargs or len(args) != 9 or not isinstance(args[3], bool) or not _fits(*args):
            return tuple(whole(*args, **kwargs))
        x, states, batch_first = args[0], args[1], args[8]
        batch = x.shape[0 if batch_first else 1]
        given = [states] if isinstance(states, torch.Tensor) else states
        if any(state.shape[1] != batch for state in given):  # torch's Python lets them broadcast
            raise RuntimeError("states of another batch: eager has its say")
        return _by_layers(whole, *args)

    return network


LAYERED = {getattr(torch, name): _layered(getattr(torch, name)) for name in RECURRENT}


#: Cells (steps of a layer one way) up to which a graph holds them one by one: each takes one to
#: three tenths of a second to compile, and every other number of steps is compiled anew.
FEW_CELLS = 16


def has_many_cells(name: str, args: tuple[Any, ...]) -> bool:
    """Whether torch would take a CPU's network apart into more cells than are worth compiling, or
    into a symbolic number of them; ``args``: those of torch's function of that name. Not of a
    packed sequence."""
    if len(args) != 9 or not isinstance(args[3], bool) or not _fits(*args):
        return False
    x, states, weights, batch_first = *args[:3], args[8]
    given = [states] if isinstance(states, torch.Tensor) else list(states)
    if name == "lstm" and _has_kernel(x, given, weights):
        return False
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    if any(state.shape[1] != batch for state in given):
        return False
    return type(steps) is not int or steps * given[0].shape[0] > FEW_CELLS


def _fits(x: Any, states: Any, weights: Any, _: bool, layers: int, *forms: Any) -> bool:
    """Whether the call is for a CPU, with states and weights for each layer. Any other call is left
    to torch."""
    rows = layers * (2 if forms[2] else 1)
    given = [states] if isinstance(states, torch.Tensor) else list(states)
    return (
        x.device.type == "cpu"
        and all(s.shape[0] == rows for s in given)
        and (0 < rows <= len(weights) and len(weights) % rows == 0)
    )


def _by_layers(
    whole: Any,
    x: torch.Tensor,
    states: torch.Tensor | Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    given = [states] if isinstance(states, torch.Tensor) else list(states)
    x = x.transpose(0, 1) if batch_first else x
    size, both = len(weights) // layers, 2 if bidirectional else 1
    kept = whole is not torch.lstm or not _has_kernel(x, given, weights)
    made: list[Any] = []
    for layer in range(layers):
        own = weights[layer * size : (layer + 1) * size]
        state = [s[layer * both : (layer + 1) * both] for s in given]
        if kept:
            first = state[0] if whole is not torch.lstm else state
            x, *after = whole(x, first, own, has_biases, 1, 0.0, train, bidirectional, False)
            # torch 2.11's Python decomposition of an LSTM stacks them once too often
            after = [part.reshape(s.shape) for part, s in zip(after, state, strict=True)]
        else:
            x, *after = _lstm_layer(x, state, own, has_biases, train)
        made.append(after)
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.cat(parts) for parts in zip(*made, strict=True)))


def _has_kernel(
    x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> bool:
    """Whether oneDNN has a kernel for an LSTM's layer. Otherwise torch decomposes it."""
    floats = all(t.dtype is torch.float32 for t in (x, *states, *weights))
    projects = states[0].shape[-1] != states[1].shape[-1]
    return floats and not projects and torch._C._get_mkldnn_enabled() and x.numel() != 0


def _lstm_layer(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    train: bool,
) -> tuple[torch.Tensor, ...]:
    """A layer's directions beside one another; then the last hidden and cell states of each."""
    x, (hidden, cell) = x.contiguous(), (s.contiguous() for s in states)
    per, found = 4 if has_biases else 2, []
    for k in range(len(weights) // per):
        own = list(weights[k * per : (k + 1) * per])
        own += [] if has_biases else [torch.zeros_like(w) for w in own]
        own += [hidden[k], cell[k]]
        of_lstm, size = 2, hidden.shape[-1]
        found.append(
            torch.ops.aten.mkldnn_rnn_layer.default(
                x, *own, k > 0, [], of_lstm, size, 1, has_biases, False, False, train
            )
        )
    outputs, hiddens, cells = list(zip(*found, strict=True))[:3]
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
    return out, torch.stack(hiddens), torch.stack(cells)
