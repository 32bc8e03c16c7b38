"""Memory that a call is given for its results (``out=``), and which calls break because of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.frame import BreakCapture
from jitney.capture.leaves import name_of
from jitney.torch_api.trees import tree_leaves


def memory_given(kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The memory for results (``out``) that a call is given."""
    out = kwargs.get("out")
    if out is None:
        return ()
    return (out,) if isinstance(out, torch.Tensor) else tuple(out)


def refuse_resized(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Breaks where the memory has another shape than the result: eager would resize it. Found out
    by a trial on other fakes, since an input's own must keep its shape."""
    given = memory_given(kwargs)
    tried = tuple([t.new_empty_strided(t.shape, t.stride()) for t in given])
    try:
        func(*args, **{**kwargs, "out": tried[0] if kwargs["out"] is given[0] else tried})
    except Exception:  # noqa: BLE001 - raised again by the call itself, where it is told
        return
    if any(a.shape != b.shape for a, b in zip(given, tried, strict=True)):
        hint = "give memory of the result's shape"
        raise BreakCapture("resized-out", f"out= of {name_of(func)} is resized", hint)


def refuse_lost(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Breaks before a call whose result would not be in the memory it is given (``out``), or that
    eager refuses, since gradients would have to go through that memory."""
    given = tree_leaves((args, kwargs)) if torch.is_grad_enabled() else ()
    apart = any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)
    if apart or name_of(func) in _LOST:
        raise BreakCapture("lost-out", f"{name_of(func)} is given out=", "leave out= out")


# By torch's functionalization: of a composite op, and one that adds to what the memory holds.
_LOST = frozenset(["linalg_matrix_rank", "_compute_linear_combination"])


def refuse_relaid(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Iterable[Any]
) -> None:
    """Breaks where the memory has another dtype than a fresh result; or other strides, if it is all
    of its storage and none of the graph's ``inputs``: once writes are taken out of the graph, a
    fresh result stands in its place."""
    known = {torch_api.memory_of(x) for x in inputs if isinstance(x, torch.Tensor)}
    try:
        fresh = func(*args, **{k: v for k, v in kwargs.items() if k != "out"})
    except Exception:  # noqa: BLE001 - raised again by the call itself, where it is told
        return
    results = (fresh,) if isinstance(fresh, torch.Tensor) else tuple(fresh)
    for memory, result in zip(memory_given(kwargs), results, strict=True):
        if memory.dtype is not result.dtype:  # which op takes what is eager's to say
            what = f"out= of {name_of(func)} is {memory.dtype}"
            raise BreakCapture("relaid-out", what, f"give memory of {result.dtype}")
        if torch_api.memory_of(memory) in known or memory.stride() == result.stride():
            continue
        if memory.untyped_storage().nbytes() == memory.numel() * memory.itemsize:
            hint = "give memory with the strides of the result"
            raise BreakCapture("relaid-out", f"out= of {name_of(func)} has other strides", hint)
