"""Recurrent networks on a CPU: a graph each, with their gradients."""

import pytest
import torch
from torch import nn

import jitney
from jitney.backends import jitney_backend
from jitney.events import log
from tests.equal import assert_equal, assert_equal_to_eager

FORMS = {
    "one": {},
    "two": {"num_layers": 2},
    "both ways": {"num_layers": 2, "bidirectional": True},
    "dropout": {"num_layers": 2, "dropout": 0.5, "batch_first": False},
    "no biases": {"bias": False},
}


def a_step(model, f, batch, steps, dtype=torch.float32):
    """Results and gradients of one call, states given, one of which needs a gradient."""
    generator = torch.Generator().manual_seed(batch)
    sizes = (batch, steps, 3) if model.batch_first else (steps, batch, 3)
    x = torch.randn(sizes, generator=generator).to(dtype).requires_grad_()
    count = model.num_layers * (2 if model.bidirectional else 1)
    state = torch.randn((count, batch, 4), generator=generator).to(dtype).requires_grad_()
    states = (state, state.detach() * 2) if isinstance(model, nn.LSTM) else state
    torch.manual_seed(3)
    out, last = f(x, states)
    after = torch.rand(2)
    last = last if isinstance(last, tuple) else (last,)
    model.zero_grad()
    (out.sin().sum() + sum(t.square().sum() for t in last)).backward()
    gradients = [p.grad for p in (x, state, *model.parameters())]
    return [out.detach(), *(t.detach() for t in last), after, *gradients]


@pytest.mark.parametrize(
    ("kind", "form", "dynamic", "steps"),
    [
        ("LSTM", "one", False, 7), ("LSTM", "two", True, 7), ("LSTM", "both ways", True, 7),
        ("LSTM", "dropout", True, 7), ("LSTM", "no biases", False, 7),
        ("GRU", "one", False, 7), ("GRU", "two", False, 7), ("GRU", "both ways", False, 3),
        ("GRU", "dropout", False, 3), ("GRU", "no biases", False, 3),
    ],
)  # fmt: skip
def test_a_network_is_trained_in_a_graph(kind, form, dynamic, steps):
    jitney.reset()
    torch.manual_seed(0)
    model = getattr(nn, kind)(3, 4, **{"batch_first": True, **FORMS[form]})
    exact = getattr(nn, kind)(3, 4, **{"batch_first": True, **FORMS[form]}).double()
    exact.load_state_dict(model.state_dict())
    compiled = jitney.compile(model, fullgraph=True, dynamic=dynamic)
    log.clear()
    for batch in (5, 6):  # no size of another axis
        want = a_step(model, model, batch, steps)
        truth = a_step(exact, exact, batch, steps, torch.float64)
        got = a_step(model, compiled, batch, steps)
        torch.testing.assert_close(got[-1], want[-1])
        if "dropout" not in FORMS[form]:  # drawn of numbers of the dtype
            assert_equal(got, want, truth)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert not [e for e in log.events() if e.kind in ("graph_break", "eager_graph", "eager")]
    compiles = [e for e in log.events() if e.kind == "recompile"]
    assert len(compiles) == (0 if dynamic else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_network_of_many_cells_is_whole(kind, dtype):
    """One call in a graph of any length; with gradients, eager's."""
    torch.manual_seed(0)
    forms = {"proj_size": 3} if kind is nn.LSTM and dtype is torch.float32 else {}
    model = kind(3, 4, 2, batch_first=True, bidirectional=True, **forms).to(dtype)
    x = torch.randn(3, 30, 3, dtype=dtype)
    compiled = jitney.compile(model, fullgraph=True)
    log.clear()
    with torch.no_grad():
        for length in (30, 20, 12, 9):
            assert_equal_to_eager(model, compiled, (x[:, :length],))
    assert len([e for e in log.events() if e.kind == "recompile"]) == 1
    for options in ({"dynamic": True}, {"dynamic": False}):
        compiled = jitney.compile(model, **options)
        assert_equal_to_eager(model, compiled, (x.clone().requires_grad_(),), training=True)
    assert [e for e in log.events() if e.kind == "graph_break"]


def test_a_network_of_many_cells_in_a_transform():
    """An op of ours has no derivatives of torch's."""
    torch.manual_seed(0)
    model = nn.GRU(3, 4)
    given = (torch.randn(20, 1, 3), torch.randn(20, 1, 3))

    def f(x, by):
        return torch.func.jvp(lambda t: model(t)[0], (x,), (by,))

    with torch.no_grad():
        assert_equal_to_eager(f, jitney.compile(f), given)


def test_the_backend_of_torchs_compiler_trains_an_lstm():
    torch.manual_seed(0)
    model = nn.LSTM(3, 4, 2, batch_first=True)
    want = a_step(model, model, 2, 3)
    got = a_step(model, torch.compile(model, backend=jitney_backend), 2, 3)
    torch.testing.assert_close(got, want)


def test_a_workspace_is_saved_with_what_the_program_saves():
    """Hooks of saved tensors see it; backward() twice reads it twice."""
    torch.manual_seed(0)
    model = nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    model(x)[0].sum().backward()
    want = [p.grad * 2 for p in model.parameters()]
    model.zero_grad()
    kept = []

    def pack(t):
        kept.append(t.dtype)
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = jitney.compile(model)(x)[0].sum()
    out.backward(retain_graph=True)
    out.backward()
    assert torch.uint8 in kept
    torch.testing.assert_close([p.grad for p in model.parameters()], want)


def test_gradients_of_16_bits() -> None:
    """Which torch gives in 32 (with torch 2.11 its forecast says 16)."""
    layer = torch.nn.LSTM(16, 32).bfloat16()
    x = torch.randn(9, 2, 16).bfloat16().requires_grad_()
    compiled = jitney.compile(layer, options={"eager_on_bug": False})
    assert_equal_to_eager(layer, compiled, (x,), training=True)
