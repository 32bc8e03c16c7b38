"""Infinities, NaN, zeros, denormals, limits and wrong dtypes: eager's answer, or eager's error."""

from __future__ import annotations

import pytest
import torch

from tests.conformance import special_values
from tests.conformance.special_calls import DTYPES
from tests.conformance.special_values import cases, check, is_known

#: One of each kind of thing that once went wrong.
ONCE_WRONG = {
    "one": """clamp_-0.0_0.0 float32, sub_alpha float32, addcdiv float32,
        rfloordiv_7 float32, floor_divide_0.5 float32, remainder_0.5 float16, eq_2147483648 float16,
        pow_0.5 float16, nn.functional.relu float32, nn.functional.silu int8, abs bool, sub_1 bool,
        nn.functional.hardswish int8, nn.functional.tanhshrink bool, sub_True float32,
        imul_2 bool, fill_300 int8, clamp_-300_300 int8, lerp int8, digamma float64""",
    "two": """floor_divide float32, fmod float32, fmax float32, fmin float32, heaviside float32,
        lerp_tensor float32, nextafter float16, ldexp float16""",
    "mixed": """ge float16 int64, eq float16 0-d int32, logical_and uint8 0-d int64""",
    "rows": """sum float32 one_column, max float32 no_columns, min_all float32 no_rows,
        std float32 hard, var_mean float32 hard, cumsum float32 hard, cumsum float32 one_column,
        vector_norm float32 one_column, layer_norm float32 hard, adaptive_max float32 hard,
        adaptive_max int8 hard, softmax int8 no_columns, max_pool2d_index bool hard""",
}


@pytest.mark.parametrize("kind", ONCE_WRONG)
def test_what_was_once_wrong_is_eagers(kind: str) -> None:
    wanted = {" ".join(name.split()) for name in ONCE_WRONG[kind].split(",")}
    found = {name.replace("torch.", ""): (fn, inputs) for name, fn, inputs in cases(kind)}
    wrong = [line for name in sorted(wanted) for line in check(name, *_flat(found[name]))]
    assert not wrong, "\n".join(wrong)
    assert wanted <= set(found)


def _flat(case):  # type: ignore[no-untyped-def]
    fn, inputs = case
    return fn, *inputs


def test_numbers_are_rounded_before_16_bits_are_compared() -> None:
    import jitney

    x = torch.tensor([0.1, 0.2, 1 / 3], dtype=torch.bfloat16)
    compiled = jitney.compile(lambda x: (x == 0.1, x >= 1 / 3))
    assert [r.tolist() for r in compiled(x)] == [[True, False, False], [False, False, True]]


def test_the_last_of_several_nans_is_where_a_pool_finds_its_maximum() -> None:
    import jitney

    x = torch.randn(1, 2, 12, 12)
    x[0, 0, 1, 1:4] = torch.nan
    x[0, 1, 7:9, 9] = torch.nan
    for size in (3, 5, 6):  # small windows are written out, larger ones are reductions

        def pool(x: torch.Tensor, size: int = size) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.nn.functional.max_pool2d(x, size, return_indices=True)

        assert torch.equal(jitney.compile(pool)(x)[1], pool(x)[1])


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["one", "two", "rows"])
def test_special_values_equal_eager(kind: str, dtype: torch.dtype) -> None:
    wrong = [
        line
        for name, fn, inputs in special_values.cases(kind)
        if str(dtype) in name.split()[1:] and not is_known(name)
        for line in check(name, fn, *inputs)
    ]
    assert not wrong, "\n".join(wrong)
