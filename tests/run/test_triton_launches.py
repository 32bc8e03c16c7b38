"""Launches of the program's own Triton kernels are calls of the graph, which write in place. They
run in Triton's interpreter, and on a GPU (`make gpu`) as kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney import graph_pipeline
from jitney.events import log
from jitney.loops.ir import Extern, LoopProgram
from tests.capture.run_capture import assert_same

triton = pytest.importorskip("triton")
tl = triton.language
ON_GPU = os.environ.get("TRITON_INTERPRET") == "0" and torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
BLOCK_ROWS = 16


@triton.jit
def add(a, b, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
    """Sums of two tensors."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    tl.store(out + place, tl.load(a + place, inside) + tl.load(b + place, inside), inside)


@triton.jit
def scale(x, n, by, NEGATE: tl.constexpr = False, BLOCK: tl.constexpr = 16):  # type: ignore[no-untyped-def,name-defined]
    """``x *= by``, or ``-by``."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    value = tl.load(x + place, inside) * by
    if NEGATE:
        value = -value
    tl.store(x + place, value, inside)


@triton.jit
def transposed(x, out, rows, columns, step, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
    """A transposed copy; row ``i`` of ``x`` begins at ``i * step``."""
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * step + place, place < columns)
    tl.store(out + place * rows + row, value, place < columns)


SEEN: list[Any] = []


def few(configs: list[Any], named: dict[str, Any], **others: Any) -> list[Any]:
    """An autotuner's own choice: it looks at what is given by place, and by name."""
    SEEN.append((list(named), sorted(others)))
    return configs[1:]


def first_time(call: Callable[[], Any], quantiles: Any = None) -> list[float]:
    call()
    return [1.0, 1.0, 1.0]


@triton.autotune(
    configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32}, num_warps=2)],
    key=["n"],
    **({} if ON_GPU else {"do_bench": first_time}),
)
@triton.jit
def tuned(a, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
    """``out = 2 * a``."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    tl.store(out + place, tl.load(a + place, inside) * 2, inside)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})],
    key=["n"],
    prune_configs_by={"early_config_prune": few},
)
@triton.jit
def pruned(a, out, n, by, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
    """``out = a * by``."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    tl.store(out + place, tl.load(a + place, inside) * by, inside)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def at_once(a, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
    """``out = a + 1`` in one block."""
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(a + place, place < n) + 1, place < n)


def by_a_tuple(x: Tensor, y: Tensor) -> Any:
    out = torch.empty_like(x)
    add[(-(-x.numel() // BLOCK_ROWS),)](x * 2, y, out, x.numel(), BLOCK=BLOCK_ROWS)
    return out.relu() * 3


def by_a_function(x: Tensor, y: Tensor) -> Any:
    n, out = x.numel(), torch.empty_like(x)
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y.sin(), out, n, BLOCK=16, num_warps=2)
    return out + x


def in_an_input(x: Tensor, y: Tensor) -> Any:
    before = x.sum()
    grid = (triton.cdiv(x.numel(), 16),)
    scale[grid](x, x.numel(), 0.5)
    scale[grid](x, x.numel(), 3.0, NEGATE=True)
    return before, x + y


def in_a_view(x: Tensor, y: Tensor) -> Any:
    z = x.view(-1) + 1
    scale[(1,)](z[2:], 4, y.shape[0] * 0.5)
    return z, z[3:] * 2


def with_strides(x: Tensor, y: Tensor) -> Any:
    part = (x + y)[:, 1:]
    out = part.new_empty(part.shape[1], part.shape[0])
    rows, columns = part.shape
    transposed[(rows, 1, 1)](part, out, rows, columns, part.stride(0), BLOCK=16)
    return out


def by_an_autotuner(x: Tensor, y: Tensor) -> Any:
    out, n = torch.empty_like(y), y.numel()
    tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]), 1)](y, out, n)
    return out + x


def by_heuristics(x: Tensor, y: Tensor) -> Any:
    out = torch.empty_like(y)
    at_once[lambda meta: (meta["BLOCK"] // meta["BLOCK"],)](y.cos(), out, y.numel())
    return out * 2


PROGRAMS: list[Callable[..., Any]] = [
    by_a_tuple, by_a_function, in_an_input, in_a_view, with_strides, by_an_autotuner,
    by_heuristics,
]  # fmt: skip


def inputs_of(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 5, device=DEVICE), torch.randn(size, 5, device=DEVICE)


def check(function: Callable[..., Any], compiled: Any, inputs: tuple[Tensor, ...]) -> None:
    found = []
    for called in (function, compiled):
        given = tuple(x.clone() for x in inputs)
        found.append((called(*given), given, [x._version for x in given]))
    assert_same(found[1], found[0])


def reasons() -> list[str]:
    return [
        str(e.data["reason"]) for kind in ("graph_break", "eager_graph") for e in log.events(kind)
    ]


def check_all(function: Callable[..., Any], options: dict[str, Any]) -> None:
    log.clear()
    compiled = jitney.compile(function, **options)
    for size in (4, 4, 7, 11):
        check(function, compiled, inputs_of(size))
    assert not reasons()


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"fullgraph": True}], ids=str)
@pytest.mark.parametrize("function", PROGRAMS)
def test_launches_are_calls_of_the_graph(
    function: Callable[..., Any], options: dict[str, Any]
) -> None:
    check_all(function, options)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("function", PROGRAMS)
def test_on_a_gpu(function: Callable[..., Any], mode: str) -> None:
    with torch.no_grad():
        check_all(function, {"mode": mode, "fullgraph": True})


@pytest.mark.gpu
def test_what_a_kernel_reads_alone_is_not_written() -> None:
    """So says Triton's own code of the kernel: a parameter may be read where gradients are on."""

    def function(x: Tensor, y: Tensor) -> Any:
        out = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
        return out * x

    log.clear()
    compiled, found = jitney.compile(function), []
    for called in (function, compiled):
        torch.manual_seed(0)
        x, y = (part.requires_grad_() for part in inputs_of(6))
        called(x, y).sum().backward()
        found.append((x.grad, y.grad))
    assert_same(found[1], found[0])
    assert not reasons()


class Sum(torch.autograd.Function):
    """Both of its passes launch a kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        grad, out = grad.contiguous(), torch.empty_like(grad)
        add[(triton.cdiv(grad.numel(), 16),)](grad, grad, out, grad.numel(), BLOCK=16)
        return out, grad


@pytest.mark.parametrize("whole", [pytest.param(True, marks=pytest.mark.gpu), False])
def test_custom_gradients_that_launch_kernels(whole: bool) -> None:
    """In one graph where Triton's code tells what a kernel writes to."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        made: Tensor = Sum.apply(x * 2, y)
        return (made * y).relu()

    log.clear()
    compiled = jitney.compile(function)
    for size in (4, 4) if whole else (4, 4, 7):  # symbolic sizes in a backward break
        found = []
        for called in (function, compiled):
            torch.manual_seed(size)
            x, y = (part.requires_grad_() for part in inputs_of(size))
            result = called(x, y)
            result.sum().backward()
            found.append((result, x.grad, y.grad))
        assert_same(found[1], found[0])
    assert not whole or not reasons()


def test_nothing_is_copied_and_nothing_set_before(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[LoopProgram] = []
    lower = graph_pipeline.lower_graph

    def noted(*args: Any) -> Any:
        programs.append(lower(*args)[0])
        return lower(*args)

    monkeypatch.setattr(graph_pipeline, "lower_graph", noted)
    for function, calls, nodes in ((in_an_input, 2, 4), (by_an_autotuner, 1, 2)):
        programs.clear()
        check(function, jitney.compile(function, fullgraph=True), inputs_of(4))
        (program,) = programs
        assert sum(isinstance(node, Extern) for node in program.nodes) == calls
        assert len(program.nodes) == nodes


def test_an_autotuner_sees_what_the_program_gives() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        out, n = torch.empty_like(x), x.numel()
        pruned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, by=2, n=n)
        return out

    found = []
    for called in (function, jitney.compile(function, fullgraph=True)):
        SEEN.clear()
        pruned.cache.clear()
        called(*inputs_of(4))
        found.append(list(SEEN))
    assert found[1] == found[0] and found[0]


def test_a_kernel_that_is_replaced() -> None:
    """By another one under its name; numbers that a grid's function reads change, too."""
    kernels, block = [add, None], [16]

    @triton.jit
    def other(a, b, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < n
        tl.store(out + place, tl.load(a + place, inside) - tl.load(b + place, inside), inside)

    def function(x: Tensor, y: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        launched: Any = kernels[0]
        launched[lambda meta: (x.numel() // block[0],)](x, y, out, x.numel(), BLOCK=16)
        return out

    compiled = jitney.compile(function)
    check(function, compiled, inputs_of(16))
    block[0] = 40
    check(function, compiled, inputs_of(16))
    kernels[0] = other
    check(function, compiled, inputs_of(16))


def needs_gradients(x: Tensor, y: Tensor) -> Any:
    out = x * torch.ones(5, device=DEVICE, requires_grad=True)
    scale[(4,)](out, out.numel(), 2.0)
    return out.detach()


def saved_before(x: Tensor, y: Tensor) -> Any:
    w = torch.ones(5, device=DEVICE, requires_grad=True)
    saved = x * 1
    product = (w * saved).sum()
    scale[(4,)](saved, saved.numel(), 2.0)
    return torch.autograd.grad(product, w)


def behind_a_change(x: Tensor, y: Tensor) -> Any:
    SEEN.append(1)
    scale[(4,)](x, x.numel(), 2.0)
    return x


def of_a_made_kernel(x: Tensor, y: Tensor) -> Any:
    hooked[(4,)](x, x.numel())
    return x + 1


@triton.autotune(configs=[triton.Config({"BLOCK": 16}, pre_hook=lambda args: None)], key=["n"])
@triton.jit
def hooked(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
    """``x += 1``."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + place, tl.load(x + place, place < n) + 1, place < n)


BREAKS = {
    needs_gradients: "one of them requires grad",
    saved_before: "a backward pass may read one of them",
    behind_a_change: "is written back behind the graph",
    of_a_made_kernel: "code of the program's runs around it",
}


@pytest.mark.parametrize("function", BREAKS)
def test_what_breaks_the_graph(function: Callable[..., Any]) -> None:
    log.clear()
    check(function, jitney.compile(function, options={"recompile_limit": 64}), inputs_of(4))
    assert any(BREAKS[function] in reason for reason in reasons())
