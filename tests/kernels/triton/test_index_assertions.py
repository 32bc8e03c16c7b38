"""Indices out of range end a GPU's kernel in a device assertion, in range they pass."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")

import jitney
from tests.kernels.triton.test_whole_program import Interpreted
from tests.run.test_index_errors import (
    BAD,
    NEGATIVE,
    TABLE,
    added,
    embedded,
    gathered,
    indexed,
    put,
)

GOOD = torch.tensor([1, 9, 0])


def loss(x: Tensor, i: Tensor) -> Tensor:
    return F.cross_entropy(x.t()[:3], i, ignore_index=-100)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    debug = dataclasses.replace(builder.options, debug=True, sanitize_overflow=False)
    monkeypatch.setattr(builder, "options", debug)
    return Interpreted(monkeypatch)


@pytest.mark.parametrize("function", [embedded, indexed, gathered, added, put, loss])
@pytest.mark.parametrize("bad", [BAD, NEGATIVE])
def test_out_of_range(function: Callable[..., Tensor], bad: Tensor, backend: Interpreted) -> None:
    compiled = jitney.compile(function, backend=backend)
    torch.testing.assert_close(compiled(TABLE, GOOD), function(TABLE, GOOD))
    with pytest.raises(Exception, match="index out of range"):
        compiled(TABLE, bad)


def test_lanes_beyond_the_indices_do_not_count(backend: Interpreted) -> None:
    def shifted(x: Tensor, i: Tensor) -> Tensor:
        return x[i + torch.arange(3)] + F.embedding(i, x)[:, :1]

    i = torch.tensor([7, 7, 7])
    compiled = jitney.compile(shifted, backend=backend)
    torch.testing.assert_close(compiled(TABLE, i), shifted(TABLE, i))


def test_an_ignored_class_is_in_range(backend: Interpreted) -> None:
    i = torch.tensor([1, -100, 0])
    torch.testing.assert_close(jitney.compile(loss, backend=backend)(TABLE, i), loss(TABLE, i))
