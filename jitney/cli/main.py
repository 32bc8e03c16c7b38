"""The command line: `jitney bench`, `jitney explain`, `jitney demo`."""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Annotated

import torch
import typer

import jitney
from jitney.cli import bench as benches
from jitney.cli.device import check_device, measure_device
from jitney.cli.host import measure_host
from jitney.cli.sides import chosen
from jitney.cli.targets import check_dtype, check_size, find
from jitney.cli.workloads import WORKLOADS
from jitney.diagnostics import render
from jitney.diagnostics.explain import explain_step
from jitney.errors import JitneyError
from jitney.run.traceback import clean

app = typer.Typer(add_completion=False, no_args_is_help=True, help="A JIT compiler for PyTorch.")

Targets = Annotated[
    list[str] | None,
    typer.Argument(help="Built-in names (see --list) or package.module:factory."),
]
SizeOption = Annotated[str, typer.Option(help="small or base")]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16, …")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda or cuda:1: built, run and timed there.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"jitney {jitney.__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Options that stand before a command."""


@app.command()
def bench(
    targets: Targets = None,
    sides: Annotated[
        str, typer.Option(help="default, graphs, frozen, all, or names by comma")
    ] = "default",
    size: SizeOption = "base",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    runs: Annotated[
        int, typer.Option(min=1, help="Runs of each side, at least 50 unless slow.")
    ] = 50,
    seconds: Annotated[float, typer.Option(help="Time after which a slow one stops.")] = 60.0,
    compile_time: Annotated[bool, typer.Option(help="Cold and warm start in processes.")] = True,
    host: Annotated[bool, typer.Option("--host", help="Measure the machine.")] = False,
    list_names: Annotated[bool, typer.Option("--list", help="Built-in workloads.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the data here.")] = None,
) -> None:
    """Times eager, torch.compile and Jitney side by side in one process."""
    if list_names:
        for workload in WORKLOADS.values():
            print(f"{workload.name:22} {workload.about}")
        return
    known_size, compared = check_size(size), chosen(sides)
    for target in targets or []:
        find(target)  # before minutes are spent
    if json_file and json_file.is_dir():
        raise typer.BadParameter(f"{json_file} is a folder")
    if json_file and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {json_file.absolute().parent}")
    machine = measure_device(check_device(device), check_dtype(dtype))
    print(f"host: {machine}; torch {torch.__version__}, Python {sys.version.split()[0]}")
    if host or not targets:
        return
    results = []
    for target in targets:
        result = benches.bench(
            target, compared, known_size, dtype, runs, seconds, compile_time, device
        )
        results.append(result.as_data())
        print(benches.as_text(result), flush=True)
        if json_file:  # now, for a later one may fail
            data = {"host": vars(machine), "results": results}
            json_file.write_text(render.json_of(data), encoding="utf-8")


@app.command()
def explain(
    target: Annotated[str, typer.Argument(help="A built-in name or package.module:factory.")],
    size: SizeOption = "small",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    mode: Annotated[str, typer.Option(help="As of jitney.compile.")] = "default",
    times: Annotated[bool, typer.Option(help="Time each kernel by itself.")] = True,
    form: Annotated[str, typer.Option("--format", help="text, json or html")] = "text",
) -> None:
    """Compiles one workload and tells what happened to it, and how near each kernel is to what
    the machine can do."""
    place, kind = check_device(device), check_dtype(dtype)
    renderers = {"text": render.as_text, "json": render.as_json, "html": render.as_html}
    if form not in renderers:
        raise typer.BadParameter(f"there are: {', '.join(renderers)}")
    task = find(target).build(check_size(size), kind, device=device)
    made = explain_step(task.module, task.step, times=times, mode=mode)
    if times:
        machine = measure_device(place, kind)
        made = replace(made, bandwidth=machine.bandwidth, peak=machine.peak)
    print(renderers[form](made))


@app.command()
def demo(size: SizeOption = "base", seconds: float = 20.0) -> None:
    """BERT and a small Llama from configs: time, compile time and error, side by side."""
    print(f"host: {measure_host()}", flush=True)
    print("BERT, then Llama: each takes some minutes, as every side is first compiled in fresh "
          "processes.", flush=True)  # fmt: skip
    for target in ("bert", "llama"):
        result = benches.bench(
            target, chosen("default"), check_size(size), seconds=seconds, compile_time=True
        )
        print(benches.as_text(result), flush=True)


def main() -> None:
    """Runs the command line; our own errors end it with one line, not a stack, and what the
    terminal has no letter for (µ) ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except JitneyError as error:
        print(f"jitney: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not _begins_in_the_program(error):
            raise
        traceback.print_exception(error)
        sys.exit(1)


def _begins_in_the_program(error: Exception) -> bool:
    """Whether code of the program that was named raised it or called what did. Its traceback then
    begins there: frames of ours and of the command line's library tell nothing."""
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        entries = [] if _file(entry) == __file__ else [*entries, entry]
        entry = entry.tb_next
    if all(_file(entry).startswith((*_CALLERS, _TORCH)) for entry in entries):
        return False
    first = next(entry for entry in entries if not _file(entry).startswith(_CALLERS))
    clean(error.with_traceback(first), main.__code__)
    return True


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _folder(module: ModuleType) -> str:
    return os.path.dirname(str(module.__file__)) + os.sep


_CALLERS = (*map(_folder, (jitney, importlib)), "<frozen ")  # of the program's first frame
_TORCH = _folder(torch)


if __name__ == "__main__":
    main()
