"""torch's own tools on compiled code: ``torch.compiler``'s stances, tracing, regions, methods of
modules."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import jitney
from jitney.errors import UserError
from jitney.events import log
from tests.equal import assert_equal


def test_torchs_own_stances():
    log.clear()
    compiled = jitney.compile(lambda x: x + 1, backend="eager")
    one, two = torch.ones(1), torch.ones(2)
    with torch.compiler.set_stance("force_eager"):
        compiled(one)
    assert not log.events("entry")
    compiled(one)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(one)
        with pytest.raises(UserError, match="compiled again"):
            compiled(two)
    torch.compiler.set_stance(stance="eager_on_recompile")
    compiled(two)
    torch.compiler.set_stance("default")
    assert len(log.events("entry")) == 1
    torch.compiler.reset()
    compiled(one)
    torch._dynamo.reset()
    compiled(one)
    assert len(log.events("entry")) == 3
    with pytest.warns(UserWarning, match="force_backend"):
        torch.compiler.set_stance(force_backend="eager")
    torch.compiler.set_stance("default")


def test_a_stance_set_before_the_first_compile():
    check = """
import torch, jitney
from jitney.events import log
with torch.compiler.set_stance("force_eager"):
    compiled = jitney.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(1))
    assert not log.events("entry")
compiled(torch.ones(1))
assert log.events("entry")
"""
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torch_jit_trace_sees_the_operations():
    module, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    for compiled in (jitney.compile(module), jitney.compile(lambda x: x.sin() + 1)):
        for _ in range(3):
            wanted = compiled(x), compiled(x * 2)
        traced = torch.jit.trace(compiled, x)
        assert_equal((traced(x), traced(x * 2)), wanted)


def test_methods_of_a_compiled_module_make_plain_modules():
    class Net(torch.nn.Linear):
        def twin(self):
            made = type(self)(self.in_features, self.out_features)
            made.load_state_dict(self.state_dict())
            return made

    net, x = Net(2, 2), torch.ones(1, 2)
    compiled = jitney.compile(net)
    assert type(compiled.twin()) is Net
    assert_equal(compiled.twin()(x), compiled(x))
    layers = jitney.compile(torch.nn.Sequential(net, torch.nn.ReLU()))
    assert_equal(layers[:1](x), net(x))


def test_our_stance_outlives_one_of_torchs_inside_it() -> None:
    compiled = jitney.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(torch.ones(2))
    with jitney.set_stance("fail_on_recompile"):
        with torch.compiler.set_stance("force_eager"):
            pass
        with pytest.raises(UserError):
            compiled(torch.ones(3))
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_regions_of_torchs_capture() -> None:
    """Checkpoints draw the same numbers again, nested regions are in line."""
    inner, outer = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    @torch.compiler.nested_compile_region
    def region(x):
        return torch.nn.functional.dropout(inner(x).relu(), 0.5)

    def nested(x):
        return checkpoint(lambda x: region(x) * x, x, use_reentrant=False)

    def loss(x):
        x = checkpoint(lambda x: region(x) + 1, x, use_reentrant=False)
        return outer(region(nested(x))).pow(2).mean()

    def gradients(function):
        torch.manual_seed(5)
        inner.zero_grad(), outer.zero_grad()
        result = function(x)
        result.backward()
        return result, inner.weight.grad.clone(), outer.weight.grad.clone(), torch.rand(2)

    x = torch.randn(4, 3)
    for compiled in (jitney.compile(loss), torch.compile(loss, backend="jitney")):
        log.clear()
        assert_equal(gradients(compiled), gradients(loss))
        assert not log.events("graph_break") and not log.events("eager_graph")


def test_a_nested_region_is_captured_whole() -> None:
    scale = {"factor": 2.0}

    class Block(torch.nn.Linear):
        @torch.compiler.nested_compile_region
        def forward(self, x):
            return super().forward(x) * scale["factor"]

    layers = torch.nn.Sequential(Block(3, 3), Block(3, 3))
    compiled, x = jitney.compile(layers, fullgraph=True), torch.randn(2, 3)
    assert_equal(compiled(x), layers(x))
    scale["factor"] = 3.0
    assert_equal(compiled(x), layers(x))


@pytest.mark.parametrize("where", ["own", "inner", "all"])
def test_hooks_that_run_after_an_error(where) -> None:
    seen = []
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

    def hook(module, given, result):
        seen.append((type(module).__name__, result is None))

    def run(function):
        seen.clear()
        for shape in ((2, 3), (2, 4), (5, 3)):
            try:
                function(torch.ones(shape))
            except RuntimeError:
                seen.append("raised")
        return list(seen)

    compiled = jitney.compile(net)
    assert run(compiled) == ["raised"]
    if where == "all":
        handle = torch.nn.modules.module.register_module_forward_hook(hook, always_call=True)
    else:
        module = net if where == "own" else net[0]
        handle = module.register_forward_hook(hook, always_call=True)
    with handle:
        assert run(compiled) == run(net)
        assert run(jitney.compile(lambda x: net(x))) == run(net)
    assert run(compiled) == ["raised"]


@pytest.mark.parametrize("training", [False, True])
def test_parameters_are_swapped(training) -> None:
    net, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), torch.randn(2, 3)
    compiled = jitney.compile(net)

    def same() -> None:
        for _ in range(3):
            found = compiled(x)
            torch.testing.assert_close(found, net(x))
            if training:
                (gradient,) = torch.autograd.grad(found.sum(), net[0].weight)
                (expected,) = torch.autograd.grad(net(x).sum(), net[0].weight)
                torch.testing.assert_close(gradient, expected)
            del found

    with torch.set_grad_enabled(training):
        same()
        for weight in (torch.zeros(3, 3), torch.ones(3, 3), torch.randn(3, 3).T):
            torch.utils.swap_tensors(net[0].weight, torch.nn.Parameter(weight))
            same()


def test_a_stance_of_torchs_that_is_none_is_told_and_passes():
    jitney.compile(lambda x: x + 1)
    with pytest.warns(UserWarning, match="torch's stance 'nonsense' is none that it knows") as told:
        with torch.compiler.set_stance("nonsense"):
            pass
    assert [each.filename for each in told] == [__file__]
    assert jitney.compile(lambda x: x * 2, fullgraph=True)(torch.ones(2)).tolist() == [2, 2]
    assert torch.compile(lambda x: x * 3, backend="eager")(torch.ones(2)).tolist() == [3, 3]


def test_compiled_autograd_calls_our_backward_passes() -> None:
    from torch._dynamo import compiled_autograd

    net, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU()), torch.randn(2, 3)

    def gradients(function, backend=None):
        net.zero_grad()
        loss = function(x).square().sum()
        if backend is None:
            loss.backward()
        else:
            with compiled_autograd._enable(torch.compile(backend=backend)):
                loss.backward()
        return [p.grad.clone() for p in net.parameters()]

    for function in (jitney.compile(net), torch.compile(net, backend="jitney")):
        for backend in ("eager", "jitney"):
            torch._dynamo.reset()
            assert_equal(gradients(function, backend), gradients(net))


def test_compiled_autograd_is_off_while_we_trace() -> None:
    """It would compile the gradients that a trace asks for."""
    from torch._dynamo import compiled_autograd

    net, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU()), torch.randn(2, 3)
    taken = []

    def take(graph):
        taken.append(graph)
        return graph

    compiled = jitney.compile(net, options={"cache": False})
    torch._dynamo.reset()
    with compiled_autograd._enable(take):
        loss = compiled(x).square().sum()
        assert not taken
        loss.backward()
    assert len(taken) == 1 and compiled_autograd.compiled_autograd_enabled is False
    found = [p.grad for p in net.parameters()]
    assert_equal(found, list(torch.autograd.grad(net(x).square().sum(), list(net.parameters()))))


@pytest.mark.parametrize("backend", ["eager", "jitney"])
def test_a_whole_step_under_compiled_autograd(backend) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU())

    def step(x):
        a = net(x)
        (a.square().sum() + net(a).sin().sum()).backward()
        return [p.grad for p in net.parameters()]

    def fresh(function, x):
        net.zero_grad()
        return [grad.clone() for grad in function(x)]

    torch._dynamo.reset()
    compiled = torch.compile(
        step, backend=backend, options={"cache": False} if backend == "jitney" else None
    )
    ours = jitney.compile(step, options={"cache": False})
    for n in (2, 3, 5):
        x = torch.randn(n, 3)
        expected = fresh(step, x)
        with torch._dynamo.config.patch(compiled_autograd=True):
            assert_equal(fresh(compiled, x), expected)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend)):
            assert_equal(fresh(ours, x), expected)


def test_hooks_on_results_under_compiled_autograd() -> None:
    """What such a hook cannot be told raises there too."""
    from torch._dynamo import compiled_autograd

    @jitney.compile
    def two(x):
        a = (x * 2).sin()
        return a, a.cos() * a

    x = torch.randn(5, requires_grad=True)
    torch._dynamo.reset()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        a, b = two(x)
        a.register_hook(lambda grad: None)
        with pytest.raises(RuntimeError, match="made of it, and its hook has not seen"):
            (a * b).sum().backward()


def test_a_trace_that_is_given_up_ends_its_transforms() -> None:
    """A product in ``vmap`` is traced twice; torch compares the open transforms afterwards."""
    weight = torch.randn(3, 3)

    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: row @ weight)(x)

    compiled = torch.compile(rows, backend="jitney", options={"cache": False})
    for n in (3, 4):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), rows(x))


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_what_torch_foresees_wrongly_runs_eagerly_in_its_own_capture() -> None:
    def quantized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        taken = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        return taken.dequantize() + 1, taken.int_repr()

    compiled = torch.compile(quantized, backend="jitney", options={"cache": False})
    x = torch.randn(3, 8)
    assert_equal(compiled(x), quantized(x))


def test_a_graph_of_torchs_that_gives_a_truth_value_alone() -> None:
    told = []

    @torch.compiler.disable
    def tell(value: bool) -> None:
        told.append(value)

    @torch.compile(backend="jitney", dynamic=True)
    def step(x: torch.Tensor, number: int) -> torch.Tensor:
        tell(number % 4 == 0)
        return x * 2

    for number in (3, 4, 5, 8):
        assert torch.equal(step(torch.ones(2), number), torch.full((2,), 2.0))
    assert told == [False, True, False, True]


def test_what_torchs_capture_leaves_to_eager_is_said_in_words() -> None:
    def choosing(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)).exp()

    x = torch.ones(3)
    log.clear()
    torch.testing.assert_close(torch.compile(choosing, backend="jitney")(x), choosing(x))
    (event,) = log.events("eager_graph")
    assert "cond, an operator" in str(event.data["reason"])
