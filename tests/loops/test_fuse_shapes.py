"""What fuses into what: counts of kernels on the patterns that matter."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from jitney.events import log
from jitney.loops import ir, visit
from jitney.loops.score_fusion import MOST_ATOMS
from tests.loops.programs import kernels, same_after_passes


def encoder_layer(x, wq, wk, wv, wo, w1, w2, b, b1, g):
    """A post-norm transformer layer; x is [2, 8, 32], four heads."""

    def heads(t):
        return t.view(2, 8, 4, 8).transpose(1, 2)

    q, k, v = (heads(F.linear(x, w, b)) for w in (wq, wk, wv))
    a = F.scaled_dot_product_attention(q, k, v)
    a = a.transpose(1, 2).reshape(2, 8, 32)
    x = F.layer_norm(x + F.linear(a, wo, b), (32,), g, b)
    h = F.gelu(F.linear(x, w1, b1))
    return F.layer_norm(x + F.linear(h, w2, b), (32,), g, b)


def test_a_transformer_layer_is_nine_kernels():
    torch.manual_seed(0)
    square = [torch.randn(32, 32) * 0.2 for _ in range(4)]
    w1, w2 = torch.randn(64, 32) * 0.2, torch.randn(32, 64) * 0.2
    args = (torch.randn(2, 8, 32), *square, w1, w2, torch.randn(32), torch.randn(64))
    fused = same_after_passes(encoder_layer, (*args, torch.randn(32)))
    gemm, norm = "Gemm", "LoopNest"
    layer = [gemm, gemm, gemm, "Attention", gemm, norm, gemm, gemm, norm]
    assert sorted(kernels(fused)) == sorted(layer)


def test_softmax_and_its_neighbours_are_one_kernel():
    fused = same_after_passes(
        lambda x, m: (x * 0.5 + m).softmax(-1) * 2, (torch.randn(64, 96), torch.randn(96))
    )
    assert kernels(fused) == ["LoopNest"]


def test_rms_norm_written_out_is_one_kernel():
    def norm(x, w):
        return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    fused = same_after_passes(norm, (torch.randn(64, 96), torch.randn(96)))
    assert kernels(fused) == ["LoopNest"]
    assert not any(b.kind == "temp" for b in fused.buffers)


def test_rotary_of_two_projections_is_one_kernel_and_attention_reads_through_repeats():
    def attend(q, k, v, cos, sin):
        def rotated(t):
            turned = torch.cat([-t[..., 4:], t[..., :4]], -1)
            return t * cos + turned * sin

        k, v = (t[:, :, None].expand(1, 2, 2, 8, 8).reshape(1, 4, 8, 8) for t in (rotated(k), v))
        return F.scaled_dot_product_attention(rotated(q), k, v)

    q, k, v = torch.randn(1, 4, 8, 8), torch.randn(1, 2, 8, 8), torch.randn(1, 2, 8, 8)
    fused = same_after_passes(attend, (q, k, v, torch.randn(8, 8), torch.randn(8, 8)))
    assert kernels(fused)[-1] == "Attention" and len(kernels(fused)) <= 3
    attention = fused.nodes[-1]
    assert isinstance(attention, ir.Attention) and "// (2)" in str(attention.v.index)


def test_gemm_takes_activation_residual_and_split_heads():
    def project(x, w, b, r):
        y = F.gelu(F.linear(x, w, b)) + r
        return y.view(8, 2, 16).transpose(0, 1).contiguous()

    args = (torch.randn(8, 32), torch.randn(32, 32), torch.randn(32), torch.randn(8, 32))
    assert kernels(same_after_passes(project, args)) == ["Gemm"]


def test_gated_feed_forward_is_two_gemms_before_the_last():
    def gated(x, wg, wu, wd):
        return F.linear(F.silu(F.linear(x, wg)) * F.linear(x, wu), wd) + x

    args = (torch.randn(8, 16), torch.randn(32, 16), torch.randn(32, 16), torch.randn(16, 32))
    assert kernels(same_after_passes(gated, args)) == ["Gemm"] * 3


def test_an_expensive_value_is_not_computed_for_every_reader():
    def many(x, y):
        t = torch.tanh(x).exp()
        return t + 1, (t * y).t().contiguous(), t.sum(0)

    fused = same_after_passes(many, (torch.randn(256, 256), torch.randn(256, 256)))
    transcendental = sum(
        isinstance(e, ir.Op) and e.op == "tanh"
        for node in fused.nodes
        if isinstance(node, ir.LoopNest)
        for e in _exprs(node)
    )
    assert transcendental == 1


def _exprs(node):
    from jitney.loops.visit import body_exprs

    return list(body_exprs(node.body))


def test_equal_values_are_computed_once():
    def twice(x, m):
        a = torch.where(m, 0.0, -1e9)
        b = torch.where(m, 0.0, -1e9)
        return (x + a).softmax(-1), (x * 2 + b).softmax(-1)

    fused = same_after_passes(twice, (torch.randn(64, 96), torch.rand(64, 96) > 0.5))
    assert len(kernels(fused)) <= 2


def test_equal_buffers_that_change_later_stay_apart():
    def scatter(x, at):
        a, b = torch.zeros(8, 4), torch.zeros(8, 4)
        return a.index_put((at,), x), b.index_put((at,), x * 2), b + 1

    same_after_passes(scatter, (torch.randn(3, 4), torch.tensor([1, 5, 2])))


def test_writes_to_an_input_stay_behind_its_reads():
    def update(cache, x):
        before = cache + 1
        cache.copy_(x * 2 + cache)
        return before, cache * 3

    args = (torch.randn(16, 16), torch.randn(16, 16))
    same_after_passes(update, args)

    def shifted(cache, x):
        before = cache.flip(0) + 1
        cache.copy_(before * x)
        return cache + before

    same_after_passes(shifted, args)


def test_decisions_carry_reasons():
    log.clear()
    same_after_passes(lambda x: torch.relu(x) + 1, (torch.randn(4, 4),))
    events = log.events("fusion")
    assert events and all(isinstance(e.data["decision"], str) for e in events)
    assert any(e.data["allowed"] for e in events)


@pytest.mark.parametrize("rows", [1, 3])
def test_bf16_keeps_eager_rounding(rows):
    def chain(x, w):
        y = (x * w).to(torch.bfloat16)
        return (y + y).float() * w

    same_after_passes(chain, (torch.randn(rows, 64), torch.randn(64)))


def test_what_readers_would_gather_many_times_is_laid_out_once():
    """The filters of a depthwise convolution over channels-last images: nine reads a place."""
    image = torch.randn(1, 16, 30, 30).to(memory_format=torch.channels_last)
    args = (image, torch.randn(16, 1, 3, 3))
    fused = same_after_passes(lambda x, w: F.conv2d(x, w, padding=1, groups=16), args)
    assert kernels(fused) == ["LoopNest", "LoopNest"]
    once = (torch.randn(9, 7), torch.randn(7, 9))
    small = same_after_passes(lambda x, y: x.t().contiguous() + y, once)
    assert kernels(small) == ["LoopNest"]


def test_no_nest_walks_memory_two_channels_at_a_time():
    """A group norm over channels-last images: channels, groups, elements."""
    x = torch.randn(2, 16, 24, 24).to(memory_format=torch.channels_last)
    fused = same_after_passes(lambda x, w: F.group_norm(x, 8, w, w), (x, torch.randn(16)))
    assert kernels(fused) == ["LoopNest"] * 3
    assert [int(node.axes[-1].extent) for node in fused.nodes] == [16, 8, 16]


def test_values_that_look_each_other_up_are_stored_before_their_indices_grow_long():
    def turned(x):
        for _ in range(12):
            x = x.t().reshape(10, 14).sin()
        return x

    fused = same_after_passes(turned, (torch.randn(10, 14),))
    assert 1 < len(kernels(fused)) < 12
    longest = max(e.index.length() for n in fused.nodes for e in visit.loads(n.body))
    assert longest < 10 * MOST_ATOMS
