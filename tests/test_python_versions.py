"""A Python whose frames cannot be captured: everything runs eager, and one warning says why."""

from __future__ import annotations

import warnings

import pytest
import torch

import jitney
from jitney import api
from jitney.capture import cpython
from jitney.run import arms


def test_this_python_is_supported():
    assert cpython.why_unsupported() is None
    assert arms.is_supported()  # or guards are checked in Python, and their tests skipped


@pytest.mark.parametrize("version", [(3, 10), (3, 99)])
def test_another_version_is_eager_with_one_warning(monkeypatch, version):
    monkeypatch.setattr(cpython, "VERSION", version)
    api._warn_once.cache_clear()
    module, x = torch.nn.Linear(2, 2), torch.ones(1, 2)

    def double(value):
        return value * 2

    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        assert jitney.compile(double) is double
        assert jitney.compile(module) is module
        assert jitney.compile(fullgraph=True)(double) is double
        jitney.compile_in_place(module)
        assert torch.equal(module(x), torch.nn.functional.linear(x, module.weight, module.bias))
    (warning,) = met
    assert "bytecode of Python 3.11 to" in str(warning.message)
    assert f"not of {version[0]}.{version[1]}" in str(warning.message)
    assert warning.filename == __file__


def test_a_python_without_the_lock_is_unsupported(monkeypatch):
    monkeypatch.setattr(cpython, "FREE_THREADED", True)
    assert "lock" in cpython.why_unsupported()
