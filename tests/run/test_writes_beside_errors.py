"""Random programs that write to inputs around an index that is out of range: each write that eager
makes before it raises is made once, none of those behind it. Others whose indices are in range read
rows, by index, of what they write."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jitney

WRITES = (
    "a.add_(1)", "b.mul_(2)", "c.sub_(0.5)", "a.mul_(b[:1])", "b.add_(a.sum() / 64)", "a.copy_(b)",
    "c.copy_(a * 0.5 + 1)", "x.mul_(1.5)", "x[:1].add_(1)", "b.t().add_(c)", "c.zero_()",
    "a[k] = 1.5", "b.index_add_(0, k, c[:2])", "c.index_put_((k,), a[:2])", "b.fill_(2)",
    "torch.add(a, b, out=c)", "c.copy_(a.cumsum(0))", "a.copy_(x @ w)", "torch.mm(a, b, out=c)",
    "b.copy_(torch.linalg.svdvals(a).sum().expand(4, 4))", "d.add_(1)", "d[:2].mul_(2)",
    "n.add_(1)", "n.copy_(n * 2 + 1)",
)  # fmt: skip
READS = (
    "y = y @ w", "y = y.relu() + a", "y = y * b", "y = layer(y)", "y = y.softmax(-1)", "y = y + x",
    "y = y + c.sum(0)", "y = y.cumsum(0)", "y = y - d[:4]", "y = y + torch.rand(4, 4)",
    "y = F.dropout(y, 0.5)", "y = y + n.float()",
)  # fmt: skip
CHECKS = (
    "y = y + y[i]", "y = y + a[i]", "b[i]", "y = y + F.embedding(i, a)", "a.index_add_(0, i, b)",
    "y = y + c.gather(0, i[:, None].expand(4, 4))", "b[i] = 0.5", "y = y + y.index_select(0, i)",
    "c.scatter_(0, i[:, None], 2.0)", "d[i] = 1", "y = y + F.nll_loss(y.log_softmax(-1), i)",
)  # fmt: skip
ROWS = (
    "a.copy_(b[i] @ w)", "b.copy_(a[i] + y.detach())", "c.copy_(F.linear(a[i], w))", "b.add_(b[i])",
    "torch.mm(a[i], w, out=b)", "a[k] = b[i][:2]", "x.copy_(x[i] * 2)", "c.addmm_(a, w)",
    "a.copy_((a @ w).relu() + b[i])", "b.copy_(torch.bmm(a[None], w[None])[0] + b[i])",
    "c[:, i] = a", "d[i] += y.detach()", "a.copy_(a.cumsum(0)[i])", "y = y + a[i] @ w",
    "a.copy_(F.softmax(a[i], -1))", "b.copy_(F.layer_norm(b[i], (4,)))", "y = y + c.t()[i]",
    "y = F.scaled_dot_product_attention(y[None], a[i][None], b[None])[0]",
    "a.copy_(F.scaled_dot_product_attention(a[None], a[i][None], b[None])[0])",
    "y = torch.index_put(y, (i,), b[:4])", "b.index_fill_(0, i, 3)", "y = y + torch.take(a, i)",
)  # fmt: skip
NAMES = ("x", "a", "b", "c", "d", "n", "i", "k", "w", "layer")


def program(seed: int) -> tuple[str, Callable[..., Tensor]]:
    """The source of a program, and the program."""
    chooser = random.Random(seed)
    steps = [
        chooser.choice(WRITES if chooser.random() < 0.55 else READS)
        for _ in range(chooser.randint(2, 9))
    ]
    for _ in range(chooser.choice((1, 1, 2))):
        steps.insert(chooser.randrange(len(steps) + 1), chooser.choice(CHECKS))
    return made_of(steps)


def program_of_rows(seed: int) -> tuple[str, Callable[..., Tensor]]:
    """The same for one that reads rows of what it writes."""
    chooser = random.Random(seed)
    kinds = chooser.choices((WRITES, ROWS, CHECKS[:-1], READS), (3, 4, 1, 2), k=3 + seed % 7)
    return made_of([chooser.choice(kind) for kind in kinds])


def made_of(steps: list[str]) -> tuple[str, Callable[..., Tensor]]:
    """The source of a program of these statements, and the program."""
    lines = (f"def program({', '.join(NAMES)}):", "y = x * 1", *steps, "return y.sum()")
    text = "\n    ".join(lines)
    made: dict[str, Any] = {"torch": torch, "F": F}
    exec(text, made)
    return text, made["program"]


def given(seed: int, bad: bool) -> list[Any]:
    """What a program is called with; ``bad``: one of the indices ``i`` is out of range."""
    generator = torch.Generator().manual_seed(seed)
    matrices = [torch.rand(4, 4, generator=generator) + 0.5 for _ in range(6)]
    layer = nn.Linear(4, 4).requires_grad_(seed % 3 > 0)
    with torch.no_grad():
        layer.weight.copy_(matrices[5])
        layer.bias.fill_(0.1)
    i = torch.randint(0, 4, (4,), generator=generator)
    if bad:
        i[seed % 4] = 4 if seed % 2 else -9
    d, n, k = torch.arange(36.0).view(9, 4), torch.tensor([3]), torch.tensor([1, 3])
    return [*matrices[:4], d, n, i, k, matrices[4], layer]


def seen(function: Callable[..., Tensor], seed: int, bad: bool) -> tuple[Any, ...]:
    """The error's type, the result, the inputs after the call, and the generator's state."""
    inputs, result, error = given(seed, bad), None, None
    torch.manual_seed(0)
    try:
        result = function(*inputs).detach()
    except (IndexError, RuntimeError) as raised:
        error = type(raised).__name__
    left = [*inputs[:-1], *inputs[-1].parameters()]
    return error, result, [x.detach() for x in left], torch.get_rng_state()


def check(seed: int, rows: bool = False) -> None:
    """Compares a program's calls, some of them with a bad index, to eager's."""
    text, function = program_of_rows(seed) if rows else program(seed)
    compiled = jitney.compile(function, dynamic=random.Random(seed).choice((None, True)))
    mixed = ((True, True), (False, True, False), (False, True))[seed % 3]
    for number, bad in enumerate((False, False) if rows else mixed):
        expected, found = (seen(f, seed + number, bad) for f in (function, compiled))
        assert found[0] == expected[0], text
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-3, atol=1e-3, msg=text)


FEW = [range(first, first + 15) for first in range(0, 60, 15)]
SLOW = (pytest.mark.slow, pytest.mark.timeout(0))
MANY = [pytest.param(range(k, k + 100), marks=SLOW) for k in range(1000, 1600, 100)]


@pytest.mark.parametrize("rows", [False, True], ids=["errors", "rows"])
@pytest.mark.parametrize("seeds", [*FEW, *MANY], ids=str)
def test_what_is_written_is_eagers(seeds: range, rows: bool) -> None:
    for seed in seeds:
        check(seed, rows)


def caught(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def program(x: Tensor, b: Tensor, i: Tensor) -> Tensor:
        b.mul_(2)
        try:
            x = step(x, i)
        except (RuntimeError, IndexError):
            b.add_(1)
        return x.sum()

    return program


def uncaught(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def program(x: Tensor, b: Tensor, i: Tensor) -> Tensor:
        b.mul_(2)
        y = step(x, i) + torch.rand(4)
        b.add_(1)
        return y.sum()

    return program


def bags(x: Tensor, i: Tensor) -> Tensor:
    return F.embedding_bag(i[None], x)


def drawn(x: Tensor, i: Tensor) -> Tensor:
    return torch.bernoulli(x * 0.1 + i.max())


def factored(x: Tensor, i: Tensor) -> Tensor:
    return torch.linalg.cholesky(torch.eye(4) * (2 - i.max()))


#: Torch's capture leaves handlers out.
KINDS = [(caught, False), (uncaught, False), (uncaught, True)]


@pytest.mark.parametrize("step", [bags, drawn, factored])
@pytest.mark.parametrize(("kind", "torchs"), KINDS)
def test_errors_of_torchs_code_are_raised_at_their_line(kind: Any, step: Any, torchs: bool) -> None:
    program = kind(step)
    compiled = torch.compile(program, backend="jitney") if torchs else jitney.compile(program)
    for last in (0, 9, 9, 1):
        seen = []
        for call in (program, compiled):
            torch.manual_seed(0)
            x, b = torch.rand(4, 4, generator=torch.Generator().manual_seed(1)), torch.ones(2)
            result: Any = None
            try:
                result = call(x, b, torch.tensor([0, 1, 0, last]))
            except (RuntimeError, IndexError) as error:
                result = str(error)
            seen.append((result, b, torch.rand(1)))
        (expected, *left), (found, *ours) = seen
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(ours, left)


def test_a_check_of_an_index_that_its_nest_stores_stays_there() -> None:
    """A step of a beam search, whose cache is written first."""

    def step(cache: Tensor, key: Tensor, best: Tensor, done: Tensor) -> tuple[Tensor, ...]:
        cache[:, 1] = key
        rows = (best // 11 + torch.arange(2)[:, None] * 2).view(-1)
        return (done[rows] | (key > 1)).all(), rows

    compiled = jitney.compile(step, options={"eager_on_bug": False})
    for best in (torch.tensor([[0, 12], [3, 21]]), torch.tensor([[0, 12], [3, 22]])):
        seen = []
        for call in (step, compiled):
            cache, result = torch.zeros(4, 3), None
            with suppress(IndexError):
                result = call(cache, torch.ones(4), best, torch.ones(4, dtype=torch.bool))
            seen.append((result, cache))
        torch.testing.assert_close(*seen)


def test_statistics_of_a_batch_with_a_bad_label_are_counted_once() -> None:
    for dynamic in (None, True):
        nets = []
        for compiled in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
            nets.append(net)
            loss: Any = lambda x, y, net=net: F.cross_entropy(net(x), y)  # noqa: E731
            call = jitney.compile(loss, dynamic=dynamic) if compiled else loss
            with pytest.raises(IndexError):
                call(torch.randn(4, 3), torch.tensor([0, 1, 7, 0]))
        for left, right in zip(*(net.buffers() for net in nets), strict=True):
            torch.testing.assert_close(left, right)
