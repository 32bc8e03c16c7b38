"""What `jitney bench` and `explain` are told to run."""

from __future__ import annotations

import io
import json
import re
import sys
from types import FunctionType, ModuleType, SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import jitney
from jitney.cli import targets
from jitney.cli.bench import bench
from jitney.cli.main import app, main
from jitney.cli.targets import check_dtype, find
from jitney.cli.workloads import Task
from jitney.diagnostics.render import summary
from jitney.errors import UserError


@pytest.mark.parametrize("made", [3, (torch.nn.Identity(),), (1, 2), (torch.nn.Identity(), 3),
                                  (torch.nn.Identity(), (), None)])  # fmt: skip
def test_a_factory_that_returns_something_else_is_told_what_is_expected(monkeypatch, made):
    module = ModuleType("given_to_the_cli")
    module.factory = lambda: made
    monkeypatch.setitem(sys.modules, module.__name__, module)
    workload = find("given_to_the_cli:factory")
    with pytest.raises(UserError, match="given_to_the_cli:factory returned a .*expected: "):
        workload.make("base", torch.float32)


@pytest.mark.parametrize(("target", "why"), [
    ("json:dumps", "missing a required argument: 'obj'"), ("json:__name__", "is a str"),
])  # fmt: skip
def test_what_is_no_factory_is_told_so(target, why):
    with pytest.raises(UserError, match=f"{target} .*{why}.*without arguments"):
        find(target)


def test_a_factory_may_return_a_function(monkeypatch):
    module = ModuleType("given_to_the_cli")
    module.factory = lambda: (torch.add, (torch.ones(2), 1), {"alpha": 2})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    task = find("given_to_the_cli:factory").build(dtype=torch.bfloat16)
    result = task.step(task.module)
    assert result.dtype is torch.bfloat16 and result.tolist() == [3, 3]


def test_a_bench_counts_what_is_covered_beside_breaks(monkeypatch):
    def breaks(x):
        y = x.sin() + 1
        return y * 2 if y.sum() > 0 else y

    module = ModuleType("given_to_the_cli")
    module.factory = lambda: (breaks, (torch.ones(8),))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = bench("given_to_the_cli:factory", ("eager", "jitney"), runs=2).report
    assert made.breaks and made.coverage == made.captured / made.operations > 0.7


def test_a_bench_does_not_count_how_results_are_compared(monkeypatch):
    net, x = torch.nn.Linear(2, 2), torch.ones(2, 2)

    def step(fn):
        result = fn(x)
        return {"result": result, "twice": [result, result], "weight": net.weight}

    module = ModuleType("given_to_the_cli")
    module.factory = lambda: Task(net, step)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = bench("given_to_the_cli:factory", ("eager", "jitney"), runs=2).report
    assert made.operations == made.captured == 1
    assert summary(made).startswith("coverage 100% of 1 torch calls in eager, 1 graphs of 1 ")


def test_a_benchs_data_are_json_though_an_error_is_not_a_number(monkeypatch, tmp_path):
    module = ModuleType("given_to_the_cli")
    module.factory = lambda: (torch.sin, (torch.ones(8),))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("jitney.cli.main.measure_device", lambda *_: SimpleNamespace())
    monkeypatch.setattr("jitney.cli.bench.largest_error", lambda *_: float("nan"))
    file = tmp_path / "bench.json"
    command = ["bench", "given_to_the_cli:factory", "--sides", "eager,jitney", "--runs", "2",
               "--no-compile-time", "--json", str(file)]  # fmt: skip
    assert CliRunner().invoke(app, command).exit_code == 0
    (result,) = json.loads(file.read_text(), parse_constant=pytest.fail)["results"]
    assert [row["error"] for row in result["rows"]] == [None, None]


def test_what_the_terminal_has_no_letter_for_is_replaced(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr("jitney.cli.main.app", lambda: print("µs"))
    main()
    stream.flush()
    assert stream.buffer.getvalue() == b"?s\n"


@pytest.mark.parametrize("target", [":factory", ".module:factory"])
def test_a_target_without_a_module_is_told_what_is_expected(target):
    with pytest.raises(UserError, match=f"cannot import {target}: expected package.module"):
        find(target)


@pytest.mark.parametrize("options", [("--runs", "0"), ("--json", "."), ("--device", "cpu:3")])
def test_wrong_options_are_told_before_anything_runs(options, monkeypatch):
    monkeypatch.setattr("jitney.cli.main.measure_device", lambda *_: pytest.fail("it is measured"))
    done = CliRunner().invoke(app, ["bench", "bert", *options])
    assert done.exit_code == 2 or isinstance(done.exception, UserError)


def test_the_data_of_a_bench_are_kept_though_the_next_one_fails(monkeypatch, tmp_path):
    module, file = ModuleType("given_to_the_cli"), tmp_path / "bench.json"
    module.factory = lambda: (torch.sin, (torch.ones(8),))
    module.fails = lambda: 1 / 0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("jitney.cli.main.measure_device", lambda *_: SimpleNamespace())
    targets = [f"given_to_the_cli:{name}" for name in ("factory", "fails")]
    command = ["bench", *targets, "--sides", "eager", "--runs", "2", "--json", str(file)]
    assert isinstance(CliRunner().invoke(app, command).exception, ZeroDivisionError)
    assert len(json.loads(file.read_text())["results"]) == 1


def test_names_that_are_none_are_answered_with_those_there_are():
    with pytest.raises(UserError, match="no workload 'brt'; there are: bert"):
        find("brt")
    with pytest.raises(UserError, match="cannot import nowhere:at_all"):
        find("nowhere:at_all")


@pytest.mark.parametrize("name", ["floaty", "nn", "int64", ""])
def test_a_dtype_that_is_none_is_told_with_those_there_are(name):
    with pytest.raises(UserError, match="no floating-point dtype .*there are float32"):
        check_dtype(name)
    assert check_dtype("bfloat16") is torch.bfloat16


@pytest.mark.parametrize("command", [["bench", "bert"], ["explain", "bert"], ["demo"]])
def test_a_size_that_is_none_is_no_other_size(command, monkeypatch):
    monkeypatch.setattr("jitney.cli.main.measure_device", lambda *_: None)
    monkeypatch.setattr("jitney.cli.main.measure_host", lambda *_: None)
    done = CliRunner().invoke(app, [*command, "--size", "huge"])
    assert isinstance(done.exception, UserError)
    assert str(done.exception) == "no size 'huge'; there are: small, base"


_PROGRAM = """
import torch

def raises():
    raise ValueError("no weights here")

class Model(torch.nn.Module):
    def forward(self, x):
        return raises()

def make():
    return Model(), (torch.ones(3),)
"""


@pytest.mark.parametrize(
    ("text", "target", "functions"),
    [
        (_PROGRAM, "raises", ["raises"]),
        (_PROGRAM, "make", ["_wrapped_call_impl", "_call_impl", "forward", "raises"]),
        ("x = y", "x", ["<module>"]),
    ],
)
def test_an_error_of_the_program_is_told_without_our_frames(
    text, target, functions, monkeypatch, tmp_path, capsys
):
    (tmp_path / f"told_{target}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["jitney", "explain", f"told_{target}:{target}", "--no-times"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="1"):
        main()
    told = capsys.readouterr().err
    assert re.findall(r", line \d+, in (.*)", told) == functions
    assert told.startswith("Traceback (most recent call last):")


def test_an_error_of_ours_keeps_its_frames(monkeypatch):
    def broken(*_):
        return {}["nothing"]

    broken = FunctionType(broken.__code__.replace(co_filename=targets.__file__), {})
    monkeypatch.setattr("jitney.cli.main.find", broken)
    monkeypatch.setattr(sys, "argv", ["jitney", "explain", "bert"])
    with pytest.raises(KeyError) as caught:
        main()
    assert len(caught.traceback) > 4


def test_the_version_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["jitney", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out == f"jitney {jitney.__version__}\n"
