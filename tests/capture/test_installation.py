"""A library that changes a model at the first call that needs it does so in eager, at one break."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log

transformers = pytest.importorskip("transformers")


def _model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()


def test_hooks_are_installed_at_one_break() -> None:
    compiled, model, ids = jitney.compile(_model()), _model(), torch.arange(5)[None]
    breaks = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for asked in (False, True, True, False, True):
            log.clear()
            kwargs = {"output_hidden_states": True} if asked else {}
            found, expected = compiled(ids, **kwargs), model(ids, **kwargs)
            breaks.append(len(log.events("graph_break")))
            mine, theirs = ([o.logits, *(o.hidden_states or ())] for o in (found, expected))
            assert len(mine) == len(theirs) == (5 if asked else 1)
            for a, b in zip(mine, theirs, strict=True):
                torch.testing.assert_close(a, b)
    assert breaks == [0, 1, 0, 0, 0]
