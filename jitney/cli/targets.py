"""What the command line may name: a built-in workload, or any importable factory."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

import torch

from jitney.cli.workloads import WORKLOADS, Size, Task, Workload
from jitney.cli.workloads.task import inference
from jitney.errors import UserError


def find(target: str) -> Workload:
    """A workload by name, or ``package.module:factory``.

    A factory takes nothing and returns a `Task`, or a module or function and its arguments as
    ``(module, args)`` or ``(module, args, kwargs)``; a `Workload` may stand in its place.
    """
    if target in WORKLOADS:
        return WORKLOADS[target]
    if ":" not in target:
        names = ", ".join(WORKLOADS)
        raise UserError(f"no workload {target!r}; there are: {names}; or package.module:factory")
    module_name, _, name = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise UserError(f"cannot import {target}: expected package.module:factory")
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"cannot import {target}: {error}") from error

    if isinstance(factory, Workload):
        return factory

    _refuse_arguments(target, factory)

    def make(size: Size, dtype: torch.dtype) -> Task:
        made = factory()
        if isinstance(made, Task):
            return made
        module, args, kwargs = _parts(target, made)
        return inference(module, dtype, *args, **kwargs)

    return Workload(target, f"from {module_name}", make)


def _refuse_arguments(target: str, factory: Any) -> None:
    """Raises UserError for what cannot be called without arguments, as a factory is."""
    expected = "a factory is called without arguments and returns (module, args)"
    if not callable(factory):
        raise UserError(f"{target} is a {type(factory).__name__}, no factory: {expected}")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise UserError(f"{target} is no factory ({error}): {expected}") from error
    except ValueError:  # C code that does not tell its parameters
        return


def check_size(name: str) -> Size:
    """The size of that name; UserError where there is none."""
    if name not in get_args(Size):
        raise UserError(f"no size {name!r}; there are: {', '.join(get_args(Size))}")
    return cast(Size, name)


def check_dtype(name: str) -> torch.dtype:
    """The floating-point dtype that torch has under that name; UserError where there is none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UserError(f"no floating-point dtype {name!r}; there are float32, bfloat16, …")
    return dtype


def _parts(target: str, made: Any) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
    """The module, its arguments and keyword arguments, of what a factory returned."""
    if isinstance(made, tuple) and len(made) in (2, 3):
        module, args, kwargs = (*made, {})[:3]
        if callable(module) and isinstance(args, tuple | list) and isinstance(kwargs, dict):
            return module, args, kwargs
    raise UserError(
        f"{target} returned a {type(made).__name__}; expected: (module, args), with args a tuple, "
        "or (module, args, kwargs), and module a module or a function"
    )
