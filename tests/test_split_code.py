"""A graph in two halves, compiled: here both for the CPU, where a GPU is not to be had."""

from __future__ import annotations

import pickle

import pytest
import torch

from jitney import config
from jitney.graph import split_host_numbers as split
from jitney.graph_pipeline import start_both
from tests.graph.test_split_host_numbers import COUNT, step, traced


@pytest.mark.parametrize("capturing", [False, True])
def test_compiled_halves_give_what_the_whole_gives(
    monkeypatch: pytest.MonkeyPatch, capturing: bool
) -> None:
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: capturing)
    gm = traced(step, "cpu")
    halves = split.Split(gm, split.on_host(gm.graph), torch.device("cpu")).graphs()
    built = pickle.loads(pickle.dumps(start_both(halves, config.current())()))
    assert built.counts.lowered["aten.rsub.Scalar"] == COUNT  # of the host's half
    compiled = built.load()
    torch.manual_seed(0)
    tensors = [torch.randn(3, 2) for _ in range(COUNT)]
    counts = [torch.tensor(float(n)) for n in range(COUNT)]
    right = [n.clone() for n in counts]
    for _ in range(3):
        want = step(tensors, right, torch.arange(4.0))
        torch.testing.assert_close([*compiled(*tensors, *counts, torch.arange(4.0))], want)
        torch.testing.assert_close(counts, right)
