"""`.ci/lengths.py` finds private attributes of torch's objects, however they are taken."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "lengths.py"
FOUND = {
    "op._schema": "op._schema",
    "aten.add.Tensor._schema": "aten.add.Tensor._schema",
    "tensor.untyped_storage()._cdata": "tensor.untyped_storage()._cdata",
    "tensor._is_view()": "tensor._is_view",
    "module._parameters['weight']": "module._parameters",
    "module._compiled_call_impl = None": "module._compiled_call_impl",
    "getattr(node.target, '_opname', '')": "node.target._opname",
    "hasattr(tensor, '_base')": "tensor._base",
    "setattr(function, '_torchdynamo_disable', True)": "function._torchdynamo_disable",
}
FINE = (
    "aten._to_copy.default",
    "torch.ops.aten._softmax",
    "import sys\nsys._getframe(1)",
    "import warnings\ngetattr(warnings, '_filters_mutated', None)",
    "pair._replace(first=1)",
    "tensor.__dict__",
    "self._schema",
    "class C:\n    def _m(self, other): return other._m, super()._base",
    "class C:\n    def m(self, other):\n        self._base = other._base",
)


SPEC: Any = importlib.util.spec_from_file_location("lengths", SCRIPT)
lengths = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lengths)


def found_in(source: str) -> list[str]:
    return [name for _, name in lengths.private_attributes(ast.parse(source))]


@pytest.mark.parametrize("source", FOUND)
def test_private_attributes_are_found(source: str) -> None:
    assert found_in(source) == [FOUND[source]]


@pytest.mark.parametrize("source", FINE)
def test_what_is_not_torchs_passes(source: str) -> None:
    assert found_in(source) == []


def test_a_planted_use_is_a_complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("graph", "torch_api"):
        planted = Path("jitney", folder, "planted.py")
        planted.parent.mkdir(parents=True)
        planted.write_text("def f(op):\n    return op._schema\n")
    said = "jitney/graph/planted.py:2: op._schema, outside jitney/torch_api"
    assert lengths.complaints(Path("jitney/graph/planted.py")) == [said]
    assert lengths.complaints(Path("jitney/torch_api/planted.py")) == []
