"""Tensors made of others, by classes of the program (and of libraries for quantization)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jitney
from jitney.events import log
from tests.equal import assert_equal

CALLS: list[str] = []
TABLE: dict[Any, Callable[..., Any]] = {}


class Scaled(Tensor):
    """Eight-bit numbers, and a scale for each row."""

    numbers: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls: Any, numbers: Tensor, scale: Tensor, bits: int = 8) -> Scaled:
        made: Scaled = Tensor._make_wrapper_subclass(
            cls, numbers.shape, dtype=scale.dtype, device=numbers.device
        )
        return made

    def __init__(self, numbers: Tensor, scale: Tensor, bits: int = 8) -> None:
        self.numbers, self.scale, self.bits = numbers, scale, bits

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["numbers", "scale"], self.bits

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, bits: int, *_: Any) -> Scaled:
        return cls(parts["numbers"], parts["scale"], bits)

    def whole(self) -> Tensor:
        return self.numbers.to(self.scale.dtype) * self.scale / (self.bits / 8)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TABLE:
            return TABLE[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.t.default:
            return Turned(args[0].numbers.t(), args[0].scale.t(), args[0].bits)
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(str(func))


class Turned(Scaled):
    """Another class, of which eager asks first."""


def linear(x: Tensor, weight: Scaled, bias: Tensor | None = None) -> Tensor:
    assert isinstance(weight, Scaled) and weight.dim() == 2
    CALLS.append("linear")
    y = (x @ weight.numbers.to(x.dtype).t()) * weight.scale.flatten() / (weight.bits / 8)
    return y if bias is None else y + bias


def product(x: Tensor, weight: Scaled) -> Tensor:
    return x @ weight.whole()


TABLE.update({F.linear: linear, torch.matmul: product, torch.mm: product})


def scaled(rows: int = 4, columns: int = 3, seed: int = 0) -> Scaled:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-100, 100, (rows, columns), generator=generator, dtype=torch.int8)
    return Scaled(numbers, torch.rand(rows, 1, generator=generator) + 0.5)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 5), nn.LayerNorm(5))
    for at, layer in enumerate((model[0], model[2])):
        weight = scaled(*layer.weight.shape, seed=at)
        layer.weight = nn.Parameter(weight, requires_grad=False)
    return model


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    CALLS.clear()


def same(compiled: Callable[..., Any], eager: Callable[..., Any], *args: Any) -> None:
    torch.testing.assert_close(compiled(*args), eager(*args), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_model_with_quantized_weights_is_one_graph(dynamic: bool | None) -> None:
    model = net()
    compiled = jitney.compile(model, fullgraph=True, dynamic=dynamic)
    for rows in (2, 2, 5, 7):
        same(compiled, model, torch.randn(rows, 3))
    entries = [e for e in log.events("entry") if e.data["nodes"]]
    assert len(entries) <= 2 and type(model[0].weight) is Scaled


def test_what_the_class_does_besides_is_done_at_each_call() -> None:
    model = net()
    compiled = jitney.compile(model)
    for _ in range(3):
        compiled(torch.randn(2, 3))
    assert CALLS == ["linear"] * 6


def test_changes_are_noticed() -> None:
    model, x = net(), torch.randn(2, 3)
    compiled, weight = jitney.compile(model, fullgraph=True), model[0].weight
    same(compiled, model, x)
    weight.numbers.mul_(-1)
    same(compiled, model, x)
    weight.scale = weight.scale * 3
    same(compiled, model, x)
    weight.bits = 4
    same(compiled, model, x)
    model[0].weight = nn.Parameter(scaled(4, 3, seed=9), requires_grad=False)
    same(compiled, model, x)
    model[0].weight = nn.Parameter(torch.randn(4, 3))
    same(compiled, model, x)
    model[0].weight = nn.Parameter(Scaled(torch.ones(4, 3, dtype=torch.int8), torch.ones(1)))
    same(compiled, model, x)


def test_another_meaning_of_a_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net(), torch.randn(2, 3)
    compiled = jitney.compile(model)
    same(compiled, model, x)
    monkeypatch.setitem(TABLE, F.linear, lambda x, w, b=None: linear(x * 2, w, b))
    same(compiled, model, x)


def test_gradients_go_through() -> None:
    model = net()
    compiled, found = jitney.compile(model, fullgraph=True), []
    for run in (model, compiled):
        model.zero_grad()
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        run(x).square().sum().backward()
        found.append([x.grad, *(p.grad for p in model.parameters() if p.requires_grad)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-3)


def facts(x: Tensor, w: Scaled) -> Any:
    shape, rows = w.shape, w.size(0)
    told = (type(w) is Scaled, isinstance(w, Tensor), w.dtype, w.ndim, hasattr(w, "bits"))
    return x @ w.whole().t() + rows + len(shape), told, tuple(shape)


def turned(x: Tensor, w: Scaled) -> Any:
    with torch.no_grad():
        return torch.mm(x, w.t()) + w.detach().numbers.sum()


def made(x: Tensor, w: Scaled) -> Any:
    other = Scaled(w.numbers * 2, w.scale + x.sum().abs())
    return F.linear(x, other) + other.whole().sum() + other.shape[0]


def passed_on(x: Tensor, w: Scaled) -> Any:
    return w, x + 1, [w]


def unknown(x: Tensor, w: Scaled) -> Any:
    try:
        return w.cos() + x
    except NotImplementedError as error:
        return x * 2, type(error).__name__


def broken(x: Tensor, w: Scaled) -> Any:
    y = F.linear(x, w)
    jitney.graph_break()
    return F.linear(x + 1, w) * y.sum()


def listed(x: Tensor, w: Scaled) -> Any:
    try:
        return torch.cat([w, w])
    except NotImplementedError:
        return x * 3


@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize(
    "function", [facts, turned, made, passed_on, unknown, broken, listed], ids=lambda f: f.__name__
)
def test_what_functions_do_with_one(function: Any, backend: str) -> None:
    compiled = jitney.compile(function, backend=backend)
    for seed in (0, 1, 1):
        w, x = scaled(seed=seed), torch.randn(2, 3)
        given, wanted = compiled(x, w), function(x, w)
        if function is passed_on:
            assert given[0] is w and given[2][0] is w and torch.equal(given[1], wanted[1])
        else:
            assert_equal(given, wanted)
    if function in (facts, turned, made):
        assert not log.events("graph_break")


def test_one_that_is_made_and_given_out() -> None:
    def f(x: Tensor, w: Scaled) -> Any:
        other = Scaled(w.numbers, w.scale * 2)
        return other, x + other.whole().sum()

    w, x = scaled(), torch.randn(2)
    (one, y), (other, z) = jitney.compile(f)(x, w), f(x, w)
    assert type(one) is type(other) is Scaled and one.shape == other.shape and one.bits == 8
    torch.testing.assert_close([y, one.whole()], [z, other.whole()])


def test_one_that_requires_grad() -> None:
    def f(x: Tensor, w: Scaled) -> Tensor:
        return F.linear(x, w) + torch.mm(x, w.t())

    compiled, found = jitney.compile(f), []
    for run in (f, compiled):
        w, x = scaled(), torch.ones(2, 3, requires_grad=True)
        w.requires_grad_()
        result = run(x, w)
        result.sum().backward()
        found.append([result.detach(), x.grad, w.grad])
    assert found[1][2] is found[0][2] is None
    torch.testing.assert_close(found[1][:2], found[0][:2])


class Telling(Scaled):
    """Notes what torch asks it, and does it to the whole."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        numbers = [x for x in args if isinstance(x, (int, float, list))]
        CALLS.append(f"{func.__name__} {numbers} {sorted(kwargs)}")
        return func(*[whole_of(x) for x in args], **kwargs)


class Written(Scaled):
    """What is written to one is written to its scale, which is returned."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten.mul_.Tensor
        return args[0].scale.mul_(args[1])


class Counted(Scaled):
    def __len__(self) -> int:
        return 77


def whole_of(x: Any) -> Any:
    return [whole_of(item) for item in x] if isinstance(x, list) else _whole_of(x)


def _whole_of(x: Any) -> Any:
    return x.whole() if isinstance(x, Scaled) else x


OPS: dict[str, Callable[[Tensor, Any], Any]] = {
    "numbers that are lists": lambda x, w: w.sum(0),
    "keywords": lambda x, w: torch.transpose(w, dim0=0, dim1=1).contiguous() + 1,
    "defaults": lambda x, w: torch.sum(w, dim=1, keepdim=False),
    "tuples": lambda x, w: torch.cat((w, x.t().expand(3, 3)), dim=0),
    "filled in": lambda x, w: torch.zeros_like(w),
    "several results": lambda x, w: w.max(dim=1),
    "parts": lambda x, w: w.split(2),
    "another op": lambda x, w: torch.norm(w),
    "of a composite": lambda x, w: w.softmax(1) + w.reshape(12).sum(),
    "cast": lambda x, w: torch.mm(x, w),
    "mapped": lambda x, w: torch.func.vmap(lambda row: torch.mv(w, row))(x),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("cast", [False, True])
def test_what_is_asked_of_one_is_what_eager_asks(name: str, cast: bool) -> None:
    def f(x: Tensor, w: Scaled) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            return OPS[name](x, w)

    compiled, w = jitney.compile(f), scaled(3 if name == "cast" else 4)
    x, w = torch.randn(2, 3), Telling(w.numbers, w.scale)
    if name == "tuples":
        x = torch.randn(1, 3)
    found = []
    for run in (f, compiled):
        CALLS.clear()
        found.append((run(x, w), list(CALLS)))
    assert found[1][1] == found[0][1] and type(found[1][0]) is type(found[0][0])
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-2 if cast else 1e-5, atol=1e-4)


class Overheard(Scaled):
    """Notes the function that its class is asked to override, of what and with what."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = None if kwargs is None else sorted(kwargs)
        CALLS.append(f"{func.__name__} {len(types)} {len(args)} {named}")
        given = args[0] if isinstance(args[0], list) else args
        return next(x for x in given if isinstance(x, Scaled)).numbers * 1.0


OVERRIDDEN: dict[str, Callable[[Tensor, Any], Any]] = {
    "of C": lambda x, w: F.linear(x, w),
    "a keyword": lambda x, w: torch.sum(w, dim=1),
    "of Python": lambda x, w: F.relu(w),
    "its defaults": lambda x, w: F.embedding(x.long(), w),
    "among others": lambda x, w: F.mse_loss(w, x),
    "reflected": lambda x, w: 1 - w,
    "a list": lambda x, w: torch.stack([w, w]),
    "the program's": lambda x, w: (doubled(w), torch.overrides.has_torch_function((w, x))),
}


def doubled(x: Tensor) -> Any:
    """As libraries let their functions be overridden."""
    if torch.overrides.has_torch_function_unary(x):
        return torch.overrides.handle_torch_function(doubled, (x,), x, by=2)
    return x * 2


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_what_a_class_overrides_is_what_eager_asks(name: str) -> None:
    compiled, w, found = jitney.compile(OVERRIDDEN[name], fullgraph=True), scaled(), []
    for run in (OVERRIDDEN[name], compiled):
        CALLS.clear()
        found.append((run(torch.ones(2, 3), Overheard(w.numbers, w.scale)), list(CALLS)))
    assert_equal(found[1], found[0])


def test_what_is_written_to_is_what_comes_back() -> None:
    def f(x: Tensor, w: Scaled) -> Any:
        return w.mul_(2) is w, x * w.scale.sum()

    for run in (f, jitney.compile(f, fullgraph=True)):
        w = scaled()
        is_w, y = run(torch.ones(2), Written(w.numbers, w.scale))
        assert is_w and torch.allclose(y, w.scale.sum())


def test_what_dispatch_computes_has_no_gradient() -> None:
    """It is below autograd, whatever the tensors inside require."""
    for run in (turned_product, jitney.compile(turned_product)):
        w = scaled()
        w.scale.requires_grad_()
        assert not run(torch.ones(2, 3), w).requires_grad


def turned_product(x: Tensor, w: Scaled) -> Tensor:
    return torch.mm(x, w.detach().t().scale.expand(3, 4)) * 2


def test_a_length_of_its_own() -> None:
    w = scaled()
    for one in (Counted(w.numbers, w.scale), w):
        compiled = jitney.compile(lambda x, w: x + len(w), fullgraph=True)
        assert compiled(torch.zeros(1), one) == len(one)


class Refusing(Scaled):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.mm:
            raise ValueError("no products")
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(_whole_of, args))


def test_a_class_that_raises_is_left() -> None:
    """The scope behind it is no longer one within what a class does."""

    def f(x: Tensor, w: Scaled) -> Any:
        with contextlib.suppress(ValueError):
            torch.mm(x, w)
        with torch._C.DisableTorchFunctionSubclass():
            y = x + 1
            jitney.graph_break()
            return torch.mm(y, w)

    w, x = scaled(3, 3), torch.ones(2, 3)
    given = jitney.compile(f)(x, Refusing(w.numbers, w.scale))
    torch.testing.assert_close(given, (x + 1) @ w.whole())


class Counting(Scaled):
    """Its class notes in a global list how often it was asked."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ASKED[0] += 1
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(_whole_of, args))


ASKED = [0]


def test_a_class_that_counts_is_asked_once() -> None:
    compiled, w = jitney.compile(lambda x, w: torch.mm(x, w.t()), fullgraph=True), scaled()
    for _ in range(3):
        ASKED[0] = 0
        compiled(torch.ones(2, 3), Counting(w.numbers, w.scale))
        assert ASKED == [1]


def test_functions_called_where_no_class_is_asked() -> None:
    """As by what a ``__torch_function__`` calls."""
    compiled = jitney.compile(lambda x, w: torch.mm(x, w) + 1)
    w, x = scaled(3, 3), torch.randn(2, 3)
    w = Telling(w.numbers, w.scale)
    for off in (False, True, True, False):
        CALLS.clear()
        with torch._C.DisableTorchFunctionSubclass() if off else contextlib.nullcontext():
            torch.testing.assert_close(compiled(x, w), torch.mm(x, _whole_of(w)) + 1)
        assert (CALLS == []) == (not off)
