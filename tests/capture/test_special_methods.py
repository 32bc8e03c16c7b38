"""Special methods: who is asked, in which order, how often, and what may come of it."""

from __future__ import annotations

import abc
import collections
import operator
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import adder

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)
X = torch.tensor([1.0, 2.0, -3.0])
LOG: list[str] = []


class Refusing:
    """It says no to all, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def _refuse(by: int) -> Any:
        def refuse(self, other):
            self.asked += by
            return NotImplemented

        return refuse

    __add__, __radd__, __iadd__ = _refuse(1), _refuse(10), _refuse(1000)
    __eq__, __lt__, __gt__ = _refuse(1), _refuse(1), _refuse(100)


class Derived(Refusing):
    pass


class Answering(Refusing):
    def __radd__(self, other):
        return "answered"


class Adds:
    def __add__(self, other):
        return "add"

    def __radd__(self, other):
        return "radd"


class AddsToo(Adds):
    pass


class Number(int):
    """A number whose methods C code's numbers do not ask."""

    def __radd__(self, other):
        return "radd"

    def __rmul__(self, other):
        return "rmul"

    def __gt__(self, other):
        return "gt"


class Text(str):
    pass


class Greater:
    def __gt__(self, other):
        LOG.append("gt")
        return "gt"


class Equals:
    def __eq__(self, other):
        return [1]


class Differs:
    def __ne__(self, other):
        return "ne"


class Sets(set):
    def __ror__(self, other):
        return "ror"


class Gives:
    """Its methods give what it is told."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def _give(self, *args):
        return self.value

    __len__ = __bool__ = __iter__ = __str__ = __repr__ = __hash__ = __index__ = _give
    __int__ = __float__ = __contains__ = __format__ = _give


class Sized:
    def __init__(self, size: Any) -> None:
        self.size = size

    def __len__(self):
        return self.size


OUTSIDE = Refusing(), Refusing()
SIGNS = ("add", "iadd", "eq", "ne", "lt", "gt")


def asked(function, left, right):
    """What an operator gives or raises, and how often either side was asked."""
    try:
        result = function(left, right)
    except TypeError as error:
        result = str(error)
    return result, [x.asked for x in (left, right) if isinstance(x, Refusing)]


@program()
def each_side_is_asked_once():
    found = []
    for sign in SIGNS:
        for classes in (
            (Refusing, Refusing), (Refusing, Derived), (Derived, Refusing), (Refusing, Answering),
            (Answering, Refusing), (Refusing, int), (int, Refusing), (list, Refusing),
            (str, Refusing), (Refusing, list),
        ):  # fmt: skip
            left, right = classes[0](), classes[1]()
            found.append((sign, asked(getattr(operator, sign), left, right)))
    return found


@program()
def each_side_from_outside_is_asked_once():
    found = []
    for sign in SIGNS:
        for value in OUTSIDE:
            value.asked = 0
        found.append((sign, asked(getattr(operator, sign), *OUTSIDE)))
    return found


@program()
def who_is_asked_first():
    LOG.clear()
    compared = Greater() < Greater(), list(LOG)
    added = Adds() + AddsToo(), AddsToo() + Adds(), 1 + AddsToo(), 1.5 + Number(2), 1 + Number(2)
    other = 1j + Number(2), 0.5 < Number(1), 0 < Number(1), [1] * Number(2), 2.0 * Number(3)
    differs = Equals() != Differs(), Differs() != Equals(), 5 != Equals(), Equals() == 5
    united = {1}
    united |= Sets({2})
    return compared, added, other, differs, united, {1} | Sets({2})


@program()
def what_methods_may_give():
    found = []
    for value in (True, False, 3, -1, 2.5, "s", None, [1], 10**30, Number(3)):
        for act in (
            len, bool, iter, str, repr, hash, int, float, operator.index, format,
            lambda x: 1 in x, lambda x: f"{x}", lambda x: f"{x!r}", lambda x: [1, 2, 3, 4][x],
            lambda x: list(x), lambda x: not x, lambda x: bool(Sized(x.value)),
        ):  # fmt: skip
            try:
                result = act(Gives(value))
                found.append((type(result), result))
            except (TypeError, ValueError, IndexError, OverflowError) as error:
                found.append((type(error), str(error)))
    return found


@program()
def arguments_that_are_refused():
    def f(a, b=2, *, c=3, **rest):
        return a, b, c, rest

    found, again = [], {"a": 2}
    for act in (
        lambda: f(*5), lambda: f(**5), lambda: f(1, **again), lambda: f(1, **{1: 2}),
        lambda: f(1, a=2, **again), lambda: [*5], lambda: {**5}, lambda: {*5},
        lambda: f(*[1], *2), lambda: f(1, **Repeats()),
        lambda: dict(self=1, function=2), lambda: [x + 1 for x in 5],
    ):  # fmt: skip
        try:
            found.append(act())
        except TypeError as error:
            found.append(str(error).rpartition(".")[2])
    for value in (5, None, Differs()):
        try:
            first, *rest = value
        except TypeError as error:
            found.append(str(error))
    return found


class Repeats(collections.abc.Mapping):
    """A mapping that gives a key twice."""

    def __iter__(self):
        return iter(("c", "c"))

    def __getitem__(self, key):
        return 1

    def __len__(self):
        return 2


class Virtual(metaclass=abc.ABCMeta):  # noqa: B024
    def __eq__(self, other):
        LOG.append("virtual")
        return NotImplemented


@Virtual.register
class Registered:
    def __eq__(self, other):
        LOG.append("registered")
        return NotImplemented


class Queue(collections.deque):
    pass


class Frozen(frozenset):
    pass


class Counted(enumerate):
    pass


class Shrinks:
    """Goes over by ``__getitem__``."""

    def __init__(self, size):
        self.size = size

    def __getitem__(self, index):
        if index < self.size:
            return index
        raise IndexError


@program()
def registered_classes_are_not_derived_ones():
    LOG.clear()
    return Virtual() == Registered(), list(LOG)


@program()
def derived_containers_over_a_break():
    made = Queue([1, 2], maxlen=2), Frozen([1]), Counted("ab")
    shrinks = Shrinks(2)
    iterator = iter(shrinks)
    found = [*iterator]
    shrinks.size = 4
    jitney.graph_break()
    made[0].append(3)
    return [[type(x).__name__, *x] for x in made], made[0].maxlen, found, [*iterator], [*shrinks]


@program()
def names_that_are_no_text():
    found = []
    for act in (
        lambda: getattr(found, 1), lambda: getattr(found, 1, 2), lambda: hasattr(found, 1),
        lambda: setattr(OUTSIDE[0], 1, 2), lambda: delattr(OUTSIDE[0], 1), lambda: vars() == {},
        lambda: len(Sized(1 << 70)),
    ):  # fmt: skip
        try:
            found.append(act())
        except (TypeError, OverflowError) as error:
            found.append(str(error))
    return found


class Single(type):
    """A class with one instance, made by ``type.__call__``."""

    made: dict[Any, Any] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in Single.made:
            Single.made[cls] = super().__call__(*args)
        return Single.made[cls]


class Only(metaclass=Single):
    def __init__(self, value: Any) -> None:
        LOG.append("init")
        self.value = value


class Logs:
    calls: list[Any] = []

    def __class_getitem__(cls, key):
        cls.calls.append(key)
        return key

    def method(self, x):
        LOG.append("method")
        return x * 2

    @property
    def attribute(self):
        LOG.append("attribute")
        return 5


@program()
def code_of_the_programs_behind_methods_of_c_code():
    LOG.clear()
    Logs.calls.clear()
    Single.made.clear()
    logs = Logs()
    found = [
        logs.method.__call__(1), Logs.method.__call__(logs, 2), Logs.method.__get__(logs)(3),
        Logs.attribute.__get__(logs), Logs.attribute.fget(logs), Logs["key"], Logs[3],
        type.__call__(Logs).method(4), Only(5).value, Only(6).value,
    ]  # fmt: skip
    return found, list(LOG), list(Logs.calls)


@program()
def numbers_and_texts_of_derived_classes_are_made_anew():
    number, text = Number(3), Text("abc")
    other = Number(4)
    other.tags = []
    return type(number), number, type(text), text, other, other.tags


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_special_methods_are_asked_as_eager_asks(function: Any, args: Any, kwargs: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    assert compiled() == function() == compiled()


def test_a_text_with_attributes_belongs_to_its_call() -> None:
    def f(x: torch.Tensor) -> Any:
        made = Text("a")
        made.tensor = x * 2
        return made, x + 1

    compiled = jitney.compile(f, backend="eager")
    one, other = compiled(X)[0], compiled(X)[0]
    assert one is not other and torch.equal(one.tensor, X * 2)


def test_objects_that_equal_themselves_alone() -> None:
    def f(x: torch.Tensor, a: Any, b: Any) -> Any:
        return x + 1, a == b, a != b

    compiled = jitney.compile(f, backend="eager")
    one, other = Sized(1), Sized(1)
    for pair in ((one, other), (one, one), (other, one)):
        assert compiled(X, *pair)[1:] == f(X, *pair)[1:]


def test_a_tensor_beside_objects_with_methods_of_their_own() -> None:
    class Handles:
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> str:
            return "handled"

        def __radd__(self, other: Any) -> str:
            return "radd"

    def f(x: torch.Tensor) -> Any:
        return x + Handles(), x + Adds(), (x + Number(2)).tolist(), x == Equals(), x != Equals()

    assert jitney.compile(f, backend="eager")(X) == f(X)


def test_vectors_of_tensors() -> None:
    class Vector:
        def __init__(self, t: torch.Tensor) -> None:
            self.t = t

        def __add__(self, other: Any) -> Any:
            return Vector(self.t + other.t) if isinstance(other, Vector) else NotImplemented

        def __radd__(self, other: Any) -> Any:
            return self if isinstance(other, int) else Vector(self.t + other)

        def __iadd__(self, other: Any) -> Any:
            jitney.graph_break()
            self.t = self.t + other
            return self

    def f(x: torch.Tensor) -> Any:
        one, other = Vector(x), Vector(x * 2)
        total = sum([one, other])
        other += 1
        return total.t, (x + one).t, other.t

    assert all(map(torch.equal, jitney.compile(f, backend="eager")(X), f(X)))
