"""Every row of the policy table names something that is there."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import jitney
from jitney.capture import policy_table as t
from jitney.capture.function_calls import HANDLERS
from jitney.capture.torch_calls import LOOKS, SETTINGS
from jitney.torch_api import names
from jitney.torch_api.names import MODE_CHANGES

ROWS = sorted(
    {
        *t.NATIVE_FUNCTIONS,
        *t.OF_GPUS,
        *t.ANSWERS,
        *t.DEFERRED,
        *t.BREAKS,
        *t.PURE_TYPES,
        *t.NATIVE_CLASSES,
        *HANDLERS,
        *MODE_CHANGES,
        *names.C_ANSWERS,
        *LOOKS,
        *SETTINGS,
        *names.OVERRIDE_TESTS,
        *names.SETTERS,
        *names.SETTERS.values(),
        names.CHECKS_EXPORTED,
    }
)
# Names that a class has without being an attribute of its module; versions that lack one.
ELSEWHERE = {
    "builtins.dict_keys", "builtins.dict_values", "builtins.dict_items", "builtins.mappingproxy",
    "builtins.code", "builtins.function", "builtins.method", "builtins.NoneType",
    "builtins.cell", "builtins.ellipsis", "builtins.odict_keys", "builtins.odict_values",
    "builtins.odict_items", "builtins.list_iterator", "builtins.tuple_iterator",
    "builtins.dict_keyiterator", "builtins.dict_valueiterator", "builtins.dict_itemiterator",
    "builtins.range_iterator", "builtins.list_reverseiterator",
    "torch._compile._disable_dynamo.<locals>.inner", "torch._C._cuda_getDeviceCount",
    "torch._dynamo.mutation_guard.install_generation_tagging_init.<locals>.patched_init",
    *(name for name in names.TRANSFORMS if "<locals>" in name or "_wraps" in name),
    "copy._copy_immutable", names.PULL, names.BREAK_SETTING_SCOPE, names.NESTED_REGION,
    names.GRAPH_MODULE_CALLS[0],
}  # fmt: skip


def resolve(name: str) -> Any:
    """The object a row names: the longest importable prefix, then attributes."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


@pytest.mark.parametrize("name", [n for n in ROWS if n not in ELSEWHERE])
def test_a_row_names_something(name: str) -> None:
    if name.startswith("triton."):
        pytest.importorskip("triton")
    resolve(name)


def test_functions_that_call_back_are_inlined():
    def program(x, mask):
        distance = torch.nn.PairwiseDistance()
        loss = torch.nn.functional.triplet_margin_with_distance_loss
        return loss(x, x + 1, x * 2, distance_function=distance), torch.masked.sum(x, 1, mask=mask)

    x, mask = torch.randn(3, 4, requires_grad=True), torch.tensor([True, False, True, True])
    compiled = jitney.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask), program(x, mask))
    assert compiled(x, None)[1].equal(x.sum(1))


def test_module_made_in_a_process_that_has_used_torch_compile() -> None:
    """Dynamo leaves a wrapper of its own round ``nn.Module.__init__``."""
    torch._dynamo.mutation_guard.install_generation_tagging_init()

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.ReLU()(x) + torch.nn.Sequential(torch.nn.Tanh())(x)

    x = torch.randn(5)
    torch.testing.assert_close(jitney.compile(f, fullgraph=True)(x), f(x))
