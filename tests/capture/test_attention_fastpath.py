"""Transformer layers are captured as what they compute, unless torch's kernel would differ."""

from __future__ import annotations

import pytest
import torch

import jitney
from tests.capture.run_capture import capture


def encoder(norm_first=False):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, norm_first=norm_first, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()


def names(module, *args, **kwargs):
    captured = capture(module, *args, **kwargs)
    return [getattr(n.target, "__name__", str(n.target)) for n in captured.graph.graph.nodes]


@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_no_mask(norm_first):
    module, x = encoder(norm_first), torch.randn(2, 5, 32)
    compiled = jitney.compile(module, backend="eager", fullgraph=True)
    expected, got = module(x), compiled(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    assert "_transformer_encoder_layer_fwd" not in names(module, x)


@torch.no_grad()
def test_padded_rows_are_eagers():
    module, x = encoder(), torch.randn(2, 5, 32)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    compiled = jitney.compile(module, backend="eager")
    expected, got = module(x, src_key_padding_mask=mask), compiled(x, src_key_padding_mask=mask)
    torch.testing.assert_close(got, expected)
    assert not expected[1, 3:].any()
