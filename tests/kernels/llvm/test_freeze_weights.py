"""Frozen weights: equal results, laid out once, anew when moved, never for what is skinny."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

import jitney
from jitney import config
from jitney.events import log
from jitney.kernels.llvm.freeze_weights import FrozenCall, freeze_weights
from jitney.kernels.llvm.hoist_parameters import hoist_parameters
from jitney.kernels.llvm.host import host_target
from jitney.loops.ir import LoopProgram
from jitney.loops.lower_graph import lower_graph
from jitney.loops.plan_memory import plan_memory
from tests.equal import assert_equal_to_eager
from tests.kernels.llvm.compiled import build_program

FROZEN = config.with_options(config.current(), {"freeze": True})


def _program(module: torch.nn.Module, x: torch.Tensor):  # type: ignore[no-untyped-def]
    """The module's program with its parameters marked, and its arguments."""
    exported = torch.export.export(module, (x,))
    gm, parameters = exported.graph_module, dict(exported.named_parameters())
    names = exported.graph_signature.inputs_to_parameters
    arguments = []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            node.meta["is_parameter"] = node.name in names
            arguments.append(parameters[names[node.name]].detach() if node.name in names else x)
    program, constants = lower_graph(gm, host_target())
    return plan_memory(program), constants, arguments


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_frozen_linear(dtype: torch.dtype) -> None:
    module = torch.nn.Linear(34, 100).to(dtype)
    x = torch.randn(20, 34).to(dtype)
    program, constants, arguments = _program(module, x)
    call = build_program(program, constants, host_target(), FROZEN)
    assert isinstance(call, FrozenCall)
    expected = module.double()(x.double())
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    for _ in range(2):
        assert (call(*arguments)[0].double() - expected).abs().max() < limit
    moved = [a.clone() * 2 if a.shape == (100, 34) else a for a in arguments]
    bias = module.bias.double()
    assert (call(*moved)[0].double() - (2 * expected - bias)).abs().max() < 2 * limit


def test_few_rows_read_the_weight_in_place() -> None:
    program, _, _ = _program(torch.nn.Linear(34, 100), torch.randn(2, 34))
    assert freeze_weights(program, host_target()) == (program, ())


def test_one_weight_read_twice_is_laid_out_once() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(48, 48, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(x)))

    program, _, _ = _program(Twice(), torch.randn(20, 48))
    _, weights = freeze_weights(program, host_target())
    assert len(weights) == 1


class Norms(torch.nn.Module):
    """Convolutions that are transformed, grouped, by channel and plain, each with a norm."""

    def __init__(self) -> None:
        super().__init__()
        kinds = ((3, 64, 1), (64, 64, 1), (64, 64, 2), (64, 64, 64), (64, 70, 1))
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv2d(a, b, 3, padding=1, groups=g, bias=g == 1) for a, b, g in kinds
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(b) for _, b, _ in kinds)
        for norm in self.norms:
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
            norm.running_mean.uniform_(-0.5, 0.5)
            norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = norm(layer(x)).relu()
            x = y + x if y.shape == x.shape else y
        return x


def test_frozen_convolutions_and_norms() -> None:
    module, x = Norms().eval(), torch.randn(1, 3, 33, 34)
    frozen = jitney.compile(module, options={"freeze": True, "cache": False})
    for _ in range(2):
        assert_equal_to_eager(module, frozen, (x,))
    for norm in module.norms:  # other memory is noticed
        norm.running_var = norm.running_var * 2
        norm.bias = torch.nn.Parameter(norm.bias + 1)
    assert_equal_to_eager(module, frozen, (x,))


@pytest.mark.parametrize("theirs", [False, True], ids=["jitney.compile", "torch.compile"])
def test_what_is_written_is_laid_out_again(theirs: bool) -> None:
    module, x = Norms().eval(), torch.randn(1, 3, 33, 34)
    options = {"freeze": True, "cache": False}
    if theirs:
        frozen = torch.compile(module, backend="jitney", options=options)
    else:
        frozen = jitney.compile(module, options=options)
    with torch.no_grad():
        for tensor in [None, *module.parameters(), *module.buffers()]:
            if tensor is not None and tensor.is_floating_point():
                tensor.mul_(1.5)
            assert_equal_to_eager(module, frozen, (x,))
    module.load_state_dict({name: t * 0.5 for name, t in module.state_dict().items()})
    with torch.no_grad():
        assert_equal_to_eager(module, frozen, (x,))


def test_a_model_may_be_trained_between_frozen_calls() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(70, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    train = jitney.compile(net)
    evaluate = jitney.compile(net, options={"freeze": True})
    step, x = torch.optim.SGD(net.parameters(), 0.5), torch.randn(17, 70)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(evaluate(x), net(x), rtol=1e-4, atol=1e-5)
        train(x).square().mean().backward()
        step.step()


def test_what_parameters_determine_is_computed_once() -> None:
    seen: list[LoopProgram] = []
    module, x = Norms().eval(), torch.randn(1, 3, 33, 34)
    stop = log.listen(lambda e: seen.append(e.data["program"]) if e.kind == "program" else None)
    with torch.no_grad():
        jitney.compile(module, options={"freeze": True, "cache": False})(x)
    stop()
    program = LoopProgram(*(getattr(seen[0], f.name) for f in fields(LoopProgram)))
    main, preparation = hoist_parameters(program)
    assert preparation is not None
    assert len(main.nodes) + len(preparation.nodes) == len(program.nodes)
    parameters = {b.name for b in program.buffers if b.is_parameter}
    assert parameters.issuperset(a for a in preparation.arguments if isinstance(a, str))
    assert len(preparation.outputs) >= 2 * len(module.norms)
    _, weights = freeze_weights(main, host_target())
    assert {len(w.shape) for w in weights} >= {2, 3}


def test_statistics_in_training_are_no_parameters() -> None:
    def step(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    inputs = [torch.randn(4, 8, 5, 5), torch.zeros(8), torch.ones(8)]
    theirs = [t.clone() for t in inputs]
    frozen = jitney.compile(step, options={"freeze": True, "cache": False})
    for _ in range(2):
        torch.testing.assert_close(frozen(*inputs), step(*theirs))
        torch.testing.assert_close(inputs, theirs)


def test_weights_that_are_trained_are_not_frozen() -> None:
    losses: list[list[float]] = []
    for freeze in (True, False):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(70, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
        run = jitney.compile(net, options={"freeze": True}) if freeze else net
        step, x = torch.optim.SGD(net.parameters(), 0.5), torch.randn(17, 70)
        losses.append([])
        for _ in range(4):
            step.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            step.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][3] < 0.9 * losses[0][0]


def test_a_backward_pass_of_some_results_is_not_frozen() -> None:
    """It is compiled when it is first asked for."""

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(70, 64), torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            hidden = torch.tanh(self.first(x))
            return self.second(hidden), torch.sin(self.second(hidden * 2)), hidden * 3

    torch.manual_seed(0)
    net, x = Pair(), torch.randn(40, 70)
    frozen = jitney.compile(net, options={"freeze": True})
    for _ in range(3):
        for kept in range(3):
            gradients = [
                torch.autograd.grad(run(x)[kept].sum(), net.first.weight) for run in (frozen, net)
            ]
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            for weight in net.parameters():
                weight.mul_(1.1)
