"""Authors' ops that write to their arguments are calls of the graph, which write in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney import graph_pipeline
from jitney.events import log
from jitney.loops.interpret import interpret
from jitney.loops.ir import Extern, LoopProgram
from tests.capture.run_capture import assert_same

Inputs = tuple[Any, ...]


@torch.library.custom_op("written_ops::scale", mutates_args=("x",))
def scale(x: Tensor, y: Tensor) -> None:
    x.mul_(0.5).add_(y.sum())


@torch.library.custom_op("written_ops::added", mutates_args=("x",))
def added(x: Tensor, y: Tensor, by: float = 2.0) -> Tensor:
    x.add_(y.mean() * by)
    return x * 0.5


added.register_fake(lambda x, y, by=2.0: torch.empty_like(x))


@torch.library.custom_op("written_ops::both", mutates_args=("x", "z"))
def both(x: Tensor, y: Tensor, z: Tensor | None = None) -> None:
    x.add_(y.amax())
    if z is not None:
        z.sub_(y.amin())


@torch.library.custom_op("written_ops::each", mutates_args=("xs",))
def each(xs: list[Tensor], y: Tensor) -> Tensor:
    for place, x in enumerate(xs):
        x.mul_(y.sum()).add_(place)
    return y * len(xs)


each.register_fake(lambda xs, y: torch.empty_like(y))


@torch.library.custom_op("written_ops::place", mutates_args=("keys", "values"))
def place(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    keys[slots] = k
    values[slots] = v


@torch.library.custom_op("written_ops::picky", mutates_args=("x",))
def picky(x: Tensor, y: Tensor) -> None:
    x.add_(1)
    if y.sum() > 9:
        raise ValueError("too much")
    x.mul_(2)


LIBRARY = torch.library.Library("written_ops_defined", "FRAGMENT")
LIBRARY.define("halve(Tensor(a!) x, Tensor y) -> Tensor(a!)")
LIBRARY.impl("halve", lambda x, y: x.mul_(0.5).sub_(y.min()), "CPU")
LIBRARY.impl("halve", lambda x, y: x, "Meta")
LIBRARY.define("fill(Tensor y, *, Tensor(a!) out) -> ()")
LIBRARY.impl("fill", lambda y, out: [out.copy_(y.sum())][1:] or None, "CPU")
LIBRARY.define("filled(Tensor y, Tensor(a!) first, Tensor(b!) second) -> ()")
LIBRARY.impl("filled", lambda y, a, b: [a.copy_(y.sum()), b.copy_(y.amax())][2:] or None, "CPU")
LIBRARY.define("turned(Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor(a!))")
LIBRARY.impl("turned", lambda x, y: (y.mul_(2), x.add_(1)), "CPU")
LIBRARY.impl("turned", lambda x, y: (y, x), "Meta")
OPS = torch.ops.written_ops_defined


def in_an_input(x: Tensor, y: Tensor) -> Any:
    before = x + 1
    scale(x, y)
    return before, x * 2


def in_a_new_tensor(x: Tensor, y: Tensor) -> Any:
    out = torch.empty_like(x)
    OPS.fill(y, out=out)
    return out + x


def in_two_new_tensors(x: Tensor, y: Tensor) -> Any:
    first, second = torch.empty_like(x), torch.empty_like(x)
    ones, zeros = torch.zeros_like(x), torch.zeros_like(x)
    OPS.filled(y, first, second)
    each([ones, zeros], y)
    return first + x, second * 2, ones, zeros


def in_views(x: Tensor, y: Tensor) -> Any:
    base = x * 2
    first, rest, old = base[0], base[1:], base.clone()
    scale(first, y)
    added(rest, first)
    return base, first + 1, rest.t(), old


def in_views_of_an_input(x: Tensor, y: Tensor) -> Any:
    scale(x[1:, ::2], y)
    return added(x.t()[0], x), x[1]


def twice_in_a_row(x: Tensor, y: Tensor) -> Any:
    scale(x, y)
    scale(x, x[0])
    both(y, x, x[1])
    return x.sum()


def in_several(x: Tensor, y: Tensor) -> Any:
    both(x, y, y)
    z = y.sin()
    made = each([x, z, y[0]], x[0])
    return made, z


def in_nothing(x: Tensor, y: Tensor) -> Any:
    both(x, y)
    return each([], y)


def that_overlap(x: Tensor, y: Tensor) -> Any:
    made = x + y
    both(made[:3], y, made[1:])
    scale(made[0], made)
    return made


def given_back(x: Tensor, y: Tensor) -> Any:
    z = OPS.halve(x, y)
    return z, OPS.halve(y * 2, z) + 1


def given_back_turned(x: Tensor, y: Tensor) -> Any:
    first, second = OPS.turned(x, y)
    return first + 1, second * 2, OPS.turned(x * 2, y * 3)


def among_other_writes(x: Tensor, y: Tensor) -> Any:
    made = x.clone()
    made[0] = 3
    scale(made[1:], y)
    made.add_(1)
    scale(made, y)
    made.t().mul_(2)
    return made


def unread(x: Tensor, y: Tensor) -> Any:
    made = y.cos()
    scale(made, x)
    return x + 1


def numbers(x: Tensor, y: Tensor) -> Any:
    made = x.sum()
    scale(made, y)
    return made, added(x[0, 0], y, 0.25)


PROGRAMS: list[Callable[..., Any]] = [
    in_an_input, in_a_new_tensor, in_two_new_tensors, in_views, in_views_of_an_input,
    twice_in_a_row, in_several, in_nothing, that_overlap, given_back, given_back_turned,
    among_other_writes, unread, numbers,
]  # fmt: skip
LAYOUTS: dict[str, Callable[[int], Inputs]] = {
    "rows": lambda n: (torch.randn(n, n), torch.randn(n, n)),
    "columns": lambda n: (torch.randn(n, n).t(), torch.randn(n, n)),
    "gaps": lambda n: (torch.randn(2 * n, n + 3)[::2, 2:-1], torch.randn(n, 2 * n)[:, ::2]),
}


def copies(inputs: Inputs) -> Inputs:
    """Copies that lie as the tensors do."""
    return tuple(
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) for x in inputs
    )  # fmt: skip


def check(function: Callable[..., Any], compiled: Any, inputs: Inputs) -> None:
    found = []
    for called in (function, compiled):
        given = copies(inputs)
        result = called(*given)
        found.append((result, given, [x._version > 0 for x in given]))
    assert_same(found[1], found[0])


def is_whole() -> bool:
    """Whether all that ran since the log was cleared was one compiled graph."""
    return not log.events("graph_break") and not log.events("eager_graph")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"fullgraph": True}], ids=str)
@pytest.mark.parametrize("function", PROGRAMS)
def test_equal_to_eager_in_one_graph(
    function: Callable[..., Any], options: dict[str, Any], layout: str
) -> None:
    log.clear()
    compiled = jitney.compile(function, **options)
    for size in (4, 4, 6):
        check(function, compiled, LAYOUTS[layout](size))
    assert is_whole()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("function", PROGRAMS)
def test_without_gradients(function: Callable[..., Any], mode: Any) -> None:
    compiled = jitney.compile(function)
    with mode():
        for size in (4, 5):
            found = []
            inputs = LAYOUTS["rows"](size)
            for called in (function, compiled):
                given = copies(inputs)
                found.append((called(*given), given))
            assert_same(found[1], found[0])


def test_sizes_of_no_elements() -> None:
    for function in (in_an_input, in_a_new_tensor):
        check(function, jitney.compile(function), (torch.randn(0, 3), torch.randn(2, 3)))


@pytest.mark.parametrize("function", [in_an_input, in_views, among_other_writes])
def test_by_torchs_capture(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    log.clear()
    check(function, torch.compile(function, backend="jitney"), LAYOUTS["rows"](4))
    assert is_whole()


def programs_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[LoopProgram, Any]]:
    """A list that gets what graphs are lowered to from now on."""
    found: list[tuple[LoopProgram, Any]] = []
    lower = graph_pipeline.lower_graph

    def noted(*args: Any) -> Any:
        found.append(lower(*args))
        return found[-1]

    monkeypatch.setattr(graph_pipeline, "lower_graph", noted)
    return found


def step(x: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
    for layer in range(2):
        out = torch.empty_like(x)
        added(out.fill_(0), x)
        place(out, x, cache[layer][0], cache[layer, 1], slots)
        x = x + out
    return x


def test_no_cache_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor filled, nor written back: calls alone touch it, where the caller has it."""
    programs = programs_of(monkeypatch)
    x, slots = torch.randn(3, 8), torch.tensor([4, 0, 2])
    caches = [torch.zeros(2, 2, 6, 8) for _ in range(2)]
    compiled = jitney.compile(step, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(x, caches[0], slots), step(x, caches[1], slots))
    assert_same(*caches)
    ((program, _),) = programs
    large = [b for b in program.buffers if len(b.shape) == 4]
    assert [b.kind for b in large] == ["input"]
    touching = [n for n in program.nodes if large[0].name in str(n)]
    assert [type(n) for n in touching] == [Extern, Extern]


def attend(q: Tensor, k: Tensor, cache: Tensor, at: Tensor) -> Tensor:
    """What ATen writes to the cache is there when the op reads it."""
    cache.index_copy_(0, at, k)
    out = torch.empty_like(q)
    both(out.fill_(1), cache, None)
    cache[at] = out
    scale(out, cache)
    return out + q


def test_no_cache_is_copied_between_writes_of_atens(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = programs_of(monkeypatch)
    q, k, at = torch.randn(2, 8), torch.randn(2, 8), torch.tensor([3, 1])
    caches = [torch.zeros(9, 8) for _ in range(2)]
    compiled = jitney.compile(attend)
    log.clear()
    for _ in range(2):
        assert_same(compiled(q, k, caches[0], at), attend(q, k, caches[1], at))
    assert_same(*caches)
    assert is_whole()
    ((program, _),) = programs
    shape = [b.shape for b in program.buffers if b.kind == "input" and int(b.shape[0]) == 9]
    assert [b.kind for b in program.buffers if b.shape in shape] == ["input"]


def test_memory_that_an_op_alone_fills_is_not_set_before(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = programs_of(monkeypatch)
    check(in_a_new_tensor, jitney.compile(in_a_new_tensor), LAYOUTS["rows"](4))
    ((program, _),) = programs
    call, addition = program.nodes
    assert isinstance(call, Extern) and not call.outputs and not isinstance(addition, Extern)


@pytest.mark.parametrize("function", PROGRAMS)
def test_the_interpreter_writes_too(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = programs_of(monkeypatch)
    x, y = LAYOUTS["rows"](4)
    jitney.compile(function, fullgraph=True)(*copies((x, y)))
    ((program, constants),) = programs
    names = [name for name in program.arguments if isinstance(name, str)]
    wanted, found = copies((x, y)), []
    function(*wanted)
    for order in ((0, 1), (1, 0)):  # inputs come in the order in which they are read
        given = copies((x, y))
        interpret(program, constants, [given[k] for k in order[: len(names)]])
        found.append(all(map(torch.equal, given, wanted)))
    assert any(found)


def test_old_values_that_are_read_later() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        z = x * y
        old = z.clone()
        scale(z, y)
        older = z.clone()
        scale(z, y)
        return old, older, z

    check(function, jitney.compile(function, fullgraph=True), LAYOUTS["rows"](4))


def counted(x: Tensor, y: Tensor, told: list[int]) -> Tensor:
    told.append(1)
    picky(x, y)
    told.append(2)
    return x * 2


def after_another(x: Tensor, y: Tensor, told: list[int]) -> Tensor:
    scale(x, x[0])
    picky(x, y)
    return x * 2


def after_a_write(x: Tensor, y: Tensor, told: list[int]) -> Tensor:
    x.add_(1)
    picky(x, y)
    return x * 2


def between_writes(x: Tensor, y: Tensor, told: list[int]) -> Tensor:
    x[0] = 7
    made = torch.index_put(y, (torch.tensor([0]),), torch.ones(2))
    picky(x, y)
    y.copy_(made * 2)
    return x * 2


def before_another_error(x: Tensor, y: Tensor, told: list[int]) -> Tensor:
    picky(x, y[:0])
    told.append(1)
    return torch.linalg.cholesky(-y) + x


def handled(x: Tensor, y: Tensor, told: list[int]) -> Tensor:
    try:
        picky(x, y)
    except ValueError as error:
        told.append(len(str(error)))
    return x * 2


@pytest.mark.parametrize(
    "function",
    [counted, after_another, after_a_write, between_writes, before_another_error, handled],
)
def test_an_error_leaves_what_eager_leaves(function: Callable[..., Any]) -> None:
    compiled = jitney.compile(function)
    for size in (1.0, 5.0, 1.0, 5.0):
        found = []
        for called in (function, compiled):
            x, y, told, error = torch.ones(2, 2), size * torch.eye(2), list[int](), ""
            try:
                called(x, y, told)
            except (ValueError, RuntimeError) as raised:
                error = type(raised).__name__
            found.append((x, y, told, error))
        assert_same(found[1], found[0])


def gradient_is_needed(x: Tensor, y: Tensor) -> Any:
    made = x * torch.ones(4, requires_grad=True)
    scale(made, y)
    return made


def gives_a_gradient(x: Tensor, y: Tensor) -> Any:
    return added(x, y * torch.ones(4, requires_grad=True)).detach()


def differentiates_inside(x: Tensor, y: Tensor) -> Any:
    made = x.clone()
    OPS.halve(made, y * torch.ones(4, requires_grad=True))
    return made


def of_other_bits(x: Tensor, y: Tensor) -> Any:
    made = x.clone()
    scale(made.view(torch.float64), y.double())
    return made


BREAKS = {
    gradient_is_needed: "requires grad",
    gives_a_gradient: "gives what requires grad",
    differentiates_inside: "autograd sees what it does inside",
    of_other_bits: "a view of another dtype",
}


@pytest.mark.parametrize("function", BREAKS)
def test_what_breaks_the_graph(function: Callable[..., Any]) -> None:
    log.clear()
    check(function, jitney.compile(function), LAYOUTS["rows"](4))
    reasons = [str(event.data["reason"]) for event in log.events("graph_break")]
    assert any(BREAKS[function] in reason for reason in reasons)


def test_inputs_that_share_memory() -> None:
    log.clear()
    compiled = jitney.compile(in_an_input)
    check(in_an_input, compiled, LAYOUTS["rows"](4))
    found = []
    for called in (in_an_input, compiled):
        whole = torch.arange(24.0).view(6, 4)
        found.append((called(whole[:4], whole[2:]), whole))
    assert_same(found[1], found[0])
    assert "share memory" in str(log.events("graph_break")[-1].data["reason"])


@pytest.mark.parametrize("function", PROGRAMS)
def test_between_kernels_of_a_gpu(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from tests.pretend_gpu import pretend_gpu

    pretend_gpu(monkeypatch)
    log.clear()
    compiled = jitney.compile(function)
    for size, layout in ((4, "rows"), (5, "rows"), (4, "gaps")):
        check(function, compiled, LAYOUTS[layout](size))
    assert is_whole()
