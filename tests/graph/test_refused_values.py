"""Both who ask which calls may refuse their values know the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from jitney.capture import leaves
from jitney.capture.capture_frame import capture_frame
from jitney.graph.effects import may_raise
from jitney.graph.trace_region import trace_region
from jitney.torch_api.refused_values import (
    CHECKED,
    DIVISIONS,
    DRAWING,
    FILLS,
    UNCHECKED,
    unchecked_may_refuse,
)

LONGS, NAN, NONE = torch.tensor([1, 2, 3, 4]), torch.tensor(float("nan")), torch.tensor(0.0)
FEW, ONES, BELOW = torch.tensor([0, 99]), torch.ones(4, 4), torch.tensor(-7.0)
ZEROS, TARGETS = torch.zeros(4, dtype=torch.int64), torch.full((4,), 9)

CHECK_ERRORS = torch.ops.aten._linalg_check_errors.default  # of decompositions that tell
#: Rows of ops that later versions lack.
REMOVED = {"cholesky"}

#: What eager refuses, and no check of ours foresees.
REFUSED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "put": (lambda x, a: x.put(a, torch.ones(2)), FEW),
    "put_": (lambda x, a: x.clone().put_(a, torch.ones(2)), FEW),
    "searchsorted": (lambda x, a: torch.searchsorted(x[0], ONES[0], sorter=a), TARGETS),
    "bag": (lambda x, a: F.embedding_bag(a[None], x), FEW),
    "multilabel margin": (lambda x, a: F.multilabel_margin_loss(x, a.expand(4, 4)), TARGETS),
    "histc": (lambda x, a: (x * a).histc(4), NAN),
    "histogram": (lambda x, a: (x * a).histogram(4)[0], NAN),
    "histogramdd": (lambda x, a: torch.histogramdd(x * a, 4)[0], NAN),
    "segments": (lambda x, a: torch.segment_reduce(x, "sum", lengths=a), LONGS),
    "repeats": (lambda x, a: x.repeat_interleave(a, 0, output_size=4), -LONGS),
    "bernoulli": (lambda x, a: torch.bernoulli(x * a), BELOW),
    "bernoulli_": (lambda x, a: x.clone().bernoulli_(x * a), BELOW),
    "normal": (lambda x, a: torch.normal(mean=x, std=x * a), BELOW),
    "multinomial": (lambda x, a: torch.multinomial(x * a, 2), BELOW),
    "poisson": (lambda x, a: torch.poisson(x * a), BELOW),
    "//": (lambda x, a: x.long() // a, ZEROS),
    "a number //": (lambda x, a: 7 // a, ZEROS),
    "//=": (lambda x, a: x.long().__ifloordiv__(a), ZEROS),
    "%": (lambda x, a: x.long() % a, ZEROS),
    "a number %": (lambda x, a: 7 % a, ZEROS),
    "fmod": (lambda x, a: torch.fmod(x.long(), other=a), ZEROS),
    "div": (lambda x, a: x.long().div(a, rounding_mode="trunc"), ZEROS),
    "lu_unpack": (lambda x, a: torch.lu_unpack(x, a.int())[1], TARGETS),
    "lu_solve": (lambda x, a: torch.lu_solve(x, ONES, a.int()), TARGETS),
    "cholesky": (lambda x, a: torch.cholesky(torch.eye(4) * a), BELOW),
    "cholesky_inverse": (lambda x, a: torch.cholesky_inverse(x * a), NONE),
    "inverse": (lambda x, a: (x * a).inverse(), NONE),
    "pinverse": (lambda x, a: (x * a).pinverse(), NAN),
    "matrix_power": (lambda x, a: (x * a).matrix_power(-2), NONE),
    "svd": (lambda x, a: torch.svd(x * a)[1], NAN),
    "eig": (lambda x, a: torch.linalg.eig(x * a)[0], NAN),
    "rank": (lambda x, a: torch.linalg.matrix_rank(x * a), NAN),
    "nuclear norm": (lambda x, a: torch.nuclear_norm(x * a), NAN),
    "nuc": (lambda x, a: torch.norm(x * a, "nuc"), NAN),
    "masked_scatter": (lambda x, a: x.masked_scatter(a < 0, torch.ones(3)), BELOW.expand(4, 4)),
    "masked_scatter_": (lambda x, a: x.clone().masked_scatter_(a < 0, ONES[0]), -ONES),
    "fake_quantize": (
        lambda x, a: torch.fake_quantize_per_channel_affine(x, ONES[0], a.int(), 0, 0, 5),
        TARGETS,
    ),
}

#: What eager takes, whatever the values, or whose values are known.
TAKEN: dict[str, Callable[..., Any]] = {
    "by a number": lambda x, a: a // 2 + a % 3 + a.fmod(5) + a.div(2, rounding_mode="floor"),
    "of floats": lambda x, a: x // x + x % a + 1.5 // a,
    "true division": lambda x, a: a / a + a.div(a) + torch.true_divide(a, a),
    "a repeat": lambda x, a: torch.repeat_interleave(x.repeat_interleave(2, 0), repeats=2, dim=0),
    "draws": lambda x, a: x.clone().normal_(0.0, 2.0) + torch.normal(0.0, 1.0, (4, 4)),
    "a draw by a number": lambda x, a: x.clone().bernoulli_(0.5),
    "another norm": lambda x, a: torch.norm(x) + x.norm(2, 0),
}


class Told(TorchFunctionMode):
    """Whether capture takes one of the calls for one that may refuse its values."""

    refuses = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.refuses |= unchecked_may_refuse(leaves.method_name(func), args, kwargs or {})
        return func(*args, **(kwargs or {}))


def aten_graph(call: Callable[..., Any], x: torch.Tensor, a: torch.Tensor) -> torch.fx.Graph:
    gm = capture_frame(call, {"x": x, "a": a}).graph
    assert gm is not None
    fakes = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
    return trace_region(gm, fakes).forward.graph


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_known_as_a_function_and_as_an_op(name: str) -> None:
    call, values = REFUSED[name]
    if name in REMOVED and not hasattr(torch.ops.aten, name):
        pytest.skip("this version of torch has none")
    with Told() as told, pytest.raises((RuntimeError, IndexError)):
        call(ONES, values)
    assert told.refuses
    graph = aten_graph(call, ONES, values)
    assert any(may_raise(n) or n.target is CHECK_ERRORS for n in graph.nodes), graph


@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_not_told_to_be_refused(name: str) -> None:
    with Told() as told:
        TAKEN[name](ONES, LONGS)
    assert not told.refuses


@pytest.mark.parametrize("name", sorted(CHECKED | UNCHECKED | DRAWING | DIVISIONS | FILLS))
def test_each_row_is_an_op(name: str) -> None:
    assert hasattr(torch.ops.aten, name) or name in REMOVED


def test_each_op_is_in_one_row() -> None:
    rows = (CHECKED, UNCHECKED, DRAWING, DIVISIONS, FILLS)
    assert len(frozenset().union(*rows)) == sum(map(len, rows))
