"""One compile for many batch sizes and sequence lengths; random shapes, one and nothing among."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

import jitney
from jitney.events import log
from tests.equal import assert_equal_to_eager

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 97}
SIZES = ((2, 7), (3, 12), (5, 16), (4, 9), (8, 33), (2, 64), (3, 12))


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(num_attention_heads=2, **SMALL)
    return transformers.BertModel(config).eval()


def llama() -> torch.nn.Module:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**heads, use_cache=False, **SMALL)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def entries() -> Iterator[list[Any]]:
    seen: list[Any] = []
    stop = log.listen(lambda e: seen.append(e.data) if e.kind == "entry" else None)
    yield seen
    stop()


@pytest.mark.parametrize("marked", [False, True], ids=["dynamic", "marked"])
@pytest.mark.parametrize("make", [bert, llama])
@torch.no_grad()
def test_one_compile(make: Callable[[], torch.nn.Module], marked: bool, entries: list[Any]) -> None:
    torch.manual_seed(0)
    model = make()
    compiled = jitney.compile(model, dynamic=None if marked else True, fullgraph=True)
    for size in SIZES:
        ids = torch.randint(0, 97, size)
        mask = torch.ones_like(ids)
        if marked:
            for tensor in (ids, mask):
                jitney.mark_dynamic(tensor, 0)
                jitney.mark_dynamic(tensor, 1)
        expected, got = (m(input_ids=ids, attention_mask=mask)[0] for m in (model, compiled))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert len(entries) == 1


PROGRAMS: dict[str, Callable[..., Any]] = {
    "rows": lambda x, w: F.layer_norm(x, (x.shape[1],)).softmax(-1) if x.numel() else x + 1,
    "product": lambda x, w: F.gelu(x @ w[: x.shape[1]]).sum(0),
    "moved": lambda x, w: (torch.cat([x, x.flip(0)]).t().reshape(-1), F.pad(x, (1, 2))),
    "reduced": lambda x, w: (x.sum(), x.mean(1), x.cumsum(0), x.var(0, correction=0)),
    "sizes": lambda x, w: x * x.shape[0] + torch.arange(x.shape[1]) - x.size(0) // 2,
    "branch": lambda x, w: x.amax(0) if x.shape[0] > x.shape[1] > 0 else x.transpose(0, 1) * 2,
    "picked": lambda x, w: w[torch.arange(x.shape[0]) % w.shape[0]][:, :2].exp(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_shapes(name: str, entries: list[Any]) -> None:
    """Nothing, one and many along either dimension, in any order, forward and backward."""
    choose = random.Random(name)
    compiled = jitney.compile(PROGRAMS[name], dynamic=True)
    w = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    many = 0
    for _ in range(16):
        shape = [choose.choice((0, 1, 2, 3, 5, 8, 17, 33)) for _ in range(2)]
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
        before = len(entries)
        assert_equal_to_eager(PROGRAMS[name], compiled, (x, w), training=True, calls=1)
        many += len(entries) - before if min(shape) > 1 else 0
    assert many <= 3  # a branch has two sides, and a reshape may depend on the order of sizes
