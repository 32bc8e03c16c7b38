"""Tensors with a pending conjugation or negation: what they are made of, and gradients through
them, also where two of them cancel."""

from collections.abc import Callable

import pytest
import torch

import jitney
from tests.equal import assert_equal


def spectrum(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(x, dim=1)


def real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj())


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "correlation": lambda x, y: torch.fft.irfft(spectrum(x) * torch.conj(spectrum(y)), n=14, dim=1),
    "twice": lambda x, y: real(spectrum(x).conj().conj() * spectrum(y)),
    "twice, transposed between": lambda x, y: real(spectrum(x).mH.conj() + 1),
    "twice, a part between": lambda x, y: spectrum(x).conj()[0].conj().imag + y[0, :8],
    "twice, split between": lambda x, y: sum(p.conj().imag for p in spectrum(x).conj().split(4, 1)),
    "twice, expanded between": lambda x, y: real(
        spectrum(x)[:, :1].conj().expand(2, 8, 4).conj() * spectrum(y)
    ),
    "summed": lambda x, y: real(spectrum(x).conj().sum(1)),
    "product of adjoints": lambda x, y: real((spectrum(x).mH @ spectrum(y)).mH.contiguous()),
    "imaginary part": lambda x, y: -(spectrum(x).conj().imag[:, 1:].transpose(1, 2) * 2),
    "negated twice": lambda x, y: torch._neg_view(torch._neg_view(x * 2).transpose(0, 1)) + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_values_and_gradients_are_eagers(name: str, dynamic: bool | None) -> None:
    fn = PROGRAMS[name]
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 14, 4, generator=generator, requires_grad=True) for _ in range(2))

    def run(fn: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        result = fn(x, y)
        return [result, *torch.autograd.grad(result.sin().sum(), (x, y), allow_unused=True)]

    for got, want in zip(run(jitney.compile(fn, dynamic=dynamic)), run(fn), strict=True):
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


GRADIENTS = {
    "negated": lambda: torch._neg_view(torch.tensor([1.0, -2.0])),
    "part": lambda: torch.tensor([[1 - 2j, 3 + 1j]]).conj().imag,
    "conjugated": lambda: torch.tensor([1 - 2j, 3 + 1j]).conj(),
    "zeros without memory": lambda: torch._efficientzerotensor((2,)),
    "sparse": lambda: torch.tensor([0.0, 1.5]).to_sparse(),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_whose_memory_does_not_hold_them(name: str, dynamic: bool | None) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    found = []
    for call in (double, jitney.compile(double, dynamic=dynamic)):
        gradient = GRADIENTS[name]()
        x = torch.ones(gradient.shape, dtype=gradient.dtype, requires_grad=True)
        (slope,) = torch.autograd.grad(call(x), x, gradient)
        found.append((slope.layout, slope.to_dense() if slope.is_sparse else slope + 0))
    assert_equal(found[1], found[0])
