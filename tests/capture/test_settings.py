"""What a frame asks of torch's settings is what they are in the call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import jitney
from jitney.diagnostics.explain import explain
from tests.capture.run_capture import X, assert_same

MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn


def _turn(name: str) -> Callable[[bool], None]:
    return lambda on: setattr(CUDNN, name, on)


def _tf32(on: bool) -> None:
    MATMUL.allow_tf32 = on


def _precision(on: bool) -> None:
    torch.set_float32_matmul_precision("high" if on else "highest")


def _warning_only(on: bool) -> None:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=on)


@pytest.mark.parametrize(
    ("ask", "turn"),
    [
        (lambda: MATMUL.allow_tf32, _tf32),
        (lambda: CUDNN.enabled, _turn("enabled")),
        (lambda: CUDNN.benchmark, _turn("benchmark")),
        (lambda: CUDNN.deterministic, _turn("deterministic")),
        (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
        (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
        (
            torch.backends.cuda.mem_efficient_sdp_enabled,
            torch.backends.cuda.enable_mem_efficient_sdp,
        ),
        (
            torch._C._get_overrideable_sdp_enabled,
            torch._C._set_sdp_use_overrideable,
        ),
        (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        (lambda: torch.get_float32_matmul_precision() == "high", _precision),
        (torch.is_deterministic_algorithms_warn_only_enabled, _warning_only),
        (lambda: torch.get_num_threads() > 1, lambda on: torch.set_num_threads(1 + on)),
    ],
)
def test_a_setting_is_guarded_where_it_is_asked_for(
    ask: Callable[[], bool], turn: Callable[[bool], Any]
) -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if ask() else x - 1

    before, compiled = ask(), jitney.compile(asks, backend="eager", fullgraph=True)
    try:
        for on in (before, before, not before, not before, before):
            turn(on)
            assert compiled(torch.zeros(1)).item() == (1 if on else -1)
    finally:
        turn(before)


def test_a_trace_tells_of_no_anomalies() -> None:
    compiled, weight = jitney.compile(torch.matmul), torch.ones(3, 2, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings(record=True) as told:
        compiled(torch.ones(2, 3), weight).sum().backward()
        assert torch.is_anomaly_enabled()
    assert not [str(one.message) for one in told if "Error detected" in str(one.message)]


QUERY = torch.arange(256.0).reshape(1, 2, 8, 16).sin()
FLAGS = (
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch._C._get_sdp_priority_order,
)


def _attends(q: torch.Tensor, kinds: Any, ordered: bool) -> Any:
    q = q * 2
    with sdpa_kernel(kinds, ordered):
        inside = [flag() for flag in FLAGS]
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    return y + 1, inside, [flag() for flag in FLAGS]


@pytest.mark.parametrize("backend", ["eager", "jitney"])
@pytest.mark.parametrize("ordered", [False, True])
def test_kinds_of_attention_are_chosen_for_a_scope(backend: str, ordered: bool) -> None:
    compiled = jitney.compile(_attends, backend=backend, fullgraph=True)
    flash, order = torch.backends.cuda.flash_sdp_enabled(), torch._C._get_sdp_priority_order()
    try:
        for on in (True, True, False, True):
            torch.backends.cuda.enable_flash_sdp(on)
            for kinds in (SDPBackend.MATH, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
                torch._C._set_sdp_priority_order(order)
                want = _attends(QUERY, kinds, ordered)
                torch._C._set_sdp_priority_order(order)
                assert_same(compiled(QUERY, kinds, ordered), want)
    finally:
        torch._C._set_sdp_priority_order(order)
        torch.backends.cuda.enable_flash_sdp(flash)


@pytest.mark.parametrize("backend", ["eager", "jitney"])
def test_a_kind_of_attention_that_is_left_chosen(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        torch.backends.cuda.enable_flash_sdp(False)
        return x + 1, torch.backends.cuda.flash_sdp_enabled()

    compiled, before = jitney.compile(f, backend=backend), torch.backends.cuda.flash_sdp_enabled()
    try:
        for _ in range(3):
            torch.backends.cuda.enable_flash_sdp(True)
            assert compiled(torch.zeros(1))[1] is False
            assert not torch.backends.cuda.flash_sdp_enabled()
    finally:
        torch.backends.cuda.enable_flash_sdp(before)


def test_a_break_and_an_error_where_a_kind_is_chosen() -> None:
    def breaks(q: torch.Tensor) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            number = q.sum().item()
            return q * number, torch.backends.cuda.flash_sdp_enabled()

    assert explain(breaks)(QUERY).breaks
    assert_same(jitney.compile(breaks)(QUERY), breaks(QUERY))
    before = [flag() for flag in FLAGS]
    compiled = jitney.compile(_attends)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="backend"):
            compiled(QUERY, SDPBackend.EFFICIENT_ATTENTION, False)
        assert [flag() for flag in FLAGS] == before


def test_kinds_of_attention_that_are_given() -> None:
    def f(x: torch.Tensor, kinds: Any) -> Any:
        with sdpa_kernel(kinds):
            cuda = torch.backends.cuda
            return x * 2, cuda.flash_sdp_enabled(), cuda.math_sdp_enabled()

    flash, math = SDPBackend.FLASH_ATTENTION, SDPBackend.MATH
    compiled = jitney.compile(f, backend="eager")
    for kinds in (flash, math, [flash, math], [math, math], [math, flash], [flash]):
        assert compiled(X, kinds)[1:] == f(X, kinds)[1:]


def test_a_function_that_kinds_of_attention_decorate() -> None:
    @sdpa_kernel(SDPBackend.MATH)
    def f(x: torch.Tensor) -> Any:
        return x * 2, torch.backends.cuda.flash_sdp_enabled()

    compiled = jitney.compile(f, backend="eager")
    assert compiled(X)[1] is f(X)[1] is False
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_path_that_is_no_text_is_asked_once() -> None:
    class Counted:
        asked = 0

        def __fspath__(self) -> Any:
            self.asked += 1
            return 3

    def f(x: torch.Tensor, path: Any) -> Any:
        try:
            os.fspath(path)
        except TypeError:
            return x, path.asked
        return x, -1

    assert_same(jitney.compile(f, backend="eager")(X, Counted()), f(X, Counted()))


def _open_scopes() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _broken(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = x @ x
        jitney.graph_break()
        return x @ x


def _raising(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        jitney.graph_break()
        return torch.linalg.cholesky((x @ x).float() - 1000 * torch.eye(len(x)))


def _nested(x: torch.Tensor) -> Any:
    scopes = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scopes.append(torch._dynamo.disable(_open_scopes)())
        with torch.autocast("cpu", enabled=False):
            scopes.append(torch._dynamo.disable(_open_scopes)())
            x = x @ x
        scopes.append(torch._dynamo.disable(_open_scopes)())
    return x, scopes


@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize("function", [_broken, _raising, _nested])
def test_a_scope_of_autocast_ends_behind_a_break(
    function: Callable[..., Any], backend: str
) -> None:
    """Eager keeps casts of parameters until the last one is over: it would use old ones."""
    layer, compiled = torch.nn.Linear(3, 3), jitney.compile(function, backend=backend)
    x = torch.eye(3)
    for _ in range(3):
        if function is _raising:
            with pytest.raises(torch.linalg.LinAlgError):
                compiled(x)
        else:
            assert_same(compiled(x), function(x))
        assert _open_scopes() == 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert _open_scopes() == 1
        before = layer(torch.ones(1, 3))
        with torch.no_grad():
            layer.weight.add_(1)
        compiled_inside = jitney.compile(_nested, backend=backend)(x)
        assert_same(compiled_inside, _nested(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(layer(torch.ones(1, 3)), before)


def test_a_mode_that_torch_refuses_is_the_program_s_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        try:
            with torch.set_grad_enabled({}):  # type: ignore[arg-type]
                return y * 2
        except TypeError:
            return y * 3

    compiled = jitney.compile(f, options={"eager_on_bug": False})
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 6.0))
