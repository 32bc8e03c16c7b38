"""What compiled modules are to the rest of the program."""

from __future__ import annotations

import abc
import copy
import gc
import inspect
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log


def use_once() -> tuple[weakref.ref, weakref.ref]:
    held = torch.nn.Linear(3, 3)

    class Local(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return held(x)

    one, other = (jitney.compile(Local(), backend="eager") for _ in range(2))
    assert type(one) is type(other) and torch.equal(one(torch.ones(2, 3)), held(torch.ones(2, 3)))
    return weakref.ref(Local), weakref.ref(held)


def test_a_class_defined_in_a_function_is_let_go() -> None:
    local, held = use_once()
    gc.collect()
    assert local() is None and held() is None


def test_a_models_finalizer_waits_for_the_model() -> None:
    finalized = []

    class Closing(torch.nn.Linear):
        def __del__(self) -> None:
            finalized.append(type(self))

    model = Closing(2, 2)
    jitney.compile(model)(torch.ones(1, 2))
    gc.collect()
    assert finalized == []
    del model
    gc.collect()
    assert finalized == [Closing]


def test_a_shallow_copy_has_attributes_of_its_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiled = jitney.compile(model, backend="eager")
    copied = copy.copy(compiled)
    copied.training = False
    assert model.training and compiled.training
    assert copied[0] is model[0] and torch.equal(copied(torch.ones(2)), model(torch.ones(2)))


def test_what_load_state_dict_raises_names_the_models_class() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiled = jitney.compile(model)
    with pytest.raises(RuntimeError, match="loading state_dict for Sequential:"):
        compiled.load_state_dict({"x": torch.ones(1)})
    assert compiled.load_state_dict(model.state_dict(), strict=True).missing_keys == []


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        return x + 1 if labels is None else x - labels


def test_forward_of_the_class_is_the_models_own() -> None:
    """transformers' Trainer looks at the signature of a model's class."""
    compiled = jitney.compile(Model(), backend="eager")
    assert type(compiled).forward is Model.forward
    assert list(inspect.signature(type(compiled).forward).parameters) == ["self", "x", "labels"]
    assert list(inspect.signature(compiled.forward).parameters) == ["x", "labels"]
    x = torch.ones(3)
    assert torch.equal(type(compiled).forward(compiled, x, x), x - x)
    compiled.forward = lambda x: x * 3
    assert torch.equal(compiled(x), x * 3)


class Calling(torch.nn.Linear):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x + 1)


def doubles(module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
    return output * 2


@pytest.mark.parametrize("kind", [torch.nn.Linear, Calling])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "hook",
    [
        lambda m: None,
        lambda m: m.register_forward_hook(doubles),
        lambda m: m.register_forward_pre_hook(lambda _, args: (args[0] - 3,)),
        lambda m: m.register_full_backward_hook(lambda _, grads, __: (grads[0] * 2,)),
        lambda m: m.register_backward_hook(lambda _, grads, __: tuple(g * 2 for g in grads)),
        lambda m: torch.nn.modules.module.register_module_forward_hook(doubles),
    ],
)
def test_compiled_in_place_with_hooks(
    hook: Callable[..., Any], kind: Callable[..., torch.nn.Module], within: bool
) -> None:
    """``within``: the module is called in a compiled function."""
    module = kind(3, 3)
    call = jitney.compile(lambda x: module(x) * 3) if within else module
    x = torch.randn(2, 3, requires_grad=True)
    handle = hook(module)

    def results() -> list[torch.Tensor]:
        output = call(x)
        return [output, *torch.autograd.grad(output.sum(), (x, *module.parameters()))]

    try:
        with jitney.set_stance("force_eager"):
            expected = results()
        jitney.compile_in_place(module)
        for _ in range(2):
            assert all(map(torch.allclose, results(), expected))
    finally:
        if handle is not None:
            handle.remove()


def test_compiled_in_place_takes_hooks_later() -> None:
    module, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    jitney.compile_in_place(module, fullgraph=True)
    once = module(x)
    with module.register_forward_hook(doubles):
        assert torch.allclose(module(x), once * 2)
    assert torch.equal(module(x), once)
    assert jitney.compile(lambda x: module(x), fullgraph=True)(x).shape == once.shape


def test_forward_in_compiled_code_is_the_originals() -> None:
    module, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    compiled = jitney.compile(module, fullgraph=True)
    forward = compiled.forward
    for step in (lambda x: forward(x) * 2, lambda x: compiled.forward(x) * 2):
        log.clear()
        assert torch.allclose(jitney.compile(step, fullgraph=True)(x), module(x) * 2)
        assert [e.kind for e in log.events()].count("entry") == 1
    compiled.forward = lambda x: forward(x) * 3
    log.clear()
    assert torch.allclose(compiled(x), torch.nn.functional.linear(x, *module.parameters()) * 3)
    assert [e.kind for e in log.events()].count("entry") == 1


class Counting(torch.nn.Module):
    n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x * self.n


def test_forward_in_code_that_torch_compiles() -> None:
    compiled = jitney.compile(Counting(), fullgraph=True)
    forward = compiled.forward
    steps = (lambda x: compiled.forward(x) * 2), (lambda x: forward(x) * 2)
    for n, step in enumerate(steps):
        call = torch.compile(step, backend="eager")
        for i in (1, 2, 3):
            assert torch.equal(call(torch.ones(i)), torch.full([i], 2.0 * (3 * n + i)))
    assert torch.equal(torch.compile(forward, backend="eager")(torch.ones(2)), torch.full([2], 7.0))


def test_methods_of_fsdp_act_on_the_original(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("no torch.distributed")
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor import DTensor

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = fully_shard(torch.nn.Linear(3, 3))
        compiled = jitney.compile(model)
        compiled(torch.ones(2, 3)).sum().backward()
        compiled.set_requires_gradient_sync(False)
        compiled.set_reshard_after_backward(False)
        compiled.unshard()
        assert type(model.weight) is torch.nn.Parameter
        compiled.reshard()
        assert isinstance(model.weight, DTensor)
        compiled.set_modules_to_forward_prefetch([compiled])
        assert compiled.float() is compiled
        assert isinstance(compiled, FSDPModule)
    finally:
        torch.distributed.destroy_process_group()


class Refuses(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise ValueError("three")
        return x + 1


@pytest.mark.parametrize("way", ["compile", "hook", "in place"])
def test_our_frames_are_in_no_traceback(way: str) -> None:
    model: torch.nn.Module = Refuses()
    if way == "hook":
        model.register_forward_hook(lambda *_: None)
    if way == "in place":
        jitney.compile_in_place(model)
    else:
        model = jitney.compile(model)
    with pytest.raises(ValueError, match="three") as caught:
        model(torch.ones(3))
    files = [str(entry.path) for entry in caught.traceback]
    assert files[0] == files[-1] == __file__
    assert not any("/jitney/" in file for file in files)
    with pytest.raises(TypeError, match="takes 2 positional arguments") as missing:
        model(1, 2)
    assert not any("/jitney/" in str(entry.path) for entry in missing.traceback)


def test_a_class_that_watches_its_subclasses_sees_none() -> None:
    seen: list[str] = []

    class Watching(torch.nn.Module):
        def __init_subclass__(cls, *, name: str) -> None:
            seen.append(name)

    class Final(type):
        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
            if any(isinstance(base, Final) for base in bases):
                raise TypeError("a final class")
            return super().__new__(cls, name, bases, members)

    class Watched(Watching, name="watched"):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Last(torch.nn.Module, metaclass=Final):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    for cls in (Watched, Last):
        compiled = jitney.compile(cls())
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert isinstance(compiled, cls) and type(compiled).__name__ == cls.__name__
    assert seen == ["watched"]


def test_an_abstract_class_keeps_what_it_has_found() -> None:
    class Base(torch.nn.Module, abc.ABC):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Derived(Base):
        pass

    compiled, other = jitney.compile(Base()), Derived()
    for _ in range(2):
        assert not isinstance(other, type(compiled))
        assert isinstance(other, Base) and isinstance(compiled, Base)
        assert isinstance(compiled, type(compiled)) and not isinstance(compiled, Derived)


class Slotted(torch.nn.Module):
    __slots__ = ("factor",)

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.bias = 3.0, torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.bias


class Keyed(torch.nn.Module, dict):  # type: ignore[type-arg]
    factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@pytest.mark.parametrize("make", [Slotted, Keyed])
def test_a_class_with_a_layout_of_its_own(make: Callable[[], torch.nn.Module]) -> None:
    model = make()
    compiled = jitney.compile(model)
    assert torch.equal(compiled(torch.ones(2)), model(torch.ones(2)))
    assert isinstance(compiled, jitney.CompiledModule)
    assert compiled.state_dict().keys() == model.state_dict().keys()
    assert not hasattr(model, "factor") or compiled.factor == model.factor
    assert not hasattr(compiled, "missing")
    compiled.factor = 5.0
    assert model.factor == 5.0 and torch.equal(compiled(torch.ones(2)), model(torch.ones(2)))
    del compiled.factor
    assert getattr(model, "factor", 2.0) == getattr(compiled, "factor", 2.0) == 2.0


def test_a_saved_config_names_the_models_class(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, intermediate_size=16)
    config = transformers.BertConfig(num_attention_heads=2, **sizes)
    jitney.compile(transformers.BertModel(config)).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["architectures"] == ["BertModel"]
