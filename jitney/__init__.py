"""Jitney: a JIT compiler for PyTorch, in Python.

``jitney.compile(model)`` takes what ``torch.compile`` takes.
"""

from __future__ import annotations

from typing import Any

from jitney.diagnostics import listeners

__version__ = "0.1.0"

_API = (
    "CompiledModule",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_in_place",
    "cudagraph_mark_step_begin",
    "disable",
    "graph_break",
    "is_compiling",
    "is_dynamo_compiling",
    "list_backends",
    "load_cache_artifacts",
    "nested_compile_region",
    "options",
    "reset",
    "save_cache_artifacts",
    "set_stance",
    "substitute_in_graph",
)
_MARKS = (
    "mark_dynamic",
    "maybe_mark_dynamic",
    "mark_static",
    "mark_static_address",
    "error_on_graph_break",
    "nonstrict_trace",
)
__all__ = [*_API, *_MARKS, "explain", "__version__"]


def __getattr__(name: str) -> Any:
    """Imports the API on first use, so that ``import jitney.loops`` stays light."""
    if name in _API:
        from jitney import api

        return getattr(api, name)
    if name in _MARKS:
        from jitney import torch_api

        return torch_api.mark_function(name)
    if name == "explain":
        from jitney.diagnostics.explain import explain

        return explain
    raise AttributeError(f"module 'jitney' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is to import, for completion."""
    return sorted(__all__)


listeners.install()
