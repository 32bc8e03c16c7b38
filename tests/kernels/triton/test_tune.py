"""Choices by measurement: the least wins, is remembered, and time bounds it."""

import math

import pytest
import torch

pytest.importorskip("triton")

from jitney.disk_cache import DiskCache
from jitney.kernels.triton.tune import Tuner


def counted(costs):
    asked = []

    def measure(candidate):
        asked.append(candidate)
        return costs[candidate]

    return measure, asked


def test_the_least_is_chosen_and_not_measured_again():
    measure, asked = counted({"a": 30.0, "b": 10.0, "c": math.inf})
    tuner = Tuner("gpu", None)
    assert tuner.known("k", ("a", "b", "c")) is None
    assert [tuner.choose("k", ("a", "b", "c"), measure) for _ in range(2)] == ["b", "b"]
    assert asked == ["a", "b", "c"]


def test_another_process_remembers_but_another_device_does_not(tmp_path):
    measure, asked = counted({"a": 30.0, "b": 10.0})
    Tuner("gpu", DiskCache(tmp_path)).choose("k", ("a", "b"), measure)
    assert Tuner("gpu", DiskCache(tmp_path)).known("k", ("a", "b")) == "b"
    assert Tuner("other gpu", DiskCache(tmp_path)).known("k", ("a", "b")) is None
    assert Tuner("gpu", DiskCache(tmp_path)).known("k", ("a", "c")) is None
    assert asked == ["a", "b"]


def test_without_time_the_model_decides_and_nothing_is_kept(tmp_path):
    measure, asked = counted({"a": 30.0, "b": 10.0})
    assert Tuner("gpu", DiskCache(tmp_path), 0.0).choose("k", ("a", "b"), measure) == "a"
    assert Tuner("gpu", DiskCache(tmp_path)).known("k", ("a", "b")) is None
    assert not asked


def test_what_memory_did_not_suffice_for_is_measured_another_time(tmp_path):
    def full(candidate):
        raise torch.OutOfMemoryError

    tuner = Tuner("gpu", DiskCache(tmp_path))
    assert tuner.choose("k", ("a", "b"), full) == "a"
    assert tuner.known("k", ("a", "b")) is None
    measure, _ = counted({"a": 30.0, "b": 10.0})
    assert tuner.choose("k", ("a", "b"), measure) == "b"


def test_little_or_short_gains_do_not_overrule_the_model():
    for costs, best in (
        ({"a": 6.0, "b": 3.0}, "a"),
        ({"a": 30.0, "b": 29.5}, "a"),
        ({"a": 30.0, "b": 28.0}, "b"),
    ):
        assert Tuner("gpu", None).choose("k", ("a", "b"), counted(costs)[0]) == best
