"""Fake results that are remembered are those the fake mode would give."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney import torch_api
from jitney.capture.remember_fakes import RememberedFakes


def looks(tensor):
    facts = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device
    return *facts, tensor.is_neg(), tensor.is_conj(), tensor.requires_grad, tensor._is_view()


def twice(call, *tensors):
    """What a call looks like without remembering, and the second time with it."""
    mode, _ = torch_api.new_capture_mode()
    fakes = [mode.from_tensor(t, static_shapes=True) for t in tensors]
    with mode:
        plain = call(*fakes)
    with mode, RememberedFakes(mode):
        call(*fakes)
        again = call(*fakes)
    return plain, again


CALLS = {
    "add": lambda x: x + 1,
    "promotes": lambda x: x.int() + 0.5,
    "transposed": lambda x: x.t() + x.t(),
    "view": lambda x: x[1:, ::2],
    "reinterpreted": lambda x: x.view(torch.int32),
    "linear": lambda x: torch.nn.functional.linear(x, x),
    "negative": lambda x: torch.complex(x, x).conj().imag,
    "of a negative": lambda x: torch.complex(x, x).conj().imag.t(),
    "made": lambda x: torch.arange(5),
    "random": lambda x: torch.rand_like(x),
    "batch norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("grad", [False, True])
def test_looks_are_the_same(name, grad):
    given = torch.randn(4, 4).requires_grad_(grad)
    plain, again = twice(CALLS[name], given)
    assert looks(again) == looks(plain)


def test_views_share_memory_and_versions():
    def call(x):
        y = x.clone()
        y[0].add_(1)
        return y

    plain, again = twice(call, torch.randn(4, 4))
    assert again._version == plain._version == 1


def test_the_default_dtype_counts():
    def f(x):
        a = torch.arange(3, dtype=None) / 2 + x
        torch.set_default_dtype(torch.float64)
        b = torch.arange(3, dtype=None) / 2 + x
        torch.set_default_dtype(torch.float32)
        return a, b

    wanted = f(torch.ones(3, dtype=torch.int64))
    got = jitney.compile(f)(torch.ones(3, dtype=torch.int64))
    assert [t.dtype for t in got] == [t.dtype for t in wanted] == [torch.float32, torch.float64]


def test_devices_are_told_apart():
    mode, _ = torch_api.new_capture_mode()
    fake = mode.from_tensor(torch.ones(3), static_shapes=True)
    with mode, RememberedFakes(mode):
        devices = [torch.empty(3, device=d).add(1).device.type for d in ("cpu", "cuda:0") * 2]
        assert torch.ops.prim.device.default(fake) == torch.device("cpu")
    assert devices == ["cpu", "cuda", "cpu", "cuda"]
