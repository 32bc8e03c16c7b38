"""Constructors that call their base's behind a graph break, torch's distributions, which do, and
classes whose metaclass makes something else."""

from __future__ import annotations

import collections
from typing import Any, TypedDict

import pytest
import torch
import torch.distributions as dist

import jitney
from tests.capture.run_capture import assert_same


class Checked:
    def __init__(self, value: torch.Tensor) -> None:
        if not (value > -1e9).all():
            raise ValueError("too small")
        super().__init__()
        self.value = value


class Scaled(Checked):
    def __init__(self, value: torch.Tensor, factor: float) -> None:
        if value.sum() > 1e9:
            factor = 1.0
        super().__init__(value)
        self.result = self.value * factor


class Shared(Checked):
    def __init__(self, value: torch.Tensor) -> None:
        if value.sum() > 1e9:
            return
        super().__init__(value)
        self.again = lambda: self.value * 3
        try:
            value.sum().item().missing  # noqa: B018
        except AttributeError:
            super().__init__(value * 2)


class Doubled(property):
    """Called on its own, too: reading it on an instance is what a property does."""

    def __call__(self) -> int:
        return 2


class Owner:
    @Doubled
    def size(self) -> int:
        return 3


def test_super_behind_a_break() -> None:
    x = torch.randn(4)
    assert_same(jitney.compile(lambda x: Scaled(x, 2.0).result)(x), Scaled(x, 2.0).result)
    assert_same(jitney.compile(lambda x: Shared(x).again())(x), Shared(x).again())


def test_a_property_that_can_be_called() -> None:
    x = torch.randn(4)
    assert_same(jitney.compile(lambda x: x * Owner().size, fullgraph=True)(x), x * 3)


def transformed(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = dist.TransformedDistribution(dist.Normal(x, y.exp()), [dist.SigmoidTransform()])
    return made.log_prob(made.rsample())


def categorical(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = dist.Categorical(logits=x * y)
    return made.log_prob(made.sample()) + made.entropy()


def independent(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = dist.Independent(dist.Normal(x, y.exp()), 1)
    return made.log_prob(made.rsample()) + made.entropy()


def divergence(x: torch.Tensor, y: torch.Tensor) -> Any:
    return dist.kl_divergence(dist.Normal(x, y.exp()), dist.Normal(y, x.exp()))


FUNCTIONS = [
    transformed,
    categorical,
    independent,
    divergence,
    lambda x, y: dist.Gumbel(x, y.exp()).rsample(),
    lambda x, y: dist.Dirichlet(x.exp()).log_prob(torch.softmax(y, -1)),
    lambda x, y: dist.MultivariateNormal(x, torch.eye(4)).log_prob(y),
    lambda x, y: dist.RelaxedOneHotCategorical(torch.tensor(0.5), logits=x * y).rsample(),
    lambda x, y: dist.Bernoulli(logits=x * y).log_prob(torch.ones(3, 4)),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_distributions(function: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    torch.manual_seed(0)
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))

    def run(call: Any) -> Any:
        torch.manual_seed(5)
        out = call(x, y)
        return out, torch.autograd.grad(out.sum(), (x, y)), torch.rand(1)

    assert_same(run(compiled), run(function))


class Options(TypedDict, total=False):
    scale: float
    x: torch.Tensor


class Made:
    """Whatever a metaclass's classes are called with."""

    def __init__(self, *values: Any) -> None:
        self.values = values


class Making(type):
    __call__: Any = Made


class MakingOne(type):
    __call__: Any = staticmethod(Made)


class Counting:
    """Callable, and no descriptor: a metaclass's classes are not given to it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        self.calls += 1
        return value * self.calls


class Counted(type):
    __call__: Any = Counting()


class A(metaclass=Making):
    pass


class B(metaclass=MakingOne):
    pass


class C(metaclass=Counted):
    pass


LEGACY: list[Any] = [
    lambda x: torch.Tensor([1, 2.5]) + x,
    lambda x: torch.Tensor(((1, True), [x.shape[0], 4])),
    lambda x: (torch.Tensor([]), torch.Tensor([[]]), torch.Tensor()),
    lambda x: torch.LongTensor([1, -2]),
    lambda x: (torch.ByteTensor([3]), torch.BoolTensor([[2, 0]]), torch.HalfTensor([1.1])),
    lambda x: [t.zero_() for t in (torch.Tensor(2, 3), torch.FloatTensor(x.shape[0]))],
    lambda x: [t.zero_() for t in (torch.Tensor(x.shape), torch.DoubleTensor(1, 2))],
    lambda x: torch.Tensor([1.0]).requires_grad,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("f", LEGACY)
def test_constructors_of_old_make_what_new_functions_make(f: Any, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        compiled = jitney.compile(f, fullgraph=True)
        for size in (2, 2, 2):
            x = torch.arange(float(size))
            assert_same(compiled(x), f(x))
    finally:
        torch.set_default_dtype(torch.float32)


def test_constructors_of_old_that_are_left_to_eager() -> None:
    def f(x: torch.Tensor) -> Any:
        alias = torch.Tensor(x)
        x.add_(1)
        return alias, torch.Tensor(range(3)), torch.LongTensor((x[:2]).long())

    def raises(x: torch.Tensor) -> Any:
        return torch.ByteTensor([2**70]) + x

    compiled, x, y = jitney.compile(f), torch.ones(3), torch.ones(3)
    assert_same(compiled(x), f(y))
    for call in (raises, jitney.compile(raises)):
        with pytest.raises((RuntimeError, ValueError), match="verflow"):
            call(x)


def test_an_ordered_dict_has_attributes() -> None:
    m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

    def f(x: torch.Tensor) -> Any:
        state = m.state_dict()
        made: Any = collections.OrderedDict(b=x, a=1)
        made.note = x + 1
        del made.note
        made.other = [x]
        return state, dict(state._metadata), made, made.other, state["0.weight"] @ x

    compiled, x = jitney.compile(f, fullgraph=True), torch.ones(2)
    for _ in range(2):
        found, expected = compiled(x), f(x)
        assert type(found[0]) is collections.OrderedDict
        assert found[0]._metadata == expected[0]._metadata
        assert vars(found[2]) == {"other": [x]}
        assert found[2].other is found[3]
        assert found[0]["0.weight"].data_ptr() == m[0].weight.data_ptr()
        assert_same(found, expected)


def test_a_typed_dict_is_a_dict() -> None:
    def f(x: torch.Tensor, scale: float) -> Any:
        made, other = Options(scale=scale, x=x), Options({"x": x * scale})
        made["scale"] += 1
        return made, other, type(made) is dict, made["x"] is x, x * made["scale"]

    compiled = jitney.compile(f, fullgraph=True)
    for size, scale in ((2, 3.0), (2, 4.0), (5, 4.0)):
        x = torch.arange(float(size)).requires_grad_()
        got, want = compiled(x, scale), f(x, scale)
        assert type(got[0]) is type(got[1]) is dict
        assert got[0]["x"] is x
        assert_same(got, want)
        gradients = [torch.autograd.grad(r[1]["x"].sum() + r[-1].sum(), x)[0] for r in (got, want)]
        assert_same(*gradients)


def test_what_a_metaclass_calls_is_called_inside_the_graph() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        made: Any = A(x, n)
        return type(made) is Made, made.values[0] * made.values[1]

    assert_same(jitney.compile(f, fullgraph=True)(torch.ones(2), 3), f(torch.ones(2), 3))


def test_what_a_metaclass_calls_that_is_no_method(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        try:
            number = C(n)
        except ValueError as error:
            number = str(error)
        a: Any = A(x, n)
        b: Any = B(x)
        return type(a) is Made, a.values, a.values[0] is x, type(b) is Made, b.values, number, x + 1

    compiled, x = jitney.compile(f), torch.ones(2)

    def both(n: int) -> None:
        results = []
        for function in (f, compiled):
            Counted.__call__.calls = 3
            results.append((function(x, n), Counted.__call__.calls))
        assert_same(*results)

    for n in (2, 2, 5, -1):
        both(n)
    monkeypatch.setattr(Making, "__call__", lambda cls, *values: Made(cls.__name__, *values[::-1]))
    with pytest.raises(AssertionError):
        assert_same(f(x, 2)[1], (x, 2))
    got, want = compiled(x, 2), f(x, 2)
    assert got[1][:2] == want[1][:2] == ("A", 2)


class MadeBefore:
    """Its ``__new__`` takes arguments, and says so."""

    def __new__(cls, value: Any) -> Any:
        made = object.__new__(cls)
        made.first = value
        NOTED.append("new")
        return made

    def __init__(self, value: Any) -> None:
        self.second = value


class MakesOther:
    def __new__(cls, value: Any) -> Any:
        return object.__new__(MadeOther)


class MadeOther(MakesOther):
    def __init__(self, value: Any) -> None:
        self.value = value


class Items(list[Any]):
    def __new__(cls, items: Any, more: Any) -> Any:
        made = list.__new__(cls)
        made.more = more
        return made

    def __init__(self, items: Any, more: Any) -> None:
        super().__init__(items)


class Failure(Exception):
    def __new__(cls, value: Any, more: Any) -> Any:
        made = Exception.__new__(cls, value)
        made.more = more
        return made


class Precise(float):
    __slots__ = ("digits",)

    def __init__(self, value: float, digits: int = 12) -> None:
        self.digits = digits


class Returns:
    def __init__(self) -> Any:  # type: ignore[misc]
        return 10


class Tagging(type):
    def __new__(mcs, name: str, bases: Any, names: Any) -> Any:
        return super().__new__(mcs, name, bases, dict(names, tag=1))


NOTED: list[str] = []


def test_what_a_new_has_made_is_not_made_by_it_again() -> None:
    def f(x: torch.Tensor) -> Any:
        NOTED.clear()
        made: Any = MadeBefore(x)
        other, items, failure = MakesOther(2), Items([x], 3), Failure(4, 5)
        precise = Precise(1.5)
        jitney.graph_break()
        items.append(made.first + made.second)
        facts = type(other) is MadeOther, items.more, failure.args, failure.more, precise.digits
        return made, other.value, list(items), facts, list(NOTED)  # type: ignore[attr-defined]

    compiled, x = jitney.compile(f, backend="eager"), torch.ones(2)
    for _ in range(2):
        assert_same(compiled(x), f(x))


def test_what_cannot_be_made_is_refused_as_in_eager() -> None:
    def f(x: torch.Tensor) -> Any:
        found: list[Any] = []
        for make in (
            Returns,
            lambda: object.__new__(Returns, 5),
            lambda: object.__init__(MakesOther(1), 5),
            lambda: bool(x=1),
            lambda: print(1, sep=2),
            lambda: print(1, no=2),
        ):
            try:
                make()
            except TypeError as error:
                found.append(str(error))
        return x + 1, found

    assert_same(jitney.compile(f, backend="eager")(torch.ones(2)), f(torch.ones(2)))


def test_classes_are_made_and_changed_in_every_call() -> None:
    def f(x: torch.Tensor) -> Any:
        one: Any = Tagging("One", (), {})
        other = type.__new__(Tagging, "Other", (Owner,), {})
        type.__setattr__(one, "tag", one.tag + 1)
        return one, other in type.__subclasses__(Owner), one.tag, x + 1

    compiled, x = jitney.compile(f, backend="eager"), torch.ones(2)
    one, *rest = compiled(x)
    again, *others = compiled(x)
    assert one is not again
    assert rest[:2] == others[:2] == [True, 2]


def test_print_to_an_object_of_the_programs() -> None:
    class Writer:
        def __init__(self) -> None:
            self.texts: list[str] = []

        def write(self, text: str) -> None:
            self.texts.append(text)

    def f(x: torch.Tensor) -> Any:
        writer = Writer()
        print("a", "b", file=writer)
        return x + 1, len(writer.texts), writer.texts

    assert_same(jitney.compile(f, backend="eager")(torch.ones(2)), f(torch.ones(2)))


class Misuses:
    """``super()`` without arguments where it cannot be."""

    @staticmethod
    def static() -> str:
        return super().__repr__()

    def deleted(self) -> str:
        kept = self
        del self
        return super().__repr__() + str(kept)

    def outside(self) -> str:
        return reads_super()


def reads_super() -> str:
    return super().__repr__()


def test_errors_of_super_are_eagers() -> None:
    for misuse in (Misuses.static, Misuses().deleted, Misuses().outside):

        def caught(x: torch.Tensor, misuse: Any = misuse) -> tuple[torch.Tensor, str]:
            try:
                misuse()
            except (RuntimeError, UnboundLocalError) as error:
                return x * 2, f"{type(error)} {error}"
            return x, ""

        def raises(x: torch.Tensor, misuse: Any = misuse) -> tuple[torch.Tensor, str]:
            return x * 2, misuse()

        x = torch.randn(3)
        assert jitney.compile(caught, backend="eager", fullgraph=True)(x)[1] == caught(x)[1]
        for f in (raises, jitney.compile(raises, backend="eager")):
            with pytest.raises((RuntimeError, UnboundLocalError)):
                f(x)
