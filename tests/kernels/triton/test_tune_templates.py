"""Whose kernel a product or an attention gets, by measurement: asked once, remembered, right."""

import pytest
import torch

pytest.importorskip("triton")

from jitney import gpu_pipeline
from jitney.disk_cache import DiskCache
from jitney.kernels.triton import tune_templates
from jitney.kernels.triton.choose_templates import Kernel, Template, possible_templates
from jitney.kernels.triton.tune import Tuner
from jitney.loops.interpret import interpret
from jitney.loops.ir import Attention, Extern, Gemm
from jitney.loops.plan_memory import plan_memory
from jitney.loops.verify import verify
from tests.kernels.triton.interpreted import H200, run_kernels
from tests.loops.lowered import lower_for, on_cpu, trace

BF16 = torch.bfloat16
LIBRARY = Template(Kernel.LIBRARY)


def two_layers(x, first, second, third, bias):
    for _ in range(2):
        x = torch.nn.functional.gelu(torch.addmm(bias, x, first.t()))
        a, b = x @ second.t(), x @ third.t()
        x = a * b + x
    return x


def operands():
    torch.manual_seed(0)
    matrices = [torch.randn(1024, 1024, dtype=BF16) / 32 for _ in range(3)]
    return [torch.randn(32, 1024, dtype=BF16), *matrices, torch.randn(1024, dtype=BF16)]


def lowered(fn, *args):
    return lower_for(trace(fn, *args), H200)[0]


class Costs:
    """Measures by a function of the templates; notes what is built."""

    def __init__(self, monkeypatch, cost):
        self.built = []
        monkeypatch.setattr(tune_templates, "GpuProgram", lambda plan, _: plan)
        monkeypatch.setattr(tune_templates, "microseconds", lambda run: cost(run()[0]))
        monkeypatch.setattr(tune_templates._Bench, "_operands", lambda _: [()])

    def build(self, excerpt, templates):
        self.built.append(ways := tuple(templates.values()))
        return lambda: lambda *_: ways


def test_equal_layers_are_asked_once_and_another_process_remembers(monkeypatch, tmp_path):
    program = lowered(two_layers, *operands())
    costs = Costs(monkeypatch, lambda ways: 1e3 * (1 + (set(ways) != {LIBRARY})))
    for _ in range(2):
        tuner = Tuner("gpu", DiskCache(tmp_path))
        found = tune_templates.fastest_templates(program, H200, tuner, costs.build)
        assert list(found.values()) == [LIBRARY] * 6
    singles = [ways for ways in costs.built if len(ways) == 1]
    pairs = [ways for ways in costs.built if len(ways) == 2]
    assert len(singles) == len(set(singles)) > 2 and len(pairs) == len(set(pairs)) > 2
    chosen = gpu_pipeline.with_templates(program, H200, found)
    assert not any(isinstance(node, Gemm) for node in chosen.nodes)
    assert any(isinstance(node, Gemm) for node in gpu_pipeline.transform(program, H200).nodes)


def test_without_time_the_models_decide(monkeypatch):
    program = lowered(two_layers, *operands())
    costs = Costs(monkeypatch, lambda ways: 1.0)
    tuner = Tuner("gpu", None, 0.0)
    assert tune_templates.fastest_templates(program, H200, tuner, costs.build) == {}
    assert not costs.built


def test_what_is_kept_on_disk_keeps_its_names():
    program = lowered(lambda x, w: x @ w.t(), *operands()[:2])
    possible = possible_templates(program, H200)
    ((name, ways),) = possible.items()
    assert repr(ways[:2]) == f"('tiles {ways[0].splits}', 'library')"
    question = tune_templates._question(program, (name,), possible)
    assert question.key.startswith(f"templates ('tiles {ways[0].splits}',) of [Gemm(")


def test_every_template_computes_the_same():
    args = operands()
    program = lowered(lambda x, w, bias: torch.nn.functional.gelu(torch.addmm(bias, x, w.t())),
                      *args[:2], args[4])  # fmt: skip
    (name,) = (node.name for node in program.nodes if isinstance(node, Gemm))
    possible = possible_templates(program, H200)
    assert {LIBRARY, *(Template(Kernel.TILES, n) for n in (1, 2, 4))} <= set(possible[name])
    question = tune_templates._question(program, (name,), possible)
    assert len(question.excerpt.nodes) == 2  # with what reads the product
    want = interpret(on_cpu(program), {}, (*args[:2], args[4]))[0]
    given = dict(zip(program.arguments, (*args[:2], args[4]), strict=True))
    for (way,) in question.candidates:
        made = gpu_pipeline.with_templates(question.excerpt, H200, {name: way})
        made = plan_memory(made)
        verify(made)
        (got,) = run_kernels(on_cpu(made), {}, tuple(given[n] for n in made.arguments))
        torch.testing.assert_close(got.view(want.shape), want, rtol=2e-2, atol=2e-2)


def test_attention_may_become_the_librarys():
    q, k, v = (torch.randn(8, 12, 128, 64, dtype=BF16) for _ in range(3))
    program = lowered(torch.nn.functional.scaled_dot_product_attention, q, k, v)
    (node,) = (node for node in program.nodes if isinstance(node, Attention))
    assert possible_templates(program, H200)[node.name] == (Template(Kernel.OWN), LIBRARY)
    made = gpu_pipeline.with_templates(program, H200, {node.name: LIBRARY})
    assert any("attention" in n.target for n in made.nodes if isinstance(n, Extern))
