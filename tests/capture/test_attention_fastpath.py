"""Transformer layers are captured as what they compute, unless torch's kernel would differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

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


LENGTH = 3
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
BLIND = CAUSAL.clone().index_fill_(0, torch.tensor(1), True)
PADDED = torch.tensor([[True] * LENGTH, [False, False, True]])

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without weights": {"need_weights": False},
    "weights of heads": {"average_attn_weights": False},
    "padded": {"key_padding_mask": PADDED},
    "padded, without weights": {"key_padding_mask": PADDED, "need_weights": False},
    "causal, without weights": {"attn_mask": CAUSAL, "need_weights": False},
    "blind": {"attn_mask": BLIND},
    "blind, without weights": {"attn_mask": BLIND, "need_weights": False},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": PADDED, "need_weights": False},
    "floats": {"attn_mask": torch.zeros(LENGTH, LENGTH), "need_weights": False},
    "by head": {"attn_mask": BLIND.expand(4, LENGTH, LENGTH), "need_weights": False},
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_one_kernel_that_is_all_of_attention(name: str, dynamic: bool) -> None:
    """Eager's gives rows, and NaN where a row sees no key."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def attend(x: torch.Tensor) -> Any:
        return module(x, x, x, **CALLS[name])

    jitney.reset()
    compiled = jitney.compile(
        attend, dynamic=dynamic, fullgraph=True, options={"eager_on_bug": False}
    )
    x = torch.randn(2, LENGTH, 8)
    for gradients in (False, True, False):
        with torch.set_grad_enabled(gradients):
            found, expected = compiled(x), attend(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert found[0].stride() == expected[0].stride()
