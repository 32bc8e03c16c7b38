"""Backends by name: ours, torch's registry and entry points, or any callable."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from jitney import config, torch_api
from jitney.errors import CompilerBug, UserError
from jitney.events import log
from jitney.graph.compute_scalars_apart import compute_scalars_apart
from jitney.graph.floats_again import floats_again, given_floats
from jitney.graph.inline_regions import inline_regions
from jitney.graph.lift_attributes import given_attributes, lift_attributes

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]

_INPUTS = (torch.Tensor, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def jitney_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """The backend ``torch.compile(model, backend="jitney")`` finds by entry point: ``mode`` and
    ``options`` as of ``jitney.compile``."""
    from jitney.region_pipeline import GraphCompiler

    if mode is not None and mode not in config.MODES:
        raise UserError(f"unknown mode {mode!r}; modes are {', '.join(config.MODES)}")
    knobs = {**config.MODES[mode or "default"], **(options or {})}
    others = {type(x).__name__ for x in example_inputs if not isinstance(x, _INPUTS)}
    if others:  # of compiled autograd's graphs
        reason = f"inputs of a graph are a {', a '.join(sorted(others))}"
        log.emit("eager_graph", reason_kind="graph-input", reason=reason)
        return gm.forward
    chosen = config.with_options(config.current(), knobs)
    if config.why_disabled(os.environ):
        return gm.forward
    gm, held = lift_attributes(inline_regions(gm), constant=chosen.freeze)
    floats = floats_again(gm)
    tensors = [holder[name] for holder, name in held]
    try:
        run = GraphCompiler(chosen)(gm, [*example_inputs, *tensors])
    except CompilerBug as bug:
        if not chosen.eager_on_bug:
            raise
        log.emit("eager_graph", reason_kind="bug", reason=str(bug))
        warnings.warn(f"jitney: a graph of torch.compile's runs eager: {bug}", stacklevel=2)
        run = gm.forward
    return given_attributes(given_floats(run, floats, gm.forward), held)


def eager_backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Runs the captured graph as it is."""
    return gm.forward


def list_backends() -> tuple[str, ...]:
    """Names that ``backend=`` accepts."""
    return ("jitney", *sorted({*torch_api.backend_names()} - {"jitney"}))


def _unknown(backend: str) -> str:
    """The message for a name that no backend has."""
    names = list_backends()
    close = difflib.get_close_matches(str(backend), names, 1)
    meant = f": did you mean {close[0]!r}?" if close else ";"
    first = [n for n in ("jitney", "inductor", "eager", "aot_eager") if n in names]
    useful = [*first, *sorted({*torch_api.backend_names(for_debugging=False)} - {*first})]
    more = "jitney.list_backends() has those for debugging too"
    return f"unknown backend {backend!r}{meant} known are {', '.join(useful)}; {more}"


def find_backend(backend: str | Backend, options: dict[str, Any], mode: str | None) -> Backend:
    """The callable for ``backend``; UserError for an unknown name. ``options`` go to backends
    other than ours as torch.compile passes them."""
    if backend == "eager":
        return eager_backend
    if callable(backend):
        given = backend
    elif backend in list_backends():
        given = torch_api.find_backend(backend)
    else:
        raise UserError(_unknown(backend))
    extra: dict[str, Any] = {}
    if options:
        extra["options"] = options
    if mode not in (None, "default"):
        extra["mode"] = mode
    if backend == "inductor":
        given, extra = torch_api.inductor_with(mode, options), {}

    return OtherBackend(given, extra, str(backend))


@dataclass(frozen=True)
class OtherBackend:
    """A backend that is not ours: ``given`` is called with ``extra`` arguments."""

    given: Callable[..., Any]
    extra: dict[str, Any]
    name: str

    @property
    def takes_tensors(self) -> bool:
        """Whether its example inputs are a call's own tensors, which it may compute with, as
        torch's capture gives them; else their fakes, which are all that torch's own look at."""
        function: Any = self.given
        while isinstance(function, partial):
            function = function.func
        module = getattr(function, "__module__", None) or type(function).__module__
        return module == torch_api.COMPUTES_WITH_EXAMPLES or not module.startswith(_WITH_FAKES)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        """Raises what the backend raises; a graph whose symbolic floats it refuses runs eager."""
        return compute_scalars_apart(gm, lambda rest: partial(self._rest, rest, example_inputs))()

    def _rest(self, rest: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        try:
            return partial(_once, self.given(rest, list(example_inputs), **self.extra))
        except (torch_api.symbolic_float_error(), *_errors_of(example_inputs)):
            log.emit("eager_graph", reason_kind="symbolic-float", reason=f"{self.name} takes none")
            return rest.forward


_WITH_FAKES = ("torch.", "jitney.")


def _errors_of(example_inputs: Sequence[Any]) -> tuple[type[Exception], ...]:
    """The errors by which a backend may refuse symbolic floats: torch's partitioner fails an
    assertion of its own. (torch.compile gives it tensors in their place.)"""
    has_floats = any(isinstance(value, torch.SymFloat) for value in example_inputs)
    return (AssertionError,) if has_floats else ()


def _once(graph: Callable[..., Any], *inputs: Any) -> Any:
    results = graph(*inputs)
    torch_api.differentiate_once(results)
    return results
