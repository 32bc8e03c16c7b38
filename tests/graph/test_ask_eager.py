"""What eager refuses for its dtypes, a compiled call refuses: the same error, not a result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.events import log

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FIRST = torch.tensor([0])

CALLS: dict[str, Call] = {
    "linear": lambda x, w: F.linear(x, w, w[:, 0]),
    "product": lambda x, w: x @ w,
    "product_with_a_vector": lambda x, w: x @ w[0],
    "layer_norm": lambda x, w: F.layer_norm(x, (3,), w[0], w[0]),
    "group_norm": lambda x, w: F.group_norm(x, 1, w[0], w[0]),
    "batch_norm": lambda x, w: F.batch_norm(x, w[0], w[0]),
    "index_put": lambda x, w: x.index_put((FIRST,), w[0]),
    "index_add": lambda x, w: x.index_add(0, FIRST, w[:1]),
    "index_copy": lambda x, w: x.index_copy(0, FIRST, w[:1]),
    "index_reduce": lambda x, w: x.index_reduce(0, FIRST, w[:1], "amin"),
    "nll_loss": lambda x, w: F.nll_loss(x, torch.arange(3), weight=w[0]),
    "binary_cross_entropy": lambda x, w: F.binary_cross_entropy(x.sigmoid(), w),
    "cross": lambda x, w: torch.linalg.cross(x, w),
    "heaviside": torch.heaviside,
}


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32")], ids=str)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_mixed_dtypes_that_eager_refuses(
    name: str, dtypes: tuple[str, str], dynamic: bool | None
) -> None:
    x, w = (torch.ones(3, 3, dtype=getattr(torch, dtype)) for dtype in dtypes)
    with pytest.raises(RuntimeError) as expected:
        CALLS[name](x, w)
    with pytest.raises(RuntimeError) as raised:
        jitney.compile(CALLS[name], dynamic=dynamic)(x, w)
    assert str(raised.value) == str(expected.value)


def test_a_module_whose_dtype_changes_after_a_call() -> None:
    net = torch.nn.Linear(3, 2)
    compiled = jitney.compile(net)
    x = torch.ones(1, 3)
    compiled(x)
    net.double()
    with pytest.raises(RuntimeError, match="same dtype"):
        compiled(x)
    assert compiled(x.double()).dtype is torch.float64


def test_norms_of_16_bits_take_parameters_of_32() -> None:
    x, w = torch.randn(2, 4).bfloat16(), torch.randn(4)
    compiled = jitney.compile(lambda x, w: F.layer_norm(x, (4,), w, w), fullgraph=True)
    assert torch.equal(compiled(x, w), F.layer_norm(x, (4,), w, w))


def test_a_loss_of_two_dtypes_has_eagers() -> None:
    x, w = torch.randn(3), torch.randn(3).double()
    loss = F.huber_loss(x, w)
    compiled = jitney.compile(F.huber_loss)(x, w)
    assert compiled.dtype is loss.dtype and torch.allclose(compiled, loss)


@pytest.mark.parametrize("pad", [(1, 2), (18, 17), (1, 0, 2, 1)])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_borders_of_booleans(mode: str, pad: tuple[int, ...]) -> None:
    x = torch.arange(800).reshape(2, 20, 20) % 3 == 0

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, pad, mode=mode)

    with pytest.raises(NotImplementedError) as expected:
        f(x)
    with pytest.raises(NotImplementedError) as raised:
        jitney.compile(f)(x)
    assert str(raised.value) == str(expected.value)
    assert torch.equal(jitney.compile(f)(x.int()), f(x.int()))


OF_BOOLEANS = {
    "trace": torch.trace,
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "bucketize": lambda x: torch.bucketize(x, x[0]),
    "unfold": lambda x: F.unfold(x[None, None].to(torch.uint8), 2),
    "batch_norm": lambda x: F.batch_norm(x.long(), x[0].long(), x[0].long()),
    "glu": lambda x: F.glu(x[:2].int(), 0),
    "nll_loss": lambda x: F.nll_loss(x.int(), torch.tensor([0, 2, 1])),
    "nll_loss2d": lambda x: F.nll_loss(x[None, :, :, None].int(), torch.tensor([[[0], [2], [1]]])),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x.int(), x.int()),
    "unpool": lambda x: F.max_unpool2d(x[None, :2, :2].int(), x[None, :2, :2].long(), 2),
    "max_pool1d": lambda x: F.max_pool1d(x.int(), 2),
    "logits": lambda x: F.binary_cross_entropy_with_logits(
        x.float(), x.long(), weight=x[0], reduction="none"
    ),
    "nansum": lambda x: x.to(torch.complex64).nansum(),
    "margins": lambda x: F.multi_margin_loss(x.half(), torch.tensor([0, 2, 1])),
}


@pytest.mark.parametrize("name", OF_BOOLEANS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_eager_has_no_kernel_for_raises(name: str, dynamic: bool | None) -> None:
    call = OF_BOOLEANS[name]
    x, compiled = torch.ones(3, 3, dtype=torch.bool), jitney.compile(call, dynamic=dynamic)
    with pytest.raises(RuntimeError) as expected:
        call(x)
    with pytest.raises(type(expected.value)) as raised:
        compiled(x)
    assert str(raised.value) == str(expected.value)


REFUSED: dict[str, tuple[torch.dtype, Callable[[torch.Tensor, float], torch.Tensor]]] = {
    "sub": (torch.bool, lambda x, s: x - s),
    "rsub": (torch.bool, lambda x, s: s - x),
    "threshold": (torch.bool, lambda x, s: F.threshold(x, s, 1)),
    "lerp": (torch.int64, lambda x, s: torch.lerp(x, x, s)),
    "leaky_relu": (torch.int32, F.leaky_relu),
    "hardshrink": (torch.uint8, F.hardshrink),
    "huber_loss": (torch.int64, lambda x, s: F.huber_loss(x, x, delta=s)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_dtypes_that_eager_refuses_beside_numbers_that_change(name: str) -> None:
    dtype, call = REFUSED[name]
    x, compiled = torch.ones(2, dtype=dtype), jitney.compile(call, dynamic=True)
    for number in (2, 3, 2.5, 3.5):
        with pytest.raises((RuntimeError, NotImplementedError)) as expected:
            call(x, number)
        with pytest.raises((RuntimeError, NotImplementedError)) as raised:
            compiled(x, number)
        assert str(raised.value) == str(expected.value)


def test_no_rows_beside_one_that_is_repeated() -> None:
    def f(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return (x[:, None] + offsets[None]) * x.new_ones(1, 1)

    log.clear()
    x, offsets = torch.randn(0), torch.randn(3)
    assert jitney.compile(f)(x, offsets).shape == (0, 3)
    assert not log.events("eager_graph")


@pytest.mark.parametrize("loss", [F.huber_loss, F.soft_margin_loss, F.mse_loss])
def test_a_result_of_mixed_dtypes_has_eagers(loss: Call) -> None:
    """torch foresees that of both operands; eager gives some that of the first."""
    compiled = jitney.compile(lambda x, y: loss(x, y) * 2)
    x, y = torch.ones(3), torch.ones(3, dtype=torch.float64)
    for given in ((x, y), (y, x), (x, y.half()), (y.bfloat16(), x)):
        assert compiled(*given).dtype is loss(*given).dtype
