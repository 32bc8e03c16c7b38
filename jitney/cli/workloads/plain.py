"""Models in plain torch: a nanoGPT-style decoder, nn.TransformerEncoder, LSTM, U-Net, CNN."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jitney.cli.workloads.task import Size, Task, Workload, inference, settle_batch_norms


class CausalAttention(nn.Module):
    """Multi-head causal attention with one projection for q, k and v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    """A pre-norm transformer block with a tanh-GELU feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class NanoGPT(nn.Module):
    """A decoder written by hand, with tied embeddings; gives the loss when it gets targets."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Token ids (batch, length) to logits (batch, length, vocabulary) and the mean loss."""
        position = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(position)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class Classifier(nn.Module):
    """An embedding, an LSTM of two layers and a linear head on the last state."""

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (batch, length) to scores (batch, classes)."""
        _, (hidden, _) = self.lstm(self.embedding(ids))
        return self.head(hidden[-1])


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Three levels down and up, with skip connections and bilinear upsampling."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = double_convolution(3, channels)
        self.down_1 = double_convolution(channels, 2 * channels)
        self.down_2 = double_convolution(2 * channels, 4 * channels)
        self.up_1 = double_convolution(6 * channels, 2 * channels)
        self.up_2 = double_convolution(3 * channels, channels)
        self.last = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) to (batch, 1, height, width)."""
        a = self.first(x)
        b = self.down_1(F.max_pool2d(a, 2))
        c = self.down_2(F.max_pool2d(b, 2))
        up = F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=False)
        d = self.up_1(torch.cat([up, b], 1))
        up = F.interpolate(d, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(self.up_2(torch.cat([up, a], 1)))


class SmallCNN(nn.Module):
    """Three convolutions with batch norm, pooling and a linear head."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = [3, channels, 2 * channels, 4 * channels]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, widths[1:], strict=False)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths[1:])
        self.head = nn.Linear(4 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) to scores (batch, classes)."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.max_pool2d(F.relu(norm(convolution(x))), 2)
        return self.head(x.mean((2, 3)))


def nanogpt(size: Size) -> NanoGPT:
    """``base`` has the shape of GPT-2 124M with a context of 256."""
    return NanoGPT(128, 32, 64, 4, 2) if size == "small" else NanoGPT(50304, 256, 768, 12, 12)


def small_cnn(size: Size) -> SmallCNN:
    """Channels 8 or 64, ten classes."""
    return SmallCNN(8 if size == "small" else 64, 10)


def make_nanogpt(size: Size, dtype: torch.dtype) -> Task:
    """Logits of one sequence of the full context."""
    model = nanogpt(size)
    length = model.positions.num_embeddings
    return inference(model, dtype, torch.randint(model.tokens.num_embeddings, (1, length)))


def make_transformer_encoder(size: Size, dtype: torch.dtype) -> Task:
    """nn.TransformerEncoder with a padding mask; norm first, so that no fast path applies."""
    width, heads, layers, length = (64, 4, 2, 16) if size == "small" else (512, 8, 6, 128)
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    padding = torch.zeros(2, length, dtype=torch.bool)
    padding[1, length // 2 :] = True
    x = torch.randn(2, length, width)
    return inference(model, dtype, x, src_key_padding_mask=padding)


def make_lstm(size: Size, dtype: torch.dtype) -> Task:
    """Scores of a batch of token sequences."""
    width, length, batch = (32, 12, 3) if size == "small" else (512, 128, 8)
    return inference(Classifier(1000, width, 10), dtype, torch.randint(1000, (batch, length)))


def make_unet(size: Size, dtype: torch.dtype) -> Task:
    """One image."""
    channels, side = (8, 32) if size == "small" else (32, 192)
    model: Any = settle_batch_norms(UNet(channels))
    return inference(model, dtype, torch.randn(1, 3, side, side))


PLAIN = (
    Workload("nanogpt", "a nanoGPT-style decoder, b1 s256", partial(make_nanogpt)),
    Workload(
        "transformer-encoder", "nn.TransformerEncoder 6x512, b2 s128", make_transformer_encoder
    ),
    Workload("lstm", "an LSTM classifier, b8 s128", make_lstm),
    Workload("unet", "a U-Net, one image of 192 pixels", make_unet),
)
