"""A graph that raises leaves no trace: random generators and written inputs are put back, so that
a rerun (`errors.RerunOn`) does its work only once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import LeftToEager, RerunOn


def put_back_random(call: Callable[..., Any], rerun_on: RerunOn) -> Callable[..., Any]:
    """``call``, but where it raises one of ``rerun_on``, torch's own generators are where they were
    before."""
    if not rerun_on:
        return call

    def run(*inputs: Any) -> Any:
        put_back = torch_api.note_generators()
        try:
            return call(*inputs)
        except rerun_on:
            put_back()
            raise

    return run


def put_back_written(
    call: Callable[..., Any], written: Sequence[int], rerun_on: RerunOn = (LeftToEager,)
) -> Callable[..., Any]:
    """``call``, but where it raises one of ``rerun_on``, the inputs at ``written``, which it may
    have written to by then, hold what they held before."""
    if not written:
        return call

    def run(*inputs: Any) -> Any:
        old = [inputs[i].detach().clone() for i in written]
        try:
            return call(*inputs)
        except rerun_on:
            for i, value in zip(written, old, strict=True):
                _restore(inputs[i], value)
            raise

    return run


def _restore(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copies ``value`` into ``tensor`` behind autograd's back: nothing has been written."""
    tensor.data.copy_(value)
