"""The attention kernel for short sequences against torch's own attention."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.errors import Unsupported
from jitney.kernels.triton.choose_templates import choose_templates
from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.short_attention import can_attend_short, emit_short_attention
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Access, Attention, Buffer, Const, LoopProgram, Op, ScalarArg
from jitney.loops.target import Target

F16 = torch.float16


def attention(batch, heads, kv_heads, queries, positions, depth, causal, offset=0):
    """q, k, v and the result lie as [batch, position, head, depth]."""
    b, h = Axis("b", index(batch)), Axis("h", index(heads))
    s, t = Axis("s", index(queries)), Axis("t", index(positions))
    d, dv = Axis("d", index(depth)), Axis("dv", index(depth))
    group = index(h) // index(heads // kv_heads)

    def at(length, count, head, position, inner):
        return ((index(b) * length + position) * count + head) * depth + inner

    return Attention(
        "attention", (b, h), s, t, d, dv,
        Access("q", at(queries, heads, h, s, d), F16),
        Access("k", at(positions, kv_heads, group, t, d), F16),
        Access("v", at(positions, kv_heads, group, t, dv), F16),
        Access("out", at(queries, heads, h, s, dv), F16),
        Const(depth**-0.5, torch.float32), causal=causal, causal_offset=Index((), offset),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kv_heads", "queries", "positions", "causal", "offset"),
    [
        (4, 64, 64, False, 0),
        (4, 37, 50, False, 0),
        (2, 64, 64, True, 0),
        (2, 40, 70, True, 30),
        (1, 70, 40, True, 0),
    ],
)
def test_equals_torch(kv_heads, queries, positions, causal, offset):
    batch, heads, depth = 2, 4, 32
    node = attention(batch, heads, kv_heads, queries, positions, depth, causal, offset)
    q = torch.randn(batch, queries, heads, depth).half()
    k, v = (torch.randn(batch, positions, kv_heads, depth).half() for _ in range(2))
    out = torch.full_like(q, 7.0)
    source = emit_short_attention(node, (32, 32, 4, 2))
    text = source.text(interpret=True)
    kernel = load_function(text)
    tensors = {"q": q, "k": k, "v": v, "out": out}
    kernel[tuple(int(g) for g in source.grid)](*[tensors[p.name] for p in source.parameters])
    keep = torch.ones(queries, positions, dtype=torch.bool)
    keep = keep.tril(offset) if causal else keep
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    want = attend(q, k, v, keep, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(out.float(), want, rtol=4e-3, atol=4e-3)


def test_what_the_library_does_better_stays_its():
    assert can_attend_short(attention(1, 32, 8, 512, 512, 128, True), 232448)
    assert not can_attend_short(attention(1, 32, 8, 512, 512, 128, True), 101376)
    assert not can_attend_short(attention(1, 12, 12, 128, 128, 64, False))
    assert not can_attend_short(attention(1, 32, 8, 4096, 4096, 128, True))
    assert not can_attend_short(attention(1, 32, 8, 1, 512, 128, False))
    assert not can_attend_short(attention(1, 32, 8, 64, 64, 80, False))
    assert not can_attend_short(attention(1, 32, 8, 64, 64, 64, True, -1))


def test_indices_beyond_32_bits_are_the_librarys():
    assert can_attend_short(attention(512, 12, 12, 128, 128, 64, False))
    assert not can_attend_short(attention(1 << 15, 12, 12, 128, 128, 64, False))


def test_the_library_is_given_the_scale_or_not_asked():
    node = attention(1, 2, 2, 8, 8, 8, False)
    accesses = (node.q, node.k, node.v, node.out)
    buffers = tuple(
        Buffer(a.buffer, "input", F16, torch.device("cuda", 0), (index(128),), (index(1),))
        for a in accesses
    )
    number = ScalarArg("number", torch.float64)
    given = Op("cast", (number,), torch.float32)

    def chosen(scale):
        program = LoopProgram((number, "q", "k", "v"), buffers, (replace(node, scale=scale),), ())
        return choose_templates(program, Target("cuda", "a GPU", capability=(9, 0))).nodes[0]

    assert dict(chosen(Const(0.5, torch.float32)).kwargs)["scale"] == 0.5
    assert dict(chosen(given).kwargs)["scale"] == number
    with pytest.raises(Unsupported):
        chosen(Op("rsqrt", (given,), torch.float32))
