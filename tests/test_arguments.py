"""What `jitney.compile` accepts beside torch.compile, and what it refuses."""

from __future__ import annotations

import inspect

import pytest
import torch

import jitney
from jitney.errors import UserError


def test_every_argument_of_torchs_compile_is_known_here() -> None:
    ours = inspect.signature(jitney.compile).parameters
    assert inspect.signature(torch.compile).parameters.keys() <= ours.keys()


def test_arguments_that_are_none_change_nothing() -> None:
    compiled = jitney.compile(lambda x: x + 1, backend=None, dynamic_shapes=None, shapes_spec=None)
    assert compiled(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("name", ["dynamic_shapes", "shapes_spec"])
def test_shapes_that_are_given_in_torchs_way_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} takes None alone here: use dynamic=True"):
        jitney.compile(lambda x: x + 1, **{name: {"x": None}})


def test_a_disabled_class_is_the_class_and_its_methods_run_eager() -> None:
    @jitney.disable(reason="told so")
    class Scaler:
        factor = 3

        def __init__(self, x: torch.Tensor) -> None:
            self.x = x * self.factor

        def __call__(self, y: torch.Tensor) -> torch.Tensor:
            return self.x + y

    class Derived(Scaler):
        factor = 5

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return Scaler(x)(x) + 1, Derived(x)(x) + 1

    assert isinstance(Scaler(torch.ones(1)), Scaler) and Scaler.factor == 3
    x = torch.ones(2)
    assert [r.tolist() for r in jitney.compile(f, backend="eager")(x)] == [[5, 5], [7, 7]]
    breaks = jitney.explain(f)(x).breaks
    assert {broken.kind for broken in breaks} == {"disabled"}
    assert sum(broken.count for broken in breaks) == 4
    assert all("told so" in broken.reason for broken in breaks)


def test_a_disabled_class_of_modules_runs_eager() -> None:
    @jitney.disable
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    net, x = Net(), torch.ones(2)
    assert jitney.compile(net)(x).tolist() == [2, 2]
    report = jitney.explain(lambda x: net(x) + 1)(x)
    assert [broken.kind for broken in report.breaks] == ["disabled"]
    assert torch.nn.Module.__call__ is not Net.__call__


def test_a_disabled_class_without_python_methods_stays_as_it_was() -> None:
    @jitney.disable
    class Empty:
        pass

    assert type(Empty()) is Empty and not callable(Empty())
