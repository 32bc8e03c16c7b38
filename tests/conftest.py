"""Settings of every test, made before anything is imported that reads them."""

import os
import random
import zlib

import numpy
import pytest
import torch

os.environ.setdefault("JITNEY_VERIFY", "1")  # compiled programs are checked after each pass
os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton kernels run in Triton's interpreter
os.environ.setdefault("JITNEY_EAGER_ON_BUG", "0")  # a bug is an error


def _seed(name: str) -> None:
    """The numbers that follow are the same each time, in whatever order or process."""
    number = zlib.crc32(name.encode())
    torch.manual_seed(number)
    numpy.random.seed(number)
    random.seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a module draws as it is imported."""
    _seed(collector.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test and its fixtures draw; hypothesis chooses with numbers of its own."""
    _seed(item.nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` run where there is one and Triton compiles for it."""
    if os.environ["TRITON_INTERPRET"] == "0" and torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="runs on a GPU, by `make gpu`")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
