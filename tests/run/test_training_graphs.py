"""Training steps replayed as CUDA graphs: whoever holds a saved tensor or a gradient keeps it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitney
from jitney.events import log
from jitney.graph.mark_leases import mark_leases
from jitney.graph.trace_region import trace_region
from jitney.run import cuda_graphs
from jitney.run.cuda_graphs import ReplayedProgram
from jitney.run.recording import Lease, ReplayFacts
from tests.run.graphs_without_gpu import Graphs

STEPS = 8


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    made = Graphs(monkeypatch)
    log.clear()
    yield made


class Training:
    """A model under plain gradient descent; ``seen``: what is compared, as the program got it."""

    def __init__(self, compiled: bool) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)
        self.model = nn.Sequential(*layers)
        self.call: Callable[[Tensor], Tensor] = self.model
        if compiled:
            options = {"cuda_graphs": True, "cache": False}
            self.call = jitney.compile(self.model, options=options)
        self.seen: list[Tensor] = []

    def loss(self, number: int, rows: int = 5) -> Tensor:
        made = torch.Generator().manual_seed(number)
        x = torch.randn(rows, 6, generator=made)
        labels = torch.randint(4, (rows,), generator=made)
        return F.cross_entropy(self.call(x), labels)

    def backward(self, loss: Tensor, retain: bool = False) -> None:
        loss.backward(retain_graph=retain)
        self.seen += [loss.detach().clone(), *[self._grad(p).clone() for p in self.weights()]]

    def weights(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def step(self, none: bool = True) -> None:
        with torch.no_grad():
            for p in self.weights():
                p.sub_(self._grad(p), alpha=0.1)
        self.model.zero_grad(none)

    @staticmethod
    def _grad(parameter: Tensor) -> Tensor:
        assert parameter.grad is not None
        return parameter.grad


def plain(t: Training) -> None:
    for i in range(STEPS):
        t.backward(t.loss(i))
        t.step()


def kept_zeros(t: Training) -> None:
    for i in range(STEPS):
        t.backward(t.loss(i))
        t.step(none=False)


def accumulated(t: Training) -> None:
    for i in range(STEPS):
        for part in range(3):
            t.backward(t.loss(3 * i + part))
        t.step()


def two_before_backward(t: Training) -> None:
    for i in range(STEPS):
        first, second = t.loss(2 * i), t.loss(2 * i + 1)
        for loss in (second, first) if i % 2 else (first, second):
            t.backward(loss)
        t.step()


def retained(t: Training) -> None:
    for i in range(STEPS):
        loss = t.loss(i)
        t.backward(loss, retain=True)
        t.backward(loss)
        t.step()


def gradients_kept(t: Training) -> None:
    for i in range(STEPS):
        t.seen += torch.autograd.grad(t.loss(i), t.weights())


def some_gradients_kept(t: Training) -> None:
    for i in range(STEPS):
        t.backward(t.loss(i))
        if i % 3 == 2:
            t.seen += [t._grad(p) for p in t.weights()]
        t.model.zero_grad()


def results_kept(t: Training) -> None:
    for i in range(STEPS):
        loss = t.loss(i)
        t.seen.append(loss)
        t.backward(loss)
        t.step()


def no_backward_at_times(t: Training) -> None:
    for i in range(STEPS):
        loss = t.loss(i)
        if i % 3 != 1:
            t.backward(loss)
            t.step()


def inference_between(t: Training) -> None:
    for i in range(STEPS):
        loss = t.loss(i)
        with torch.no_grad():
            t.seen.append(t.loss(50 + i))
        t.backward(loss)
        t.step()


def moved_weights(t: Training) -> None:
    for i in range(STEPS):
        if i == 5:
            for p in t.weights():
                p.data = p.data.clone()
        t.backward(t.loss(i))
        t.step()


def saved_elsewhere(t: Training) -> None:
    for i in range(STEPS):
        with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone):
            loss = t.loss(i)
        t.backward(loss)
        t.step()


def other_rows(t: Training) -> None:
    for i in range(3 * STEPS):
        t.backward(t.loss(i, rows=(4, 5, 7)[i % 3]))
        t.step()


def differentiated_again(t: Training) -> None:
    for i in range(STEPS):
        loss = t.loss(i)
        found = torch.autograd.grad(loss, t.weights(), create_graph=True)
        t.backward(loss + sum(g.square().sum() for g in found))
        t.step()


def in_a_thread(t: Training) -> None:
    for i in range(STEPS):
        thread = threading.Thread(target=lambda loss: t.backward(loss), args=(t.loss(i),))
        thread.start()
        thread.join()
        t.step()


@pytest.mark.parametrize(
    ("train", "at_least"),
    [
        (plain, 14),
        (kept_zeros, 14),
        (accumulated, 45),
        (two_before_backward, 28),
        (retained, 20),
        (gradients_kept, 10),
        (some_gradients_kept, 12),
        (results_kept, 14),
        (no_backward_at_times, 8),
        (inference_between, 21),
        (moved_weights, 13),
        (saved_elsewhere, 6),
        (other_rows, 36),
        (differentiated_again, 14),
        (in_a_thread, 14),
    ],
)
def test_training_is_eagers(
    train: Callable[[Training], None], at_least: int, graphs: Graphs
) -> None:
    expected, actual = Training(False), Training(True)
    train(expected)
    train(actual)
    for ours, eagers in zip(actual.seen, expected.seen, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-6)
    assert graphs.replayed >= at_least
    assert graphs.recorded <= 17


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
    t = Training(True)
    losses = [t.loss(i) for i in range(STEPS)]
    for loss in losses:
        t.backward(loss)
    (reason,) = {e.data["reason"] for e in log.events("cuda_graph_refused")}
    assert reason == "what is saved for backward passes is held while later calls run"


def test_weights_that_keep_moving_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOVE_LIMIT", 2)
    t = Training(True)
    kept = []
    for i in range(STEPS):
        t.loss(i)
        kept.append([p.data for p in t.weights()])
        for p in t.weights():
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
