"""Every store into a dict that a guard program watches changes its version."""

from __future__ import annotations

import gc
from types import FunctionType
from typing import Any

import pytest
import torch

from jitney.capture.layouts import DICT_VERSION, count_stores, read_word, verified
from jitney.capture.watch_dicts import watcher

pytestmark = pytest.mark.skipif(not verified(), reason="layouts differ on this interpreter")


class Plain:
    def __init__(self) -> None:
        self.x: Any = 0
        self.y: Any = 0


class Empty:
    pass


class Setting(Plain):
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def change(owner: Any) -> None:
    owner.x = object()


def add(owner: Any) -> None:
    owner.z = object()


def remove(owner: Any) -> None:
    owner.x = object()
    del owner.x


def set_by_name(owner: Any) -> None:
    setattr(owner, "x", object())  # noqa: B010


@pytest.mark.parametrize("store", [change, add, remove, set_by_name], ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", [Plain, Empty, Setting, torch.nn.ReLU])
@pytest.mark.parametrize("seen", [False, True], ids=["", "dict"])
def test_stores_of_specialised_code_are_counted(store: Any, make: Any, seen: bool) -> None:
    hot = FunctionType(store.__code__, {"setattr": setattr, "object": object})
    for _ in range(300):
        owner = make()
        if seen:
            assert vars(owner) is not None
        hot(owner)
    owner = make()
    state, before = vars(owner), dict(vars(owner))
    watch = watcher()
    count_stores(state)
    if watch is not None:
        watch.watch(state)
    assert state == before and list(state) == list(before)
    for _ in range(50):
        version, count = read_word(id(state) + DICT_VERSION), watch and read_word(watch.count)
        hot(owner)
        assert read_word(id(state) + DICT_VERSION) != version
        assert watch is None or read_word(watch.count) != count
    assert vars(owner) is state


def test_an_instance_works_on_after_its_stores_are_counted() -> None:
    owner = Plain()
    state = vars(owner)
    count_stores(state)
    owner.x, owner.w = 5, [7]
    assert state == {"x": 5, "y": 0, "w": [7]} and owner.w == [7] and owner.y == 0
    owner.__dict__ = {"x": 6}
    assert owner.x == 6 and state["x"] == 5
    del owner
    gc.collect()
    assert state["w"] == [7]
