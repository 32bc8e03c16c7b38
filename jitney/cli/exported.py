"""The peers that run an exported graph: ONNX Runtime and OpenVINO. Inference, fixed shapes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from jitney.cli.workloads import Task


def arguments_of(task: Task) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What one step passes to the module."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def recorder(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return task.module(*args, **kwargs)

    task.step(recorder)
    task.reset()
    return seen[0]


def exported(task: Task) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module with its arguments, the cache output of text models switched off."""
    args, kwargs = arguments_of(task)
    module = task.module
    assert isinstance(module, torch.nn.Module)
    if hasattr(module, "config") and "input_ids" in kwargs:
        kwargs = {**kwargs, "use_cache": False}
    return module, args, kwargs


def onnx_runtime_callable(task: Task) -> Callable[..., Any]:
    """A session over the exported model; returns the first output as a tensor."""
    import onnxruntime

    module, args, kwargs = exported(task)
    folder = tempfile.mkdtemp(prefix="jitney-onnx-")
    file = str(Path(folder) / "model.onnx")
    torch.onnx.export(module, args, file, kwargs=kwargs, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    values = [t.numpy() for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    feed = dict(zip(names, values, strict=True))
    return lambda *_, **__: torch.from_numpy(session.run(None, feed)[0])


def openvino_callable(task: Task) -> Callable[..., Any]:
    """A model converted from torch.export and compiled for latency; returns the first output."""
    import openvino

    module, args, kwargs = exported(task)
    program = torch.export.export(module, args, kwargs)
    model = openvino.convert_model(program)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    values = [t.numpy() for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    return lambda *_, **__: torch.from_numpy(request.infer(values)[0])
