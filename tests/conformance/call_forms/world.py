"""What the calls of ``calls.txt`` name: modules, and a few classes and functions of a user's."""

# ruff: noqa: F401 - the table's calls name them
from __future__ import annotations

import array
import base64
import bisect
import collections
import collections.abc
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import heapq
import inspect
import io
import itertools
import json
import math
import numbers
import operator
import os
import pathlib
import pickle
import random
import re
import statistics
import string
import struct
import textwrap
import time
import types
import typing
import uuid
import weakref
import zlib
from dataclasses import dataclass, field
from typing import Any

import torch

import jitney

Pair = collections.namedtuple("Pair", ["first", "second"])


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    def of(self, x: Any) -> Any:
        return x * self.value

    @property
    def shade(self) -> str:
        return self.name.lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclass
class Point:
    x: Any
    n: Any = 7
    items: list[Any] = field(default_factory=list)
    tag = "point"

    @property
    def size(self) -> Any:
        return self.x.shape[0]

    def moved(self, by: Any) -> Point:
        return dataclasses.replace(self, x=self.x + by)


@dataclass(frozen=True)
class Frozen:
    x: Any
    items: Any = ()


class Doubling(list):
    tag = "doubling"

    def append(self, value: Any) -> None:
        super().append(value * 2)

    def base_append(self, value: Any) -> None:
        append = super().append
        append(value)

    def __getitem__(self, i: Any) -> Any:
        found = super().__getitem__(i)
        return found if isinstance(i, slice) else found + 1


class Counting(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value + 1)

    def __missing__(self, key: Any) -> Any:
        return key, len(self)

    def store(self, key: Any, value: Any) -> None:
        super().update(**{key: value})


class Late(ValueError):
    code = 5

    def __init__(self, message: str, x: Any) -> None:
        super().__init__(message)
        self.x = x


class Closing:
    def __init__(self, x: Any) -> None:
        self.x = x

    def close(self) -> None:
        self.x = None


@contextlib.contextmanager
def scope(x: Any) -> Any:
    yield x + 1


def scaled(x: Any, by: Any) -> Any:
    return x * by


@functools.singledispatch
def area(value: Any) -> Any:
    return "other", value


@area.register
def _(value: int) -> Any:
    return "int", value


@area.register(torch.Tensor)
def _(value: Any) -> Any:
    return "tensor", value + 1
