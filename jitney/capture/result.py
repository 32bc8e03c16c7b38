"""What capturing one frame gives: a graph, what it assumes, what it changes, how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from jitney.capture.attempt import Attempt
from jitney.capture.cached_sizes import SizedCall
from jitney.capture.checked_again import CheckedAgain
from jitney.capture.guard import Guard
from jitney.capture.recipe import Effect, Recipe
from jitney.capture.source import Source
from jitney.errors import RerunOn


@dataclass(frozen=True)
class GraphInput:
    """A placeholder of the graph: where its value comes from, and the fake it was traced with.

    ``source`` of a SymInt placeholder is a `SizeOf` or the source of a Python int/float.
    ``static``: parameters, buffers and tensors marked by ``mark_static_address``.
    """

    name: str
    source: Source
    example: Any
    static: bool = False


@dataclass(frozen=True)
class FrameState:
    """One Python frame stopped in the middle.

    Innermost frame: ``offset`` is the instruction that broke and ``stack`` its stack *before* it.
    Outer frames: ``offset`` is the instruction whose call is under way, ``stack`` what is below
    its operands (bottom first), and ``pushes`` says whether the call's result is pushed. Both
    continue at the instruction after (or at a jump's target).
    """

    code: CodeType
    function_name: str
    globals: dict[str, Any]
    offset: int
    stack: tuple[Recipe, ...]
    locals: tuple[tuple[str, Recipe], ...]  # bound ones only; cell variables hold a cell recipe
    closure: tuple[Recipe, ...]  # free variables' cells, in co_freevars order
    pushes: bool = True
    lineno: int = 0
    handling: Recipe | None = None  # the exception that ``except`` blocks here are handling


@dataclass(frozen=True)
class Return:
    """The frame returns ``value``."""

    value: Recipe


@dataclass(frozen=True)
class Break:
    """The frame stops at something that must run eager; ``frames`` innermost first."""

    frames: tuple[FrameState, ...]
    kind: str
    reason: str
    hint: str
    where: str  # "file:line" of the user's code


Exit = Return | Break


@dataclass
class Capture:
    """A captured frame. ``graph`` takes ``inputs`` in order and returns a flat tuple; it is None
    when nothing was computed with tensors. ``shape_env`` owns the algebra of symbolic inputs;
    its guards are final only after the backend ran (`guards_of_shapes`)."""

    graph: torch.fx.GraphModule | None
    inputs: tuple[GraphInput, ...]
    guards: tuple[Guard, ...]
    effects: tuple[Effect, ...]
    exit: Exit
    shape_env: Any = None
    fake_mode: Any = None
    tracing_context: Any = None
    statistics: dict[str, Any] = field(default_factory=dict)
    symbolic: tuple[tuple[Source, Any], ...] = ()  # every symbolic size, int and float read
    checked_again: CheckedAgain | None = None
    rerun_on: RerunOn = ()  # errors of the graph
    sized_calls: tuple[SizedCall, ...] = ()  # of functions under lru_cache
    put_back: tuple[int, ...] = ()  # inputs that hold what they did where `rerun_on` is raised
    attempt: Attempt | None = None  # how it was captured, to begin again
    blocks: tuple[str, ...] = ()  # locals that leave the `with` blocks in which the frame begins
