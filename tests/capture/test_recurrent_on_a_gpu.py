"""Recurrent networks on a GPU: an op of their own, whose results' layout is cuDNN's."""

import pytest
import torch
from torch import nn

import jitney
from jitney import torch_api
from jitney.capture import leaves
from jitney.capture.frame import BreakCapture
from jitney.torch_api import recurrent_op

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}


def arguments(name, batch_first=True, device="cpu", train=False, dropout=0.0):
    """Of two layers, both ways, 5 features and 7 hidden ones."""
    rows = {"lstm": 28, "gru": 21}.get(name, 7)
    first = [(rows, 5), (rows, 7), (rows,), (rows,)] * 2
    second = [(rows, 14), (rows, 7), (rows,), (rows,)] * 2
    generator = torch.Generator().manual_seed(0)

    def make(*shape):
        if device != "cpu":
            return torch.empty(shape, device=device)
        return torch.randn(shape, generator=generator)

    x, state = make(3, 4, 5), make(4, 3 if batch_first else 4, 7)
    states = [state, state] if name == "lstm" else state
    weights = [make(*shape) for shape in first + second]
    return x, states, weights, True, 2, dropout, train, True, batch_first


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_results_are_foretold_as_the_library_lays_them_out(name, batch_first):
    real = recurrent_op(name)(*arguments(name, batch_first))
    with torch_api.new_fake_mode():
        foretold = recurrent_op(name)(*arguments(name, batch_first, "cuda"))
    assert [t.shape for t in foretold] == [t.shape for t in real]
    assert [t.device.type for t in foretold] == ["cuda"] * len(real)
    steps_first = foretold[0].transpose(0, 1) if batch_first else foretold[0]
    assert steps_first.is_contiguous()


@pytest.mark.parametrize("name", KINDS)
def test_a_graph_holds_the_network_whole(name):
    given = arguments(name)

    def fn(x):
        return recurrent_op(name)(x * 2, *given[1:])

    with torch.no_grad():  # with gradients on, oneDNN rounds an LSTM otherwise without AVX-512
        results, wanted = jitney.compile(fn, fullgraph=True)(given[0]), fn(given[0])
    for got, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.stride()


def test_what_is_called_for_a_network_on_a_gpu():
    cpu = arguments("lstm")
    assert leaves.kept_whole(torch.lstm, cpu) is torch.lstm
    with torch_api.new_fake_mode():
        gpu = arguments("lstm", device="cuda")
        assert leaves.kept_whole(torch.lstm, gpu) is recurrent_op("lstm")
        with pytest.raises(BreakCapture, match="transform"):
            leaves.kept_whole(torch.lstm, gpu, in_transform=True)
        trained = arguments("lstm", device="cuda", train=True, dropout=0.5)
        with pytest.raises(BreakCapture, match="dropout"):
            leaves.kept_whole(torch.lstm, trained)
        gpu[2][0].requires_grad_()
        with pytest.raises(BreakCapture, match="gradient"):
            leaves.kept_whole(torch.lstm, gpu)
        with torch.no_grad():
            assert leaves.kept_whole(torch.lstm, gpu) is recurrent_op("lstm")
