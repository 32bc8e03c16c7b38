"""Training steps compiled whole: torch's optimizers are captured and update as in eager."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, foreach=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}
#: On lists: what a GPU does by default. Sizes of steps are tensors while compiled.
ON_LISTS = {
    "adam on lists": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "adamw on lists": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "nadam on lists": lambda p: torch.optim.NAdam(p, lr=0.01, foreach=True),
    "adamax on lists": lambda p: torch.optim.Adamax(p, lr=0.01, foreach=True),
}
OPTIMIZERS |= ON_LISTS


def trained(
    compile_step: Callable[[Any], Any], model: torch.nn.Module, name: str
) -> list[torch.Tensor]:
    """The parameters after five steps, then the losses."""
    model = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    inputs = torch.linspace(-1, 1, 32, dtype=next(model.parameters()).dtype).reshape(4, 8)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compile_step(step)
    losses = [step() for _ in range(5)]
    return [*(p.detach() for p in model.parameters()), *losses]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_equals_eager(name: str) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    model = torch.nn.Sequential(*layers)
    eager = trained(lambda step: step, model, name)
    compiled = trained(jitney.compile, model, name)
    torch.testing.assert_close(compiled, eager, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", [*ON_LISTS, "sgd", "adam", "adamw", "fused adam", "fused sgd"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_step_is_part_of_the_graph_around_it(name: str, dynamic: bool | None) -> None:
    torch.manual_seed(0)

    def trained_around(compile_step: Callable[..., Any]) -> list[torch.Tensor]:
        model = torch.nn.Linear(8, 3)
        model.load_state_dict(weights)
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            before = model(x).detach()
            optimizer.step()
            return model(x).square().mean() + before.mean()  # gradients of the new weights

        step = compile_step(step)
        losses = []
        model(torch.ones(2, 8)).sum().backward()
        for rows in (4, 4, 5):
            loss = step(torch.linspace(-1, 1, 8 * rows).reshape(rows, 8))
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.detach())
        return [*(p.detach() for p in model.parameters()), *losses]

    weights = torch.nn.Linear(8, 3).state_dict()
    eager = trained_around(lambda step: step)
    compiled = trained_around(lambda step: jitney.compile(step, dynamic=dynamic, fullgraph=True))
    torch.testing.assert_close(compiled, eager, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", [*ON_LISTS, "adam", "adamw", "radam"])
def test_sizes_of_steps_are_computed_in_64_bits(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3).double()
    eager = trained(lambda step: step, model, name)
    compiled = trained(jitney.compile, model, name)
    torch.testing.assert_close(compiled, eager, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ON_LISTS)
def test_steps_on_lists_do_not_fail_with_stand_ins(name: str) -> None:
    torch.manual_seed(0)
    log.clear()
    trained(jitney.compile, torch.nn.Linear(8, 3), name)
    breaks = log.events("graph_break")
    assert breaks and all(e.data["break_kind"] != "torch-call-failed" for e in breaks)


def test_scales_of_lists_given_as_a_tensor_are_not_read() -> None:
    def f(xs: Any, ys: Any, scales: torch.Tensor) -> Any:
        torch._foreach_addcdiv_(xs, ys, ys, scales)
        return torch._foreach_addcmul(xs, ys, ys, scales)

    lists = [[torch.rand(n) + 1 for n in (3, 4)] for _ in range(2)]
    expected = f(copy.deepcopy(lists[0]), lists[1], torch.tensor([0.5, 2.0]))
    compiled = jitney.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(*lists, torch.tensor([0.5, 2.0])), expected)


def test_tensors_for_numbers_are_refused_as_in_eager() -> None:
    def f(xs: Any, scales: list[torch.Tensor]) -> Any:
        return torch._foreach_addcmul(xs, xs, xs, scales)

    with pytest.raises(TypeError, match="invalid combination"):
        jitney.compile(f)([torch.rand(2)], [torch.tensor(2.0)])


def test_a_call_for_compilers_that_torch_refuses_is_not_made() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return torch.add([y], 1) if torch.compiler.is_compiling() else y * 2

    x = torch.rand(3)
    torch.testing.assert_close(jitney.compile(f)(x), (x + 1) * 2)


def test_scale_given_as_a_tensor_is_not_read() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        changed = x.clone()
        changed.addcdiv_(x, y, value=-y.sum())
        return changed, torch.addcmul(x, y, y, value=y.mean())

    x, y = torch.rand(6) + 1, torch.rand(6) + 1
    expected = f(x, y)
    torch.testing.assert_close(jitney.compile(f, fullgraph=True)(x, y), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_a_scale_in_a_tensor_is_what_its_number_is(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        changed = x.clone().addcmul_(x, y, value=scale)
        quotient = torch.addcdiv(x, x, y, value=scale) if x.is_floating_point() else x
        return changed, quotient, torch.addcmul(x, x, y, value=scale)

    made = torch.Generator().manual_seed(3)
    x, y = (torch.randn(70, generator=made).mul(4).to(dtype) for _ in range(2))
    for scale in (torch.tensor(2.5), torch.tensor(0.3).double(), torch.tensor(3)):
        got = jitney.compile(f)(x, y, scale)
        torch.testing.assert_close(got, f(x, y, scale), rtol=0, atol=0, equal_nan=True)
    with pytest.raises(TypeError, match="must be Number"):
        jitney.compile(f)(x, y, torch.tensor([2.5]))


def test_power_operator_reaches_other_backends() -> None:
    compiled = jitney.compile(lambda x: (x**2, 2.0**x), backend="eager", fullgraph=True)
    x = torch.tensor([1.0, 3.0])
    torch.testing.assert_close(compiled(x), (x**2, 2.0**x))


def test_profiler_labels_do_not_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.profiler.record_function("label"):
            return x.sin() + 1

    x = torch.randn(3)
    torch.testing.assert_close(jitney.compile(f, fullgraph=True)(x), f(x))


def test_an_error_behind_a_break_leaves_a_profiler_label() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.profiler.record_function("label"):
            y = x.sin()
            jitney.graph_break()
            return y @ torch.ones(4)

    with pytest.raises(RuntimeError, match="size"):
        jitney.compile(f)(torch.randn(3))


BY_VALUES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "ASGD": lambda p: torch.optim.ASGD(p, foreach=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "RAdam": lambda p: torch.optim.RAdam(p),
}


@pytest.mark.parametrize("name", BY_VALUES)
def test_steps_that_look_at_values_are_eagers_at_one_break(name: str) -> None:
    def trained_by(compile_step: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        optimizer = BY_VALUES[name](model.parameters())
        inputs = torch.linspace(-1, 1, 32).reshape(4, 8)

        def evaluate() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        def step() -> Any:
            loss: Any = optimizer.step(evaluate)  # type: ignore[arg-type]
            return loss * 2

        step = compile_step(step)
        losses = [step().detach() for _ in range(5)]
        return [*(p.detach() for p in model.parameters()), *losses]

    eager = trained_by(lambda step: step)
    log.clear()
    compiled = trained_by(jitney.compile)
    torch.testing.assert_close(compiled, eager, rtol=2e-5, atol=2e-6)
    reasons = [e.data["reason"] for e in log.events("graph_break")]
    assert f"{name}.step looks at the values of tensors on its way" in reasons
    assert len(reasons) == 3 and not log.events("recompile")  # zero_grad(), backward()
    assert any("evaluate" in e.data["function"] for e in log.events("entry"))  # is compiled too


@pytest.mark.parametrize("name", BY_VALUES)
def test_a_scheduler_s_wrapper_of_such_a_step(name: str) -> None:
    """It has the step's name, and is given no optimizer."""
    optimizer = BY_VALUES[name]([torch.nn.Parameter(torch.ones(2))])
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    given = [lambda: torch.tensor(1.0)] if name == "LBFGS" else []
    log.clear()
    jitney.compile(lambda: optimizer.step(*given))()
    reasons = [e.data["reason"] for e in log.events("graph_break")]
    assert f"{name}.step looks at the values of tensors on its way" in reasons


@pytest.mark.parametrize("fused", [False, True])
def test_marks_that_torch_compile_leaves_are_not_the_users(fused: bool) -> None:
    torch.compile(torch.sin, backend="eager")(torch.ones(3))
    assert torch.optim.AdamW._init_group.__dict__.get("_torchdynamo_disable")
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    jitney.compile(torch.optim.AdamW([p], fused=fused).step, fullgraph=True)()
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.99899))


def test_a_function_that_torch_disables_is_one_break() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = torch.optim.SGD([p])

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        optimizer.zero_grad()
        return y + 1

    log.clear()
    torch.testing.assert_close(jitney.compile(f)(torch.ones(2)), torch.full((2,), 3.0))
    assert p.grad is None
    reasons = [e.data["reason"] for e in log.events("graph_break")]
    assert reasons == ["torch disables Optimizer.zero_grad for compilers"]


def test_fused_steps_that_torch_disables_on_a_gpu_are_captured() -> None:
    """What `torch.optim.adam.adam` calls where steps are counted on a GPU."""
    adam = importlib.import_module("torch.optim.adam").adam
    disabled = dict(zip(adam.__code__.co_freevars, adam.__closure__))["disabled_func"].cell_contents
    made = [[torch.ones(3)] for _ in range(4)]
    options = {"beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.0, "eps": 1e-8}

    def f() -> torch.Tensor:
        disabled(*made, [], [torch.zeros(())], fused=True, amsgrad=False, maximize=False, **options)
        return made[0][0] * 2

    with torch.no_grad():
        doubled = jitney.compile(f, fullgraph=True)()
    torch.testing.assert_close(doubled, made[0][0] * 2)
    assert made[0][0][0] < 1


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"norm_type": float("inf")}])
def test_gradients_are_clipped_within_the_graph(options: dict[str, Any]) -> None:
    """torch groups them by their kinds in C++."""

    def clip(parameters: list[torch.Tensor]) -> Any:
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0, **options)
        torch.nn.utils.clip_grad_value_(parameters, 0.2)
        return norm, torch.nn.utils.get_total_norm(p.grad for p in parameters if p.grad is not None)

    compiled = jitney.compile(clip, fullgraph=True)
    for seed in range(2):
        found = []
        for function in (compiled, clip):
            torch.manual_seed(seed)
            parameters = [torch.randn(3, n, requires_grad=True) for n in (2, 4, 1)]
            for p in parameters[seed:]:
                p.grad = torch.randn_like(p)
            found.append((function(parameters), [p.grad for p in parameters]))
        torch.testing.assert_close(*found)


def test_gradients_of_several_dtypes_are_grouped_by_torch() -> None:
    def clip(parameters: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    found = []
    for function in (jitney.compile(clip), clip):
        parameters = [
            torch.ones(3, dtype=t, requires_grad=True) for t in (torch.float32, torch.float64)
        ]
        for p in parameters:
            p.grad = torch.full_like(p, 2.0)
        found.append((function(parameters), [p.grad for p in parameters]))
    torch.testing.assert_close(*found)
