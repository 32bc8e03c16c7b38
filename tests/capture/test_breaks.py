"""Where a capture stops, and what it says of every frame that is in the middle of something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import jitney
from jitney.capture import construct
from jitney.capture import recipe as r
from jitney.capture.cpython import CALLED_LIES_BELOW
from jitney.capture.instructions import read_instructions
from jitney.capture.options import CaptureOptions
from jitney.capture.result import FrameState
from jitney.diagnostics.report import report
from jitney.errors import Unsupported
from jitney.events import log
from tests.capture.run_capture import broken, capture

X = torch.tensor([1.0, 2.0, -3.0])


def instruction(frame: FrameState) -> str:
    """The name of the instruction a frame stopped at."""
    return next(i.opname for i in read_instructions(frame.code) if i.offset == frame.offset)


def test_a_branch_on_a_tensor_stops_at_the_jump() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum() > 0:
            return y
        return -y

    end = broken(f, X)
    assert end.kind == "data-dependent-branch" and "torch.where" in end.hint
    (frame,) = end.frames
    assert instruction(frame) == "TO_BOOL" or "JUMP" in instruction(frame)
    assert len(frame.stack) == 1 and isinstance(frame.stack[0], r.GraphOutput)
    assert dict(frame.locals).keys() == {"x", "y"}
    assert end.where == f"{__file__}:{f.__code__.co_firstlineno + 2}"


@pytest.mark.parametrize("rows", [2, 1, 0])
def test_values_with_a_gradient_put_by_a_mask_stop_only_there(rows: int) -> None:
    def f(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 3
        z[mask] = y * 2
        return z + 1

    mask = torch.tensor([rows > 0, False, rows > 1])
    y = torch.arange(float(rows)).requires_grad_()
    with torch.no_grad():
        assert capture(f, X, mask, y)
    assert broken(f, X, mask, y).kind == "data-dependent"
    (expected,) = torch.autograd.grad(f(X, mask, y).sum(), y)
    log.clear()
    (found,) = torch.autograd.grad(jitney.compile(f)(X, mask, y).sum(), y)
    assert torch.equal(found, expected)
    made = report(log.events())
    assert [b.kind for b in made.breaks] == ["data-dependent"] and not made.fallbacks


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.ones(3, requires_grad=True),
        lambda x: torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
        lambda x: torch.zeros_like(x, requires_grad=True),
        lambda x: x.new_ones(3, requires_grad=x.requires_grad),
        lambda x: torch.rand(3, requires_grad=True),
    ],
)
def test_tensors_made_to_get_a_gradient_get_it(make: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        made = make(x)
        return (x * made).sum(), made, x + 1

    def penalty(x: torch.Tensor) -> torch.Tensor:
        made = make(x)
        return torch.autograd.grad((x * made).sum(), made)[0] + x

    x = X.clone().requires_grad_()
    total, made, other = jitney.compile(f)(x)
    assert made.requires_grad and made.is_leaf and other.requires_grad
    total.backward()
    assert torch.equal(made.grad, X) and torch.equal(x.grad, made)
    assert torch.equal(jitney.compile(penalty)(x), X * 2)
    end = broken(f, x)
    assert end.kind == "tensor-constructor" and "requires a gradient" in end.reason
    assert capture(lambda x: x * torch.ones(3, requires_grad=x.requires_grad), X)


def inner(x: torch.Tensor, k: int) -> Any:
    z = x * k
    return z.sum().item(), z


def test_frames_innermost_first_with_what_is_below_the_call() -> None:
    def middle(x: torch.Tensor) -> Any:
        return [x, inner(x + 1, k=2)]

    def f(x: torch.Tensor) -> Any:
        return (x, 7, middle(x))

    end = broken(f, X)
    assert [s.function_name for s in end.frames] == ["inner", "middle", "f"]
    innermost, middle_state, outer = end.frames
    assert isinstance(innermost.stack[int(CALLED_LIES_BELOW)], r.Null)
    assert [type(v) for v in middle_state.stack] == [r.Given]
    assert [type(v) for v in outer.stack] == [r.Given, r.Constant]
    assert all(s.pushes for s in end.frames)


def test_an_init_that_breaks_leaves_the_object_on_the_stack() -> None:
    class Box:
        def __init__(self, x: torch.Tensor) -> None:
            self.value = x.sum().item()

    def f(x: torch.Tensor) -> Any:
        return Box(x), 1

    end = broken(f, X)
    assert [s.function_name for s in end.frames] == ["__init__", "f"]
    assert not end.frames[1].pushes
    assert isinstance(end.frames[1].stack[-1], r.MakeObject)
    owner = dict(end.frames[0].locals)["self"]
    assert owner is end.frames[1].stack[-1]


def test_a_context_manager_is_open_across_the_break() -> None:
    def f(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x * 2
            n = y.sum().item()
        return n

    result = capture(f, X)
    names = [e.name for e in result.effects if isinstance(e, r.SetState)]
    assert names == ["grad_enabled"]
    assert torch.is_grad_enabled()


def test_a_break_in_a_callback_of_c_code_moves_out_to_the_call() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1

        def items() -> Iterator[Any]:
            for i in range(3):
                yield (y * i).sum().item()

        return list(items())

    end = broken(f, X)
    assert [s.function_name for s in end.frames] == ["f"]


def test_a_break_in_a_property_resumes_behind_it() -> None:
    class Box:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        @property
        def total(self) -> float:
            return self.x.sum().item()

    def f(x: torch.Tensor) -> Any:
        return Box(x + 1).total + 1

    assert [s.function_name for s in broken(f, X).frames] == ["total", "f"]


def test_iterators_go_on_from_where_they_are() -> None:
    def f(x: torch.Tensor) -> Any:
        total = 0
        for a, b in zip([1, 2, 3], (x, x, x)):
            total += b.sum().item() * a
        return total

    (frame,) = broken(f, X).frames
    iterators = [v for v in frame.stack if getattr(v, "function", None) is construct.make_iterator]
    (left,) = iterators
    made, (numbers, tensors) = left.args[0], left.args[1].items
    assert made.value is zip and numbers.args[2].value == 1 and len(tensors.args[0].items) == 2


def test_aliases_stay_aliases() -> None:
    def f(x: torch.Tensor) -> Any:
        a = [x]
        b = {"a": a, "again": a}
        return x.sum().item(), a, b

    (frame,) = broken(f, X).frames
    found = dict(frame.locals)
    made = found["b"]
    assert isinstance(made, r.MakeDict)
    assert made.items[0][1] is found["a"] and made.items[1][1] is found["a"]


def test_closures_share_their_cell() -> None:
    def f(x: torch.Tensor) -> Any:
        count = 0

        def add() -> None:
            nonlocal count
            count += 1

        add()
        return x.sum().item(), count, add

    (frame,) = broken(f, X).frames
    found = dict(frame.locals)
    assert isinstance(found["add"], r.MakeFunction)
    assert found["add"].closure[0] is found["count"]
    assert isinstance(found["count"], r.MakeCell)


def test_what_was_computed_before_is_in_the_graph() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.sin()
        z = y.cos()
        return z.sum().item()

    result = capture(f, X)
    assert result.graph is not None
    targets = [n.target for n in result.graph.graph.nodes if n.op == "call_method"]
    assert targets == ["sin", "cos", "sum"]


def test_fullgraph_names_the_line_and_a_fix() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        return y.sum().item()

    with pytest.raises(Unsupported) as caught:
        capture(f, X, options=CaptureOptions(fullgraph=True))
    assert caught.value.where == f"{__file__}:{f.__code__.co_firstlineno + 2}"
    assert caught.value.hint and "item()" in caught.value.message


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0],
        torch.unique,
        lambda x: open("/dev/null").close(),
        lambda x: torch.save(x, "/dev/null"),
        lambda x: x.data_ptr(),
        lambda x: torch.manual_seed(1),
        lambda x: x.nothing,
        lambda x: x @ torch.ones(3, 3),
        lambda x: torch.add(x),
        lambda x: eval("x + 1"),
    ],
)
def test_a_refusal_says_what_to_do(function: Any) -> None:
    with pytest.raises(Unsupported) as caught:
        capture(lambda x: function(x), torch.ones(2, 4), options=CaptureOptions(fullgraph=True))
    assert caught.value.hint
    assert "Fake" not in str(caught.value)


def test_recursion_inside_a_cell_is_rebuilt() -> None:
    def f(x: torch.Tensor) -> Any:
        def down(k: int) -> Any:
            return x if k == 0 else down(k - 1) + 1

        return x.sum().item(), down

    (frame,) = broken(f, X).frames
    assert isinstance(dict(frame.locals)["down"], r.MakeCell)


@pytest.mark.parametrize("exponent", [True, False])
def test_a_boolean_exponent_is_no_number(exponent: bool) -> None:
    flags = torch.tensor([True, False])
    compiled = jitney.compile(lambda b: b**exponent)
    assert compiled(flags).dtype == torch.bool
    assert compiled(flags).tolist() == (flags**exponent).tolist()


def test_a_boolean_alpha_is_refused_as_in_eager() -> None:
    with pytest.raises(RuntimeError, match="Boolean alpha"):
        jitney.compile(lambda x: torch.add(x, x, alpha=True))(X)


@pytest.mark.parametrize("values", [["a", "b"], []])
def test_strings_are_not_summed(values: list[str]) -> None:
    with pytest.raises(TypeError, match="can't sum strings"):
        jitney.compile(lambda x: x + len(sum(values, "")))(X)  # type: ignore[call-overload]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x * 2).to_sparse()._nnz(),
        lambda x: x.to_sparse().coalesce().values() + 1,
        lambda x: torch.nested.nested_tensor([x, x[:1]]).size(0),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).int_repr(),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, dtype=torch.qint8).q_scale(),
    ],
)
def test_tensors_that_no_graph_holds_are_made_behind_a_break(make: Any) -> None:
    expected, actual = make(X), jitney.compile(make, options={"eager_on_bug": False})(X)
    assert type(actual) is type(expected)
    assert torch.equal(torch.as_tensor(actual), torch.as_tensor(expected))


def test_an_op_of_the_authors_own_that_is_made_of_others_runs_between_two_graphs() -> None:
    library = torch.library.Library("jitney_breaks", "FRAGMENT")
    library.define("double_(Tensor(a!) x) -> ()")
    library.impl("double_", lambda x: [x.mul_(2)][1:] or None, "CompositeImplicitAutograd")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.ops.jitney_breaks.double_(y)
        return y * 3

    log.clear()
    compiled, x = jitney.compile(f), torch.randn(5)
    for _ in range(2):
        assert compiled(x).equal(f(x))
    made = report(log.events())
    assert [b.kind for b in made.breaks] == ["custom-op"] and not made.fallbacks
    assert jitney.compile(f, fullgraph=True)(x).equal(f(x))


def _in_a_tuple(x: torch.Tensor, seen: dict[str, torch.Tensor]) -> Any:
    parts = (x * 2, seen, x)
    return len(parts), parts[0] + 1, parts[1]["mask"].to_dense()


def _in_a_list(x: torch.Tensor, seen: dict[str, torch.Tensor]) -> Any:
    parts = [x * 2, seen]
    return len(parts), parts[0] + 1


def _in_an_argument(x: torch.Tensor, seen: dict[str, torch.Tensor]) -> Any:
    def first(pair: Any) -> Any:
        return pair[0] + 1

    return first((x * 2, seen)) * 3


@pytest.mark.parametrize("function", [_in_a_tuple, _in_a_list, _in_an_argument])
def test_a_break_at_what_a_display_looks_at(function: Any) -> None:
    compiled, x = jitney.compile(function), torch.ones(2, 3)
    seen = {"mask": torch.eye(2).to_sparse()}  # not captured: it is met as the display is built
    torch.testing.assert_close(compiled(x, seen), function(x, seen))
    torch.testing.assert_close(compiled(x, seen), function(x, seen))
