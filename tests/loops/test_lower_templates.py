"""Matrix products, attention and pooling, against eager; symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.events import log
from jitney.loops.interpret import interpret
from jitney.loops.ir import Attention, Gemm
from jitney.loops.lower_graph import lower_graph
from jitney.loops.target import Target
from jitney.loops.verify import verify
from tests.loops.lowered import CPU, GPU, check, trace

aten = torch.ops.aten


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "mm": (torch.mm, (rand(4, 5), rand(5, 6))),
    "transposed": (lambda x, y: x.t() @ y.t(), (rand(5, 4), rand(6, 5))),
    "addmm": (
        lambda x, y, b: torch.addmm(b, x, y, beta=0.5, alpha=2),
        (rand(4, 5), rand(5, 6), rand(6)),
    ),
    "zero_factors": (
        lambda x, y, b: (torch.addmm(b, x, y / 0, alpha=0), torch.addmm(b / 0, x, y, beta=0)),
        (rand(4, 5), rand(5, 6), rand(6)),
    ),
    "batched": (torch.matmul, (rand(2, 3, 4, 5), rand(2, 1, 5, 6))),
    "linear": (F.linear, (rand(2, 3, 5), rand(7, 5), rand(7))),
    "vectors": (
        lambda x, y: (x @ y, y @ y, y @ x.t(), torch.addmv(x @ y, x, y)),
        (rand(4, 5), rand(5)),
    ),
    "nothing": (lambda x, y: x[:, :0] @ y[:0], (rand(4, 5), rand(5, 6))),
    "bfloat16": (lambda x, y: x.bfloat16() @ y.bfloat16(), (rand(4, 5), rand(5, 6))),
    "integers": (lambda x, y: (x * 4).long() @ (y * 4).long(), (rand(4, 5), rand(5, 6))),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (rand(2, 4, 5), rand(2, 6, 5))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str) -> None:
    fn, args = PRODUCTS[name]
    check(fn, *args)


@pytest.mark.parametrize("causal", [True, False])
def test_attention(causal: bool) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    program = check(attend, rand(2, 3, 6, 8), rand(2, 3, 6, 8) * 2, rand(2, 3, 6, 8))
    assert any(isinstance(node, Attention) for node in program.nodes)


@pytest.mark.parametrize("keep", [True, False])
def test_attention_with_mask_and_shared_heads(keep: bool) -> None:
    mask = rand(2, 1, 4, 6) > -1 if keep else rand(2, 1, 4, 6)

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        options: dict[str, Any] = {"attn_mask": mask, "enable_gqa": True, "scale": 0.3}
        return F.scaled_dot_product_attention(q, k, v, **options)

    check(attend, rand(2, 6, 4, 8), rand(2, 3, 6, 8), rand(2, 3, 6, 8), mask)


IMAGE = rand(2, 3, 8, 10)
POOLS: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, dilation=2)),
    "max_where": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
    "average": lambda x: (F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2, divisor_override=3)),
    "average_edges": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive": lambda x: [F.adaptive_avg_pool2d(x, n) for n in (1, (4, 5), (3, 4))],
}


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize("name", POOLS)
def test_pool(name: str, target: Target) -> None:
    check(POOLS[name], IMAGE, target=target)


def test_max_pool_of_nan_and_of_nothing_but_the_least() -> None:
    """Where a window holds several NaNs, or only -inf beside padding, eager has its own rule."""
    image = rand(1, 2, 6, 6)
    image[0, 0, 1, 1] = image[0, 0, 1, 2] = image[0, 0, 4, 4] = float("nan")
    image[0, 1] = -float("inf")
    for window in ((3, 2, 1), (3, 1, 1), (2, 1, 1, 2)):
        check(lambda x, w=window: F.max_pool2d(x, *w, return_indices=True), image, target=GPU)


def test_the_place_of_the_least_value_is_no_padding() -> None:
    """Nor in windows too large to be written out."""
    for image in (torch.full((1, 6, 6), -float("inf")), torch.full((1, 6, 6), -(2**63))):
        check(lambda x: F.max_pool2d(x, 5, 1, 2, return_indices=True), image)


@pytest.mark.parametrize(
    "window", [([3, 3], [2, 2], [1, 1], [1, 1]), ([2, 3], [1, 2], [1, 0], [2, 1])]
)
def test_max_pool_gradient_gathered(window: Any) -> None:
    def gradient(x: Any, grad: Any) -> Any:
        at = aten.max_pool2d_with_indices(x, *window)[1]
        return aten.max_pool2d_with_indices_backward(grad, x, *window, False, at)

    out = aten.max_pool2d_with_indices(IMAGE, *window)[0]
    check(gradient, IMAGE, rand(*out.shape), target=GPU)


def test_pool_gradients() -> None:
    def gradients(x: Any, grad: Any) -> Any:
        window = ([3, 3], [2, 2], [1, 1])
        at = aten.max_pool2d_with_indices(x, *window)[1]
        return (
            aten.max_pool2d_with_indices_backward(grad, x, *window, [1, 1], False, at),
            aten.avg_pool2d_backward(grad, x, *window, False, True, None),
            aten.avg_pool2d_backward(grad, x, *window, False, False, None),
            aten._adaptive_avg_pool2d_backward(grad[:, :, :2, :5], x),
        )

    check(gradients, IMAGE, rand(2, 3, 4, 5))


def test_symbolic_sizes() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = torch.cat([x @ w, x], 1).softmax(-1)
        return y.view(-1) * x.shape[0], y.mean(0), F.pad(x, (0, 1))[1:].t() + 1

    gm = trace(run, rand(7, 5), rand(5, 4), symbolic=True)
    program, constants = lower_graph(gm, CPU)
    verify(program)
    assert any(isinstance(node, Gemm) for node in program.nodes)
    for rows, inner in ((7, 5), (3, 2), (11, 9)):
        args = rand(rows, inner), rand(inner, 4)
        ours = interpret(program, constants, args)
        for mine, reference in zip(ours, run(*args), strict=True):
            torch.testing.assert_close(mine, reference)


def test_the_terms_of_a_product_are_counted_by_the_side_that_knows_them() -> None:
    flat = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(48, 5))
    compiled = jitney.compile(flat, dynamic=True, options={"verify": True, "eager_on_bug": False})
    log.clear()
    for batch, size in ((2, 8), (3, 9), (1, 8)):
        x = rand(batch, 3, size, size)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), flat(x))
    programs = [event.data["program"] for event in log.events("program")]
    gemms = [node for program in programs for node in program.nodes if isinstance(node, Gemm)]
    assert gemms and all(gemm.k.extent.is_const for gemm in gemms)
