"""Every knob, with its type. Set by ``options=``, by `override`, or in the environment as
``JITNEY_<NAME>``; ``debug`` in the environment alone, since dumps begin with the process, as
``JITNEY_DISABLE``, which is no knob.

A knob declared with ``key`` changes the generated code, so it is part of cache keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jitney.errors import UserError

PREFIX = "JITNEY_"
#: What each ``mode=`` of a compile sets.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "max_autotune": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


def _knob(default: Any, about: str, *, key: bool = False) -> Any:
    return field(default=default, metadata={"about": about, "key": key})


@dataclass(frozen=True)
class Config:
    """One consistent setting of all knobs."""

    recompile_limit: int = _knob(8, "entries of one frame before it stays eager")
    accumulated_recompile_limit: int = _knob(256, "the same over all instances of one code object")
    wait_for_compile: bool = _knob(False, "threads wait for another's capture, not run eager")
    eager_on_bug: bool = _knob(True, "run eager and warn where the compiler has a bug")
    native_guards: bool = _knob(True, "check guards by compiled code and watched dicts")
    freeze: bool = _knob(False, "parameters hardly ever change: pack weights once", key=True)
    cache: bool = _knob(True, "keep compiled objects on disk")
    cache_dir: str = _knob("", "where; default ~/.cache/jitney")
    cpu_features: str = _knob("", "restrict the target, as in '-avx512f'", key=True)
    cuda_graphs: bool = _knob(False, "record launches as CUDA graphs", key=True)
    max_autotune: bool = _knob(False, "measure templates against libraries", key=True)
    verify: bool = _knob(False, "check loop programs after every pass, not just after the last")
    debug: int = _knob(0, "1-6: dump ever more stages to numbered files")

    def __post_init__(self) -> None:
        for name in ("recompile_limit", "accumulated_recompile_limit"):
            if getattr(self, name) < 0:
                given = getattr(self, name)
                raise UserError(f"{name} takes 0 (nothing is compiled) or more, not {given}")

    def key(self) -> tuple[tuple[str, Any], ...]:
        """The knobs that must be part of a cache key, with their values."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.metadata["key"])


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """``config`` with knobs changed. Raises UserError for an unknown name or a wrong type."""
    known = {f.name: type(f.default) for f in fields(Config) if f.name != "debug"}
    if "debug" in options:
        raise UserError("debug is no option: set JITNEY_DEBUG=1 to 6 before the program starts")
    for name, value in options.items():
        if name not in known:
            raise UserError(f"unknown option {name!r}; options are {', '.join(sorted(known))}")
        kind, got = known[name], type(value)
        if not isinstance(value, kind) or (got is bool) != (kind is bool):
            wanted = "an int" if kind is int else f"a {kind.__name__}"
            raise UserError(f"option {name!r} takes {wanted}, not a {got.__name__}")
    return replace(config, **options)


def from_environment(environment: Mapping[str, str]) -> Config:
    """The defaults, changed by variables such as ``JITNEY_RECOMPILE_LIMIT=4``; an empty one is no
    number, and truth values are False by it."""
    changes: dict[str, Any] = {}
    for knob in fields(Config):
        text = environment.get(PREFIX + knob.name.upper())
        if text or (text is not None and type(knob.default) is bool):
            changes[knob.name] = _parse(knob.name, text, type(knob.default))
    if changes.get("debug", 0) not in range(7):
        raise UserError(f"{PREFIX}DEBUG={changes['debug']}: levels are 0 to 6")
    return replace(Config(), **changes)


def _parse(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in ("0", "1", "true", "false", "yes", "no", ""):
            raise UserError(f"{PREFIX}{name.upper()}={text!r}: 0 or 1 expected")
        return text.lower() in ("1", "true", "yes")
    try:
        return kind(text)
    except ValueError:
        wanted = kind.__name__
        raise UserError(f"{PREFIX}{name.upper()}={text!r}: {wanted} expected") from None


def why_disabled(environment: Mapping[str, str]) -> str:
    """The variable by which the environment switches compiling off, ours or torch's; "" if none
    does."""
    if _parse("disable", environment.get(PREFIX + "DISABLE", ""), bool):
        return PREFIX + "DISABLE"
    found = (name for name in _DISABLING if environment.get(name) == "1")
    return next(found, "")


_DISABLING = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")  # "1" alone counts, as in torch
_DEFAULT = from_environment(os.environ)
_OVERRIDE: ContextVar[Config | None] = ContextVar("jitney_config", default=None)


def current() -> Config:
    """The knobs in force here: environment, then enclosing `override` scopes."""
    return _OVERRIDE.get() or _DEFAULT


@contextmanager
def override(**options: Any) -> Iterator[Config]:
    """Changes knobs within a scope, for this thread or task."""
    token = _OVERRIDE.set(with_options(current(), options))
    try:
        yield current()
    finally:
        _OVERRIDE.reset(token)
