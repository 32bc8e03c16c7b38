"""A slow and plain executor of captures, for tests: guards by `Source.fetch`, recipes by hand."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney import torch_api
from jitney.capture import recipe as r
from jitney.capture.capture_frame import capture_frame
from jitney.capture.guard import ABSENT, Guard, Kind
from jitney.capture.options import CaptureOptions
from jitney.capture.result import Break, Capture, Return
from jitney.capture.source import Roots, Source

X = torch.tensor([1.0, 2.0, -3.0])


class Scaler:
    """A plain object with a method."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor
        self.parts = [1, 2]

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The frame's locals at entry."""
    found = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    found.apply_defaults()
    return dict(found.arguments)


def function_of(target: Any) -> tuple[types.FunctionType, tuple[Any, ...]]:
    """A callable as a plain function and the arguments it brings."""
    if isinstance(target, torch.nn.Module):
        return type(target).forward, (target,)
    if isinstance(target, types.MethodType):
        return target.__func__, (target.__self__,)
    return target, ()


def capture(target: Any, *args: Any, options: CaptureOptions | None = None, **kw: Any) -> Capture:
    """Captures a call."""
    function, before = function_of(target)
    return capture_frame(function, bound(function, (*before, *args), kw), options=options)


def run(target: Any, *args: Any, options: CaptureOptions | None = None, **kw: Any) -> Any:
    """Captures a call that must not break, then runs what was captured."""
    function, before = function_of(target)
    arguments = bound(function, (*before, *args), kw)
    result = capture_frame(function, arguments, options=options)
    assert isinstance(result.exit, Return), brief(result.exit)
    return run_again(result, function, arguments)


def run_again(result: Capture, function: types.FunctionType, arguments: dict[str, Any]) -> Any:
    """Runs a finished capture on other arguments; a guard that fails raises AssertionError."""
    roots = Roots(arguments, function)
    for guard in result.guards:
        assert holds(guard, roots), f"{guard.kind} {guard.source} {guard.expected}"
    given = _Given(roots)
    inputs = [x.source.fetch(roots) for x in result.inputs]
    given.fetch_all(result)
    outputs = result.graph(*inputs) if result.graph is not None else ()
    maker = _Maker(given, outputs)
    for effect in result.effects:
        maker.prepare(effect)
    assert isinstance(result.exit, Return)
    value = maker.make(result.exit.value)
    for effect in result.effects:
        maker.apply(effect)
    return value


def rejects(result: Capture, function: Any, arguments: dict[str, Any]) -> bool:
    """Whether some guard fails on these arguments."""
    roots = Roots(arguments, function)
    return not all(holds(guard, roots) for guard in result.guards)


def holds_again(function: Callable[..., Any], before: Any, after: Any) -> tuple[bool, bool]:
    """Whether a capture on ``before`` holds for ``before`` and for ``after``."""
    result = capture(function, *before)
    return (
        not rejects(result, function, bound(function, before, {})),
        not rejects(result, function, bound(function, after, {})),
    )


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or not (a == b or (a != a and b != b)):
        return False
    return not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b)


def holds(guard: Guard, roots: Roots) -> bool:
    """Checks one guard slowly."""
    kind, expected = guard.kind, guard.expected
    try:
        value = guard.source.fetch(roots)
    except (KeyError, AttributeError, IndexError, ValueError):
        return kind in (Kind.NO_KEY, Kind.NO_ATTR) and False
    if kind is Kind.TYPE:
        return type(value) is expected
    if kind is Kind.IS:
        return value is expected
    if kind is Kind.EQUALS:
        return same(value, expected)
    if kind is Kind.LENGTH:
        return len(value) == expected
    if kind is Kind.KEYS:
        return tuple(value) == expected
    if kind is Kind.HAS_KEY:
        return expected in value
    if kind is Kind.NO_KEY:
        return expected not in value
    if kind is Kind.CLASS_ATTR:
        return lookup(value, expected[0]) is expected[1]
    if kind is Kind.NO_ATTR:
        return not hasattr(value, expected)
    if kind is Kind.SAME:
        return value is expected.fetch(roots)
    if kind is Kind.DISTINCT:
        items = [s.fetch(roots) for s in expected]
        return len({id(x) for x in items}) == len(items)
    if kind is Kind.NO_OVERLAP:
        tensors = tuple([s.fetch(roots) for s in expected.sources])
        return torch_api.ApartCheck(expected.written, expected.together, expected.static)(tensors)
    if kind is Kind.STATE:
        return torch_api.read_state(expected[0]) == expected[1]
    if kind is Kind.TENSOR:
        return tensor_holds(value, expected)
    raise AssertionError(kind)


def tensor_holds(value: Any, facts: Any) -> bool:
    if type(value) is not facts.cls or value.dtype != facts.dtype:
        return False
    if value.device != facts.device or value.requires_grad != facts.requires_grad:
        return False
    if len(facts.sizes) != value.dim():
        return False
    pairs = [*zip(facts.sizes, value.shape)]
    if facts.strides is not None:
        pairs += [*zip(facts.strides, value.stride())]
    return all(want is None or want == got for want, got in pairs)


def lookup(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return ABSENT


class _Given:
    """What existed before, fetched before anything changes."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.found: dict[Source, Any] = {}

    def fetch_all(self, result: Capture) -> None:
        for item in walk((result.exit, result.effects)):
            if isinstance(item, r.Given):
                self.found[item.source] = item.source.fetch(self.roots)


def walk(value: Any) -> Any:
    """Every recipe inside."""
    if isinstance(value, r.Recipe):
        yield value
    if isinstance(value, tuple | list):
        for item in value:
            yield from walk(item)
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, Source | type):
        for name in value.__dataclass_fields__:
            yield from walk(getattr(value, name))


class _Maker:
    def __init__(self, given: _Given, outputs: Any) -> None:
        self.given, self.outputs = given, outputs
        self.made: dict[int, tuple[Any, Any]] = {}

    def make(self, recipe: Any) -> Any:
        if recipe is None:
            return None
        if id(recipe) not in self.made:
            self.made[id(recipe)] = (recipe, self._make(recipe))
        return self.made[id(recipe)][1]

    def _make(self, x: Any) -> Any:
        m = self.make
        match x:
            case r.Given(source):
                return self.given.found[source]
            case r.GraphOutput(index):
                return self.outputs[index]
            case r.Constant(value):
                return value
            case r.MakeTuple(items):
                return tuple([m(i) for i in items])
            case r.MakeList(items):
                return [m(i) for i in items]
            case r.MakeDict(items):
                return {m(k): m(v) for k, v in items}
            case r.MakeSet(items, frozen):
                return (frozenset if frozen else set)([m(i) for i in items])
            case r.MakeSlice(a, b, c):
                return slice(m(a), m(b), m(c))
            case r.MakeIterator(items):
                return iter([m(i) for i in items])
            case r.MakeMethod(function, owner):
                return types.MethodType(m(function), m(owner))
            case r.MakeCell(contents):
                return types.CellType() if contents is None else types.CellType(m(contents))
            case r.Apply(function, args, kwargs):
                return function(*[m(a) for a in args], **{k: m(v) for k, v in kwargs})
            case r.MakeFunction():
                made = types.FunctionType(
                    x.code, m(x.globals), x.name, m(x.defaults), tuple([m(c) for c in x.closure])
                )
                made.__kwdefaults__ = m(x.kwdefaults)
                return made
            case r.MakeObject():
                return self._object(x)
        raise AssertionError(x)

    def _object(self, x: r.MakeObject) -> Any:
        made = x.cls.__new__(x.cls, *[self.make(a) for a in x.new_args])
        if isinstance(x.base, r.MakeDict):
            for k, v in x.base.items:
                put(made, self.make(k), self.make(v))
        elif isinstance(x.base, r.MakeList):
            list.extend(made, [self.make(i) for i in x.base.items])
        for name, value in x.state:
            made.__dict__[name] = self.make(value)
        for name, value in x.slots:
            object.__setattr__(made, name, self.make(value))
        return made

    def prepare(self, effect: Any) -> None:
        for item in walk(effect):
            self.make(item)

    def apply(self, e: Any) -> None:
        m = self.make
        match e:
            case r.StoreItem(target, key, value):
                dict.__setitem__(m(target), m(key), m(value))
            case r.DeleteItem(target, key):
                dict.__delitem__(m(target), m(key))
            case r.ReplaceContents(target, items):
                replace(m(target), m(items))
            case r.ExtendList(target, items):
                list.extend(m(target), m(items))
            case r.StoreAttr(target, name, value):
                object.__setattr__(m(target), name, m(value))
            case r.StoreCell(target, value):
                m(target).cell_contents = m(value)
            case r.SetState(name, value):
                torch_api.set_state(name, value)
            case r.DeferredCall(function, args, kwargs):
                m(function)(*[m(a) for a in args], **{k: m(v) for k, v in kwargs})
            case _:
                raise AssertionError(e)


def put(target: dict[Any, Any], key: Any, value: Any) -> None:
    import collections

    if isinstance(target, collections.OrderedDict):
        collections.OrderedDict.__setitem__(target, key, value)
    else:
        dict.__setitem__(target, key, value)


def replace(target: Any, items: Any) -> None:
    if isinstance(target, list):
        list.__setitem__(target, slice(None), items)
        return
    target.clear()
    if isinstance(target, dict):
        for k, v in items.items():
            put(target, k, v)
    else:
        (target.update if isinstance(target, set) else target.extend)(items)


def assert_same(got: Any, want: Any) -> None:
    """Same structure, types and values; tensors within rounding."""
    assert type(got) is type(want), (type(got), type(want))
    if isinstance(want, torch.Tensor):
        assert got.shape == want.shape and got.dtype == want.dtype
        assert got.requires_grad == want.requires_grad
        torch.testing.assert_close(got, want, equal_nan=True)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            assert_same(a, b)
    elif hasattr(want, "__dict__") and not isinstance(want, type | types.FunctionType):
        assert_same(vars(got), vars(want))
    elif isinstance(want, int | float | str | bool):
        assert same(got, want), (got, want)


def check(target: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """Captured equals eager, on copies of the same arguments; returns the capture's value."""
    import copy

    options = kw.pop("options", None)
    torch.manual_seed(0)
    want_args, want_kw = copy.deepcopy((args, kw))
    want = target(*want_args, **want_kw)
    torch.manual_seed(0)
    got = run(target, *args, options=options, **kw)
    assert_same(got, want)
    assert_same(args, want_args)
    assert_same(kw, want_kw)
    return got


def same_as_eager(program: Callable[..., Any]) -> None:
    """A program whose world changes between its calls: ``program(compile)`` gives what it saw."""
    want = program(lambda function: function)
    assert_same(program(lambda function: jitney.compile(function, backend="eager")), want)


def broken(target: Any, *args: Any, **kw: Any) -> Break:
    """Captures a call that must break; the break."""
    result = capture(target, *args, **kw)
    assert isinstance(result.exit, Break), type(result.exit)
    return result.exit


def brief(end: Any) -> str:
    """How a capture ended, in a line."""
    if isinstance(end, Break):
        return f"{end.kind}: {end.reason} at {end.where}"
    return type(end).__name__


def adder(programs: list[Any]) -> Callable[..., Callable[[Any], Any]]:
    """A decorator factory: ``@program(*args, **kwargs)`` adds a function, and the arguments it is
    called with, to ``programs`` as a pytest parameter."""

    def program(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            programs.append(pytest.param(function, args, kwargs, id=function.__name__))
            return function

        return add

    return program
