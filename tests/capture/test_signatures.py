"""Arguments bound by an `inspect.Signature` that the program keeps."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import jitney
from jitney.diagnostics.explain import explain
from tests.capture.run_capture import X, assert_same


def one(a: int, b: Any = [1], *rest: int, key: int = 3, **more: int) -> None: ...  # noqa: B006


def other(x: int, y: int = 5) -> None: ...


class Holder:
    signature = inspect.signature(one)


def bound(x: torch.Tensor, holder: Any, *args: Any, **kwargs: Any) -> Any:
    found = holder.signature.bind(*args, **kwargs)
    found.apply_defaults()
    names = [(p.name, p.kind, p.default) for p in holder.signature.parameters.values()]
    return x * len(found.arguments), dict(found.arguments), found.args, found.kwargs, names


def written(x: torch.Tensor, holder: Any, *args: Any) -> Any:
    found = holder.signature.bind(*args)
    found.apply_defaults()
    found.arguments["b"].append(7)  # the default itself
    return x + 1, found.arguments["b"] is holder.signature.parameters["b"].default


def test_no_break_at_a_signature_from_outside() -> None:
    compiled = jitney.compile(bound, backend="eager")
    for args in ((1,), (1, 2), (1, 2, 4), (1,)):
        assert_same(compiled(X, Holder, *args, q=2), bound(X, Holder, *args, q=2))
    assert not explain(bound, backend="eager")(X, Holder, 1).breaks


def test_another_signature_in_its_place() -> None:
    holder, compiled = Holder(), jitney.compile(bound, backend="eager")
    for signature in map(inspect.signature, (one, other, one)):
        holder.signature = signature  # type: ignore[misc]
        assert_same(compiled(X, holder, 1), bound(X, holder, 1))
    with pytest.raises(TypeError, match="missing a required argument"):
        compiled(X, holder)


def test_a_default_that_is_written_to() -> None:
    compiled, default = jitney.compile(written, backend="eager"), one.__defaults__[0]  # type: ignore
    before = len(default)
    for n in range(3):
        assert_same(compiled(X, Holder, 1), (X + 1, True))
        assert len(default) == before + n + 1
    del default[1:]
