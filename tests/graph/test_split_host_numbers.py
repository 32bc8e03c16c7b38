"""Numbers computed on the CPU for a GPU's graph: both graphs together are the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from jitney.graph.split_host_numbers import split_host_numbers

COUNT = 5
FIRST = torch.tensor(3.0)


def traced(f: Any, device: str = "cuda") -> fx.GraphModule:
    """``f`` of `COUNT` tensors on ``device`` and as many of one element on the CPU."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = [torch.empty(3, 2, device=device) for _ in range(COUNT)]
        numbers = [torch.empty(()) for _ in range(COUNT)]
        return make_fx(f)(tensors, numbers)


def step(tensors: list[torch.Tensor], counts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Reads counts on both sides, hands a whole number on, writes the counts; with a constant."""
    after = [n + 1 for n in counts]
    sizes = [0.1 / (1 - 0.9 ** n.double()) for n in after]
    whole = counts[0].long()
    first = FIRST + 1
    found = [t * size + n for t, size, n in zip(tensors, sizes, counts, strict=True)]
    for count, n in zip(counts, after, strict=True):
        count.copy_(n)
    return [sizes[1], found[0].masked_fill(found[0] > 0, whole), *found[1:], sizes[0], first]


def test_both_graphs_give_what_the_whole_gives() -> None:
    gm = traced(step)
    split = split_host_numbers(gm)
    assert split is not None and split.given == 1
    devices = {n.meta["val"].device.type for n in split.host.graph.nodes if "val" in n.meta}
    assert devices == {"cpu"}
    for node in split.device.graph.nodes:
        if node.op == "call_function":
            assert node.meta["val"].device.type == "cuda"

    given = [torch.randn(3, 2) for _ in range(COUNT)]
    counts = [torch.tensor(float(n)) for n in range(COUNT)]
    want_counts = [n.clone() for n in counts]
    want = step(given, want_counts)
    inputs = [*given, *counts]
    numbers, *rest = split.host(*[inputs[i] for i in split.host_inputs])
    found = split.device(*[inputs[i] for i in split.device_inputs], *rest[: split.given], numbers)
    every = (*rest[split.given :], *found)
    torch.testing.assert_close([every[i] for i in split.results], want)
    torch.testing.assert_close(counts, want_counts)


def written_by_the_gpu(tensors: list[torch.Tensor], counts: list[torch.Tensor]) -> Any:
    after = [t * (n.sqrt() + 1) for t, n in zip(tensors, counts, strict=True)]
    counts[0].copy_(after[0].sum())
    return after


@pytest.mark.parametrize("program, device", [(step, "cpu"), (written_by_the_gpu, "cuda")])
def test_what_stays_whole(program: Any, device: str) -> None:
    assert split_host_numbers(traced(program, device)) is None


def test_a_few_numbers_are_not_worth_it() -> None:
    assert split_host_numbers(traced(lambda t, n: t[0] * (n[0] + 1))) is None
