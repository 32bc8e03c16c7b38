"""The bench's arithmetic and its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from jitney.cli import bench as benches
from jitney.cli import main
from jitney.cli.device import check_device
from jitney.cli.host import Host, vector_bits
from jitney.cli.main import app
from jitney.cli.measure import Timing, interleave
from jitney.cli.sides import chosen
from jitney.cli.targets import find
from jitney.cli.workloads import WORKLOADS
from jitney.errors import UserError


def test_statistics_of_a_timing() -> None:
    timing = Timing((1.0, 2.0, 3.0, 10.0))
    assert (timing.mean, timing.p50, timing.p99) == (4.0, 2.5, 10.0)
    assert timing.as_data()["noisy"]
    assert not Timing((1.0, 1.01, 1.0)).as_data()["noisy"]


def test_rounds_are_interleaved_and_resets_come_first() -> None:
    seen: list[str] = []
    calls = {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}
    resets = {"a": lambda: seen.append("reset"), "b": lambda: seen.append("reset")}
    timings = interleave(calls, runs=3, warmup=1, reset=resets)
    assert seen[-12:] == ["reset", "a", "reset", "b"] * 3
    assert len(timings["a"].seconds) == 3


def test_short_calls_are_timed_in_batches() -> None:
    count = 0

    def call() -> None:
        nonlocal count
        count += 1

    interleave({"a": call}, runs=10)
    assert count > 1000


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(UserError, match="torch.compile"):
        chosen("tensorflow")
    with pytest.raises(UserError, match="bert"):
        find("brt")
    with pytest.raises(UserError, match="cannot import"):
        find("tests.cli.test_measure:nothing_there")


def factory() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """A factory that users may name on the command line."""
    return torch.nn.Linear(4, 4), (torch.randn(2, 4),)


def test_a_factory_of_the_users_own() -> None:
    task = find("tests.cli.test_measure:factory").build("small", torch.float64)
    assert task.step(task.module).dtype == torch.float64


def test_workloads_are_the_same_every_time() -> None:
    for name in ("nanogpt", "unet"):
        first, second = (WORKLOADS[name].build("small") for _ in range(2))
        torch.testing.assert_close(first.step(first.module), second.step(second.module))


def test_a_decode_step_repeats_after_reset() -> None:
    task = WORKLOADS["llama-decode"].build("small")
    first = task.step(task.module)[0]
    task.reset()
    assert torch.equal(first, task.step(task.module)[0])


def test_bench_reports_a_side_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(task: object) -> None:
        raise ValueError("no luck\nat all")

    monkeypatch.setitem(benches.SIDES, "openvino", broken)
    result = benches.bench("unet", ("eager", "openvino"), "small", seconds=0.1)
    rows = {row.side: row for row in result.rows}
    assert rows["openvino"].failure == "ValueError: no luck"
    assert rows["eager"].equal
    assert "openvino failed" in benches.as_text(result)


def test_bench_tells_in_what_a_side_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(task: Any) -> Any:
        return lambda *args: task.module(*args) + 1

    monkeypatch.setitem(benches.SIDES, "torch.compile", wrong)
    target = "tests.cli.test_measure:factory"
    result = benches.bench(
        target, ("eager", "torch.compile"), "small", seconds=0.1, compile_time=False
    )
    assert "torch.compile is not equal to eager: result: error 1" in benches.as_text(result)


def test_an_unknown_name_is_told_before_the_machine_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "measure_device", lambda *args: pytest.fail("measured"))
    with pytest.raises(UserError, match="nosuch"):
        main.bench(["nosuch"])
    with pytest.raises(typer.BadParameter, match="no folder /nosuch"):
        main.bench(["bert"], json_file=Path("/nosuch/out.json"))


def test_command_line_writes_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host("a machine", 1, vector_bits(), 1e9, 1e9)
    monkeypatch.setattr("jitney.cli.main.measure_device", lambda *_: host)
    file = tmp_path / "out.json"
    arguments = ["bench", "unet", "--size", "small", "--sides", "eager", "--no-compile-time"]
    done = CliRunner().invoke(app, [*arguments, "--seconds", "0.1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "a machine" in done.output
    data = json.loads(file.read_text())
    assert data["results"][0]["rows"][0]["timing"]["runs"] >= 10


@pytest.mark.skipif(torch.cuda.is_available(), reason="wants a machine without a GPU")
def test_a_device_that_is_not_there_is_named() -> None:
    for name, why in (("cuda:0", "no CUDA device"), ("mps", "for cpu and cuda"), ("?", "called")):
        with pytest.raises(UserError, match=why):
            check_device(name)
