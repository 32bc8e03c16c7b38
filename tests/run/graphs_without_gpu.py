"""CUDA graphs on a CPU: a recording's replay runs the program again, into the memory of the first
run's outputs, from where its inputs lay then."""

from __future__ import annotations

import dataclasses
import types
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from jitney import cpu_pipeline, gpu_pipeline, torch_api
from jitney.kernels import philox_state
from jitney.run import cuda_graphs, recording
from jitney.run.cuda_graphs import ReplayedProgram
from jitney.run.recording import Recording, ReplayFacts


class Graphs:
    """Counts of recordings, replays, and calls of programs that may be recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded = self.replayed = self.calls = 0
        start, consume = cpu_pipeline.start, ReplayedProgram.consume

        def counted(program: ReplayedProgram, args: list[Any]) -> tuple[Any, ...]:
            self.calls += 1
            return consume(program, args)

        def replayed(program: Any, gm: Any, target: Any, options: Any) -> Any:
            code = start(program, gm, target, options)
            facts = dataclasses.replace(gpu_pipeline.replay_facts(gm, program), refused="")
            return lambda: _Code(code(), facts)

        monkeypatch.setattr(cpu_pipeline, "start", replayed)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        for module in (cuda_graphs, recording):
            monkeypatch.setattr(module, "is_on_gpu", recording.is_tensor)
        monkeypatch.setattr(ReplayedProgram, "consume", counted)
        monkeypatch.setattr(ReplayedProgram, "_record", lambda *given: self.record(*given))

    def record(self, call: ReplayedProgram, args: tuple[Any, ...], stream: int) -> Recording:
        """A recording of ``call``; what its first run wrote is spoiled until a replay."""
        self.recorded += 1
        tensors = {p: t for p, t in enumerate(args) if recording.is_tensor(t)}
        copied = [(p, t.clone()) for p, t in tensors.items() if p in call._moving]
        own = dict(copied)
        inputs = list(args)  # from here on held by address alone, as a CUDA graph holds them
        for p, t in tensors.items():
            inputs[p] = own.get(p, torch_api.tensor_at(t, tuple(t.shape), t.stride()))
        outputs = call.program(*inputs)
        where = {id(t): p for p, t in enumerate(inputs) if p in tensors}
        given = tuple([where.get(id(out)) for out in outputs])
        addresses = {p: t.data_ptr() for p, t in tensors.items() if p not in own}
        in_place = torch_api.same_addresses(args, tuple(addresses))
        graph: Any = types.SimpleNamespace()
        made = Recording(graph, outputs, given, in_place, addresses, copied, [],
                         philox_state.Recording(()), call.facts.leased)  # fmt: skip
        refer = weakref.ref(made)

        def replay() -> None:
            self.replayed += 1
            known = refer()
            assert known is not None
            for out, now in zip(known.outputs, call.program(*inputs), strict=True):
                if recording.is_tensor(out):
                    out.copy_(now)

        graph.replay = replay
        for out, at in zip(outputs, given, strict=True):
            if at is None and recording.is_tensor(out):
                out.fill_(77)
        return made


@dataclasses.dataclass(frozen=True)
class _Code:
    code: Any
    facts: ReplayFacts

    def load(self, constants: Mapping[str, torch.Tensor]) -> ReplayedProgram:
        return ReplayedProgram(self.code.load(constants), self.facts)
