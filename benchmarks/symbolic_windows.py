"""Compile time of attention over windows at symbolic sizes: CPU seconds for each size.

    python -m benchmarks.symbolic_windows [blocks] [swin]

``blocks``: two blocks over padded windows, one of them shifted, forward and backward. ``swin``:
transformers' SwinModel (two stages of two layers), inference. Every result is compared with
eager's. See docs/decisions/057-sizes-as-given.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

import jitney

Run = Callable[[torch.Tensor], torch.Tensor]


class Block(torch.nn.Module):
    """Attention within windows of ``side`` rows and columns of an image (n, rows, columns, 16)."""

    def __init__(self, shift: int, side: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.shift, self.side, self.heads = shift, side, heads
        self.norm = torch.nn.LayerNorm(16)
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, rows, columns, c = x.shape
        side, shift = self.side, self.shift
        y = F.pad(self.norm(x), (0, 0, 0, (side - columns) % side, 0, (side - rows) % side))
        _, high, wide, _ = y.shape
        y = torch.roll(y, (-shift, -shift), (1, 2)) if shift else y
        y = y.view(n, high // side, side, wide // side, side, c).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(-1, side * side, c)
        parts = self.qkv(y).view(-1, side * side, 3, self.heads, c // self.heads)
        y = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4))
        y = self.out(y.transpose(1, 2).reshape(-1, side * side, c))
        y = y.view(n, high // side, wide // side, side, side, c).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(n, high, wide, c)
        y = torch.roll(y, (shift, shift), (1, 2)) if shift else y
        return x + y[:, :rows, :columns]


def measure(name: str, model: Run, inputs: Iterable[torch.Tensor]) -> None:
    """Prints the CPU seconds of the first call at each size, its backward pass included."""
    compiled, spent = jitney.compile(model, dynamic=True), []
    for x in inputs:
        start = time.process_time()
        result = compiled(x)
        if result.requires_grad:
            result.sum().backward()
        spent.append(time.process_time() - start)
        torch.testing.assert_close(result, model(x), atol=1e-4, rtol=1e-4)
    print(f"{name}: {', '.join(f'{s:.1f}' for s in spent)}; {sum(spent):.1f} s", flush=True)


def blocks() -> None:
    model = torch.nn.Sequential(Block(0), Block(2))
    sizes = ((16, 16), (20, 24), (18, 22), (21, 13), (32, 16))
    measure("blocks", model, (torch.randn(2, *size, 16, requires_grad=True) for size in sizes))


def swin() -> None:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4
    )
    model = SwinModel(config).eval().requires_grad_(False)

    def run(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(x, interpolate_pos_encoding=True).last_hidden_state
        return found

    sizes = ((32, 32), (40, 48), (36, 44), (64, 32))
    measure("swin", run, (torch.randn(2, 3, *size) for size in sizes))


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or ["blocks", "swin"]
    with tempfile.TemporaryDirectory() as folder, jitney.options(cache_dir=folder):
        for name in chosen:
            {"blocks": blocks, "swin": swin}[name]()
