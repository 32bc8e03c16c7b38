"""Settings of every test, made before anything is imported that reads them."""

import os

import pytest
import torch

os.environ.setdefault("JITNEY_VERIFY", "1")  # compiled programs are checked after each pass
os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton kernels run in Triton's interpreter
os.environ.setdefault("JITNEY_EAGER_ON_BUG", "0")  # a bug is an error


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` run where there is one and Triton compiles for it."""
    if os.environ["TRITON_INTERPRET"] == "0" and torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="runs on a GPU, by `make gpu`")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
