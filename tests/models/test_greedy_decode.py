"""Greedy decoding with a static cache gives eager's tokens; on a GPU as a replayed CUDA graph."""

import pytest
import torch

import jitney

transformers = pytest.importorskip("transformers")


def model_and_config(device):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=199, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False).to(device)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)  # so that tokens differ
    return model, config


@torch.no_grad()
def tokens(call, model, config, count, batch=1):
    """``count`` tokens after prompts of five; ``call`` does the steps of one token."""
    device = next(model.parameters()).device
    cache = transformers.StaticCache(config=config, max_cache_len=80)
    prompt = (
        torch.arange(1, 6, device=device)[None] + 11 * torch.arange(batch, device=device)[:, None]
    )
    logits = model(input_ids=prompt, past_key_values=cache, use_cache=True).logits
    found = [logits[:, -1].argmax(-1, keepdim=True)]
    for position in range(5, 5 + count - 1):
        given = {"past_key_values": cache, "use_cache": True}
        where = torch.tensor([[position]], device=device)
        logits = call(input_ids=found[-1], position_ids=where, **given).logits
        found.append(logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat(found, 1).tolist()


def test_as_eager():
    model, config = model_and_config("cpu")
    want = tokens(model, model, config, 24)
    assert len(set(want[0])) > 8
    assert tokens(jitney.compile(model), model, config, 24) == want


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_as_eager_on_a_gpu(mode, batch):
    model, config = model_and_config("cuda")
    want = tokens(model, model, config, 64, batch)
    assert len(set(want[0])) > 8
    assert tokens(jitney.compile(model, mode=mode), model, config, 64, batch) == want
