"""Judges that come with torch: its databases of modules, optimizers, autograd functions and
custom ops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.conformance.noise import Move
from tests.conformance.programs import Compile, Program, Skipped, run_module
from tests.equal import fresh, run

STEPS = 5


def module_names() -> list[str]:
    """Names of module_db."""
    return [info.name for info in modules()]


def modules() -> list[Any]:
    """module_db's entries."""
    from torch.testing._internal.common_modules import module_db

    return list(module_db)


def module_programs(name: str) -> Iterator[Program]:
    """A module's float32 inputs, in evaluation and in training, with gradients."""
    info = next(info for info in modules() if info.name == name)
    for training in (False, True):
        made = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        for number, given in enumerate(made):
            if given.forward_input is None:
                continue
            torch.manual_seed(0)
            module = info.module_cls(
                *given.constructor_input.args, **given.constructor_input.kwargs
            ).train(training)
            inputs = (given.forward_input.args, given.forward_input.kwargs)
            mode = "training" if training else "evaluation"
            yield Program(f"{mode} {number}", partial(run_module, module, inputs, True))


def optimizer_names() -> list[str]:
    """Names of optim_db."""
    return [info.optim_cls.__name__ for info in optimizers()]


def optimizers() -> list[Any]:
    """optim_db's entries."""
    from torch.testing._internal.common_optimizers import optim_db

    return list(optim_db)


def optimizer_programs(name: str) -> Iterator[Program]:
    """`STEPS` steps of a small net, forward and backward within, for each set of options."""
    info = next(info for info in optimizers() if info.optim_cls.__name__ == name)
    if info.only_supports_sparse_grads:
        raise Skipped("takes sparse gradients only")
    for number, given in enumerate(info.optim_inputs_func(device="cpu", dtype=torch.float32)):
        yield Program(f"{number} {given.desc}", partial(run_optimizer, info, given.kwargs))


def run_optimizer(info: Any, options: dict[str, Any], compile_: Compile, change: Move) -> Any:
    """The parameters after some compiled steps."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    net, x = net._apply(change), change(torch.randn(6, 5))
    optimizer = info.optim_cls(net.parameters(), **fresh(options))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        return loss

    def step() -> None:
        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()

    compiled = compile_(step)
    for _ in range(STEPS):
        compiled()
    return [parameter.detach() for parameter in net.parameters()]


def function_names() -> list[str]:
    """Names of autograd_function_db and custom_op_db."""
    return [info.name for info in functions()]


def functions() -> list[Any]:
    """The entries of both databases."""
    from torch.testing._internal.autograd_function_db import autograd_function_db
    from torch.testing._internal.custom_op_db import custom_op_db

    return [*autograd_function_db, *custom_op_db]


def function_programs(name: str) -> Iterator[Program]:
    """A function's samples with their gradients."""
    info = next(info for info in functions() if info.name == name)
    samples = info.sample_inputs("cpu", torch.float32, requires_grad=True)
    for number, sample in enumerate(samples):
        inputs = ((sample.input, *sample.args), sample.kwargs)
        yield Program(f"sample {number}", partial(run_function, info.op, inputs))


def run_function(op: Any, inputs: Any, compile_: Compile, change: Move) -> Any:
    """Result and gradients of one call."""

    def call(args: Any, kwargs: Any) -> Any:
        return op(*args, **kwargs)

    return run(compile_(call), fresh(tree_map(change, inputs)), True)
