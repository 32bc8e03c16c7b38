"""Random programs: every pass keeps every value."""

from __future__ import annotations

import random

import pytest
import torch

from tests.loops.programs import same_after_passes

SHAPE = (2, 4, 6)


class _Maker:
    """Grows a pool of values by random steps; all tensors have SHAPE, or broadcast to it."""

    def __init__(self, seed: int, steps: int) -> None:
        self.seed, self.steps = seed, steps

    def __call__(self, x, y, w, count):
        rng = random.Random(self.seed)
        pool = [x, y, x * 0.5]
        for _ in range(self.steps):
            pool.append(self.step(rng, pool, w, count))
        outs = rng.sample(pool[3:], k=min(len(pool) - 3, rng.randint(1, 3)))
        return tuple(outs)

    def step(self, rng, pool, w, count):
        a, b = rng.choice(pool[-4:]), rng.choice(pool)
        kind = rng.choice(KINDS)
        return kind(rng, a, b, w, count)


def unary(rng, a, b, w, count):
    f = rng.choice([torch.relu, torch.sigmoid, torch.neg, torch.square, lambda t: t * 0.5 + 1])
    return f(a)


def binary(rng, a, b, w, count):
    return rng.choice([torch.add, torch.mul, torch.maximum, lambda p, q: p / (q * q + 1)])(a, b)


def normalise(rng, a, b, w, count):
    dim = rng.choice([-1, 1, 0])
    if rng.random() < 0.3:
        return torch.nn.functional.layer_norm(a, (6,), w[0], w[1])
    if rng.random() < 0.5:
        return a.softmax(dim)
    return a * torch.rsqrt(a.square().mean(dim, keepdim=True) + 1.0)


def reduction(rng, a, b, w, count):
    dims = rng.choice([(-1,), (0,), (1, 2), (0, 1), (0, 1, 2), (0, 2)])
    reduced = rng.choice([torch.sum, torch.amax, torch.mean])(a, dim=dims, keepdim=True)
    return b - reduced


def rearranged(rng, a, b, w, count):
    kind = rng.randrange(6)
    if kind == 0:
        return a.transpose(1, 2).reshape(SHAPE)
    if kind == 1:
        return a.permute(2, 0, 1).contiguous().view(2, 4, 6) * 1.5
    if kind == 2:
        return torch.cat([-a[..., 3:], a[..., :3]], -1)
    if kind == 3:
        return a.reshape(8, 6).t().contiguous().t().reshape(SHAPE)
    if kind == 4:
        return a.flip(0) if rng.random() < 0.5 else torch.roll(a, 1, 2)
    return a[:, :, None, :3].expand(2, 4, 2, 3).reshape(SHAPE)


def matmul(rng, a, b, w, count):
    out = torch.nn.functional.linear(a, w, w[2] if rng.random() < 0.5 else None) * 0.3
    if rng.random() < 0.3:
        out = out.view(2, 4, 2, 3).transpose(1, 2).contiguous().view(SHAPE)
    return out


def gather(rng, a, b, w, count):
    if rng.random() < 0.5:
        return a + w[count]  # (4,) positions: rows of w
    return a.index_select(1, count % 4) + b


def narrow(rng, a, b, w, count):
    return a.to(torch.bfloat16).to(torch.float32) + b


KINDS = [unary, unary, binary, binary, normalise, reduction, rearranged, matmul, gather, narrow]


@pytest.mark.parametrize("seed", range(60))
def test_random_program(seed):
    torch.manual_seed(seed)
    args = (
        torch.randn(SHAPE),
        torch.randn(SHAPE),
        torch.randn(6, 6),
        torch.randint(0, 6, (4,)),
    )
    same_after_passes(_Maker(seed, steps=4 + seed % 14), args)
