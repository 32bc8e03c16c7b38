"""A graph on a GPU to machine code for sm_90, with no GPU present."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from jitney import gpu_pipeline
from jitney.errors import Unsupported
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.launch_plan import plan_launches
from jitney.kernels.triton.load_binary import Binary
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.loops import ir
from jitney.loops.index import Axis, Dim, index
from jitney.loops.target import Target

SCRIPT = """
import pickle
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from jitney import config, graph_pipeline
from jitney.events import log
from jitney.loops.target import Target
from torch.utils._pytree import tree_map_only

H200 = Target(kind="cuda", name="H200", multiprocessors=132, l2=50 << 20, shared_memory=232448,
              capability=(9, 0))
graph_pipeline.device_target = lambda number: H200


def f(x, weight, bias, i):
    y = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))
    dropped, _ = torch.ops.aten.native_dropout(y, 0.1, True)
    best = y.float().scatter_reduce(0, y.long() * 0, y.float(), "amax")
    drawn = dropped, torch.randn_like(y), y.cumsum(-1)
    return torch.softmax(y, -1), y.sum(0).sort()[0][i], best, *drawn


tensors = [torch.randn(s, dtype=torch.bfloat16) for s in ((4, 96), (64, 96), (64,))]
tensors.append(torch.tensor([5, 63]))
graph = make_fx(f, tracing_mode="fake")(*tensors)


def on_gpu(fake):
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="cuda:0")


tensors_mode = next(iter(graph.graph.nodes)).meta["val"].fake_mode
for node in graph.graph.nodes:
    with tensors_mode:
        node.meta["val"] = tree_map_only(torch.Tensor, on_gpu, node.meta.get("val"))
built = []
for _ in range(2):
    with config.override(verify=True, cuda_graphs=True) as options:
        built.append(graph_pipeline.start_graph(graph, options)())
plan = pickle.loads(pickle.dumps(built[0])).code.plan
assert plan == built[1].code.plan
assert {c.kernel for c in plan.calls} == set(plan.binaries)
assert all(b.code[:4] == b"\\x7fELF" for b in plan.binaries.values())
assert sum(b"__assertfail" in b.code for b in plan.binaries.values()) == 1
extern = built[0].counts.extern
assert set(extern) == {"aten.sort.default"}, extern
assert built[0].code.replay.draws == (2,)
print(len(plan.binaries), len(log.events("kernel")))
"""


def test_a_graph_becomes_data_and_each_kernel_is_built_once(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"JITNEY_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kernels, compiled = done.stdout.split()
    assert int(kernels) > 0
    assert kernels == compiled


H200 = Target(kind="cuda", name="H200", capability=(9, 0))


def doubling(dtype: torch.dtype, *devices: str) -> ir.LoopProgram:
    """``out = x + x`` with x and out on ``devices``."""
    axis = Axis("i", index(8))
    buffers = tuple(
        ir.Buffer(name, kind, dtype, torch.device(device), (index(8),), (index(1),))
        for name, kind, device in zip(("x", "out"), ("input", "output"), devices, strict=True)
    )
    load = ir.Load("x", index(axis), dtype)
    store = ir.Store("out", index(axis), ir.Op("add", (load, load), dtype))
    return ir.LoopProgram(("x",), buffers, (ir.LoopNest("n", (axis,), (store,), ()),), ())


@pytest.mark.parametrize(
    ("program", "target", "kind"),
    [
        (doubling(torch.bfloat16, "cuda:0", "cuda:0"), replace(H200, capability=(7, 5)), "no-bf16"),
        (doubling(torch.float32, "cuda:0", "cuda:0"), replace(H200, capability=(7, 0)), "old-gpu"),
        (doubling(torch.float32, "cuda:0", "cuda:1"), H200, "several-gpus"),
    ],
)
def test_what_kernels_cannot_run_is_left_to_eager(
    program: ir.LoopProgram, target: Target, kind: str
) -> None:
    pytest.importorskip("triton")
    with pytest.raises(Unsupported) as caught:
        gpu_pipeline.check_runnable(program, target)
    assert caught.value.kind == kind


def test_symbolic_sizes_are_read_off_the_arguments() -> None:
    size = Dim("s0", low=2, hint=8)
    axis, kept = Axis("i", index(size)), doubling(torch.float32, "cuda:0", "cuda:0")
    buffers = tuple(replace(b, shape=(index(size),)) for b in kept.buffers)
    (nest,) = kept.nodes
    assert isinstance(nest, ir.LoopNest)
    load = ir.Load("x", index(axis), torch.float32)
    store = ir.Store("out", index(axis), ir.Op("add", (load, load), torch.float32))
    program = replace(kept, buffers=buffers, nodes=(replace(nest, axes=(axis,), body=(store,)),))
    source = emit_nest(program.nodes[0], schedule_nest(program.nodes[0], H200))
    binaries = {source.key: Binary("kernel", b"", 0, 4)}
    plan = plan_launches(program, {"n": (source,)}, binaries)
    assert [(s.dim, s.position, s.axis) for s in plan.sizes] == [(size, 0, 0)]
    assert "s0" in plan.calls[0].parameters


def test_plain_programs_are_runnable() -> None:
    pytest.importorskip("triton")
    gpu_pipeline.check_runnable(doubling(torch.bfloat16, "cuda:0", "cuda:0"), H200)


def test_a_number_on_the_cpu_is_not_recorded() -> None:
    program = doubling(torch.float32, "cuda:0", "cuda:0")
    number = ir.Buffer("factor", "input", torch.float32, torch.device("cpu"), (), ())
    view = ir.BufferView("factor", (), ())
    product = ir.Extern("e", "aten.mul.Tensor", (view, 2.0), (), ("product",))
    made = replace(number, name="product", kind="extern", device=torch.device("cuda", 0))
    changed = replace(
        program,
        arguments=("x", "factor"),
        buffers=(*program.buffers, number, made),
        nodes=(*program.nodes, product),
    )
    graph = torch.fx.Graph()
    graph.output((graph.placeholder("x"), graph.placeholder("factor")))
    gm = torch.fx.GraphModule({}, graph)
    facts = gpu_pipeline.replay_facts(gm, changed)
    assert facts.refused == "factor lives on the CPU"
    assert facts.device == torch.device("cuda", 0)
    unread = gpu_pipeline.replay_facts(gm, replace(changed, nodes=program.nodes))
    assert unread.refused == ""
