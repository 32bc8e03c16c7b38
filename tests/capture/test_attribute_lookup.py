"""Attributes: who is asked next where a look-up fails."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import adder, assert_same

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)
X = torch.tensor([1.0, 2.0, -3.0])


class FallsBack:
    """A property that fails is looked for once more."""

    __slots__ = ("unset",)

    @property
    def failing(self):
        raise AttributeError("inner")

    def __getattr__(self, name):
        return "fallback", name


class Refuses:
    """What its ``__getattribute__`` refuses, its ``__getattr__`` gives."""

    def __getattribute__(self, name):
        if name == "refused":
            raise AttributeError(name)
        if name == "caught":
            try:
                return object.__getattribute__(self, name)
            except AttributeError:
                return "caught"
        return super().__getattribute__(name)

    def __getattr__(self, name):
        return "fallback", name


class Plain:
    nothing = property()

    @property
    def fixed(self):
        return 1


class Meta(type):
    @property
    def failing(cls):
        raise AttributeError("inner")

    def __getattr__(cls, name):
        return "of the class", name


class OfMeta(metaclass=Meta):
    pass


class Stores:
    """A data descriptor that does not get."""

    def __set__(self, owner, value):
        owner.__dict__["stored"] = value


class Gives:
    """One that does, for a metaclass."""

    def __get__(self, owner, kind):
        return "given", owner is None

    def __set__(self, owner, value):
        raise AttributeError("fixed")


class HasStores:
    stored = Stores()


class Given(type):
    given = Gives()


class OfGiven(metaclass=Given):
    given = 2


class Keys(dict):
    """Attributes are keys, by C code's own methods."""

    __setattr__ = dict.__setitem__
    __getattr__ = dict.__getitem__
    __delattr__ = dict.__delitem__


class Method:
    def method(self):
        return "method "


class One(Method):
    def method(self):
        return "one " + self.above_one.method()


class Other(Method):
    def method(self):
        return "other " + self.above_other.method()


class Both(One, Other):
    pass


One.above_one, Other.above_other = super(One), super(Other)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    @property
    def failing(self):
        return self.missing

    @property
    def doubled(self):
        jitney.graph_break()
        return self.weight * 2


@program()
def fallbacks():
    one, other = FallsBack(), Refuses()
    found = [one.failing, getattr(one, "failing", 5), one.unset, hasattr(one, "other")]
    found += [other.refused, other.caught, other.other, OfMeta.failing, OfMeta.other]
    try:
        object.__getattribute__(one, "other")
    except AttributeError as error:
        found.append(str(error))
    return found


@program()
def what_properties_refuse():
    plain, found = Plain(), []
    for act in (
        lambda: plain.nothing, lambda: setattr(plain, "fixed", 2), lambda: delattr(plain, "fixed"),
        lambda: plain.other, lambda: Plain.other, lambda: super(Plain, plain).other,
        lambda: Model().failing,
    ):  # fmt: skip
        try:
            found.append(act())
        except AttributeError as error:
            found.append(str(error))
    return found


@program()
def what_an_error_knows():
    class Says:
        def __getattr__(self, name):
            raise AttributeError("no")

    found = []
    for act in (lambda: Says().one, lambda: Says().two, lambda: FallsBack().__dict__):
        try:
            found.append(act())
        except AttributeError as error:
            found.append((error.name, type(error.obj).__name__, str(error)))
    return found


@program()
def descriptors_and_methods_of_c_code():
    one, keys = HasStores(), Keys()
    found = [type(one.stored).__name__, OfGiven.given, Both().method(), One().method()]
    one.stored = 42
    keys.key = 1
    found += [one.stored, keys.key, dict(keys), keys.__dict__, Both().method()]
    del keys.key
    jitney.graph_break()
    return found, dict(keys), dir(), sorted(locals())


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_attributes_are_eagers(function: Any, args: Any, kwargs: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    assert compiled() == function() == compiled()


def test_a_property_of_a_module_that_breaks_goes_on_behind_the_break() -> None:
    model = Model()

    def f(x: torch.Tensor) -> torch.Tensor:
        return model.doubled + x

    assert torch.equal(jitney.compile(f, backend="eager")(X), f(X))


class ReadsClass:
    """A descriptor that says what it is read for."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        return instance, owner


class OfClass:
    @classmethod
    @property
    def two(cls) -> int:
        return 2 if cls is OfClass else 3

    read = classmethod(ReadsClass())
    count = classmethod([OfMeta, 1].count)


class OfBase(OfClass):
    @classmethod
    def above(cls) -> Any:
        return super().two, super().read


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python took it back")
def test_what_a_classmethod_wraps_may_be_a_descriptor() -> None:
    def f(x: torch.Tensor) -> Any:
        read = OfClass.read, OfBase().read, OfBase.above()
        return x + OfClass.two + OfBase().two, read

    ours = jitney.compile(f, backend="eager", fullgraph=True)(X)
    assert torch.equal(ours[0], f(X)[0]) and ours[1] == f(X)[1]


def test_a_bound_method_under_classmethod() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x, OfClass.count(OfMeta)
        except TypeError as error:
            return x, str(error)

    assert jitney.compile(f, backend="eager")(X)[1] == f(X)[1]


class Marked:
    def plain(self) -> int:
        return 1

    @classmethod
    def of_class(cls) -> int:
        return 2

    plain.mark = 3  # type: ignore[attr-defined]
    of_class.__func__.mark = 4  # type: ignore[attr-defined]


def test_a_method_has_its_functions_attributes() -> None:
    def f(x: torch.Tensor, owner: Any, method: Any) -> Any:
        asked = [hasattr(m, "mark") for m in (owner.plain, owner.of_class, Marked.of_class, method)]
        given = [getattr(m, "mark", 0) for m in (owner.plain, Marked.of_class, method)]
        return x + 1, asked, given, getattr(method, "none", 5), hasattr(owner.plain, "__func__")

    compiled, x, owner = jitney.compile(f, backend="eager"), torch.ones(2), Marked()
    for mark in (3, 5):
        Marked.plain.mark = mark  # type: ignore[attr-defined]
        assert_same(compiled(x, owner, owner.plain), f(x, owner, owner.plain))


def test_an_alias_has_what_it_stands_for() -> None:
    def f(x: torch.Tensor) -> Any:
        alias, values = list[int], [1]
        alias.append(values, 2)
        return x + 1, values, alias.__getitem__(values, 1), alias.__args__

    compiled, x = jitney.compile(f, backend="eager"), torch.ones(2)
    for _ in range(2):
        assert_same(compiled(x), f(x))


class Slotted:
    __slots__ = ("a",)

    def method(self) -> None: ...

    def __repr__(self) -> str:
        return "slotted"


class SetsItself(Slotted):
    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)


def test_what_errors_of_attributes_say() -> None:
    def f(x: torch.Tensor, *given: Any) -> Any:
        said: list[Any] = []
        own = (Slotted(), SetsItself(), object(), 3, "s", None, (1,), [1], x.shape, len)
        for owner in (*own, *given):
            for name in ("nope", "method", "append"):
                try:
                    setattr(owner, name, 1)
                except (AttributeError, TypeError) as error:
                    asked = getattr(error, "name", 0), getattr(error, "obj", 0) is owner
                    said.append((type(error), str(error), *asked))
            try:
                said.append(owner.nope)
            except AttributeError as error:
                said.append((str(error), error.name))
        return x + 1, said

    compiled, given = jitney.compile(f, backend="eager"), (Slotted(), SetsItself(), X.dtype)
    for _ in range(2):
        assert_same(compiled(X, *given), f(X, *given))
