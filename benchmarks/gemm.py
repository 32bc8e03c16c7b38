"""BERT-base's matrix products through Jitney, as a share of the host's FMA peak.

python -m benchmarks.gemm
"""

from __future__ import annotations

import json

import torch
from torch import nn

import jitney
from jitney.cli.host import measure_host
from jitney.cli.measure import interleave

# rows, inner, columns: the four products of a BERT-base layer at s128
SHAPES = {"projection": (128, 768, 768), "up": (128, 768, 3072), "down": (128, 3072, 768)}
COUNT = {"projection": 4, "up": 1, "down": 1}


def share_of_peak(frozen: bool, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """FLOP/s over peak of each product and of a layer's mix; torch's own linear beside it.

    The peak is the best of those measured before and after every product.
    """
    peak = measure_host().peak
    options = {"freeze": True} if frozen else None
    seconds, eager, flops = 0.0, 0.0, 0.0
    result: dict[str, float] = {}
    with torch.no_grad():
        for name, (rows, inner, columns) in SHAPES.items():
            linear = nn.Linear(inner, columns).to(dtype).eval()
            compiled = jitney.compile(linear, options=options)
            x = torch.randn(rows, inner, dtype=dtype)
            compiled(x)
            pair = {"jitney": compiled, "eager": linear}
            calls = {side: (lambda fn=fn, x=x: fn(x)) for side, fn in pair.items()}
            times = interleave(calls, 100, 10.0)
            work = 2.0 * rows * inner * columns
            result[name] = work / times["jitney"].p50
            peak = max(peak, measure_host().peak)
            seconds += COUNT[name] * times["jitney"].p50
            eager += COUNT[name] * times["eager"].p50
            flops += COUNT[name] * work
    result |= {"layer": flops / seconds, "eager layer": flops / eager}
    return {name: rate / peak for name, rate in result.items()} | {"peak": peak}


def main() -> None:
    """Prints shares, packed per call and frozen, as JSON."""
    print(json.dumps({"per call": share_of_peak(False), "frozen": share_of_peak(True)}))


if __name__ == "__main__":
    main()
