"""What `jitney.compile` accepts beside torch.compile, and what it refuses."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch

import jitney
from jitney import config
from jitney.backends import jitney_backend
from jitney.diagnostics.explain import explain_step
from jitney.errors import Unsupported, UserError


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(dynamic=1), "dynamic takes None, True or False, not 1"),
        (dict(disable=1), "disable takes True or False, not 1"),
        (dict(recompile_limit=-1), r"recompile_limit takes 0 .* or more, not -1"),
        (dict(recompile_limit=True), "takes an int, not a bool"),
        (dict(options={"accumulated_recompile_limit": -2}), "or more, not -2"),
    ],
)
def test_values_that_look_like_others_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        jitney.compile(lambda x: x, **arguments)


@pytest.mark.parametrize("compile", [jitney.compile, jitney.compile_in_place])
def test_an_unknown_argument_is_told_those_there_are(compile: Any) -> None:
    told = "compile takes no 'fulgraph'; its arguments are model, fullgraph, dynamic, backend, "
    with pytest.raises(UserError, match=told) as caught:
        compile(torch.nn.Identity(), fulgraph=True)
    assert isinstance(caught.value, TypeError)


_SWITCHES = ("JITNEY_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


@pytest.mark.parametrize("switch", _SWITCHES)
def test_the_environment_switches_compiling_off(switch: str, monkeypatch: Any) -> None:
    net, function = torch.nn.Linear(2, 2), lambda x: x + 1
    monkeypatch.setenv(switch, "1")
    for backend in ("jitney", "eager"):
        assert jitney.compile(net, backend=backend) is net
        assert jitney.compile(backend=backend)(function) is function
    jitney.compile_in_place(net)
    assert net._compiled_call_impl is None
    (told,) = jitney.explain(function)(torch.ones(2)).fallbacks
    assert told.reason == f"{switch} is set"
    with pytest.raises(UserError, match="unknown mode"):
        jitney.compile(function, mode="fast")
    for nothing in ("", "0"):
        monkeypatch.setenv(switch, nothing)
        assert jitney.compile(function) is not function


def test_the_environment_switches_our_backend_off(monkeypatch: Any) -> None:
    monkeypatch.setenv("JITNEY_DISABLE", "1")
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    assert jitney_backend(gm, [torch.ones(2)]) == gm.forward


def test_a_switch_that_is_neither_on_nor_off_is_told(monkeypatch: Any) -> None:
    monkeypatch.setenv("JITNEY_DISABLE", "often")
    with pytest.raises(UserError, match="JITNEY_DISABLE='often': 0 or 1 expected"):
        jitney.compile(lambda x: x + 1)


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


def test_dumps_are_asked_for_in_the_environment_alone() -> None:
    for ask in (
        lambda: jitney.compile(lambda x: x, options={"debug": 2}),
        lambda: jitney.options(debug=2).__enter__(),
    ):
        with pytest.raises(UserError, match="set JITNEY_DEBUG=1 to 6"):
            ask()
    with pytest.raises(UserError, match="unknown option 'debugs'; options are") as error:
        jitney.compile(lambda x: x, options={"debugs": 2})
    assert "debug," not in str(error.value)


@pytest.mark.parametrize("level", ["7", "-1"])
def test_a_level_of_dumps_that_there_is_not_is_refused(level: str) -> None:
    with pytest.raises(UserError, match=f"JITNEY_DEBUG={level}: levels are 0 to 6"):
        config.from_environment({"JITNEY_DEBUG": level})


def yields(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x + 1


async def is_awaited(x: torch.Tensor) -> torch.Tensor:
    return x + 1


async def does_both(x: torch.Tensor) -> AsyncIterator[torch.Tensor]:
    yield x + 1


async def _first(results: AsyncIterator[torch.Tensor]) -> torch.Tensor:
    return await anext(results)


@pytest.mark.parametrize(
    ("function", "run"),
    [
        (yields, next),
        (is_awaited, asyncio.run),
        (does_both, lambda results: asyncio.run(_first(results))),
    ],
)
def test_generator_and_coroutine_functions_run_eager_and_say_so(function: Any, run: Any) -> None:
    x = torch.ones(2)
    told = explain_step(function, lambda f: [run(f(x)).tolist() for _ in range(2)])
    (row,) = told.fallbacks
    assert row.what == "frame" and row.count == 1 and told.coverage == 0
    assert "generator or coroutine function" in row.reason
    assert row.where == f"{function.__name__} ({__file__}:{function.__code__.co_firstlineno})"
    whole = jitney.compile(function, fullgraph=True)
    for _ in range(2):
        with pytest.raises(Unsupported, match="hint: compile what it calls"):
            whole(x)
    with jitney.set_stance("force_eager"):
        assert run(whole(x)).tolist() == [2, 2]


def test_an_empty_variable_of_the_environment_is_no_number() -> None:
    empty = {"JITNEY_DEBUG": "", "JITNEY_RECOMPILE_LIMIT": "", "JITNEY_CACHE_DIR": ""}
    assert config.from_environment(empty) == config.Config()
    assert not config.from_environment({"JITNEY_CACHE": ""}).cache


@pytest.mark.parametrize("wrong", ["text", None, 3])
def test_cache_artifacts_that_are_no_bytes_are_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match=f"not a {type(wrong).__name__}"):
        jitney.load_cache_artifacts(wrong)
