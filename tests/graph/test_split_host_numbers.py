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
    """``f`` of `COUNT` tensors on ``device``, as many numbers on the CPU, and a row there."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = [torch.empty(3, 2, device=device) for _ in range(COUNT)]
        numbers = [torch.empty(()) for _ in range(COUNT)]
        return make_fx(f)(tensors, numbers, torch.empty(4))


def step(
    tensors: list[torch.Tensor], counts: list[torch.Tensor], row: torch.Tensor
) -> list[torch.Tensor]:
    """Reads counts on both sides, hands a whole number on, writes the counts; with a constant."""
    after = [n + 1 for n in counts]
    sizes = [0.1 / (1 - 0.9 ** n.double()) for n in after]
    whole = counts[0].long()
    first = FIRST + 1
    found = [t * size + n for t, size, n in zip(tensors, sizes, counts, strict=True)]
    for count, n in zip(counts, after, strict=True):
        count.copy_(n)
    beside = row * sizes[2]  # which is read on the CPU, too
    return [
        sizes[1],
        found[0].masked_fill(found[0] > 0, whole),
        *found[1:],
        sizes[0],
        first,
        beside,
    ]


def test_both_graphs_give_what_the_whole_gives() -> None:
    gm = traced(step)
    split = split_host_numbers(gm)
    assert split is not None and split.wiring.given == 2
    devices = {n.meta["val"].device.type for n in split.host.graph.nodes if "val" in n.meta}
    assert devices == {"cpu"}
    for node in split.device.graph.nodes:
        if node.op == "call_function":
            value = node.meta["val"]
            assert value.device.type == ("cpu" if value.shape == (4,) else "cuda")

    given = [torch.randn(3, 2) for _ in range(COUNT)]
    counts = [torch.tensor(float(n)) for n in range(COUNT)]
    want_counts = [n.clone() for n in counts]
    want = step(given, want_counts, torch.arange(4.0))
    inputs = [*given, *counts, torch.arange(4.0)]
    wiring = split.wiring
    numbers, *rest = split.host(*[inputs[i] for i in wiring.host_inputs])
    taken = [inputs[i] for i in wiring.device_inputs]
    found = split.device(*taken, *rest[: wiring.given], numbers)
    every = (*rest[wiring.given :], *found)
    torch.testing.assert_close([every[i] for i in wiring.results], want)
    torch.testing.assert_close(counts, want_counts)


def written_by_the_gpu(
    tensors: list[torch.Tensor], counts: list[torch.Tensor], row: torch.Tensor
) -> Any:
    after = [t * (n.sqrt() + 1) for t, n in zip(tensors, counts, strict=True)]
    counts[0].copy_(after[0].sum())
    return after


def read_as_it_was(
    tensors: list[torch.Tensor], counts: list[torch.Tensor], row: torch.Tensor
) -> Any:
    """The GPU takes a count as a tensor, not as a number, and it is written to at the end."""
    found = [t * (n.sqrt() + 1) for t, n in zip(tensors, counts, strict=True)]
    found[0] = torch.ops.aten.copy.default(found[0], counts[0])
    counts[0].copy_(counts[0] + 1)
    return found


def view_read_as_it_was(
    tensors: list[torch.Tensor], counts: list[torch.Tensor], row: torch.Tensor
) -> Any:
    found = [t * (n.sqrt() + 1) for t, n in zip(tensors, counts, strict=True)]
    found[0] = torch.ops.aten.copy.default(found[0], counts[0].view(1))
    counts[0].copy_(counts[0] + 1)
    return found


@pytest.mark.parametrize(
    "program, device",
    [
        (step, "cpu"),
        (written_by_the_gpu, "cuda"),
        (read_as_it_was, "cuda"),
        (view_read_as_it_was, "cuda"),
    ],
)
def test_what_stays_whole(program: Any, device: str) -> None:
    assert split_host_numbers(traced(program, device)) is None


def test_a_few_numbers_are_not_worth_it() -> None:
    assert split_host_numbers(traced(lambda t, n, row: t[0] * (n[0] + 1))) is None
