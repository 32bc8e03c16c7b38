"""Training steps replayed as CUDA graphs: whoever holds a saved tensor or a gradient keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import jitney
from jitney.events import log
from jitney.graph.mark_leases import mark_leases
from jitney.graph.trace_region import trace_region
from jitney.run import cuda_graphs
from jitney.run.cuda_graphs import ReplayedProgram
from jitney.run.recording import Lease, ReplayFacts
from tests.run.graphs_without_gpu import Graphs
from tests.run.ways_to_train import STEPS, WAYS, Training, Way, five_before_backward, other_rows


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    made = Graphs(monkeypatch)
    log.clear()
    yield made


def training(compiled: bool) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
    options = {"cuda_graphs": True, "cache": False}
    call = jitney.compile(model, options=options) if compiled else model
    return Training(model, call, lambda rows, made: torch.randn(rows, 6, generator=made))


@pytest.mark.parametrize("train", WAYS)
def test_training_is_eagers(train: Way, graphs: Graphs) -> None:
    expected, actual = training(False), training(True)
    train(expected)
    train(actual)
    for ours, eagers in zip(actual.seen, expected.seen, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-6)
    assert graphs.replayed >= WAYS[train]
    # Each waiting call has its recordings; where memory was free decides whether inputs moved.
    assert graphs.recorded <= (24 if train is five_before_backward else 17)


def test_channels_last_images_with_other_rows_are_replayed(graphs: Graphs) -> None:
    def images(rows: int, made: torch.Generator) -> Tensor:
        x = torch.randn(rows, 3, 8, 8, generator=made)
        return x.to(memory_format=torch.channels_last)

    seen = []
    for compiled in (False, True):
        torch.manual_seed(0)
        pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *pooled)
        model.to(memory_format=torch.channels_last)
        options = {"cuda_graphs": True, "cache": False}
        call = jitney.compile(model, options=options) if compiled else model
        t = Training(model, call, images)
        other_rows(t)
        seen.append(t.seen)
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)
    assert graphs.replayed >= WAYS[other_rows]


@pytest.mark.usefixtures("graphs")
def test_leased_results_are_not_copied_and_not_overwritten() -> None:
    call = ReplayedProgram(lambda x: (x + 1,), ReplayFacts(leased=frozenset((0,))))
    x = torch.zeros(64)
    call(x)
    places = [call(x)[0].data_ptr() for _ in range(3)]
    held = call(x)[0]
    assert places == [held.data_ptr()] * 3
    for number in range(1, 4):
        other = call(x.fill_(number))[0]
        assert other.data_ptr() != held.data_ptr()
        assert (held[0].item(), other[0].item()) == (1, number + 1)


def test_what_is_held_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "SLOT_LIMIT", 2)
    t = training(True)
    losses = [t.loss(i) for i in range(STEPS)]
    for loss in losses:
        t.backward(loss)
    (reason,) = {e.data["reason"] for e in log.events("cuda_graph_refused")}
    assert reason == "what is saved for backward passes is held while later calls run"


def test_weights_that_keep_moving_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOVE_LIMIT", 2)
    t = training(True)
    kept = []
    for i in range(STEPS):
        t.loss(i)
        kept.append([p.data for p in t.weights])
        for p in t.weights:
            p.data = p.data.clone()
    (reason,) = {e.data["reason"] for e in log.events("cuda_graph_refused")}
    assert reason.endswith("keep moving")


def test_further_recordings_have_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SimpleNamespace(total_memory=800)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    call = ReplayedProgram(lambda: (), ReplayFacts(device=torch.device("cuda", 0)))
    made = SimpleNamespace(lease=SimpleNamespace(size=40))
    for count, allowed in ((0, True), (1, True), (2, True), (3, False)):
        call._alive = [made] * count  # type: ignore[assignment]
        assert call._may_add((0,), 0) is allowed


def test_a_lease_is_over_when_nobody_else_refers_to_the_memory() -> None:
    own = [torch.zeros(4), torch.zeros(3)]
    own.append(own[1][:2].data)
    lease = Lease(own[:2], own)
    assert lease.size == 28
    assert lease.is_over()
    alias = own[0].data
    assert not lease.is_over()
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = alias
    del alias
    assert not lease.is_over()
    parameter.grad = None
    assert lease.is_over()
    view = own[2].data[1:]
    assert not lease.is_over()
    del view
    assert lease.is_over()
    storage = own[0].untyped_storage()
    assert not lease.is_over()
    assert lease.is_intact()
    storage.resize_(0)
    del storage
    assert lease.is_over()
    assert not lease.is_intact()


def test_what_a_forward_graph_keeps_is_marked_at_both_ends() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).exp()

    gm = torch.fx.symbolic_trace(f)
    inputs = [torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)]
    region = trace_region(gm, inputs)
    assert region.backward is not None
    for node in region.forward.graph.find_nodes(op="placeholder"):
        node.meta["static"] = node.name == "w"
    mark_leases(region)
    kept = region.forward.graph.output_node().meta["leased"]
    assert kept == {place.index for place in region.facts.saved_tensors[1:]} != set()
    taken = region.backward.graph.find_nodes(op="placeholder")
    assert [bool(n.meta.get("kept")) for n in taken] == [False, True, False]
    assert region.backward.graph.output_node().meta["leased"] == {0}
