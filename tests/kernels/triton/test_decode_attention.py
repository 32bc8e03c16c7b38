"""The decode attention kernels against torch's own attention."""

import hashlib

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.decode_attention import (
    can_split_decode,
    emit_decode_attention,
    scratch_of,
    split_count,
)
from jitney.loops.index import Axis, index
from jitney.loops.ir import Access, Attention, Const

F32 = torch.float32


def attention(heads, kv_heads, positions, depth, mask_dtype):
    h, s, t = Axis("h", index(heads)), Axis("s", index(1)), Axis("t", index(positions))
    d, dv = Axis("d", index(depth)), Axis("dv", index(depth))
    group = index(h) // index(heads // kv_heads)
    k = Access("k", group * (positions * depth) + index(t) * depth + d, F32)
    v = Access("v", group * (positions * depth) + index(t) * depth + dv, F32)
    mask = None if mask_dtype is None else Access("mask", index(t), mask_dtype)
    return Attention(
        "attention", (h,), s, t, d, dv,
        Access("q", index(h) * depth + d, F32), k, v,
        Access("out", index(h) * depth + dv, F32),
        Const(depth**-0.5, F32), mask,
    )  # fmt: skip


@pytest.mark.parametrize("mask_dtype", [None, torch.bool, F32])
@pytest.mark.parametrize("positions,splits", [(64, 1), (300, 1), (200, 4), (130, 2)])
def test_equals_torch(mask_dtype, positions, splits):
    heads, kv_heads, depth = 4, 2, 24
    node = attention(heads, kv_heads, positions, depth, mask_dtype)
    assert can_split_decode(node)
    q, out = torch.randn(heads, depth), torch.full((heads, depth), 7.0)
    k, v = (torch.randn(kv_heads, positions, depth) for _ in range(2))
    mask = None
    if mask_dtype is not None:
        mask = torch.arange(positions) < positions // 2
        mask = mask if mask_dtype == torch.bool else torch.where(mask, 0.0, float("-inf"))
    scratch = scratch_of(node, splits)
    tensors = {"q": q, "k": k, "v": v, "out": out, "mask": mask}
    tensors[scratch.name] = torch.full((scratch.elements,), float("nan"))
    sources = emit_decode_attention(node, splits)
    assert len(sources) == (1 if splits == 1 else 2)
    for source in sources:
        text = source.text(interpret=True)
        kernel = load_function(hashlib.sha256(text.encode()).hexdigest()[:32], text)
        kernel[tuple(int(g) for g in source.grid)](*[tensors[p.name] for p in source.parameters])
    want = torch.nn.functional.scaled_dot_product_attention(
        q[None, :, None], k[None], v[None], None if mask is None else mask[None], enable_gqa=True
    )[0, :, 0]
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def test_short_caches_take_one_kernel_and_long_ones_fill_the_gpu():
    assert split_count(attention(32, 8, 512, 128, None), 132) == 1
    assert split_count(attention(32, 8, 8192, 128, None), 132) == 16
