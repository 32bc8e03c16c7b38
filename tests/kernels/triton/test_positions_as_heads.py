"""Few query positions that see the same keys are heads of a decode step."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.decode_attention import can_split_decode, emit_decode_attention
from jitney.kernels.triton.positions_as_heads import can_turn, positions_as_heads
from jitney.loops.index import Axis, index
from jitney.loops.ir import Access, Attention, Const, LoopProgram

F32 = torch.float32
HEADS, QUERIES, KEYS, DEPTH = 2, 3, 40, 24


def attention() -> Attention:
    h, s, t = Axis("h", index(HEADS)), Axis("s", index(QUERIES)), Axis("t", index(KEYS))
    d, dv = Axis("d", index(DEPTH)), Axis("dv", index(DEPTH))
    row, key = (index(h) * QUERIES + s) * DEPTH, (index(h) * KEYS + t) * DEPTH
    return Attention(
        "attention", (h,), s, t, d, dv,
        Access("q", row + d, F32), Access("k", key + d, F32), Access("v", key + dv, F32),
        Access("out", row + dv, F32), Const(DEPTH**-0.5, F32), Access("mask", index(t), torch.bool),
    )  # fmt: skip


def turned(node: Attention) -> Attention:
    program = LoopProgram((), (), (node,), ())
    (only,) = positions_as_heads(program).nodes
    assert isinstance(only, Attention)
    return only


def test_equals_torch() -> None:
    node = turned(attention())
    assert not can_split_decode(attention()) and can_split_decode(node)
    q, out = torch.randn(HEADS, QUERIES, DEPTH), torch.zeros(HEADS, QUERIES, DEPTH)
    k, v = torch.randn(2, HEADS, KEYS, DEPTH)
    mask = torch.arange(KEYS) < 17
    tensors = {"q": q, "k": k, "v": v, "mask": mask, "out": out}
    (source,) = emit_decode_attention(node, 1)
    kernel = load_function(source.text(interpret=True))
    kernel[tuple(int(g) for g in source.grid)](*[tensors[p.name] for p in source.parameters])
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[None])
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def test_positions_that_see_different_keys_stay() -> None:
    node = attention()
    assert can_turn(node)
    assert not can_turn(replace(node, causal=True))
    assert not can_turn(replace(node, window=4))
    by_position = Access("mask", index(node.s) * KEYS + node.t, torch.bool)
    assert not can_turn(replace(node, mask=by_position))
    assert not can_turn(replace(node, s=Axis("s", index(16))))
