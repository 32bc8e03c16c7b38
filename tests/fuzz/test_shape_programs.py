"""Random programs over symbolic sizes, each compiled once and called at many, against eager."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.events import log
from tests.equal import assert_equal_to_eager
from tests.fuzz.shape_programs import ShapeProgram, Step, shape_program


def check(
    program: ShapeProgram, dynamic: bool | None, device: str = "cpu", nearby: bool = False
) -> None:
    jitney.reset()

    def call(x, y, k):  # type: ignore[no-untyped-def]
        return program(x, y, k)

    checked = {"eager_on_bug": False, "verify": True, "recompile_limit": 64}
    compiled = jitney.compile(call, dynamic=dynamic, options=checked)
    for number, sizes in enumerate(program.series):
        try:
            inputs = program.inputs(number, device)
            assert_equal_to_eager(call, compiled, inputs, training=True, calls=1, nearby=nearby)
        except Exception as error:
            error.add_note(f"call {number} at {sizes} of {program}")
            raise


@pytest.mark.parametrize("seed", range(4))
def test_a_program_at_many_sizes_equals_eager(seed: int) -> None:
    check(shape_program(seed, length=3, calls=5), dynamic=(True, None)[seed % 2])


def test_a_view_of_what_one_row_became() -> None:
    """A dimension of size one has any stride: torch foretells another than a sum's result has."""
    steps = (Step("sum_last", (0,)), Step("chosen", (2, 1)), Step("tensor_pieces", (3,)))
    check(ShapeProgram(steps, 4, ((5, 8, 3), (1, 8, 3))), dynamic=True)


def test_a_size_that_the_backward_pass_finds_out() -> None:
    """It is among the results behind a break: without the gradient of one of them, what is traced
    again keeps the same tensors."""
    places = Step("places", (0,))
    steps = (places, Step("last_half", (2,)), Step("chunks", (2,)), Step("largest", (2,)))
    check(ShapeProgram(steps, 5, ((1, 5, 2), (4, 5, 3))), dynamic=True)
    ends = Step("ends", (5,))
    steps = (Step("split_unevenly", (1,)), Step("gathered", (2, 1)), Step("cropped", (3,)))
    check(ShapeProgram((*steps, Step("steps_last", (4,)), ends), 5, ((3, 2, 2),)), dynamic=True)
    steps = (places, Step("folded", (2,)), Step("softmax", (3,)), Step("chosen", (4, 1)))
    check(ShapeProgram(steps, 5, ((5, 1, 1), (8, 16, 4))), dynamic=True)


def test_what_torch_was_asked_before_a_guard_told_it() -> None:
    """A later trace for one of two gradients knows it: whether `x[:10]` is all of ``x``, or what
    the trace's own guards say of half of its rows."""
    steps = (Step("rows_product", (1, 0)), Step("outer", (0, 0)), Step("places", (2,)))
    first = ShapeProgram(steps, 4, ((2, 2, 2),))
    steps = (Step("routed_back", (1,)), Step("pairs", (1,)), Step("up_to", (3,)))
    for program in (first, ShapeProgram(steps, 2, ((2, 3, 1),))):
        log.clear()
        check(program, dynamic=True)
        assert log.events("program")
        assert not log.events("eager_graph")


def test_a_quotient_by_zero_is_eager() -> None:
    """torch's trace of `2 / (rows - correction)` raises where eager has infinity."""

    def variance(x: torch.Tensor) -> torch.Tensor:
        return x[2:].var(0)

    compiled = jitney.compile(variance, dynamic=True, options={"eager_on_bug": False})
    for rows in (5, 3, 4):
        x = torch.randn(rows, 4, requires_grad=True)
        assert_equal_to_eager(variance, compiled, (x,), training=True)


def test_a_norm_of_equal_numbers_is_judged_by_what_eager_does_nearby() -> None:
    """The gradient of their sum is rounding, to which eager comes by luck; a thousandth more than
    eager's results is wrong."""
    steps = (Step("chosen", (1, 0)), Step("normed", (2,)), Step("bordered", (3,)))
    program = ShapeProgram(steps, 2, ((17, 17, 3),))
    check(program, dynamic=True, nearby=True)

    def wrong(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(value * 1.001 for value in program(*inputs))

    with pytest.raises(AssertionError):
        assert_equal_to_eager(program, wrong, program.inputs(0), training=True, nearby=True)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 500))
def test_many_programs_at_many_sizes_equal_eager(seed: int) -> None:
    check(shape_program(seed, length=5, calls=8), dynamic=(True, None)[seed % 2], nearby=True)
