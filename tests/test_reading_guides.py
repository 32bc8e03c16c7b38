"""The folders' guides for readers name files that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import jitney

PACKAGE = Path(jitney.__file__).parent
GUIDES = sorted(p for p in PACKAGE.rglob("__init__.py") if "`" in p.read_text())


@pytest.mark.parametrize("guide", GUIDES, ids=lambda p: p.parent.name)
def test_names_of_files(guide):
    """`name`, or `name.thing`: a file or a folder beside the guide, or in the package itself."""
    text = ast.get_docstring(ast.parse(guide.read_text())) or ""
    for name in re.findall(r"(?<!`)`([a-z_]+)(?:\.\w+|/)?`(?!`)", text):
        places = (guide.parent, PACKAGE)
        assert any((p / f"{name}.py").exists() or (p / name).is_dir() for p in places), name
