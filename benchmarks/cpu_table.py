"""The table of CPU figures: every row measured in one run on one host.

    python -m benchmarks.cpu_table [--rows bert,frozen,…] [--seconds 40] [--json FILE]

Each workload runs in a process of its own, all its sides interleaved there, and is a line of FILE
as soon as it is measured; what FILE already has is not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.micro import MICRO
from jitney.cli.host import measure_host
from jitney.cli.sides import installed

MODELS = ("bert", "gpt2", "vit", "llama", "qwen3-decode", "regnet", "resnet50", "nanogpt", "unet")
TRAINING = ("bert-train", "gpt2-train", "llama-train", "vit-train", "nanogpt-train", "cnn-train")
FROZEN_PEERS = ("torch.compile-frozen", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Figure:
    """A row of the table: what was measured, its value, and the cases it was made of."""

    what: str
    value: float
    reach: str
    cases: dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Runs workloads; ``kept`` holds results of earlier runs by key, ``file`` gets new ones."""

    seconds: float
    file: Path | None
    kept: dict[str, Any]

    def workload(
        self,
        target: str,
        sides: tuple[str, ...],
        dtype: str = "float32",
        compile_time: bool = False,
    ) -> dict[str, Any]:
        """One workload in a fresh process; its result as `Result.as_data` gives it."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            command = [
                "jitney.cli.main", "bench", target, "--json", str(file),
                "--sides", ",".join(s for s in sides if installed(s)),
                "--seconds", str(self.seconds), "--dtype", dtype,
                "--compile-time" if compile_time else "--no-compile-time",
            ]  # fmt: skip

            def result(_: str) -> Any:
                data = json.loads(file.read_text())
                return {**data["results"][0], "host": data["host"]}

            found = self.module(f"{target} {','.join(sides)} {dtype}", command, result)
        return found or {"target": target, "rows": [], "report": {}}

    def module(self, key: str, command: list[str], result: Callable[[str], Any]) -> Any:
        """What ``result`` makes of the output of ``python -m command``; {} if that fails."""
        if key in self.kept:
            return self.kept[key]
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
        print(done.stdout, done.stderr[-2000:] if done.returncode else "", flush=True)
        if done.returncode:
            return {}
        found = self.kept[key] = result(done.stdout)
        if self.file:
            with self.file.open("a") as out:
                out.write(json.dumps({"key": key, "result": found}) + "\n")
        return found


def read_kept(file: Path | None) -> dict[str, Any]:
    """Results that ``file`` has, the last of each key."""
    if file is None or not file.exists():
        return {}
    lines = map(json.loads, file.read_text().splitlines())
    return {line["key"]: line["result"] for line in lines}


def medians(result: dict[str, Any]) -> dict[str, float]:
    """Median seconds by side, of those that ran and were equal to eager."""
    return {r["side"]: r["timing"]["p50"] for r in result["rows"] if r["timing"]}


def ratio(result: dict[str, Any], peers: tuple[str, ...], ours: str) -> float:
    """The fastest of ``peers`` over ``ours``; NaN when a side is missing."""
    times = medians(result)
    best = min((times[p] for p in peers if p in times), default=math.nan)
    return best / times.get(ours, math.nan)


def geomean(values: list[float]) -> float:
    """Geometric mean; NaN if any is."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def over_models(
    run: Bench, what: str, reach: str, cases: Sequence[tuple[str, str]], sides: tuple[str, ...]
) -> Figure:  # fmt: skip
    """A geometric mean over (workload, dtype); the last side is ours, the peer before it."""
    results = {f"{name} {dtype}": run.workload(name, sides, dtype) for name, dtype in cases}
    peer, ours = sides[-2], sides[-1]
    details = {
        name: {
            "ratio": ratio(r, (peer,), ours),
            "against the better of eager and peer": ratio(r, ("eager", peer), ours),
            "medians": medians(r),
            "equal": {row["side"]: row["equal"] for row in r["rows"]},
            "lowered": r["report"].get("lowered_share"),
            "extern": r["report"].get("extern"),
        }
        for name, r in results.items()
    }
    ratios = [case["ratio"] for case in details.values() if not math.isnan(case["ratio"])]
    missing = len(details) - len(ratios)
    return Figure(
        what + (f" ({missing} missing)" if missing else ""), geomean(ratios), reach, details
    )


DEFAULT = ("eager", "torch.compile", "jitney")
FROZEN = ("eager", "torch.compile-frozen", "jitney-frozen")


def bert(run: Bench) -> list[Figure]:
    result = run.workload("bert", DEFAULT, compile_time=True)
    value = ratio(result, ("torch.compile",), "jitney")
    first = {r["side"]: r["first"] for r in result["rows"] if r["first"]}
    figures = [Figure("BERT-base b1 s128, both default", value, "2.0 / 1.2", medians(result))]
    for kind, reach in (("cold", "8"), ("warm", "4")):
        times = {side: call[kind] for side, call in first.items()}
        quotient = times.get("torch.compile", math.nan) / times.get("jitney", math.nan)
        figures.append(Figure(f"{kind} compile of BERT-base", quotient, reach, times))
    return figures


def frozen_bert(run: Bench) -> list[Figure]:
    result = run.workload("bert", ("eager", *FROZEN_PEERS, "jitney-frozen"))
    value = ratio(result, FROZEN_PEERS, "jitney-frozen")
    return [Figure("BERT-base frozen, best peer", value, "1.1 / 1.05", medians(result))]


def bert_bf16(run: Bench) -> list[Figure]:
    result = run.workload("bert", DEFAULT, "bfloat16")
    value = ratio(result, ("torch.compile",), "jitney")
    return [Figure("BERT-base bf16, both default", value, "1.1 / 3", medians(result))]


def models(run: Bench) -> list[Figure]:
    cases = [(name, "float32") for name in MODELS]
    return [over_models(run, "nine models, default", "1.5 / 1.2", cases, DEFAULT)]


def frozen(run: Bench) -> list[Figure]:
    cases = [(name, "float32") for name in MODELS]
    return [over_models(run, "nine models, frozen", "1.3 / 1.1", cases, FROZEN)]


def training(run: Bench) -> list[Figure]:
    cases = [(name, "float32") for name in TRAINING]
    return [over_models(run, "training steps", "1.3 / 1.1", cases, DEFAULT)]


def micro(run: Bench) -> list[Figure]:
    cases = [(f"benchmarks.micro:{n}_case", d) for n in MICRO for d in ("float32", "bfloat16")]
    quick = replace(run, seconds=min(run.seconds, 4.0))
    return [over_models(quick, "micro-benchmarks", "1.3", cases, DEFAULT)]


def last_line(text: str) -> Any:
    """The JSON that another benchmark prints last."""
    return json.loads(text.splitlines()[-1])


def gemm(run: Bench) -> list[Figure]:
    shares = run.module("gemm", ["benchmarks.gemm"], last_line)
    return [
        Figure(f"BERT's GEMMs, share of peak, {kind}", shares[kind]["layer"], reach, shares[kind])
        for kind, reach in (("per call", "0.75"), ("frozen", "0.85"))
        if kind in shares
    ]


def overhead(run: Bench) -> list[Figure]:
    found = run.module("overhead", ["benchmarks.overhead"], last_line)
    call, guards = found.get("call", {}), found.get("guards", {})
    quotient = call.get("torch.compile", math.nan) / call.get("jitney", math.nan)
    micros = guards.get("jitney", math.nan) * 1e6
    return [
        Figure("call of a compiled a + 1", quotient, "1.5, goal 2.5", call),
        Figure("call of a 12-layer BERT without its graph, µs", micros, "<= 60, goal 20", guards),
    ]


ROWS: dict[str, Callable[[Bench], list[Figure]]] = {
    "bert": bert,
    "frozen-bert": frozen_bert,
    "bf16": bert_bf16,
    "gemm": gemm,
    "models": models,
    "frozen": frozen,
    "training": training,
    "micro": micro,
    "overhead": overhead,
}


def main() -> None:
    """Runs the rows asked for and prints the table last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help=", ".join(ROWS))
    parser.add_argument("--seconds", type=float, default=40.0, help="per workload")
    parser.add_argument("--json", type=Path, help="results so far, one a line")
    options = parser.parse_args()
    run = Bench(options.seconds, options.json, read_kept(options.json))
    figures = [f for row in options.rows.split(",") for f in ROWS[row](run)]
    host = measure_host()
    print(f"\nhost: {host}\n\n| what | measured | to reach (Zen 5 / Cascade Lake) |\n|---|---|---|")
    for figure in figures:
        print(f"| {figure.what} | {figure.value:.2f} | {figure.reach} |")
        for name, case in figure.cases.items():
            if isinstance(case, dict) and "ratio" in case:
                print(f"| - {name} | {case['ratio']:.2f} | |")


if __name__ == "__main__":
    main()
