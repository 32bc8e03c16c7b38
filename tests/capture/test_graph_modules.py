"""Modules whose ``forward`` is generated from an FX graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import jitney
from tests.equal import assert_equal


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))


def traced() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(layers())


X = torch.linspace(-2, 2, 24).reshape(3, 8)


@pytest.mark.parametrize(
    "make",
    [
        traced,
        lambda: torch.nn.Sequential(traced(), torch.nn.ReLU()),
        lambda: make_fx(layers())(X),
        lambda: torch.export.export(layers(), (X,)).module(),
    ],
)
def test_is_one_graph(make: Callable[[], torch.nn.Module]) -> None:
    module = make()
    compiled = jitney.compile(module, fullgraph=True)
    x = X.clone().requires_grad_()
    assert_equal(compiled(x), module(x))
    inputs = (x, *module.parameters())
    found, expected = (torch.autograd.grad(m(x).sum(), inputs) for m in (compiled, module))
    assert_equal(found, expected)


def triple(module: Any) -> None:
    """Changes the graph: what the module called "1" gives is tripled."""
    node = next(n for n in module.graph.nodes if n.target == "1")
    with module.graph.inserting_after(node):
        tripled = module.graph.call_function(torch.mul, (node, 3.0))
    node.replace_all_uses_with(tripled)
    tripled.args = (node, 3.0)


def add_layer(module: Any) -> None:
    module.add_submodule("more", torch.nn.Linear(8, 8))
    node = next(n for n in module.graph.nodes if n.op == "output")
    with module.graph.inserting_before(node):
        node.args = (module.graph.call_module("more", node.args),)
    module.recompile()


def set_graph(module: Any) -> None:
    module.graph = torch.fx.symbolic_trace(layers()[:2]).graph


@pytest.mark.parametrize("own", [True, False])
def test_edits_are_noticed(own: bool) -> None:
    """``own``: they are made by the original, else through the compiled module."""
    module = traced()
    compiled = jitney.compile(module, fullgraph=True)
    edited: Any = module if own else compiled
    before = compiled(X)
    triple(edited)
    assert_equal(compiled(X), before)  # it is not generated anew yet
    for edit in (lambda m: m.recompile(), add_layer, set_graph):
        edit(edited)
        expected = torch.fx.Interpreter(module).run(X)
        assert_equal(module(X), expected)
        assert_equal(compiled(X), expected)
    with compiled.register_forward_hook(lambda _, args, output: output * 2):
        assert_equal(compiled(X), expected * 2)
    assert_equal(compiled(X), expected)
    assert compiled.float() is compiled and compiled.code == module.code


def test_instances_do_not_share_code() -> None:
    one, other = traced(), traced()
    triple(other)
    other.recompile()
    twins = [jitney.compile(module) for module in (one, other, copy.deepcopy(other))]
    first, second, third = (twin(X) for twin in twins)
    assert_equal([first, second, third], [one(X), other(X), other(X)])


class Calling(torch.fx.GraphModule):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x + 1)


def test_a_subclass_with_a_call_of_its_own() -> None:
    module = Calling(layers(), traced().graph)
    compiled = jitney.compile(module, fullgraph=True)
    assert_equal(compiled(X), layers()(X + 1))
    triple(module)
    module.recompile()
    assert_equal(compiled(X), module(X))


class Keeping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(8))
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, given: dict[str, torch.Tensor], *, scale: torch.Tensor) -> Any:
        self.count.add_(1)
        return {"a": self.norm(given["x"]) * scale + self.count, "b": [given["y"] * 2]}


def test_state_of_an_exported_module() -> None:
    given = {"x": X, "y": torch.ones(2)}
    module, other = (
        torch.export.export(Keeping(), (given,), {"scale": torch.ones(1)}).module()
        for _ in range(2)
    )
    compiled = jitney.compile(other, fullgraph=True)
    for factor in (1, 2, 3):
        now = {"x": X * factor, "y": torch.ones(2) * factor}
        now = dict(reversed(now.items())) if factor == 3 else now
        scale = torch.ones(1) * factor
        assert_equal(compiled(now, scale=scale), module(now, scale=scale))
        assert_equal(list(compiled.state_dict().values()), list(module.state_dict().values()))


@pytest.mark.parametrize("guards", [True, False])
def test_an_exported_module_refuses_what_eager_refuses(guards: bool) -> None:
    rows = torch.export.Dim("rows", min=2, max=10)
    program = torch.export.export(layers(), (X,), dynamic_shapes=({0: rows},))
    module = program.module(check_guards=guards)
    compiled = jitney.compile(module)
    for size in (3, 4, 5):
        assert_equal(compiled(torch.ones(size, 8)), module(torch.ones(size, 8)))
    for wrong in ((torch.ones(12, 8),), (torch.ones(3, 7),), ([X],), (), (X, X)):
        with pytest.raises(Exception) as expected:  # noqa: PT011
            module(*wrong)
        with pytest.raises(expected.type) as found:
            compiled(*wrong)
        assert str(found.value) == str(expected.value)


def test_an_error_tells_the_generated_line(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = jitney.compile(torch.fx.symbolic_trace(lambda x: torch.gather(x, 0, x.long())))
    with pytest.raises(RuntimeError):
        compiled(torch.ones(1, 3))
    assert "generated forward function" in capsys.readouterr().err
