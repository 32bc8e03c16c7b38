"""Random numbers in kernels: eager's Philox stream, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from jitney import torch_api
from jitney.errors import LeftToEager
from jitney.kernels import philox_state
from jitney.kernels.call_extern import ExternCall
from jitney.loops import ir, philox
from jitney.loops.index import Dim
from tests.kernels.triton.interpreted import H200, gpu_program, run_kernels
from tests.loops.lowered import externs

aten = torch.ops.aten
STATE = philox_state.NAME
SEED = -0x123456789ABCDEF
SMALL = replace(H200, multiprocessors=2)


class Generator:
    """Stands in for a CUDA device's generator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = 16
        monkeypatch.setattr(torch_api, "advance_generator", self.advance)
        monkeypatch.setattr(torch_api, "resident_threads", lambda _: (SMALL.multiprocessors, 2048))

    def advance(self, device: torch.device, step: int) -> tuple[int, int]:
        self.offset += step
        return SEED, self.offset - step


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    return Generator(monkeypatch)


def numbers(numel: int, together: int = 1, offset: int = 16, kind: Any = philox.uniform) -> Any:
    """What eager draws for the elements 0 … numel - 1."""
    threads = philox.thread_count(numel, 2, 2048)
    state = [torch.tensor(v) for v in (SEED, offset, threads, together)]
    return kind(*state, torch.arange(numel))


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_vectors(key: tuple[int, ...], counter: tuple[int, ...], words: str) -> None:
    """Of the authors' own library, Random123."""

    def signed(low: int, high: int) -> torch.Tensor:
        value = low | high << 32
        return torch.tensor(value - (1 << 64) if value >> 63 else value)

    drawn = philox.philox(signed(*key), signed(*counter[:2]), signed(*counter[2:]))
    assert [f"{int(word):08x}" for word in drawn] == words.split()


@pytest.mark.parametrize(
    ("shape", "together"),
    [((3, 5), 1), ((6,), 2), ((3, 100), 4), ((64, 64), 8), ((1, 20000), 8), ((2, 3, 4), 8)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_dropout_is_eagers(
    generator: Generator, shape: tuple[int, ...], together: int, dtype: torch.dtype
) -> None:
    def f(x: torch.Tensor) -> Any:
        return aten.native_dropout(x * 2, 0.3, True)

    x = torch.randn(shape).to(dtype)
    program, constants = gpu_program(f, x, target=SMALL)
    assert externs(program) == [STATE]
    values, kept = run_kernels(program, constants, (x,), SMALL)
    together = min(together, 16 // dtype.itemsize)
    acc = torch.float64 if dtype is torch.float64 else torch.float32
    chance = torch.tensor(1 - 0.3, dtype=acc)
    wanted = (numbers(x.numel(), together).to(acc) < chance).view(shape)
    assert torch.equal(kept, wanted)
    assert torch.equal(values, ((x * 2).to(acc) * wanted * (1 / chance.item())).to(dtype))
    threads = philox.thread_count(x.numel(), 2, 2048)
    assert generator.offset == 16 + philox.offset_step(x.numel(), threads)


def test_dropout_fuses_into_what_is_around_it(generator: Generator) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
        dropped, kept = aten.native_dropout(x + 1, 0.1, True)
        return aten.native_layer_norm(dropped + y, [64], w, w, 1e-5)[0], kept

    x, y, w = tensors = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64)
    program, constants = gpu_program(f, *tensors, target=SMALL)
    _, nest = program.nodes
    assert isinstance(nest, ir.LoopNest)
    out, kept = run_kernels(program, constants, tensors, SMALL)
    dropped = (x + 1) * (numbers(x.numel(), 4).view(x.shape) < 0.9) / 0.9
    want = torch.nn.functional.layer_norm(dropped + y, [64], w, w)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numel", [7, 1024, 20001])
def test_distributions_are_eagers(generator: Generator, numel: int) -> None:
    def f(x: torch.Tensor) -> Any:
        return (
            torch.rand_like(x), aten.uniform(x, -1.5, 2.75), torch.randn_like(x),
            aten.normal_functional(x, 0.5, 2.0), aten.bernoulli.p(x, 0.3),
            torch.randint_like(x, -5, 77, dtype=torch.int32),
        )  # fmt: skip

    x = torch.zeros(numel)
    program, constants = gpu_program(f, x, target=SMALL)
    assert externs(program) == [STATE]
    drawn = run_kernels(program, constants, (x,), SMALL)
    step = philox.offset_step(numel, philox.thread_count(numel, 2, 2048))
    at = [16 + step * i for i in range(6)]
    uniform = [numbers(numel, offset=offset) for offset in at]
    assert torch.equal(drawn[0], uniform[0].where(uniform[0] < 1, 0.0))
    torch.testing.assert_close(drawn[1], uniform[1] * 4.25 - 1.5, rtol=1e-6, atol=1e-6)
    normal = [numbers(numel, offset=at[i], kind=philox.normal) for i in (2, 3)]
    torch.testing.assert_close(drawn[2], normal[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(drawn[3], normal[1] * 2 + 0.5, rtol=1e-5, atol=1e-5)
    assert torch.equal(drawn[4], (uniform[4].double() < 0.3).float())
    assert torch.equal(drawn[5], (numbers(numel, offset=at[5], kind=philox.bits) % 82 - 5).int())
    assert generator.offset == 16 + 6 * step


@pytest.mark.parametrize("rows", [7, 8])
def test_dropout_of_symbolic_extents(generator: Generator, rows: int) -> None:
    def f(x: torch.Tensor) -> Any:
        return aten.native_dropout(x * 2, 0.3, True)

    program, constants = gpu_program(f, torch.randn(5, 6), target=SMALL, symbolic=True)
    assert externs(program) == [STATE]
    x = torch.randn(rows, 6)
    sizes = [a for a in program.arguments if isinstance(a, Dim)]
    _, kept = run_kernels(program, constants, (*x.shape[: len(sizes)], x), SMALL)
    wanted = numbers(x.numel(), 4 if rows == 8 else 2) < torch.tensor(1 - 0.3)
    assert torch.equal(kept, wanted.view(x.shape))


def test_draws_of_eagers_between_ours_keep_their_place(generator: Generator) -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.rand_like(x), torch.multinomial(x + 1, 3), torch.rand_like(x)

    program, _ = gpu_program(f, torch.zeros(8, 8), target=SMALL)
    assert externs(program) == [STATE, "aten.multinomial.default", STATE]


def test_a_recording_reserves_numbers_for_each_replay(generator: Generator) -> None:
    (state,) = states = [torch.zeros(1, 4, dtype=torch.int64)]
    with philox_state.recording(states) as recorded:
        assert philox_state.philox_state([8], [4], torch.device("cpu")) is state
    assert generator.offset == 16
    for offset in (16, 20):
        recorded.refill()
        assert state.tolist() == [[SEED, offset, 256, 4]]


def test_a_cuda_graph_of_the_callers_draws_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(LeftToEager):
        philox_state.philox_state([8], [4], torch.device("cuda", 0))


def test_the_reference_has_the_moments_of_its_distributions() -> None:
    uniform, normal = numbers(1 << 18), numbers(1 << 18, kind=philox.normal)
    assert 0 < uniform.min() and uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 0.002 and abs(uniform.var() - 1 / 12) < 0.001
    assert abs(normal.mean()) < 0.008 and abs(normal.var() - 1) < 0.02
    assert abs((uniform[1:] * uniform[:-1]).mean() - 0.25) < 0.002


def test_a_program_calls_the_state_past_the_dispatcher(generator: Generator) -> None:
    node = ir.Extern("s", STATE, ((8,), (4,), torch.device("cpu")), (), ("state",))
    (state,) = ExternCall(node).run(lambda view: torch.empty(0), {}, {})
    assert state.tolist() == [[SEED, 16, 256, 4]]
