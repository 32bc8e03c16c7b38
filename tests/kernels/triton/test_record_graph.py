"""A recording as a CUDA graph begins undisturbed, and leaves nothing behind where it fails."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from jitney import torch_api
from jitney.kernels.triton import record_graph
from jitney.kernels.triton.record_graph import RecordedGraph, record_into


class Graph:
    def lease_stream(self) -> str:
        return "own"


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `record_into` enters, without a GPU; recording ends with an error if told to."""
    log: list[Any] = []

    @contextmanager
    def stream(given: Any) -> Iterator[None]:
        log.append(("stream", given))
        try:
            yield
        finally:
            log.append(("left", given))

    @contextmanager
    def graph(made: Any, pool: Any, on: Any, mode: str) -> Iterator[None]:
        log.append((pool, on, mode))
        yield

    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(
        torch_api, "abandon_recording", lambda graph, pool: log.append(("abandoned", pool))
    )
    return log


def test_nothing_is_collected_while_a_graph_is_recorded(entered: list[Any]) -> None:
    graph: Any = Graph()
    other: Any = "other"
    with record_into(graph):
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with record_into(graph, (0, 2), other):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert entered[:3] == [("stream", "own"), ((0, 1), "own", "thread_local"), ("left", "own")]
    assert entered[4] == ((0, 2), "other", "thread_local")


def test_what_fails_is_abandoned(entered: list[Any]) -> None:
    graph: Any = Graph()
    with pytest.raises(RuntimeError, match="no"), record_into(graph):
        raise RuntimeError("no")
    assert gc.isenabled()
    assert entered[-2:] == [("left", "own"), ("abandoned", (0, 1))]


@pytest.mark.gpu
def test_a_failed_recording_leaves_nothing() -> None:
    x, before = torch.ones(4, device="cuda"), torch.cuda.current_stream()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="captur"), record_into(RecordedGraph()):
            x + 1
            torch.cuda.synchronize()
        assert torch.cuda.current_stream() == before
    # only while no recording is under way does the allocator give memory back
    torch.empty(1 << 28, device="cuda")
    held = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held - (1 << 28)
    graph = RecordedGraph()
    with record_into(graph):
        y = x + 1
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [6] * 4


@pytest.mark.gpu
def test_streams_are_given_again() -> None:
    graphs = [RecordedGraph() for _ in range(3)]
    kept = []
    for graph in graphs:
        with record_into(graph):
            kept.append(torch.ones(2, device="cuda"))
    streams = {g.stream.cuda_stream for g in graphs if g.stream}
    assert len(streams) == 3
    idle = record_graph._idle.setdefault(torch.cuda.current_device(), [])
    assert not streams & {s.cuda_stream for s in idle}
    del graph
    graphs.clear()
    assert streams <= {s.cuda_stream for s in idle}


@pytest.mark.gpu
def test_graphs_that_die_with_the_process_say_nothing() -> None:
    """Its modules are emptied before the last objects die: one of ``builtins`` outlives them."""
    program = """
import builtins, torch
from jitney.kernels.triton.record_graph import RecordedGraph, record_into
x, builtins.graph = torch.ones(4, device="cuda"), RecordedGraph()
with record_into(builtins.graph):
    x + 1
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.gpu
def test_products_of_living_graphs_stay_right_when_others_die() -> None:
    """cuBLAS adds up in memory of the stream, which torch frees with a graph of that stream."""
    a, b = torch.randn(64, 1 << 14, device="cuda"), torch.randn(1 << 14, 64, device="cuda")
    expected = a @ b

    def recorded() -> tuple[RecordedGraph, torch.Tensor]:
        graph = RecordedGraph()
        with record_into(graph):
            return graph, a @ b

    made = [recorded() for _ in range(4)]
    del made[::2]
    torch.cuda.empty_cache()
    held = torch.full((1 << 26,), 7.0, device="cuda")
    for graph, product in made:
        product.zero_()
        graph.replay()
        assert torch.equal(product, expected)
    assert held.min() == held.max() == 7


@pytest.mark.gpu
def test_two_streams_replay_products_at_once() -> None:
    a, b = torch.randn(64, 1 << 14, device="cuda"), torch.randn(1 << 14, 64, device="cuda")
    sides = []
    _ = a @ b  # cuBLAS cannot begin while a graph is recorded
    for scale in (1.0, 3.0):
        left, graph = a * scale, RecordedGraph()
        with record_into(graph):
            product = left @ b
        sides.append((torch.cuda.Stream(), graph, product, left @ b))
    torch.cuda.synchronize()
    for _ in range(300):
        for stream, graph, _, _ in sides:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for _, _, product, expected in sides:
        assert torch.equal(product, expected)
