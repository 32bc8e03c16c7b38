"""Random numbers in kernels: eager's Philox stream, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from jitney import torch_api
from jitney.kernels import philox_state
from jitney.loops import ir, philox
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
    [((3, 5), 1), ((6,), 2), ((64, 64), 4), ((3, 1000), 4), ((1, 20000), 4), ((2, 3, 4), 4)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dropout_is_eagers(
    generator: Generator, shape: tuple[int, ...], together: int, dtype: torch.dtype
) -> None:
    def f(x: torch.Tensor) -> Any:
        return aten.native_dropout(x * 2, 0.3, True)

    x = torch.randn(shape).to(dtype)
    program, constants = gpu_program(f, x, target=SMALL)
    assert externs(program) == [STATE]
    values, kept = run_kernels(program, constants, (x,), SMALL)
    wanted = (numbers(x.numel(), together) < torch.tensor(1 - 0.3)).view(shape)
    assert torch.equal(kept, wanted)
    scale = 1 / torch.tensor(1 - 0.3).double().item()
    assert torch.equal(values, ((x * 2).float() * wanted * scale).to(dtype))
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


def test_the_reference_has_the_moments_of_its_distributions() -> None:
    uniform, normal = numbers(1 << 18), numbers(1 << 18, kind=philox.normal)
    assert 0 < uniform.min() and uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 0.002 and abs(uniform.var() - 1 / 12) < 0.001
    assert abs(normal.mean()) < 0.008 and abs(normal.var() - 1) < 0.02
    assert abs((uniform[1:] * uniform[:-1]).mean() - 0.25) < 0.002
