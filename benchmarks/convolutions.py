"""Layers of conv nets: oneDNN as torch calls it, oneDNN on weights laid out ahead, and Jitney.

python -m benchmarks.convolutions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import jitney
from jitney.cli.measure import interleave


@dataclass(frozen=True)
class Layer:
    """``inputs`` to ``outputs`` channels over an image of ``side``, window ``size``."""

    inputs: int
    outputs: int
    side: int
    size: int
    stride: int = 1
    groups: int = 1

    def __str__(self) -> str:
        window = f"{self.size}x{self.size}/{self.stride}"
        return f"{self.inputs:5}->{self.outputs:<5}{self.side:4} px {window} g{self.groups}"

    def operations(self) -> float:
        """Of the plain sum; a multiply and an add count as two."""
        places = (self.side // self.stride) ** 2
        return 2.0 * self.outputs * places * self.inputs // self.groups * self.size**2


LAYERS = (
    Layer(3, 32, 192, 3), Layer(32, 32, 192, 3), Layer(64, 64, 96, 3), Layer(128, 128, 48, 3),
    Layer(192, 64, 96, 3), Layer(96, 32, 192, 3),  # U-Net
    Layer(3, 64, 224, 7, 2), Layer(64, 64, 56, 3), Layer(128, 128, 28, 3), Layer(256, 256, 14, 3),
    Layer(512, 512, 7, 3), Layer(64, 256, 56, 1), Layer(1024, 256, 14, 1),
    Layer(512, 2048, 7, 1),  # ResNet-50
    Layer(128, 128, 56, 3, 1, 2), Layer(512, 512, 14, 3, 1, 8),  # RegNet
)  # fmt: skip


def sides_of(layer: Layer) -> dict[str, Callable[[], Any]]:
    """The candidates on one image; all but the first have it channels-last."""
    x = torch.randn(1, layer.inputs, layer.side, layer.side)
    w = torch.randn(layer.outputs, layer.inputs // layer.groups, layer.size, layer.size)
    last = x.to(memory_format=torch.channels_last)
    settings = (layer.stride, layer.size // 2, 1, layer.groups)
    module = torch.nn.Conv2d(
        layer.inputs, layer.outputs, layer.size, *settings[:2], groups=layer.groups, bias=False
    )
    compiled = jitney.compile(module, options={"cache": False})
    frozen = jitney.compile(module, options={"freeze": True, "cache": False})
    pads, strides, ones = ([n] * 2 for n in (settings[1], layer.stride, 1))
    laid_out = torch.ops.mkldnn._reorder_convolution_weight(
        w, pads, strides, ones, layer.groups, x.shape
    )
    prepacked: tuple[Any, ...] = (
        last,
        laid_out,
        None,
        pads,
        strides,
        ones,
        layer.groups,
        "none",
        [],
        "",
    )
    return {
        "eager": lambda: F.conv2d(x, w, None, *settings),
        "channels-last": lambda: F.conv2d(last, w, None, *settings),
        "prepacked": lambda: torch.ops.mkldnn._convolution_pointwise(*prepacked),
        "jitney": lambda: compiled(last),
        "frozen": lambda: frozen(last),
    }


def main() -> None:
    """Prints milliseconds and GFLOP/s of the plain sum, layer by layer."""
    with torch.no_grad():
        for layer in LAYERS:
            times = interleave(sides_of(layer), 30, 1.0)
            rate = {name: layer.operations() / t.p50 / 1e9 for name, t in times.items()}
            cells = [f"{n} {t.p50 * 1e3:6.2f} ms {rate[n]:4.0f}" for n, t in times.items()]
            print(f"{layer}  {'  '.join(cells)}")


if __name__ == "__main__":
    main()
