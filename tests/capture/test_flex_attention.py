"""``flex_attention`` inside a compiled function: one graph, and eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import jitney
from jitney.events import log
from tests.equal import assert_equal

ROWS, HEADS, LENGTH, WIDTH = 2, 4, 48, 16
DOCUMENTS = torch.tensor([0] * 10 + [1] * 20 + [2] * 18)
LENGTHS = torch.tensor([48, 20])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.linspace(-1, 1, HEADS * (2 * LENGTH - 1)).reshape(HEADS, -1)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return causal(b, h, q, k) & (q - k < 8)


def same_document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return DOCUMENTS[q] == DOCUMENTS[k]


def within(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k < LENGTHS[b]


def all_but_two_rows(b: Any, h: Any, q: Any, k: Any) -> Any:
    return causal(b, h, q, k) & (q != 5) & (q != 40)


def sloping(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score - SLOPES[h] * (q - k).abs()


def capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 2 * torch.tanh(score / 2)


def by_distance(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + TABLE[h, q - k + LENGTH - 1]


def by_rows(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(DOCUMENTS[q] == DOCUMENTS[k], score + TABLE[h][q - k], -float("inf"))


MODS: dict[str, tuple[Any, Any]] = {
    "plain": (None, None),
    "causal": (None, causal),
    "window": (None, window),
    "documents": (None, flex.and_masks(causal, same_document)),
    "lengths": (None, within),
    "rows without keys": (None, all_but_two_rows),
    "slopes": (sloping, None),
    "capped": (capped, causal),
    "a table": (by_distance, same_document),
    "rows of a table": (by_rows, None),
}


@pytest.fixture(autouse=True)
def eager_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch's own compiler, which eager asks for else."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)


def given(
    dtype: torch.dtype = torch.float32, heads: int = HEADS, length: int = LENGTH
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)

    def drawn(many: int) -> torch.Tensor:
        shape = ROWS, length, many, WIDTH
        return torch.randn(shape, generator=generator).to(dtype).transpose(1, 2)

    return [drawn(HEADS), drawn(heads), drawn(heads)]


def attention(score_mod: Any, mask_mod: Any, **options: Any) -> Callable[..., Any]:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        mask = None
        if mask_mod is not None:
            sizes = q.size(0), None, q.size(2), k.size(2)
            mask = flex.create_block_mask(mask_mod, *sizes, device="cpu")
        return flex.flex_attention(q, k, v, score_mod, mask, **options)

    return attend


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODS)
def test_it_equals_eager(name: str, dtype: torch.dtype) -> None:
    attend = attention(*MODS[name])
    exact = attend(*(x.double() for x in given(dtype)))
    compiled = jitney.compile(attend, fullgraph=True)
    assert_equal(compiled(*given(dtype)), attend(*given(dtype)), exact)


def test_keys_are_shared_by_heads() -> None:
    attend = attention(None, causal, enable_gqa=True)
    inputs = given(heads=2)
    assert_equal(jitney.compile(attend, fullgraph=True)(*inputs), attend(*inputs))


@pytest.mark.parametrize("mods", [(None, causal), (sloping, None)])
def test_sums_of_exponentials(mods: tuple[Any, Any]) -> None:
    attend = attention(*mods, return_lse=True)
    assert_equal(jitney.compile(attend, fullgraph=True)(*given()), attend(*given()))


def test_other_lengths_are_one_graph() -> None:
    attend = attention(sloping, None)
    compiled = jitney.compile(attend, fullgraph=True, dynamic=True)
    log.clear()
    for length in (48, 32, 40):
        assert_equal(compiled(*given(length=length)), attend(*given(length=length)))
    assert len(log.events("entry")) == 1


def test_a_mask_that_was_made_before() -> None:
    mask = flex.create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex.flex_attention(q, k, v, capped, mask)

    assert_equal(jitney.compile(attend, fullgraph=True)(*given()), attend(*given()))


def test_masks_and_blocks() -> None:
    def masks() -> Any:
        sizes = ROWS, HEADS, LENGTH, LENGTH
        block = flex.create_block_mask(window, *sizes, device="cpu", BLOCK_SIZE=16)
        return (
            flex.create_mask(window, *sizes, device="cpu"),
            flex.create_mask(by_rows, *sizes, device="cpu"),
            block.kv_num_blocks,
            block.kv_indices,
            block.full_q_indices,
        )

    assert_equal(jitney.compile(masks, fullgraph=True)(), masks())


@pytest.mark.parametrize("mask_mod,kept", [(causal, "causal"), (all_but_two_rows, "data")])
def test_rows_without_keys_are_looked_for_where_there_may_be_some(mask_mod: Any, kept: str) -> None:
    log.clear()
    jitney.compile(attention(None, mask_mod), fullgraph=True)(*given())
    assert [event.data["verdict"] for event in log.events("attention_mask")] == [kept]


def test_under_autocast() -> None:
    attend = attention(sloping, None)
    with torch.autocast("cpu", torch.bfloat16):
        found = jitney.compile(attend, fullgraph=True)(*given())
        assert found.dtype is torch.bfloat16
        assert_equal(found, attend(*(x.bfloat16() for x in given())))


def test_what_does_not_fit_raises_as_in_eager() -> None:
    mask = flex.create_block_mask(causal, None, None, 32, 32, device="cpu")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex.flex_attention(q, k, v, block_mask=mask)

    with pytest.raises((ValueError, RuntimeError), match="block_mask was created for"):
        jitney.compile(attend)(*given())
