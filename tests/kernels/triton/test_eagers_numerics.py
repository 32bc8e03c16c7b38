"""Where eager's kernels for a GPU compute otherwise than its loops for a CPU, ours do."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.loops.ir import Const, LoopNest
from jitney.loops.visit import body_exprs
from tests.kernels.triton.interpreted import H200, gpu_program, run_kernels


def on_gpu(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
    program, constants = gpu_program(fn, *args)
    (got,) = run_kernels(program, constants, args)
    return got


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
def test_floats_out_of_range_of_small_integers_wrap(
    dtype: torch.dtype, source: torch.dtype
) -> None:
    x = torch.tensor([-1.0, 300.0, -300.0, 2.5, 40000.0, -0.5], dtype=source)
    assert torch.equal(on_gpu(lambda x: x.to(dtype), x), x.to(torch.int64).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_doubles_become_floats_before_they_lose_more_bits(dtype: torch.dtype) -> None:
    """Just above the middle of two narrow numbers: the middle, as a float32."""
    x = torch.tensor([1 + torch.finfo(dtype).eps / 2], dtype=torch.float64) + 2**-40
    assert torch.equal(on_gpu(lambda x: x.to(dtype), x), x.to(dtype))
    (nest,) = gpu_program(lambda x: x.to(dtype), x)[0].nodes
    assert isinstance(nest, LoopNest)
    assert ".to(tl.float32).to(" in emit_nest(nest, schedule_nest(nest, H200)).body


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sign_of_nan(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, math.nan, math.nan, 1.0, -2.0], dtype=dtype)
    x[3] = -x[3]
    assert torch.equal(on_gpu(torch.signbit, x), x.signbit())


def test_a_quotient_with_a_name_is_rounded_as_eager_rounds_it() -> None:
    a, b = torch.tensor([7.5, 7.5, 9.0]), torch.tensor([0.3, -0.3, 3.0])

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        q = a / b
        return q.trunc() + q * 0

    assert on_gpu(fn, a, b).tolist() == [24.0, -24.0, 3.0]
    (nest,) = gpu_program(fn, a, b)[0].nodes
    assert isinstance(nest, LoopNest)
    assert "tl.div_rn(" in emit_nest(nest, schedule_nest(nest, H200)).body


def test_shrunk_numbers_are_positive_zeros() -> None:
    got = on_gpu(torch.nn.functional.softshrink, torch.tensor([0.0, -0.0, -0.1, 0.2]))
    assert got.tolist() == [0.0] * 4 and not got.signbit().any()


def test_a_sixth_is_a_factor_of_32_bits() -> None:
    x = torch.linspace(-5, 5, 99, dtype=torch.float64)
    sixth, gate = torch.tensor(1 / 6).double(), (x + 3).clamp(0, 6)
    assert torch.equal(on_gpu(torch.nn.functional.hardsigmoid, x), gate * sixth)
    assert torch.equal(on_gpu(torch.nn.functional.hardswish, x), x * gate * sixth)


def test_a_number_added_to_sixteen_bits_is_not_rounded_first() -> None:
    x = torch.ones(4, dtype=torch.bfloat16)
    for fn in (lambda x: x + 0.1, lambda x: x - 0.1, lambda x: 0.1 - x):
        program, _ = gpu_program(fn, x)
        (node,) = program.nodes
        assert isinstance(node, LoopNest)
        numbers = {e.value for e in body_exprs(node.body) if isinstance(e, Const)}
        assert any(abs(abs(n) - 0.1) < 1e-8 for n in numbers), numbers


def test_powers() -> None:
    assert on_gpu(lambda x: x**-2, torch.tensor([2.0**64, 2.0])).tolist() == [0, 0.25]
    x = torch.tensor([-0.0, -math.inf, 4.0], dtype=torch.float16)
    got = on_gpu(lambda x: x**0.5, x)
    assert got[0].signbit() and got[1].isnan() and got[2] == 2


def test_a_quotient_comes_before_its_factor() -> None:
    one, tiny, zero = torch.tensor([1.0]), torch.tensor([1e-45]), torch.tensor([0.0])
    got = on_gpu(lambda x, a, b: torch.addcdiv(x, a, b, value=0.5), one, tiny, zero)
    assert got.item() == math.inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["digamma", "erfinv"])
def test_functions_that_are_formulas_of_ours(name: str, dtype: torch.dtype) -> None:
    """At their poles, far from them, where eager changes its formula, and outside of them."""
    fn = getattr(torch, name)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, -2.0, 1.5, 9.5, 10.0, math.inf, -math.inf,
                            math.nan, 1e-30, -1e-30, 1e20, 0.5, -0.5, 0.7, -0.7])  # fmt: skip
    low, high = (-19.7, 30.3) if name == "digamma" else (-0.99, 0.99)
    even = torch.linspace(low, high, 200)
    x = torch.cat([special, even]).to(dtype)
    (node,) = gpu_program(fn, x)[0].nodes
    assert isinstance(node, LoopNest)
    got, want = on_gpu(fn, x), fn(x)
    # beside the zero of digamma its terms cancel
    few = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(got, want, rtol=few, atol=few, equal_nan=True)
    assert torch.equal(got.signbit() | got.isnan(), want.signbit() | want.isnan())


SASS = """
import subprocess, tempfile
from pathlib import Path
import torch, triton
from jitney.kernels.triton.compile_kernels import compile_kernel
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.schedule_nest import schedule_nest
from tests.kernels.triton.interpreted import H200, gpu_program
tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
for fn in {functions}:
    program, _ = gpu_program(fn, torch.ones(64))
    source = emit_nest(program.nodes[0], schedule_nest(program.nodes[0], H200))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compile_kernel(source, 90).code)
        file.flush()
        print(subprocess.run([tool, "-sass", file.name], check=True, capture_output=True).stdout)
"""


def test_machine_code() -> None:
    """Logarithms of denormals are not those of zero. A product is rounded before a sum takes it,
    or the difference of two equal products is one's rounding error, whose root may be NaN."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}  # for sm_90, in a process of its own
    functions = "lambda x: x.log() + x.rsqrt(), lambda x: x * x - x.neg() * x.neg()"
    command = [sys.executable, "-c", SASS.format(functions=f"({functions})")]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    logarithm, product = done.stdout.splitlines()
    assert "FFMA" in logarithm and ".FTZ" not in logarithm
    assert "FMUL" in product and "FFMA" not in product


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("number", [1.3007, 2.003, 0.998])
def test_a_number_in_a_power_or_xlogy_of_sixteen_bits_is_rounded_to_them(
    number: float, dtype: torch.dtype
) -> None:
    """Eager's kernels take it as a number of the tensor's dtype, but multiply by it in 32 bits."""
    x = torch.linspace(0.1, 9, 48).to(dtype)
    held, wide = torch.tensor(number).to(dtype).float(), x.float()
    for fn, want in (
        (lambda x: number**x, held**wide),
        (lambda x: x**number, wide**held),
        (lambda x: torch.xlogy(x, number), torch.xlogy(wide, held)),
        (lambda x: torch.special.xlogy(number, x), torch.xlogy(held, wide)),
    ):
        assert (bits(on_gpu(fn, x)) - bits(want.to(dtype))).abs().max() <= 1


def test_powers_of_sixteen_bits_whose_product_is_rounded_on_the_way() -> None:
    x = torch.tensor([300.0, -300.0, 1.001, 3.3, -7.7, 0.01], dtype=torch.float16)
    square = x * x
    assert torch.equal(on_gpu(lambda x: x**-2, x), (1 / square.float()).half())
    assert torch.equal(on_gpu(lambda x: x**3, x), square * x)
    # what is no half until it is rounded is no root
    x = torch.tensor([-0.0, -math.inf, 4.0], dtype=torch.bfloat16)
    assert on_gpu(lambda x: x**0.50001, x).tolist() == [0.0, math.inf, 2.0]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 1.3006), (torch.bfloat16, 1.304)])
def test_a_threshold_of_sixteen_bits(dtype: torch.dtype, bound: float) -> None:
    held = torch.tensor([bound]).to(dtype)
    assert held.item() > bound
    got = on_gpu(lambda x: torch.nn.functional.threshold(x, bound, 20.0), held)
    assert got.item() == 20


@pytest.mark.parametrize("value", [1.0, 0.3, -2.0])
def test_the_product_of_a_scaled_sum_is_part_of_it(value: float) -> None:
    x, a, b = (torch.randn(200) for _ in range(3))
    factor = torch.tensor(value).double()
    product = a.double() * b.double() if value == 1 else (a * b).double() * factor
    got = on_gpu(lambda x, a, b: torch.addcmul(x, a, b, value=value), x, a, b)
    assert torch.equal(got, (x.double() + product).float())
    got = on_gpu(lambda x, a, b: torch.addcdiv(x, a, b, value=value), x, a, b)
    assert torch.equal(got, (x.double() + (a / b).double() * factor).float())
