"""Frozen weights: equal results, laid out once, anew when moved, never for what is skinny."""

from __future__ import annotations

import pytest
import torch

from jitney import config
from jitney.kernels.llvm.build_program import build_program
from jitney.kernels.llvm.freeze_weights import FrozenCall, freeze_weights
from jitney.kernels.llvm.host import host_target
from jitney.loops.lower_graph import lower_graph
from jitney.loops.plan_memory import plan_memory

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
