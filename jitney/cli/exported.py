"""The peers that run an exported graph: ONNX Runtime and OpenVINO. Inference, fixed shapes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from jitney.cli.workloads import Task
from jitney.torch_api import trees


def arguments_of(task: Task) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What one step passes to the module."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def recorder(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return task.module(*args, **kwargs)

    task.step(recorder)
    task.reset()
    return seen[0]


class OfTensors(torch.nn.Module):
    """A module called with tensors alone: everything else of one call is fixed."""

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        super().__init__()
        self.module = module
        leaves, self.spec = trees.tree_flatten((args, kwargs))
        self.fixed = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The first output, a tensor."""
        leaves = list(self.fixed)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = trees.tree_unflatten(leaves, self.spec)
        result = self.module(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[0]


def exported(task: Task) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The module with its tensor arguments, the cache output of text models switched off."""
    args, kwargs = arguments_of(task)
    module = task.module
    assert isinstance(module, torch.nn.Module)
    if hasattr(module, "config") and "input_ids" in kwargs:
        kwargs = {**kwargs, "use_cache": False}
    leaves = trees.tree_leaves((args, kwargs))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return OfTensors(module, args, kwargs).eval(), tensors


def onnx_runtime_callable(task: Task) -> Callable[..., Any]:
    """A session over the exported model; returns the first output as a tensor."""
    import onnxruntime

    module, tensors = exported(task)
    folder = tempfile.mkdtemp(prefix="jitney-onnx-")
    file = str(Path(folder) / "model.onnx")
    torch.onnx.export(module, tensors, file, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    values = [t.numpy() for t in tensors]
    feed = dict(zip(names, values, strict=True))
    return lambda *_, **__: torch.from_numpy(session.run(None, feed)[0])


def openvino_callable(task: Task) -> Callable[..., Any]:
    """A model converted from torch.export and compiled for latency; returns the first output."""
    import openvino

    module, tensors = exported(task)
    program = torch.export.export(module, tensors)
    model = openvino.convert_model(program)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    values = [t.numpy() for t in tensors]
    return lambda *_, **__: torch.from_numpy(request.infer(values)[0])
