"""Random programs: every pass keeps every value."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import jitney
from jitney.loops import ir
from jitney.loops.fusion_state import FusionState
from jitney.loops.index import Axis, index
from jitney.loops.interpret import interpret
from jitney.loops.join_loops import join_loops
from jitney.loops.verify import verify
from tests.loops.programs import lowered, same_after_passes

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


def written(rng, a, b, x, y, cache, at):
    """One step that writes into an input or a fresh copy, as models and caches do."""
    kind = rng.randrange(7)
    if kind == 0:
        return x.add_(a * 0.1) * 1.0
    if kind == 1:
        return y.copy_(b.tanh()) + a
    if kind == 2:
        x[:, 1:3].mul_(0.5)
        return x + b
    if kind == 3:
        cache[:, at] = a[:, :1]
        return a + cache[:, :4] * 0.5
    if kind == 4:
        cache.index_copy_(1, at, b[:, 1:2])
        return b * cache[:, 1:2]
    if kind == 5:
        c = a.clone()
        c[0] = b[-1]
        c[..., 1:4] += 1
        return c
    return y.masked_fill_(y > 0.5, -1.0).clone()


class _Writer(_Maker):
    """Also writes in place."""

    def __call__(self, x, y, w, count, cache, at):
        rng = random.Random(self.seed)
        pool = [x * 1.0, y * 1.0, x * 0.5]
        for _ in range(self.steps):
            if rng.random() < 0.35:
                a, b = rng.choice(pool[-4:]), rng.choice(pool)
                pool.append(written(rng, a, b, x, y, cache, at))
            else:
                pool.append(self.step(rng, pool, w, count))
        return tuple(rng.sample(pool[3:], k=min(len(pool) - 3, rng.randint(1, 3))))


@pytest.mark.parametrize("seed", [*range(24), 236])
def test_random_program_that_writes_in_place(seed):
    torch.manual_seed(seed)
    args = (
        torch.randn(SHAPE),
        torch.randn(SHAPE),
        torch.randn(6, 6),
        torch.randint(0, 6, (4,)),
        torch.randn(2, 8, 6),
        torch.randint(0, 8, (1,)),
    )
    same_after_passes(_Writer(seed, steps=4 + seed % 12), args)


def test_a_maximum_is_taken_before_its_operand_is_overwritten():
    r, s = Axis("r", index(6)), Axis("s", index(6))
    largest = ir.Reduction(("m",), "max", ir.Load("x", index(r), torch.float32), torch.float32)
    erase = ir.Store("x", index(s), ir.Const(9.0, torch.float32))
    apart = (ir.Reduce((r,), (), (largest,)), ir.Loop((s,), (erase,)))
    result = ir.Store("y", index(0), ir.Ref("m", torch.float32))
    program, _ = lowered(lambda x: x.amax(-1, keepdim=True), (torch.randn(1, 6),))
    given, made = program.arguments[0], program.outputs[0].view.buffer
    renamed = {"x": given, "y": made}
    buffers = tuple(b for b in program.buffers if b.name in renamed.values())
    names = {v: k for k, v in renamed.items()}
    buffers = tuple(replace(b, name=names[b.name]) for b in buffers)
    view = replace(program.outputs[0].view, buffer="y")
    nest = ir.LoopNest("n", (), (*apart, result))
    program = replace(
        program, arguments=("x",), buffers=buffers, nodes=(nest,), outputs=(ir.Output(view),)
    )
    joined = join_loops(nest.body, FusionState(program))
    assert [type(stmt) for stmt in joined] == [ir.Reduce, ir.Store]
    program = replace(program, nodes=(replace(nest, body=joined),))
    verify(program)
    x = torch.randn(1, 6)
    expected = x.amax(-1, keepdim=True)
    torch.testing.assert_close(interpret(program, {}, [x])[0], expected)
    assert x.eq(9).all()


def test_an_inner_axis_of_the_same_name_is_not_the_outer_one():
    """Joined, the first turn would read the second element before it is written."""
    i, j = Axis("i", index(2)), Axis("j", index(2))
    fill = ir.Loop((i,), (ir.Store("t", index(i), ir.Const(1.0, torch.float32)),))
    copy = ir.Store("y", index(j) * 2 + i, ir.Load("t", index(i), torch.float32))
    body = (fill, ir.Loop((j,), (ir.Loop((i,), (copy,)),)))
    state = FusionState(ir.LoopProgram((), (), (), ()))
    assert join_loops(body, state) == body
    same = ir.Store("y", index(j), ir.Load("t", index(j), torch.float32))
    assert len(join_loops((fill, ir.Loop((j,), (same,))), state)) == 1


def test_an_input_written_last_is_read_before_it():
    """Its new value is computed again by readers, which then must not merge past the write."""

    def optimizer_step(values, counts, means):
        for value, count, mean in zip(values, counts, means, strict=True):
            count += 1
            mean.lerp_(value, 0.1)
            rate = 0.01 / (1 - 0.9**count)
            value.add_(mean.sqrt() / (1 - 0.999**count) ** 0.5 * -rate)

    def tensors():
        return (
            [torch.ones(2), torch.ones(3)],
            [torch.tensor(1.0), torch.tensor(1.0)],
            [torch.ones(2), torch.ones(3)],
        )

    expected, actual = tensors(), tensors()
    optimizer_step(*expected)
    jitney.compile(optimizer_step, fullgraph=True)(*actual)
    torch.testing.assert_close(actual, expected)
