"""What a frame asks of GPUs, and which one ``"cuda"`` means."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney import torch_api
from tests.equal import assert_equal_to_eager

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def test_the_current_gpu_is_guarded_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)

    def asks(x: torch.Tensor) -> torch.Tensor:
        return x + torch.cuda.current_device()

    compiled, x = jitney.compile(asks, fullgraph=True), torch.zeros(3)
    for current[0] in (0, 0, 1, 1, 0):
        assert compiled(x).tolist() == [current[0]] * 3


def test_a_device_without_number_is_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    named = torch_api.naming_gpu({"device": torch.device("cuda"), "dtype": None})
    assert named == {"device": torch.device("cuda", 1), "dtype": None}
    for other in ({"device": torch.device("cuda", 0)}, {"device": torch.device("cpu")}, {}):
        assert torch_api.naming_gpu(other) is other


@pytest.mark.gpu
def test_questions_about_a_gpu_do_not_break_the_graph() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        facts = torch.cuda.get_device_properties(x.device)
        if torch.cuda.get_device_capability(x.device) >= (7, 0) and torch.cuda.is_bf16_supported():
            x = x * facts.major
        return x + facts.multi_processor_count + torch.cuda.current_device()

    compiled = jitney.compile(asks, fullgraph=True)
    assert_equal_to_eager(asks, compiled, (torch.randn(5, device="cuda"),))


@pytest.mark.gpu
@TWO_GPUS
def test_tensors_are_made_on_the_gpu_that_is_current() -> None:
    def made(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(n, device="cuda") * 2, torch.arange(n).cuda()

    def within(n: int) -> torch.Tensor:
        with torch.cuda.device(1):
            return torch.ones(n, device="cuda") * 2

    compiled, compiled_within = jitney.compile(made, dynamic=False), jitney.compile(within)
    for gpu in (0, 1, 0, 1):
        with torch.cuda.device(gpu):
            for n in (3, 3, 4):
                assert [t.device.index for t in compiled(n)] == [gpu, gpu]
                assert compiled_within(n).device.index == 1
