"""torch's lists of modules, gone through backwards."""

from __future__ import annotations

from typing import Any

import torch

import jitney
from tests.equal import assert_equal


class Doubled(torch.nn.ModuleList):
    """Its items, asked for one by one, are others."""

    def __getitem__(self, index: Any) -> Any:
        return lambda x: super(Doubled, self).__getitem__(index)(x) * 2


class Decoder(torch.nn.Module):
    def __init__(self, kind: type[torch.nn.ModuleList]) -> None:
        super().__init__()
        self.layers = kind(torch.nn.Linear(3, 3) for _ in range(3))
        self.last = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
        self.scales = torch.nn.ParameterList([torch.full((3,), float(n)) for n in (1, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self.layers):
            x = layer(x)
        for number, (layer, scale) in enumerate(zip(reversed(self.last), reversed(self.scales))):
            x = layer(x) * scale + number
        return x


def test_reversed_layers_do_not_break_the_graph() -> None:
    model, x = Decoder(torch.nn.ModuleList), torch.randn(2, 3)
    assert_equal(jitney.compile(model, fullgraph=True)(x), model(x))


def test_a_list_of_the_programs_own_is_asked() -> None:
    model, x = Decoder(Doubled), torch.randn(2, 3)
    assert_equal(jitney.compile(model)(x), model(x))
