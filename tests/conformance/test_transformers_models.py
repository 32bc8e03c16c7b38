"""How a model of transformers is made small and what it is given, on configurations of our own."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from tests.conformance.transformers_models import everywhere, first_accepted
from tests.conformance.transformers_sets import sides


@dataclass
class VisionConfig:
    image_size: int = 224
    hidden_size: int = 768
    patch_size: int = 16

    def __post_init__(self) -> None:
        self.side = self.image_size // self.patch_size


@dataclass
class WholeConfig:
    num_hidden_layers: int = 4
    layer_types: tuple[str, ...] = ("linear", "linear", "full", "linear")
    kv_heads: tuple[int, ...] = (1, 2, 3, 4)
    depths: tuple[int, ...] = (2, 6)
    text_vocab_size: int = 5000
    mask_token_id: int = 4999
    vision_config: VisionConfig = field(default_factory=VisionConfig)


def test_a_configuration_is_made_anew_with_what_follows_from_its_sizes() -> None:
    made = everywhere(WholeConfig(), factor=4, width=8)
    assert (made.num_hidden_layers, made.layer_types, made.kv_heads) == (
        2,
        ["linear", "full"],
        [1, 3],
    )
    assert (made.depths, made.text_vocab_size, made.mask_token_id) == ((2, 2), 128, 127)
    vision = made.vision_config
    assert (vision.image_size, vision.hidden_size, vision.patch_size, vision.side) == (
        56,
        96,
        16,
        3,
    )


def test_sides_are_those_a_configuration_names() -> None:
    config = SimpleNamespace(image_size=(32, 128), vision_config=VisionConfig(), input_size=4096)
    assert sides(config) == [(32, 128), (224, 224)]


def test_what_an_error_asks_for_is_given() -> None:
    class Model(torch.nn.Module):
        config = SimpleNamespace(hidden_size=4)

        def forward(self, input_ids: Any, bbox: Any = None, attention_mask: Any = None) -> Any:
            if bbox is None:
                raise ValueError("Bbox is required")
            return input_ids + bbox.sum() * attention_mask.float()

    candidates = iter([{"input_ids": torch.ones(2, 9, dtype=torch.int64)}])
    taken = first_accepted(Model(), candidates)
    assert set(taken) == {"input_ids", "bbox", "attention_mask"}
