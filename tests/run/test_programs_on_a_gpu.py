"""What a GPU alone shows: its generator of random numbers, its library's batch norm, its device as
the default of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitney
from jitney.events import log
from tests.equal import assert_equal

pytestmark = pytest.mark.gpu

DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "gamma": torch._standard_gamma,
    "two gammas": lambda a: (torch._standard_gamma(a) + torch._standard_gamma(a * 2)).argmax(-1),
    "Dirichlet": lambda a: torch.distributions.Dirichlet(a).rsample(),
    "binomial": lambda a: torch.binomial(a * 5, a * 0.2),
    "Student": lambda a: torch.distributions.StudentT(a + 2).rsample(),
    "Poisson": lambda a: torch.poisson(a * 3),
    "uniform numbers, then gamma": lambda a: (torch.rand_like(a) + 1, torch._standard_gamma(a)),
}


@pytest.fixture
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


def drawn(fn: Callable[[Tensor], Any]) -> list[Any]:
    """What ``fn`` gives in three calls, the last with another size, and where the generator is."""
    torch.manual_seed(0)
    results = [fn(torch.ones(rows, 4, device="cuda") * (1 + rows)) for rows in (3, 3, 5)]
    return [*results, torch.tensor(torch.cuda.default_generators[0].get_offset())]


@pytest.mark.parametrize("name", DRAWS)
def test_a_compile_draws_no_numbers(name: str) -> None:
    assert_equal(drawn(jitney.compile(DRAWS[name])), drawn(DRAWS[name]))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("layout", ["rows", "channels last", "transposed"])
def test_batch_norm_in_training(layout: str, frozen: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).cuda()
    net[1].requires_grad_(not frozen)
    x = torch.randn(4, 3, 12, 12, device="cuda")
    if layout == "channels last":
        x = x.to(memory_format=torch.channels_last)
    if layout == "transposed":
        x = x.transpose(2, 3)
    x.requires_grad_(not frozen)
    factor = torch.randn(4, 8, *(n - 2 for n in x.shape[2:]), device="cuda")
    compiled = jitney.compile(net)
    log.clear()
    # The convolution's bias has no gradient but rounding.
    weights = [p for n, p in net.named_parameters() if p.requires_grad and n != "0.bias"]
    found, wanted = (torch.autograd.grad((f(x) * factor).sum(), weights) for f in (compiled, net))
    assert_equal(found, wanted)
    assert not log.events("eager_graph")


def test_distinct_elements_with_a_default_device(on_the_gpu: None) -> None:
    def count(x: Tensor) -> tuple[Any, ...]:
        runs = torch.unique_consecutive(x)
        kept, counts = torch.unique_consecutive(x, return_counts=True)
        return runs * 2, kept, counts, torch.unique(x), F.pad(runs, (0, 1))

    x = torch.tensor([1, 1, 2, 2, 2, 5])
    assert_equal(jitney.compile(count)(x), count(x))


def test_a_transform_beside_a_result_without_gradient() -> None:
    """Autograd numbered the transform's steps for a GPU in a thread of its own, so that the trace
    for the results used came in another order than the first, and eager cannot write twice."""

    def f(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        inner = torch.func.grad(lambda t: (t * t.cos()).sum())(x)
        z.mul_(inner)
        return inner.tanh(), (z * x).sum()

    compiled = jitney.compile(f)
    found = []
    for call in (f, compiled, f, compiled):
        leaves = [torch.linspace(0.1, 1, 5, device="cuda").requires_grad_() for _ in range(2)]
        x, z = (leaf * 2 for leaf in leaves)
        found.append((*torch.autograd.grad(call(x, z)[0].sum(), leaves, allow_unused=True), z))
    assert_equal(found[1], found[0])
    assert_equal(found[3], found[2])


@pytest.mark.parametrize("view", [lambda z: z, lambda z: z[None]])
@pytest.mark.parametrize("handled", [False, True])
def test_a_write_that_does_not_fit_is_refused(view: Any, handled: bool) -> None:
    def f(y: Tensor, z: Tensor) -> Tensor:
        y = y[1:]
        if not handled:
            return y.add_(view(z))
        try:
            y.add_(view(z))
        except RuntimeError:
            y.mul_(3)
        return y * 2

    y, z = torch.ones(4, device="cuda"), torch.tensor(1 + 1j, device="cuda")
    if handled:
        assert_equal(jitney.compile(f)(y.clone(), z), f(y.clone(), z))
        return
    with pytest.raises(RuntimeError, match="can't be cast"):
        jitney.compile(f)(y, z)
    assert_equal(y, torch.ones(4, device="cuda"))


@pytest.mark.parametrize("name", ["huber_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss"])
def test_a_loss_of_two_dtypes_has_eagers(name: str) -> None:
    loss = getattr(F, name)
    compiled = jitney.compile(lambda a, b: loss(a, b, reduction="none") * 2)
    x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda", dtype=torch.float64)
    for given in ((x, y), (y, x), (x, y.half())):
        assert compiled(*given).dtype is loss(*given).dtype


def test_a_sum_beside_a_write() -> None:
    """Threads that share an element of a small tile: one writes what the others are to read."""

    def f(y: Tensor) -> Tensor:
        total = y.sum(-2)
        y[::2] = 2
        return total - 1

    compiled = jitney.compile(f, dynamic=True)
    for size in (2, 3, 5, 6) * 50:
        mine = torch.randint(-8, 9, (size, size, 3), device="cuda").float()
        eagers = mine.clone()
        assert torch.equal(compiled(mine), f(eagers))
        assert torch.equal(mine, eagers)
