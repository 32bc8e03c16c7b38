"""Reports from events, their renderings, the logs and the dumps."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jitney
from jitney.diagnostics import render
from jitney.diagnostics.dumps import dump
from jitney.diagnostics.explain import explain_step
from jitney.diagnostics.logs import print_logs
from jitney.diagnostics.progress import Progress
from jitney.diagnostics.report import report
from jitney.errors import UserError
from jitney.events import Event, log
from jitney.loops import ir
from jitney.loops.index import Axis, index


@pytest.fixture(autouse=True)
def clean_log() -> Iterator[None]:
    log.clear()
    yield
    log.clear()


def a_program() -> ir.LoopProgram:
    """``out = a @ b`` of shapes (4, 8) and (8, 16)."""
    m, n, k = (Axis(name, index(size)) for name, size in (("m", 4), ("n", 16), ("k", 8)))
    f32, cpu = torch.float32, torch.device("cpu")

    def buffer(name: str, *shape: int) -> ir.Buffer:
        sizes = tuple(map(index, shape))
        return ir.Buffer(name, "input", f32, cpu, sizes, (sizes[1], index(1)))

    store = ir.Store("out", index(m) * 16 + n, ir.Ref("acc", f32))
    gemm = ir.Gemm(
        "g", (), m, n, k, ir.Access("a", index(m) * 8 + k, f32),
        ir.Access("b", index(k) * 16 + n, f32), f32, (store,), origins=("mm_3",),
    )  # fmt: skip
    buffers = (buffer("a", 4, 8), buffer("b", 8, 16), buffer("out", 4, 16))
    return ir.LoopProgram(("a", "b"), buffers, (gemm,), ())


def emit_a_compile() -> None:
    with log.stage("capture"):
        log.emit("entry", function="f", nodes=9, guards=4, graph="the graph")
    for _ in range(2):
        log.emit(
            "graph_break",
            break_kind="print",
            reason="prints",
            hint="log",
            where=f"{__file__}:1",
            frame="f",
        )
    log.emit("recompile", function="f", where="x.py:1", message="L['x'].shape[0] == 3, is 4")
    log.emit("lowered", graph="g", lowered={"aten.add": 2, "aten.mm": 1}, extern={"aten.sort": 1})
    log.emit("kernel", name="k0", source=lambda: "ir")
    log.emit("program", program=a_program())
    log.emit("frame_skipped", function="g", where="x.py:9", reason="meta")


def test_report_counts_what_happened() -> None:
    emit_a_compile()
    made = report(log.events(), operations=10)
    assert (made.graphs, made.captured, made.guards) == (1, 9, 4)
    assert made.breaks[0].count == 2
    assert "Reports from events" in made.breaks[0].line
    assert made.recompiles[0].failed.endswith("is 4")
    assert made.lowered_share == 0.75
    assert made.coverage == 0.9
    assert made.kernels[0].bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert made.kernels[0].flops == 2 * 4 * 16 * 8
    assert [s.name for s in made.stages] == ["capture"]


def test_nothing_captured_is_no_coverage() -> None:
    assert report([]).coverage == 0.0


def overlaps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x + y


def turns(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x.t()).normal_()


def sines(x: torch.Tensor, name: str) -> torch.Tensor:
    return x.sin() if name == "a" else x.cos()


def _at(function: Any) -> str:
    return f"{function.__name__} ({__file__}:{function.__code__.co_firstlineno})"


def test_graphs_that_ran_eager_are_not_covered_and_name_their_function() -> None:
    base = torch.ones(6)
    matrix = torch.ones(3, 2)
    for function, given in ((overlaps, (base[:4], base[2:])), (turns, (matrix,))):
        told = jitney.explain(function)(*given)
        assert told.coverage == 0 and told.graphs == told.captured == 0
        assert [row.where for row in told.fallbacks] == [_at(function)]
    assert told.fallbacks[0].reason.startswith("aten.normal_functional.default of a tensor")


def test_calls_past_the_limit_of_recompiles_are_not_covered() -> None:
    x = torch.ones(2)
    told = explain_step(sines, lambda f: [f(x, name) for name in "abcd"], recompile_limit=1)
    assert told.coverage == 0.25
    (row,) = told.fallbacks
    assert (row.what, row.reason, row.where) == (
        "calls",
        "recompile_limit of 1 reached",
        _at(sines),
    )


def test_a_share_that_nobody_counted_is_not_said_to_be_none() -> None:
    emit_a_compile()
    made = report(log.events())
    assert "coverage not measured, 1 graphs of 9 torch calls" in render.as_text(made)
    assert json.loads(render.as_json(made))["coverage"] is None


def test_renderings_hold_every_fact() -> None:
    emit_a_compile()
    made = report(log.events(), operations=10)
    text, page = render.as_text(made), render.as_html(made)
    for fact in (
        "90%",
        "print: prints",
        "is 4",
        "aten.sort",
        "mm",
        "m=4 n=16 k=8",
        "capture",
        "meta",
    ):
        assert fact in text
        assert fact in page
    data = json.loads(render.as_json(made))
    assert data["breaks"][0]["count"] == 2
    assert data["lowered_share"] == 0.75


def test_long_tables_are_cut_in_text_only() -> None:
    events = [Event("lowered", 0.0, {"extern": {f"aten.op{i}": 1 for i in range(50)}})]
    assert "and 20 more" in render.as_text(report(events))
    assert "aten.op49" in render.as_html(report(events))


def test_logs_print_the_artifacts_asked_for() -> None:
    stream = io.StringIO()
    stops = print_logs("graph_breaks,+graph_code,output_code", stream)
    emit_a_compile()
    for stop in stops:
        stop()
    emit_a_compile()
    text = stream.getvalue()
    assert text.count("print: prints") == 2
    assert "the graph" in text
    assert "ir" in text
    assert "guard failed" not in text


class _Prints(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.show(x) + 1

    def show(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = float(x.sum())
        return x


def test_a_logged_break_tells_the_function_of_its_line() -> None:
    stream = io.StringIO()
    stops = print_logs("graph_breaks", stream)
    jitney.compile(_Prints(), backend="eager")(torch.ones(3))
    for stop in stops:
        stop()
    line = _Prints.show.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in _Prints.show: tensor-value: " in stream.getvalue()


def test_logged_guards_say_what_they_expect() -> None:
    stream = io.StringIO()
    stops = print_logs("guards", stream)
    jitney.compile(lambda x, n: x * n, backend="eager")(torch.ones(3), 4)
    for stop in stops:
        stop()
    text = stream.getvalue()
    assert "tensor x torch.float32 [3] on cpu" in text and "n 4" in text
    assert "grad" in text and "True" in text


@pytest.mark.parametrize("artifact", ["aot_graphs", "fusion", "output_code"])
def test_what_a_compile_does_is_printed_though_the_region_is_in_the_cache(
    artifact: str, tmp_path: Path
) -> None:
    kept = {"cache_dir": str(tmp_path)}
    for _ in range(2):
        jitney.compile(lambda x: x.sin() * 2, options=kept)(torch.ones(3))
        stream = io.StringIO()
        stops = print_logs(artifact, stream)
        jitney.compile(lambda x: x.sin() * 2, options=kept)(torch.ones(3))
        for stop in stops:
            stop()
        assert f"[jitney {artifact}]" in stream.getvalue()
    log.clear()
    jitney.compile(lambda x: x.sin() * 2, options=kept)(torch.ones(3))
    assert report(log.events()).cache.get("region hit") == 1


def test_an_unknown_artifact_names_those_there_are() -> None:
    stream = io.StringIO()
    assert print_logs("grpah_breaks", stream) == []
    assert "graph_breaks" in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "kinds"),
    [(1, set()), (2, {"entry"}), (5, {"entry", "program", "kernel"})],
)
def test_dumps_by_level(tmp_path: Path, level: int, kinds: set[str]) -> None:
    finish = dump(level, str(tmp_path))
    emit_a_compile()
    finish()
    files = sorted(p.name for p in tmp_path.iterdir() if p.name != "summary.txt")
    assert {Path(name).stem.split("_")[1] for name in files} == kinds
    assert "coverage" in (tmp_path / "summary.txt").read_text()


def test_dumps_stay_in_their_folder_when_the_program_goes_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finish = dump(2, "dumped")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    emit_a_compile()
    finish()
    assert len([*(tmp_path / "dumped").iterdir()]) == 2


def test_dumps_are_written_in_utf_8_wherever_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("io.text_encoding", lambda given, *_: given or "ascii")  # pathlib asks it
    finish = dump(2, str(tmp_path))
    log.emit("graph", name="g", code="µ")
    finish()
    (file,) = tmp_path.glob("*graph*")
    assert file.read_bytes().endswith("µ\n".encode())


def test_a_dump_that_cannot_be_written_is_one_line_and_no_error_of_the_compile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    finish = dump(2, str(tmp_path / "file"))
    emit_a_compile()
    compiled = jitney.compile(lambda x: x + 1, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    finish()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("JITNEY_DEBUG: 0001_entry_f.txt cannot be written: FileExistsError")


def test_progress_shows_only_long_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress(Event("stage_start", 0.0, {"name": "lower"}))
    assert stream.getvalue() == ""
    progress.began -= 5
    progress.show(5)
    assert "lower, 5 s" in stream.getvalue()
    progress(Event("kernel", 0.0, {}))
    assert "lower, 1 kernels, 5 s" in stream.getvalue()
    progress(Event("stage", 0.0, {"name": "lower", "seconds": 5.0}))
    assert stream.getvalue().endswith("\r")


def test_explain_refuses_at_once_what_cannot_be_compiled() -> None:
    with pytest.raises(UserError, match="not 3"):
        jitney.explain(3)  # type: ignore[arg-type]


def test_level_6_shows_the_program_after_every_pass(tmp_path: Path) -> None:
    finish = dump(6, str(tmp_path))
    jitney.compile(lambda x: x.relu() + 1, options={"cache": False})(torch.ones(3))
    finish()
    names = [
        path.stem.split("_", 1)[1] for path in sorted(tmp_path.iterdir()) if path.stem[0] == "0"
    ]
    assert {"pass_lowering", "pass_fusion", "graph_aten", "program"} <= set(names)
    lowered = next(tmp_path.glob("*pass_lowering.txt")).read_text()
    assert "relu" in lowered and "add" in lowered
    first, *_ = sorted(tmp_path.glob("*fusion_inline.txt"))
    assert "a=relu_nest b=relu allowed=True" in first.read_text()
