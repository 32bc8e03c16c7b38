"""A convolution's bias on a GPU is an op of its own, and so is its gradient."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitney
from jitney.graph.bias_apart import convolution, convolution_backward

STEPS = {1: ([1], [1], [1]), 2: ([2, 1], [1, 0], [1, 1]), 3: ([1] * 3, [0] * 3, [1] * 3)}
CASES = [(1, False, 1), (2, False, 1), (2, True, 1), (2, False, 4), (3, False, 2)]


def operands(rank: int, transposed: bool, groups: int, device: str = "cpu") -> list[torch.Tensor]:
    """An image of 4 channels, a filter to 8 (4 transposed), a bias, each of another number."""
    gen = torch.Generator().manual_seed(rank)
    shape = (4, 4 // groups) if transposed else (8, 4 // groups)
    sizes = [(2, 4, *[5] * rank), (*shape, *[3] * rank), (4 if transposed else 8,)]
    return [torch.randn(s, generator=gen).to(device) for s in sizes]


def as_cuda(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    with FakeTensorMode():
        return [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in tensors
        ]


def targets(graph: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize(("rank", "transposed", "groups"), CASES)
def test_the_sum_is_apart_and_the_same(rank, transposed, groups):
    given = operands(rank, transposed, groups)
    steps = (*STEPS[rank], transposed, [0] * rank, groups)
    graph = make_fx(lambda *t: convolution(*t, *steps))(*as_cuda(given))
    (call,) = (n for n in graph.graph.nodes if "convolution" in str(n.target))
    assert call.args[2] is None and "aten.add.Tensor" in targets(graph)
    expected = torch.ops.aten.convolution.default(*given, *steps)
    torch.testing.assert_close(graph(*given), expected)


@pytest.mark.parametrize(("rank", "transposed", "groups"), CASES)
@pytest.mark.parametrize("wanted", [(True, True, True), (False, False, True), (False, True, True)])
def test_the_gradient_is_apart_and_the_same(rank, transposed, groups, wanted):
    x, weight, bias = operands(rank, transposed, groups)
    steps = (*STEPS[rank], transposed, [0] * rank, groups)
    grad = torch.randn_like(torch.ops.aten.convolution.default(x, weight, bias, *steps))
    given, rest = [grad, x, weight], (list(bias.shape), *steps, list(wanted))
    graph = make_fx(lambda *t: convolution_backward(*t, *rest))(*as_cuda(given))
    assert "aten.sum.dim_IntList" in targets(graph)
    assert any("convolution" in t for t in targets(graph)) == (wanted[0] or wanted[1])
    expected = torch.ops.aten.convolution_backward.default(*given, *rest)
    for found, wished, is_wanted in zip(graph(*given), expected, wanted, strict=True):
        assert (found is not None) == is_wanted
        if is_wanted:
            torch.testing.assert_close(found, wished)


def test_what_stays_whole():
    steps = ([1, 1], [1, 1], [1, 1], False, [0, 0], 4)
    given = [t.half() for t in operands(2, False, 4)]
    assert convolution(*given, *steps) is NotImplemented  # on a CPU
    x, weight, bias = as_cuda(given)
    (last,) = as_cuda([given[0].contiguous(memory_format=torch.channels_last)])
    assert convolution(x, weight, None, *steps) is NotImplemented
    assert convolution(x, weight, bias, *steps) is NotImplemented  # eager's kernel rounds once
    wanted = [True, True, False]
    assert convolution_backward(x, x, weight, None, *steps, wanted) is NotImplemented
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert convolution(last, weight, bias, *steps) is not NotImplemented


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("transposed", "groups"), [(False, 1), (True, 1), (False, 4)])
def test_values_and_gradients_on_a_gpu(transposed, groups, last, dtype):
    given = [t.to(dtype) for t in operands(2, transposed, groups, "cuda")]
    if last:
        given[0] = given[0].contiguous(memory_format=torch.channels_last)
    call = torch.conv_transpose2d if transposed else torch.conv2d

    def model(x, weight, bias):
        return torch.relu(call(x, weight, bias, 1, 1, groups=groups)) * 2

    found, expected = [], []
    for function, out in ((jitney.compile(model), found), (model, expected)):
        inputs = [t.clone().requires_grad_() for t in given]
        result = function(*inputs)
        result.float().square().sum().backward()
        out += [result, *(t.grad for t in inputs)]
    for have, want in zip(found, expected, strict=True):
        assert have.stride() == want.stride()
        bound = 2e-2 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(have, want, rtol=bound, atol=1e-2)
