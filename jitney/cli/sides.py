"""Who is compared: eager, torch.compile in its modes, Jitney in its modes, ONNX Runtime, OpenVINO.

A side takes a task and gives the callable that stands in the module's place. Same weights, same
dtype, same attention on every side.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from jitney.cli.workloads import Task
from jitney.errors import UserError

Side = Callable[[Task], Callable[..., Any]]


def eager(task: Task) -> Callable[..., Any]:
    """The module as it is."""
    return task.module


def torch_compile(task: Task) -> Callable[..., Any]:
    """Its defaults."""
    return torch.compile(task.module)


def torch_compile_graphs(task: Task) -> Callable[..., Any]:
    """With CUDA graphs."""
    return torch.compile(task.module, mode="reduce-overhead")


def torch_compile_frozen(task: Task) -> Callable[..., Any]:
    """Inductor's freezing with max-autotune: weights folded and packed ahead."""
    return torch.compile(task.module, options={"freezing": True, "max_autotune": True})


def jitney(task: Task) -> Callable[..., Any]:
    """Our defaults."""
    import jitney as package

    return package.compile(task.module)


def jitney_graphs(task: Task) -> Callable[..., Any]:
    """With CUDA graphs."""
    import jitney as package

    return package.compile(task.module, mode="reduce-overhead")


def jitney_frozen(task: Task) -> Callable[..., Any]:
    """Weights laid out once and taken as constants."""
    import jitney as package

    return package.compile(task.module, options={"freeze": True})


def jitney_capture(task: Task) -> Callable[..., Any]:
    """Our capture over Inductor: holds the backend fixed."""
    import jitney as package

    return package.compile(task.module, backend="inductor")


def jitney_backend(task: Task) -> Callable[..., Any]:
    """Our backend under torch.compile: holds capture fixed."""
    return torch.compile(task.module, backend="jitney")


def onnx_runtime(task: Task) -> Callable[..., Any]:
    """Exported to ONNX: see `exported.onnx_runtime_callable`."""
    from jitney.cli.exported import onnx_runtime_callable

    return onnx_runtime_callable(task)


def openvino(task: Task) -> Callable[..., Any]:
    """By torch.export: see `exported.openvino_callable`."""
    from jitney.cli.exported import openvino_callable

    return openvino_callable(task)


SIDES: dict[str, Side] = {
    "eager": eager,
    "torch.compile": torch_compile,
    "torch.compile-graphs": torch_compile_graphs,
    "torch.compile-frozen": torch_compile_frozen,
    "jitney": jitney,
    "jitney-graphs": jitney_graphs,
    "jitney-frozen": jitney_frozen,
    "jitney-capture": jitney_capture,
    "jitney-backend": jitney_backend,
    "onnxruntime": onnx_runtime,
    "openvino": openvino,
}
DEFAULT = ("eager", "torch.compile", "jitney")
GRAPHS = ("eager", "torch.compile-graphs", "jitney-graphs")
FROZEN = ("eager", "torch.compile-frozen", "jitney-frozen")
NEEDS = {"onnxruntime": ("onnxruntime", "onnxscript"), "openvino": ("openvino",)}


def chosen(names: str) -> tuple[str, ...]:
    """Sides from a comma-separated list or a group: default, graphs, frozen, all. UserError for
    one that does not exist."""
    groups = {"default": DEFAULT, "graphs": GRAPHS, "frozen": FROZEN, "all": tuple(SIDES)}
    wanted = groups.get(names) or tuple(n.strip() for n in names.split(",") if n.strip())
    unknown = [n for n in wanted if n not in SIDES]
    if unknown:
        accepted = ", ".join([*groups, *SIDES])
        raise UserError(f"no side called {', '.join(unknown)}; there are: {accepted}")
    return tuple(n for n in wanted if installed(n))


def installed(side: str) -> bool:
    """Are the packages that a side needs there?"""
    return all(importlib.util.find_spec(package) for package in NEEDS.get(side, ()))
