"""While one thread records a CUDA graph, others go on."""

from __future__ import annotations

import threading

import pytest
import torch

from jitney.events import log
from jitney.run.cuda_graphs import ReplayedProgram
from jitney.run.recording import ReplayFacts

pytestmark = pytest.mark.gpu


def test_another_thread_draws_the_numbers_it_would_without() -> None:
    begun, done = threading.Event(), threading.Event()
    drawn: list[torch.Tensor] = []

    def draw() -> None:
        assert begun.wait(60)
        drawn.extend(torch.rand(5, device="cuda") for _ in range(4))
        drawn.append(torch.nn.functional.dropout(torch.ones(5, device="cuda")))
        done.set()

    def program(x: torch.Tensor) -> tuple[torch.Tensor]:
        if torch.cuda.is_current_stream_capturing():
            begun.set()
            assert done.wait(60)
        return (x + 1,)

    facts = ReplayFacts(device=torch.device("cuda", 0))
    call, x = ReplayedProgram(program, facts), torch.zeros(8, device="cuda")
    torch.manual_seed(3)
    thread = threading.Thread(target=draw)
    thread.start()
    drawn.append(torch.rand(5, device="cuda"))
    for _ in range(3):
        (result,) = call(x)
    thread.join()
    drawn.append(torch.rand(5, device="cuda"))
    assert call.recording(0) is not None and torch.equal(result, x + 1)
    torch.manual_seed(3)
    expected = [torch.rand(5, device="cuda") for _ in range(5)]
    expected.append(torch.nn.functional.dropout(torch.ones(5, device="cuda")))
    expected.append(torch.rand(5, device="cuda"))
    assert torch.equal(torch.stack(drawn), torch.stack(expected))


def test_a_program_in_which_torch_draws_is_not_recorded() -> None:
    facts = ReplayFacts(device=torch.device("cuda", 0))
    call = ReplayedProgram(lambda x: (torch.rand_like(x),), facts)
    x = torch.zeros(8, device="cuda")
    log.clear()
    torch.manual_seed(3)
    results = [call(x)[0] for _ in range(4)]
    torch.manual_seed(3)
    assert all(torch.equal(result, torch.rand_like(x)) for result in results)
    assert len(log.events("cuda_graph_refused")) == 1
