"""Names and arguments that programs for ``torch.compile`` bring along mean here what they mean
there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import jitney
from jitney import config, disk_cache
from jitney.capture import substitutes
from jitney.errors import Unsupported, UserError
from jitney.events import log

X = torch.randn(4)
may_break = torch._dynamo.error_on_graph_break


def broken_in_two(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x + 2


def test_breaks_are_errors_where_the_program_says_so() -> None:
    @jitney.compile
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return broken_in_two(x) * 2

    with (
        may_break(True),
        pytest.raises(Unsupported, match="graph_break.. is called\n.*_dynamo.graph"),
    ):
        compiled(X)
    assert torch.equal(compiled(X), (X + 1 + 2) * 2)


@pytest.mark.parametrize("how", ["decorated", "within"])
def test_breaks_are_allowed_again_inside(how: str) -> None:
    def within(x: torch.Tensor) -> torch.Tensor:
        with may_break(False):
            return broken_in_two(x)

    inner = may_break(False)(broken_in_two) if how == "decorated" else within

    @may_break(True)
    @jitney.compile
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return inner(x) * 2

    log.clear()
    assert torch.equal(compiled(X), (X + 1 + 2) * 2)
    assert len(log.events("graph_break")) == 1
    assert not torch._dynamo.utils._get_error_on_graph_break()


def test_breaks_are_errors_in_one_function_only() -> None:
    @jitney.compile
    def compiled(x: torch.Tensor) -> torch.Tensor:
        x = broken_in_two(x)
        return may_break(True)(broken_in_two)(x)

    with pytest.raises(Unsupported):
        compiled(X)

    @jitney.compile(fullgraph=True)
    def full(x: torch.Tensor) -> torch.Tensor:
        with may_break(False):
            return broken_in_two(x)

    with pytest.raises(Unsupported):
        full(X)


def test_a_function_traced_as_it_runs() -> None:
    @jitney.nonstrict_trace
    def parts(given: dict[str, Any], factor: int) -> dict[str, Any]:
        torch._dynamo.graph_break()
        return {"sum": given["a"] * factor + given["b"][0], "rest": (given["a"].sin(),)}

    @jitney.compile(fullgraph=True)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        found = parts({"a": x, "b": [x + 1]}, 3)
        return found["sum"] + found["rest"][0]

    x = X.clone().requires_grad_()
    result = compiled(x)
    result.sum().backward()
    torch.testing.assert_close(result, x * 4 + 1 + x.sin())
    torch.testing.assert_close(x.grad, 4 + X.cos())


def test_the_limit_of_one_compile() -> None:
    compiled = jitney.compile(lambda x: x + 1, dynamic=False, recompile_limit=2, name="steps")
    compiled(torch.ones(1)), compiled(torch.ones(2))
    with pytest.warns(UserWarning, match=r"compiled 2 times.*last: x.size\(0\): expected 2, got 3"):
        compiled(torch.ones(3))


@pytest.mark.parametrize("of", [jitney, torch.compiler])
def test_a_refused_compile_says_which_guard_failed(of: Any) -> None:
    compiled = jitney.compile(lambda x: x + 1)
    with of.set_stance("fail_on_recompile"), pytest.raises(UserError, match="would be compiled w"):
        compiled(X)
    compiled(X)
    with of.set_stance("fail_on_recompile"):
        with pytest.raises(UserError, match="compiled again .x: dtype expected torch.float32"):
            compiled(X.double())


def test_a_stance_is_a_scope_more_than_once() -> None:
    compiled = jitney.compile(lambda x: x + torch.compiler.is_compiling())
    eager = jitney.set_stance("force_eager", skip_guard_eval_unsafe=False)
    for _ in range(2):
        with eager:
            assert torch.equal(compiled(X), X)
        assert torch.equal(compiled(X), X + 1)
    with jitney.set_stance("aot_eager_then_compile"):
        assert torch.equal(compiled(X), X + 1)
    with pytest.raises(UserError, match="force_backend"):
        jitney.set_stance(force_backend="eager")


def test_modes_and_options_through_torch_compile() -> None:
    for given in ({"mode": "reduce-overhead"}, {"mode": "max-autotune"}, {"options": {}}):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: x * 2, backend="jitney", **given)
        assert torch.equal(compiled(X), X * 2)
    seen = []
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.MonkeyPatch.context() as patch:
        from jitney import region_pipeline
        from jitney.backends import jitney_backend

        patch.setattr(region_pipeline, "GraphCompiler", lambda knobs: seen.append(knobs) or print)
        jitney_backend(graph, [X], mode="reduce-overhead")
        jitney_backend(graph, [X], mode="max-autotune-no-cudagraphs", options=None)
    assert [(k.cuda_graphs, k.max_autotune) for k in seen] == [(True, False), (False, True)]
    with pytest.raises(UserError, match="unknown mode"):
        jitney_backend(graph, [X], mode="fast")


def test_regions_and_substitutes_take_torchs_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(substitutes, "_registered", {})

    @jitney.nested_compile_region(max_reuse_entries=2)
    def region(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert torch.equal(jitney.compile(region, fullgraph=True)(X), X * 2)
    register = jitney.substitute_in_graph(broken_in_two, can_constant_fold_through=True)
    assert register(lambda x: x + 3)(1) == 4
    asked = jitney.compile(lambda x: x + jitney.is_dynamo_compiling(), fullgraph=True)
    assert torch.equal(asked(X), X + 1) and not jitney.is_dynamo_compiling()


def test_a_cache_goes_to_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_used", {})

    def regions_found() -> int:
        jitney.reset()
        log.clear()
        assert torch.equal(jitney.compile(lambda x: x * 2 + 1)(X), X * 2 + 1)
        told = [e.data for e in log.events("cache") if e.data.get("what") == "region"]
        return sum(bool(data["hit"]) for data in told)

    with config.override(cache_dir=str(tmp_path / "here"), cache=True):
        assert jitney.save_cache_artifacts() is None
        assert regions_found() == 0
        artifacts, info = jitney.save_cache_artifacts()
        assert info.entries > 0 and info.size < len(artifacts)
    with config.override(cache_dir=str(tmp_path / "there"), cache=True):
        assert jitney.load_cache_artifacts(artifacts) == info
        assert regions_found() == 1
        for damaged in (
            artifacts[:-1],
            b"",
            artifacts[5:],
            artifacts.replace(b"region", b"regiom"),
        ):
            with pytest.raises(UserError, match="damaged"):
                jitney.load_cache_artifacts(damaged)
    with config.override(cache=False):
        assert jitney.load_cache_artifacts(artifacts) is None


def test_other_instances_may_use_up_the_limit() -> None:
    """One that has not been compiled itself has no guards to explain."""

    class Adds(torch.nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.k = k

        @jitney.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.k

    class Several(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(Adds(k) for k in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = part(x) * 2
            return x

    model, x = Several(), torch.ones(2)
    compiled = jitney.compile(model, options={"accumulated_recompile_limit": 2})
    for _ in range(3):
        assert torch.equal(compiled(x), model(x))
