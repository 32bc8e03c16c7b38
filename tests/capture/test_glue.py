"""Glue from hand-made captures: rebuilt values, replayed effects, frames stopped in the middle."""

from __future__ import annotations

from collections import OrderedDict
from types import FunctionType
from typing import Any

import pytest
import torch

from jitney.capture import recipe as r
from jitney.capture.build_glue import bind, build_glue
from jitney.capture.build_resume import resume_code
from jitney.capture.cpython import CALLED_LIES_BELOW
from jitney.capture.edit_code import list_code
from jitney.capture.emit_fetch import frame_locals
from jitney.capture.result import Break, Capture, FrameState, GraphInput, Return
from jitney.capture.source import Attr, DictItem, Item, Local


class EagerLinker:
    """Runs resume functions as they are and notes what it was asked for."""

    def __init__(self) -> None:
        self.points: list[Any] = []
        self.callees: list[Any] = []

    def resume(self, point, globals_):
        self.points.append(point)
        code = resume_code(point)
        return lambda closure, *values: FunctionType(code, globals_, None, None, closure)(*values)

    def callee(self, value):
        self.callees.append(value)
        return value


def glue_of(function, capture, graph=None, linker=None):
    names = frame_locals(function.__code__)
    name = function.__name__
    return build_glue(capture, graph, names, linker or EagerLinker(), name, False, None)(())


def run(function, leaving, *values, effects=(), inputs=(), graph=None):
    capture = Capture(None, inputs, (), effects, leaving)
    return glue_of(function, capture, graph)(function, *values)


def test_graph_inputs_are_fetched_and_outputs_returned():
    def f(x, items):
        return items[1] + x

    inputs = (
        GraphInput("a", Item(Local("items"), 1), None),
        GraphInput("b", Local("x"), None),
    )
    out = r.GraphOutput(0)
    leaving = Return(r.MakeTuple((out, r.MakeList((out, r.Constant(7))))))
    x, items = torch.ones(2), [None, torch.full((2,), 3.0)]
    first, rest = run(f, leaving, x, items, inputs=inputs, graph=lambda a, b: (a - b,))
    assert torch.equal(first, torch.full((2,), 2.0))
    assert rest[0] is first and rest[1] == 7


def test_one_recipe_makes_one_object():
    shared = r.MakeList((r.Constant(1),))
    made = run(lambda: None, Return(r.MakeTuple((shared, shared, r.MakeList(())))))
    assert made[0] is made[1]
    assert made[0] == [1] and made[2] == []


def test_every_kind_of_object():
    def template(a, b=2):
        return a + b

    cell = r.MakeCell(r.Constant(5))
    inner = (lambda x: lambda: x)(0)
    one, two = r.Constant(1), r.Constant(2)
    recipes = {
        "dict": r.MakeDict(((r.Constant("k"), one),)),
        "set": r.MakeSet((one, two)),
        "frozen": r.MakeSet((one,), frozen=True),
        "slice": r.MakeSlice(one, r.Constant(None), two),
        "iterator": r.MakeIterator((one, two)),
        "function": r.MakeFunction(
            template.__code__, r.Constant(globals()), "named", "q.named", r.MakeTuple((two,)),
            None, (), r.MakeDict(((r.Constant("mark"), one),)),
        ),
        "closure": r.MakeFunction(
            inner.__code__, r.Constant(globals()), "inner", "inner", None, None, (cell,)
        ),
        "method": r.MakeMethod(r.Constant(list.append), r.MakeList(())),
        "size": r.Apply(torch.Size, (r.MakeTuple((one, two)),)),
    }  # fmt: skip
    pairs = tuple((r.Constant(name), recipe) for name, recipe in recipes.items())
    made = run(template, Return(r.MakeDict(pairs)), 0, 0)
    assert made["dict"] == {"k": 1} and made["set"] == {1, 2} and made["frozen"] == frozenset({1})
    assert made["slice"] == slice(1, None, 2) and list(made["iterator"]) == [1, 2]
    assert made["function"](1) == 3 and made["function"].mark == 1
    assert made["function"].__qualname__ == "q.named"
    assert made["closure"]() == 5
    assert made["method"].__self__ == [] and made["size"] == torch.Size([1, 2])


class Plain:
    def __init__(self):
        raise AssertionError("not called")

    def __setattr__(self, name, value):
        raise AssertionError("not called")


class Slotted:
    __slots__ = ("x",)


class Ordered(OrderedDict):
    def __setitem__(self, key, value):
        raise AssertionError("not called")


def test_objects_are_made_past_their_own_methods():
    plain = r.MakeObject(Plain, state=(("x", r.Constant(1)),))
    slotted = r.MakeObject(Slotted, slots=(("x", r.Constant(2)),))
    items = r.MakeDict(((r.Constant("b"), r.Constant(1)), (r.Constant("a"), r.Constant(2))))
    ordered = r.MakeObject(Ordered, base=items, state=(("note", r.Constant(3)),))
    made = run(lambda: None, Return(r.MakeTuple((plain, slotted, ordered))))
    assert made[0].x == 1 and made[1].x == 2
    assert list(made[2].items()) == [("b", 1), ("a", 2)] and made[2].note == 3
    made[2].move_to_end("b")


def test_effects_are_replayed_in_order_after_the_graph():
    class Holder:
        pass

    def f(d, xs, h, t):
        pass

    h, log = Holder(), []
    attributes = Attr(Local("h"), "__dict__")
    d, xs, t = {"old": 1, "gone": 2}, [1, 2, 3], torch.ones(1, requires_grad=True)
    effects = (
        r.StoreItem(r.Given(Local("d")), r.Constant("new"), r.GraphOutput(0)),
        r.DeleteItem(r.Given(Local("d")), r.Constant("gone")),
        r.ReplaceContents(r.Given(Local("xs")), r.MakeList((r.Given(Item(Local("xs"), 2)),))),
        r.StoreItem(r.Given(attributes), r.Constant("value"), r.Constant(4)),
        r.StoreAttr(r.Given(Local("t")), "grad", r.GraphOutput(0)),
        r.DeferredCall(r.Constant(log.append), (r.Given(DictItem(Local("d"), "old")),)),
    )

    def graph():
        assert d == {"old": 1, "gone": 2} and xs == [1, 2, 3]
        return (torch.zeros(1),)

    run(f, Return(r.Constant(None)), d, xs, h, t, effects=effects, graph=graph)
    assert list(d) == ["old", "new"] and xs == [3] and h.value == 4 and log == [1]
    assert t.grad is d["new"]


def test_nothing_is_changed_when_the_graph_or_a_rebuild_raises():
    d: dict[str, Any] = {}
    store = r.StoreItem(r.Given(Local("d")), r.Constant("x"), r.Constant(1))
    fails = r.StoreItem(r.Given(Local("d")), r.Constant("y"), r.Apply(int, (r.Constant("no"),)))

    def graph():
        raise RuntimeError("in the graph")

    with pytest.raises(RuntimeError):
        run(lambda d: None, Return(r.Constant(0)), d, effects=(store,), graph=graph)
    with pytest.raises(ValueError):
        run(lambda d: None, Return(r.Constant(0)), d, effects=(store, fails))
    assert d == {}


# ---------------------------------------------------------------- breaks


def offset_of(function, name, nth=0):
    listing = list_code(function.__code__)
    at = [i for i, n in enumerate(listing.names) if n == name][nth]
    return listing.offsets[at]


def state(function, offset, stack, values, **more):
    return FrameState(
        function.__code__, function.__name__, function.__globals__, offset,
        tuple(stack), tuple(values.items()), (), **more,
    )  # fmt: skip


def stopped(function, frames, *values):
    linker = EagerLinker()
    capture = Capture(None, (), (), (), Break(tuple(frames), "k", "r", "", ""))
    return glue_of(function, capture, linker=linker)(function, *values), linker


def called(function):
    """A function to call as it lies on the stack."""
    return (function, r.Null()) if CALLED_LIES_BELOW else (r.Null(), function)


def helper(x):
    return x * 10


def broken(x):
    y = 1
    return helper(x) + y


def test_a_broken_call_is_made_and_the_rest_resumed():
    x = r.Given(Local("x"))
    stack = (*called(r.Constant(helper)), x)
    frame = state(broken, offset_of(broken, "CALL"), stack, {"x": x, "y": r.Constant(1)})
    result, linker = stopped(broken, [frame], 4)
    assert result == 41
    assert linker.callees == [helper]
    assert [p.names for p in linker.points] == [("x", "y")]


def caller(x):
    try:
        return [0, broken(x), 2]
    except TypeError as error:
        return f"caught {error}"


def test_outer_frames_resume_behind_their_call_and_handle_its_exceptions():
    def frames(function):
        x = r.Given(Local("x"))
        stack = (*called(r.Constant(function)), x)
        inner = state(broken, offset_of(broken, "CALL"), stack, {"x": x, "y": r.Constant(1)})
        outer = state(caller, offset_of(caller, "CALL"), (r.Constant(0),), {"x": x})
        return [inner, outer]

    assert stopped(caller, frames(helper), 4)[0] == [0, 41, 2]

    def bad(x):
        raise TypeError("bad")

    assert stopped(caller, frames(bad), 4)[0] == "caught bad"


def branching(x):
    if x is not None:
        return "yes"
    return "no"


@pytest.mark.parametrize(("value", "expected"), [(1, "yes"), (None, "no")])
def test_a_branch_continues_on_the_side_taken(value, expected):
    listing = list_code(branching.__code__)
    name = next(n for n in listing.names if n.startswith("POP_JUMP"))
    x = r.Given(Local("x"))
    frame = state(branching, offset_of(branching, name), (x,), {"x": x})
    assert stopped(branching, [frame], value)[0] == expected


class Bindable:
    """A backend's graph that notes what it is called with, and what was bound."""

    def __init__(self, graph):
        self.graph, self.calls, self.refuses = graph, [], False

    def __call__(self, *inputs):
        self.calls.append(len(inputs))
        return self.graph(*inputs)

    def bind(self, known):
        if self.refuses:
            return None
        places = [at for at, value in enumerate(known) if value is ...]

        def bound(*given):
            self.calls.append(-len(given))
            inputs = list(known)
            for place, value in zip(places, given, strict=True):
                inputs[place] = value
            return self.graph(*inputs)

        return bound


@pytest.mark.parametrize("refuses", [False, True])
def test_what_stays_is_bound_to_a_graph_that_can(refuses):
    graph = Bindable(lambda *inputs: inputs)
    graph.refuses = refuses
    call = bind(graph, (..., "weight", ...))
    assert call("x", "y") == ("x", "weight", "y")
    assert graph.calls == [3 if refuses else -2]
