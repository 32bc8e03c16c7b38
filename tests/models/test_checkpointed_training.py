"""Training with gradient checkpointing, once hooks that collect outputs are on the layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("first", [None, "output_hidden_states"])
def test_it_trains_as_eager_does(first: str | None, within: bool) -> None:
    """``within``: the step itself asks for hidden states, too."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    ids = torch.arange(14).view(2, 7)
    asked: dict[str, Any] = {"output_hidden_states": True} if within else {}
    found = []
    for compiled in (False, True):
        trained = copy.deepcopy(model)
        call: Any = jitney.compile(trained) if compiled else trained
        if first is not None:
            call(input_ids=ids, **{first: True})
        trained.train()
        trained.gradient_checkpointing_enable()
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        losses = []
        for _ in range(2):
            result = call(input_ids=ids, labels=ids, **asked)
            result.loss.backward()
            losses.append((result.loss, result.hidden_states))
            optimizer.step()
            optimizer.zero_grad()
        found.append((losses, [*trained.parameters()]))
    assert_equal(found[1], found[0])
