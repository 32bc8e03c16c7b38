"""What a call costs: a compiled ``a + 1`` on four elements, and the guards of a 12-layer BERT.

python -m benchmarks.overhead
"""

from __future__ import annotations

import json

import torch

import jitney
from jitney.cli.measure import interleave
from jitney.cli.workloads import WORKLOADS
from jitney.cli.workloads.hugging_face import BASE


def add_one(a: torch.Tensor) -> torch.Tensor:
    return a + 1


def call_overhead(runs: int = 200) -> dict[str, float]:
    """Median seconds of a call on each side, no grad."""
    a = torch.randn(4)
    sides = {
        "eager": add_one,
        "torch.compile": torch.compile(add_one),
        "jitney": jitney.compile(add_one),
    }
    with torch.no_grad():
        for fn in sides.values():
            fn(a)
        calls = {name: (lambda fn=fn: fn(a)) for name, fn in sides.items()}
        return {name: t.p50 for name, t in interleave(calls, runs).items()}


def bert_of_width(width: int) -> torch.nn.Module:
    """BERT with base's depth and heads; only the width differs, so that guards dominate."""
    import transformers

    shape = {**BASE, "hidden_size": width, "intermediate_size": width, "vocab_size": 64}
    return transformers.BertModel(transformers.BertConfig(**shape)).eval()


def guard_seconds(runs: int = 200) -> float:
    """Median seconds of one full guard check of a 12-layer BERT."""
    from jitney.api import guard_check  # the check alone, without the graph

    model = bert_of_width(48)
    ids = torch.randint(64, (1, 8))
    compiled = jitney.compile(model)
    with torch.no_grad():
        compiled(input_ids=ids)
        check = guard_check(compiled, input_ids=ids)
        return interleave({"guards": check}, runs)["guards"].p50


def main() -> None:
    """Prints both as JSON."""
    assert "bert" in WORKLOADS
    result = {"call": call_overhead()}
    try:
        result["guards"] = {"seconds": guard_seconds()}
    except ImportError as error:
        result["guards"] = {"missing": str(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
