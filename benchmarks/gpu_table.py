"""The GPU table: each workload under its best peer mode and under Jitney, paired in one go.

    python -m benchmarks.gpu_table 1      # decode, small batches
    python -m benchmarks.gpu_table 2      # large batches, training

Every run is a process of its own with fresh compile caches. Ratio: peer's ms over Jitney's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

#: case -> (the peer's best mode, Jitney's)
GOES: dict[str, dict[str, tuple[str, str]]] = {
    "1": {
        "bert_b1": ("reduce-overhead", "jitney:reduce-overhead"),
        "llama1b_decode": ("max-autotune", "jitney:reduce-overhead"),
        "llama8b_decode": ("max-autotune", "jitney:reduce-overhead"),
    },
    "2": {
        "bert_b64": ("eager", "jitney:reduce-overhead"),
        "vit_b32": ("reduce-overhead", "jitney:reduce-overhead"),
        "llama8b_prefill": ("default", "jitney:reduce-overhead"),
        "gpt2_train": ("default", "jitney"),
        "resnet50_train": ("default", "jitney"),
    },
}


def run(case: str, mode: str, seconds: float = 150) -> dict[str, Any] | None:
    """One measurement in a fresh process with fresh caches; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        environment = {**os.environ, **fresh, "JITNEY_CACHE_DIR": folder}
        command = [sys.executable, "-m", "benchmarks.gpu_case", case, mode]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return None
    lines = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    if not lines:
        print(done.stderr[-800:], file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def main(go: str) -> None:
    """Runs one go and prints its rows as a Markdown table."""
    rows = []
    for case, (peer_mode, own_mode) in GOES[go].items():
        peer, own = run(case, peer_mode), run(case, own_mode)
        rows.append((case, peer_mode, peer, own))
        print(json.dumps([peer, own]), flush=True)
    print("\n| workload | peer | peer ms | jitney ms | ratio | first call, s | issue ms | GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for case, mode, peer, own in rows:
        if peer is None or own is None:
            print(f"| {case} | {mode} | {'failed' if peer is None else peer['ms']} | | | | | |")
            continue
        pairs = [f"{peer[k]:.2f} / {own[k]:.2f}" for k in ("first_s", "issue_ms", "peak_gib")]
        ratio = peer["ms"] / own["ms"]
        times = f"{peer['ms']:.3f} | {own['ms']:.3f} | {ratio:.2f}"
        print(f"| {case} | {mode} | {times} | {' | '.join(pairs)} |")


if __name__ == "__main__":
    main(sys.argv[1])
