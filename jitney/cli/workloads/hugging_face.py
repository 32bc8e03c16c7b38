"""Inference of transformers models built from configs: encoders, decoders, decode steps, vision.

``base`` sizes are those people run (BERT-base, GPT-2 124M, ViT-B/16, Qwen3-0.6B, …); ``small``
ones keep every structure and shrink the widths, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from jitney.cli.workloads.task import Size, Task, Workload, inference, settle_batch_norms


@dataclass(frozen=True)
class Recipe:
    """A transformers class by name with its config's arguments for each size.

    ``length`` in tokens and ``batch`` in rows; for vision ``length`` is the image's side in pixels.
    """

    model: str
    config: str
    small: dict[str, Any]
    base: dict[str, Any]
    length: tuple[int, int] = (16, 128)
    batch: int = 1


def build_model(recipe: Recipe, size: Size) -> torch.nn.Module:
    """The model with random weights, float32."""
    import transformers

    arguments = recipe.small if size == "small" else recipe.base
    config = getattr(transformers, recipe.config)(**arguments)
    return getattr(transformers, recipe.model)(config)


def length_of(recipe: Recipe, size: Size) -> int:
    """Tokens, or the image's side in pixels."""
    return recipe.length[0 if size == "small" else 1]


def make_text(recipe: Recipe, size: Size, dtype: torch.dtype, mask: bool = False) -> Task:
    """``input_ids`` of shape (batch, length), and an attention mask of ones for encoders."""
    model: Any = build_model(recipe, size)
    shape = (recipe.batch, length_of(recipe, size))
    ids = torch.randint(5, model.config.vocab_size, shape)
    extra = {"attention_mask": torch.ones(shape, dtype=torch.long)} if mask else {}
    return inference(model, dtype, input_ids=ids, **extra)


def make_image(recipe: Recipe, size: Size, dtype: torch.dtype) -> Task:
    """``pixel_values`` of shape (batch, 3, side, side)."""
    side = length_of(recipe, size)
    model = settle_batch_norms(build_model(recipe, size))
    for part in model.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_uniform_(part.weight, a=1.0)
    return inference(model, dtype, pixel_values=torch.randn(recipe.batch, 3, side, side))


def make_decode(recipe: Recipe, size: Size, dtype: torch.dtype) -> Task:
    """One token after a prefill of half of a StaticCache (64 positions small, 512 base)."""
    from transformers import StaticCache

    model: Any = build_model(recipe, size).eval().to(dtype)
    positions = 64 if size == "small" else 512
    cache: Any = StaticCache(config=model.config, max_cache_len=positions)
    prompt = torch.randint(5, model.config.vocab_size, (recipe.batch, positions // 2))
    token = torch.randint(5, model.config.vocab_size, (recipe.batch, 1))
    with torch.no_grad():
        model(input_ids=prompt, past_key_values=cache)
    lengths = [(layer, layer.cumulative_length.clone()) for layer in cache.layers]

    def step(fn: Callable[..., Any]) -> Any:
        with torch.no_grad():
            logits = fn(input_ids=token, past_key_values=cache).logits
        return logits, [layer.keys for layer, _ in lengths], [layer.values for layer, _ in lengths]

    def reset() -> None:
        for layer, length in lengths:
            layer.cumulative_length.copy_(length)

    return Task(model, step, reset)


def encoder(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """Arguments that BERT-like and ViT-like configs share; the feed-forward is four times wide."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        **more,
    }


def decoder(hidden: int, layers: int, heads: int, inner: int, **more: Any) -> dict[str, Any]:
    """Arguments that Llama-like configs share."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        **more,
    }


SMALL = encoder(64, 2, 4, vocab_size=128)
BASE = encoder(768, 12, 12)
BERT = Recipe("BertModel", "BertConfig", SMALL, BASE)
ROBERTA = Recipe("RobertaModel", "RobertaConfig", SMALL, BASE)
ELECTRA = Recipe(
    "ElectraModel",
    "ElectraConfig",
    {**SMALL, "embedding_size": 32},
    {**BASE, "embedding_size": 768},
)
GPT2 = Recipe(
    "GPT2LMHeadModel",
    "GPT2Config",
    {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    {},
    length=(16, 256),
)
GPT_NEOX = Recipe(
    "GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, encoder(768, 12, 12, vocab_size=50432)
)
LLAMA = Recipe(
    "LlamaForCausalLM",
    "LlamaConfig",
    decoder(64, 2, 4, 128, vocab_size=128, num_key_value_heads=2),
    decoder(768, 12, 12, 3072, vocab_size=32000),
)
MISTRAL = Recipe(
    "MistralForCausalLM",
    "MistralConfig",
    decoder(64, 2, 4, 128, vocab_size=128, num_key_value_heads=2, sliding_window=None),
    decoder(768, 12, 12, 3072, vocab_size=32000, num_key_value_heads=4, sliding_window=None),
)
QWEN3 = Recipe(
    "Qwen3ForCausalLM",
    "Qwen3Config",
    decoder(64, 2, 4, 128, vocab_size=128, num_key_value_heads=2, head_dim=16),
    decoder(1024, 28, 16, 3072, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
)
VIT = Recipe(
    "ViTForImageClassification",
    "ViTConfig",
    {**encoder(64, 2, 4), "image_size": 32, "patch_size": 8},
    BASE,
    length=(32, 224),
)
DINOV2 = Recipe(
    "Dinov2Model",
    "Dinov2Config",
    {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 28,
        "patch_size": 7,
    },
    {"image_size": 518},
    length=(28, 224),
)
MOBILENET_V2 = Recipe(
    "MobileNetV2ForImageClassification",
    "MobileNetV2Config",
    {"depth_multiplier": 0.25, "image_size": 32},
    {},
    length=(32, 224),
)
REGNET = Recipe(
    "RegNetForImageClassification",
    "RegNetConfig",
    {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "groups_width": 8},
    {},
    length=(32, 224),
)
RESNET50 = Recipe(
    "ResNetForImageClassification",
    "ResNetConfig",
    {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2]},
    {},
    length=(32, 224),
)
T5_ENCODER = Recipe(
    "T5EncoderModel",
    "T5Config",
    {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16, "vocab_size": 128},
    {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
)

ENCODERS = {"bert": BERT, "roberta": ROBERTA, "electra": ELECTRA, "t5-encoder": T5_ENCODER}
DECODERS = {
    "gpt2": GPT2, "gpt-neox": GPT_NEOX, "llama": LLAMA, "mistral": MISTRAL, "qwen3": QWEN3,
}  # fmt: skip
VISION = {
    "vit": VIT, "dinov2": DINOV2, "mobilenet-v2": MOBILENET_V2, "regnet": REGNET,
    "resnet50": RESNET50,
}  # fmt: skip

HUGGING_FACE = (
    *(
        Workload(name, f"{r.model}, b1 s{r.length[1]}", partial(make_text, r, mask=True))
        for name, r in ENCODERS.items()
    ),
    *(
        Workload(name, f"{r.model}, b1 s{r.length[1]}", partial(make_text, r))
        for name, r in DECODERS.items()
    ),
    *(
        Workload(
            f"{name}-decode", f"{r.model}, one token, StaticCache 512", partial(make_decode, r)
        )
        for name, r in DECODERS.items()
    ),
    *(
        Workload(name, f"{r.model}, b1, {r.length[1]} pixels", partial(make_image, r))
        for name, r in VISION.items()
    ),
)
