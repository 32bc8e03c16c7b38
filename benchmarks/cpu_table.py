"""The table of CPU figures: every row measured in one run on one host.

    python -m benchmarks.cpu_table [--rows bert,frozen,…] [--seconds 40] [--json FILE]

Each workload runs in a process of its own, all its sides interleaved there.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
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


def run_bench(target: str, sides: tuple[str, ...], seconds: float, **more: Any) -> dict[str, Any]:
    """One workload in a fresh process; its result as `Result.as_data` gives it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "out.json"
        command = [
            sys.executable, "-m", "jitney.cli.main", "bench", target, "--json", str(file),
            "--sides", ",".join(s for s in sides if installed(s)), "--seconds", str(seconds),
            "--dtype", more.get("dtype", "float32"),
            "--compile-time" if more.get("compile_time") else "--no-compile-time",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout, done.stderr[-2000:] if done.returncode else "", flush=True)
        if done.returncode:
            return {"target": target, "rows": [], "report": {}}
        return json.loads(file.read_text())["results"][0]


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
    what: str, reach: str, names: tuple[str, ...], sides: tuple[str, ...], seconds: float,
    **more: Any,
) -> Figure:  # fmt: skip
    """A geometric mean over workloads; the last side is ours, the first compiled one the peer."""
    results = {name: run_bench(name, sides, seconds, **more) for name in names}
    peer, ours = sides[-2], sides[-1]
    cases = {
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
    return Figure(what, geomean([c["ratio"] for c in cases.values()]), reach, cases)


DEFAULT = ("eager", "torch.compile", "jitney")
FROZEN = ("eager", "torch.compile-frozen", "jitney-frozen")


def bert(seconds: float) -> list[Figure]:
    result = run_bench("bert", DEFAULT, seconds, compile_time=True)
    value = ratio(result, ("torch.compile",), "jitney")
    first = {r["side"]: r["first"] for r in result["rows"] if r["first"]}
    figures = [Figure("BERT-base b1 s128, both default", value, "2.0 / 1.2", medians(result))]
    for kind, reach in (("cold", "8"), ("warm", "4")):
        times = {side: call[kind] for side, call in first.items()}
        quotient = times.get("torch.compile", math.nan) / times.get("jitney", math.nan)
        figures.append(Figure(f"{kind} compile of BERT-base", quotient, reach, times))
    return figures


def frozen_bert(seconds: float) -> list[Figure]:
    result = run_bench("bert", ("eager", *FROZEN_PEERS, "jitney-frozen"), seconds)
    value = ratio(result, FROZEN_PEERS, "jitney-frozen")
    return [Figure("BERT-base frozen, best peer", value, "1.1 / 1.05", medians(result))]


def bert_bf16(seconds: float) -> list[Figure]:
    result = run_bench("bert", DEFAULT, seconds, dtype="bfloat16")
    value = ratio(result, ("torch.compile",), "jitney")
    return [Figure("BERT-base bf16, both default", value, "1.1 / 3", medians(result))]


def models(seconds: float) -> list[Figure]:
    return [over_models("nine models, default", "1.5 / 1.2", MODELS, DEFAULT, seconds)]


def frozen(seconds: float) -> list[Figure]:
    return [over_models("nine models, frozen", "1.3 / 1.1", MODELS, FROZEN, seconds)]


def training(seconds: float) -> list[Figure]:
    return [over_models("training steps", "1.3 / 1.1", TRAINING, DEFAULT, seconds)]


def micro(seconds: float) -> list[Figure]:
    names = tuple(f"benchmarks.micro:{n}_{d}" for n in MICRO for d in ("float32", "bfloat16"))
    return [over_models("micro-benchmarks", "1.3", names, DEFAULT, min(seconds, 10.0))]


def module_json(module: str) -> dict[str, Any]:
    """The JSON that another benchmark prints."""
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:])
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def gemm(seconds: float) -> list[Figure]:
    shares = module_json("benchmarks.gemm")
    return [
        Figure(f"BERT's GEMMs, share of peak, {kind}", shares[kind]["layer"], reach, shares[kind])
        for kind, reach in (("per call", "75%"), ("frozen", "85%"))
        if kind in shares
    ]


def overhead(seconds: float) -> list[Figure]:
    found = module_json("benchmarks.overhead")
    call, guards = found.get("call", {}), found.get("guards", {})
    quotient = call.get("torch.compile", math.nan) / call.get("jitney", math.nan)
    micros = guards.get("seconds", math.nan) * 1e6
    return [
        Figure("call of a compiled a + 1", quotient, "1.5, goal 2.5", call),
        Figure("guard check of 12-layer BERT, µs", micros, "<= 60, goal 20", guards),
    ]


ROWS: dict[str, Callable[[float], list[Figure]]] = {
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
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    host = measure_host()
    figures = [f for row in options.rows.split(",") for f in ROWS[row](options.seconds)]
    if options.json:
        data = {"host": vars(host), "figures": [asdict(f) for f in figures]}
        options.json.write_text(json.dumps(data, indent=2))
    print(f"\nhost: {host}\n\n| what | measured | to reach (Zen 5 / Cascade Lake) |\n|---|---|---|")
    for figure in figures:
        print(f"| {figure.what} | {figure.value:.2f} | {figure.reach} |")
        for name, case in figure.cases.items():
            if isinstance(case, dict) and "ratio" in case:
                print(f"| - {name} | {case['ratio']:.2f} | |")


if __name__ == "__main__":
    main()
