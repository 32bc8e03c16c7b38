"""docs/interface.md names all that the program offers."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import jitney
from jitney.config import MODES, Config
from jitney.diagnostics.logs import ARTIFACTS
from jitney.run.stance import STANCES

PAGE = (Path(__file__).parent.parent / "docs" / "interface.md").read_text()
PACKAGE = Path(jitney.__file__).parent


def rows(title: str) -> dict[str, str]:
    """The rows of a section's table, by each of the names that its first cell has in backticks."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    found = [line.strip("| ").split(" | ", 1) for line in lines]
    return {n: cells[-1] for cells in found for n in re.findall(r"`(\w+)", cells[0])}


def test_names() -> None:
    assert set(jitney.__all__) == set(rows("Names"))


def test_arguments() -> None:
    assert set(inspect.signature(jitney.compile).parameters) - {"model"} == set(
        rows("Arguments of `jitney.compile`")
    )


def test_options_and_their_defaults() -> None:
    told = rows("Options")
    for knob in dataclasses.fields(Config):
        if knob.name != "debug":
            text = told.pop(knob.name)
            assert text.split(" | ")[0] == (str(knob.default) or '""'), knob.name
    assert not told


def test_artifacts() -> None:
    assert set(rows("What `JITNEY_LOGS` prints")) == set(ARTIFACTS)


def test_variables() -> None:
    """Those that the code names. (A word of generated code is none.)"""
    knobs = [knob.name.upper() for knob in dataclasses.fields(Config) if knob.name != "debug"]
    known = {f"JITNEY_{name}" for name in knobs}
    text = "\n".join(p.read_text() for p in PACKAGE.rglob("*.py"))
    named = set(re.findall(r"JITNEY_[A-Z_]*[A-Z]", text)) | {"JITNEY_DISABLE"}
    told = set(rows("Environment variables")) | known
    assert named - {"JITNEY_PHASE"} <= told


@pytest.mark.parametrize("name", [*MODES, *STANCES])
def test_modes_and_stances(name: str) -> None:
    assert f"`{name}`" in PAGE
