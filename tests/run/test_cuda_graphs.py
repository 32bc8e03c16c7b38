"""What cannot be recorded as a CUDA graph runs without, and the log says why. No GPU needed."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from jitney import torch_api
from jitney.events import log
from jitney.kernels import philox_state
from jitney.kernels.call_extern import ExternCall
from jitney.loops.index import Dim
from jitney.loops.ir import Extern
from jitney.loops.read_sizes import ReadSize
from jitney.run import cuda_graphs, recording
from jitney.run.cuda_graphs import ReplayedProgram
from jitney.run.recording import Recording, ReplayFacts


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    log.clear()
    yield


class Graph:
    """Something to hold."""


def program(*args: Any) -> tuple[Any, ...]:
    return (args[0] + 1,)


def reasons() -> list[str]:
    return [e.data["reason"] for e in log.events("cuda_graph_refused")]


def test_a_failed_recording_is_told_once_and_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: ReplayedProgram, args: Any, stream: int) -> Any:
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nand more")
        error.add_note("in aten.sort.default")
        raise error

    monkeypatch.setattr(ReplayedProgram, "_record", refuses)
    call = ReplayedProgram(program, ReplayFacts())
    x = torch.zeros(2)
    for _ in range(4):
        assert call(x)[0].tolist() == [1, 1]
    (reason,) = reasons()
    assert reason.endswith("Tried to allocate; in aten.sort.default")


def test_the_reason_for_not_recording_is_told() -> None:
    call = ReplayedProgram(program, ReplayFacts(refused="buffer_3 lives on the CPU"))
    assert call(torch.zeros(1))[0].item() == 1
    assert reasons() == ["buffer_3 lives on the CPU"]


def test_an_extern_that_fails_is_named() -> None:
    node = Extern("e", "aten.mm.default", (torch.ones(2, 3), torch.ones(2, 3)), (), ("out",))
    with pytest.raises(RuntimeError) as caught:
        ExternCall(node).run(lambda view: torch.ones(0), {}, {})
    assert caught.value.__notes__ == ["in aten.mm.default"]


def test_every_set_of_sizes_is_recorded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Any] = []
    monkeypatch.setattr(ReplayedProgram, "_try_to_record", lambda self, key, args: keys.append(key))
    facts = ReplayFacts(sizes=(0,), read=(ReadSize(Dim("n"), 1, 0),))
    call = ReplayedProgram(lambda n, x: (x + n,), facts)
    for number, length in ((1, 2), (1, 2), (1, 3), (1, 3), (5, 3), (5, 3)):
        assert call(number, torch.zeros(length))[0].tolist() == [number] * length
    assert keys == [(0, 1, 2), (0, 1, 3), (0, 5, 3)]


def test_floats_are_recorded_apart_by_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Any] = []
    monkeypatch.setattr(ReplayedProgram, "_try_to_record", lambda self, key, args: keys.append(key))
    call = ReplayedProgram(lambda s, x: (x * s,), ReplayFacts(sizes=(0,)))
    for number in (0.0, 0.0, -0.0, -0.0, float("nan"), float("nan")):
        call(number, torch.ones(2))
    assert len(set(keys)) == len(keys) == 3


def test_streams_are_recorded_apart_where_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Any] = []
    entered: list[Any] = []
    streams = iter((7, 7, 9, 9))

    class Entered:
        def __init__(self, device: torch.device) -> None:
            entered.append(device.index)

        def __enter__(self) -> None:
            monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)

        def __exit__(self, *_: Any) -> None:
            monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "device", Entered)
    monkeypatch.setattr(torch_api, "raw_cuda_stream", lambda device: next(streams))
    monkeypatch.setattr(ReplayedProgram, "_try_to_record", lambda self, key, args: keys.append(key))
    call = ReplayedProgram(program, ReplayFacts(device=torch.device("cuda", 1)))
    for _ in range(4):
        assert call(torch.zeros(1))[0].item() == 1
    assert (keys, entered) == ([(7,), (9,)], [1] * 4)


def test_a_recording_is_made_on_a_stream_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []

    @contextmanager
    def record_into(graph: Any, pool: Any = None, stream: Any = None) -> Iterator[None]:
        used.append((pool, stream))
        yield

    handles = iter(range(9))
    monkeypatch.setattr(cuda_graphs, "make_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(cuda_graphs, "RecordedGraph", Graph)
    monkeypatch.setattr(cuda_graphs, "record_into", record_into)
    monkeypatch.setattr(cuda_graphs, "_pools", {})
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    kept = []
    for number, stream, leased in ((0, 0, ()), (0, 0, ()), (0, 7, ()), (1, 0, ()), (0, 0, (0,))):
        facts = ReplayFacts(device=torch.device("cuda", number), leased=frozenset(leased))
        kept.append(ReplayedProgram(program, facts)._record((torch.zeros(1),), stream))
    first, other = "stream of cuda:0", "stream of cuda:1"
    assert used == [(0, first), (0, first), (1, first), (2, other), (None, None)]


def test_one_program_at_a_time_has_the_memory_of_a_stream() -> None:
    inside = threading.Event()
    order: list[str] = []

    def slow(x: Any) -> tuple[Any, ...]:
        inside.set()
        time.sleep(0.05)
        order.append("first")
        return (x,)

    def quick(x: Any) -> tuple[Any, ...]:
        order.append("second")
        return (x,)

    first, second = ReplayedProgram(slow, ReplayFacts()), ReplayedProgram(quick, ReplayFacts())
    thread = threading.Thread(target=first, args=(torch.zeros(1),))
    thread.start()
    inside.wait()
    second(torch.zeros(1))
    thread.join()
    assert order == ["first", "second"]


def test_a_program_may_call_another_one_of_its_stream() -> None:
    inner = ReplayedProgram(program, ReplayFacts())
    outer = ReplayedProgram(lambda x: inner(x * 2), ReplayFacts())  # an author's op that calls it
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(outer(torch.ones(1))), daemon=True)
    thread.start()
    thread.join(10)
    assert [results[0].item() for results in found] == [3]


def test_a_pool_ends_with_the_last_graph_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = iter(range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(cuda_graphs, "make_stream", lambda device: f"stream of {device}")
    pool, graphs = cuda_graphs._Pool(), [Graph() for _ in range(3)]
    assert {pool.place_for(graph, None)[0] for graph in graphs} == {0}  # type: ignore[arg-type]
    graphs.clear()
    last = Graph()
    assert pool.place_for(last, None) == (1, "stream of cuda")  # type: ignore[arg-type]
    pool.leave()
    assert pool.place_for(last, None) == (2, "stream of cuda")  # type: ignore[arg-type]


def test_results_that_escape_keep_their_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "is_on_gpu", lambda value: True)
    rows = torch.arange(64.0).view(4, 16)[:, :6]
    for own in (rows, rows.t(), rows[:1].expand(4, 6)):
        kept = recording.escaping(own)
        assert torch.equal(kept, own)
        assert kept.stride() == own.stride()
        assert kept.data_ptr() != own.data_ptr()


def test_inputs_are_copied_outside_of_autograd() -> None:
    """Written through ``.data``, a leaf keeps its count of changes and its place in the graph."""
    own, x = torch.zeros(3), torch.ones(3, requires_grad=True)
    graph: Any = types.SimpleNamespace(replay=lambda: own.add_(1))
    copied, random = [(0, own)], philox_state.Recording(())
    made = Recording(graph, (), (), lambda args: True, {}, copied, copied, random)
    made.replay((x,))
    assert x.tolist() == [2.0, 2.0, 2.0]
    assert x._version == 0
    assert not own.requires_grad


class Replays:
    """A recording's graph that computes from where its inputs lay; how often it was recorded and
    replayed, and how often the program itself ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded = self.replayed = self.ran = 0
        monkeypatch.setattr(ReplayedProgram, "_record", self.record)

    def program(self, given: torch.Tensor, kept: torch.Tensor) -> tuple[Any, ...]:
        self.ran += 1
        return given + kept, kept

    def record(self, args: tuple[Any, ...], stream: int) -> Recording:
        self.recorded += 1
        (given, kept), moving = args, self.call._moving
        copied = [(0, given := given.clone())] if 0 in moving else []
        inputs = [t.as_strided(t.shape, (1,)) for t in (given, kept)]
        result = torch.empty_like(kept)

        def replay() -> None:
            self.replayed += 1
            torch.add(*inputs, out=result)

        addresses = {p: t.data_ptr() for p, t in enumerate(args) if p not in moving}
        return Recording(
            types.SimpleNamespace(replay=replay),  # type: ignore[arg-type]
            (result, kept),
            (None, 1),
            torch_api.same_addresses(args, tuple(addresses)),
            addresses,
            copied,
            [],
            philox_state.Recording(()),
        )


def test_a_bound_program_replays_while_its_inputs_lie_where_they_lay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "is_on_gpu", lambda value: True)
    replays = Replays(monkeypatch)
    call = replays.call = ReplayedProgram(replays.program, ReplayFacts(static=frozenset((1,))))
    x, weight = torch.ones(3), torch.full((3,), 2.0)
    bound = call.bind((..., weight))
    assert bound is not None
    whole = call.__class__.__call__
    handed: list[int] = []
    monkeypatch.setattr(
        ReplayedProgram, "__call__", lambda self, *a: handed.append(len(a)) or whole(self, *a)
    )

    def check(given: torch.Tensor) -> None:
        total, kept = bound(given)
        assert total.tolist() == (given + weight).tolist()
        assert kept is weight

    for _ in range(4):
        check(x.add_(1))
    assert (replays.ran, replays.recorded, replays.replayed) == (1, 1, 3)
    assert len(handed) == 2  # then neither handed over
    weight.data = torch.full((3,), 5.0)
    check(x)
    check(x)
    assert (replays.recorded, len(handed)) == (2, 3)
    others = [torch.full((3,), float(n)) for n in range(4)]
    for other in others:  # from now on copied into the recording's own
        check(other)
    assert (replays.recorded, len(handed)) == (3, 4)


def test_a_program_of_sizes_is_not_bound() -> None:
    assert ReplayedProgram(program, ReplayFacts(sizes=(0,))).bind((..., 1)) is None
