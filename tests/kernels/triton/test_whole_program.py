"""Whole models through the GPU's passes and kernels, run in Triton's interpreter, against eager."""

import pytest
import torch

pytest.importorskip("triton")

import jitney
from jitney import gpu_pipeline
from jitney.graph.fold_attention_masks import fold_attention_masks
from jitney.graph.stitch import stitch
from jitney.graph.trace_region import trace_region
from jitney.kernels.triton import build_program as building
from jitney.kernels.triton.compile_kernels import load_function
from jitney.loops import interpret as reference
from jitney.loops import lower_graph as lowering
from jitney.loops.ir import Attention, Extern
from jitney.loops.lowerings import lowered_ops
from jitney.loops.plan_memory import plan_memory
from jitney.loops.target import Target

transformers = pytest.importorskip("transformers")

SMALL_GPU = Target("cuda", "a GPU", multiprocessors=4, capability=(9, 0))


class NoKernels:
    """In place of kernels for a GPU."""

    def __init__(self, *_):
        pass

    def give(self, sources):
        pass

    def end(self):
        pass

    def finish(self):
        return {}


class Interpreted:
    """The backend of a GPU whose kernels run in Triton's interpreter, on the CPU's memory."""

    def __init__(self, monkeypatch):
        # The graph's tensors say "cpu", which the checks of a GPU's path would refuse.
        monkeypatch.setattr(lowering, "_check_tensors", lambda *_: None)
        monkeypatch.setattr(gpu_pipeline, "check_runnable", lambda *_: None)
        monkeypatch.setattr(building, "KernelBuild", NoKernels)
        monkeypatch.setattr(building, "plan_launches", lambda _, sources, *rest: (sources, rest))
        self.programs = []

    def __call__(self, gm, example_inputs):
        region = trace_region(fold_attention_masks(gm), example_inputs, keep=lowered_ops())
        program, constants = lowering.lower_graph(region.forward, SMALL_GPU)
        program = plan_memory(gpu_pipeline.transform(program, SMALL_GPU))
        sources, (_, scratch) = building.start_program(program, SMALL_GPU).finish()
        self.programs.append(program)

        def run(*args):
            machine = reference._Machine(program, constants, args)
            for extra in scratch:
                machine.flat[extra.name] = torch.full((extra.elements,), float("nan"))
            for node in program.nodes:
                if isinstance(node, Extern):
                    machine.run(node)
                for source in sources.get(node.name, ()):
                    launch(source, machine.flat)
            return tuple(machine.output(out) for out in program.outputs)

        return stitch(region.facts, run, None)


def launch(source, tensors):
    text = source.text(interpret=True)
    kernel = load_function(text)
    kernel[tuple(int(g) for g in source.grid)](*[tensors[p.name] for p in source.parameters])


@torch.no_grad()
def test_decode_steps_of_llama(monkeypatch):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=19, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    backend = Interpreted(monkeypatch)
    logits = []
    for call in (model, jitney.compile(model, backend=backend)):
        cache = transformers.StaticCache(config=config, max_cache_len=16)
        given = {"past_key_values": cache, "use_cache": True}
        model(input_ids=torch.tensor([[3, 1, 4]]), **given)
        for position, token in enumerate([1, 5], 3):
            given["position_ids"] = torch.tensor([[position]])
            logits.append(call(input_ids=torch.tensor([[token]]), **given).logits)
    torch.testing.assert_close(logits[2:], logits[:2], rtol=1e-4, atol=1e-4)
    (program,) = backend.programs
    assert any(isinstance(n, Attention) for n in program.nodes)
    assert not any(isinstance(n, Extern) for n in program.nodes)
