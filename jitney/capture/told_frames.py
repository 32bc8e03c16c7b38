"""Whose line a break is told at: the program's own, where ours or torch's runs below it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import CodeType
from typing import Protocol, TypeVar

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OUR_MODELS = os.path.join(_OURS, "cli", "")
_NOT_OWN = (_OURS, os.path.dirname(torch.__file__) + os.sep, "<jitney")


class HasCode(Protocol):
    """A frame, or what is kept of one."""

    @property
    def code(self) -> CodeType:
        """What it runs."""


F = TypeVar("F", bound=HasCode)


def own_frame(frames: Sequence[F]) -> F | None:
    """The first of ``frames`` (innermost first) that runs neither our code nor torch's."""
    return next((frame for frame in frames if _is_own(frame.code.co_filename)), None)


def _is_own(file: str) -> bool:
    return not file.startswith(_NOT_OWN) or file.startswith(_OUR_MODELS)
