"""Training steps: forward and backward through the compiled model, then the optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from jitney.cli.workloads import hugging_face
from jitney.cli.workloads.plain import nanogpt, small_cnn
from jitney.cli.workloads.task import Size, Task, Workload, cast

Loss = Callable[[Callable[..., Any]], Tensor]


def training(module: torch.nn.Module, loss_of: Loss) -> Task:
    """A task whose step gives the loss and the gradient of every parameter, by name.

    The learning rate is 0: AdamW does all its work and every step can be compared with the first.
    It is torch's fused one on every side, so that a side's own work is what differs.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.0, fused=True)

    def step(fn: Callable[..., Any]) -> dict[str, Any]:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(fn)
        loss.backward()
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        optimizer.step()
        return {"loss": loss.detach(), "gradients": gradients}

    return Task(module, step, training=True)


def without_dropout(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    """Config arguments with dropout off, so that eager and compiled runs can be compared."""
    return {**arguments, **dict.fromkeys(names, 0.0)}


def make_language(
    recipe: hugging_face.Recipe, dropouts: tuple[str, ...], size: Size, dtype: torch.dtype
) -> Task:
    """Next-token loss of a causal model, or token loss of a masked one."""
    recipe = dataclasses.replace(
        recipe,
        small=without_dropout(recipe.small, *dropouts),
        base=without_dropout(recipe.base, *dropouts),
    )
    model: Any = hugging_face.build_model(recipe, size).train().to(dtype)
    batch = 2 if size == "small" else 4
    shape = (batch, hugging_face.length_of(recipe, size))
    ids = torch.randint(5, model.config.vocab_size, shape)
    return training(model, lambda fn: fn(input_ids=ids, labels=ids).loss)


def make_vit(size: Size, dtype: torch.dtype) -> Task:
    """Cross-entropy of image classes."""
    recipe = hugging_face.VIT
    model: Any = hugging_face.build_model(recipe, size).train().to(dtype)
    side = hugging_face.length_of(recipe, size)
    pixels = cast(torch.randn(4, 3, side, side), dtype)
    labels = torch.randint(model.config.num_labels, (4,))
    return training(model, lambda fn: fn(pixel_values=pixels, labels=labels).loss)


def make_nanogpt(size: Size, dtype: torch.dtype) -> Task:
    """The model's own loss on random targets."""
    model = nanogpt(size).train().to(dtype)
    shape = (2, model.positions.num_embeddings)
    ids = torch.randint(model.tokens.num_embeddings, shape)
    targets = torch.randint(model.tokens.num_embeddings, shape)
    return training(model, lambda fn: fn(ids, targets)[1])


def make_cnn(size: Size, dtype: torch.dtype) -> Task:
    """Cross-entropy outside of the compiled model, batch norm in training mode."""
    model = small_cnn(size).train().to(dtype)
    batch, side = (4, 16) if size == "small" else (32, 64)
    images = cast(torch.randn(batch, 3, side, side), dtype)
    labels = torch.randint(10, (batch,))
    return training(model, lambda fn: F.cross_entropy(fn(images), labels))


BERT = dataclasses.replace(hugging_face.BERT, model="BertForMaskedLM")
BERT_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
GPT2_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

TRAINING = (
    Workload("bert-train", "BertForMaskedLM, b4 s128", partial(make_language, BERT, BERT_DROPOUTS)),
    Workload(
        "gpt2-train",
        "GPT2LMHeadModel, b4 s256",
        partial(make_language, hugging_face.GPT2, GPT2_DROPOUTS),
    ),
    Workload(
        "llama-train", "LlamaForCausalLM, b4 s128", partial(make_language, hugging_face.LLAMA, ())
    ),
    Workload("vit-train", "ViTForImageClassification, b4", make_vit),
    Workload("nanogpt-train", "nanoGPT-style, b2 s256", make_nanogpt),
    Workload("cnn-train", "a small CNN, b32, 64 pixels", make_cnn),
)
