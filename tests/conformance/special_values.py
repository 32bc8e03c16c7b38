"""Special values through `jitney.compile`, element by element, against eager.

    python -m tests.conformance.special_values [--only REGEX] [--kind one|two|mixed|rows]
        [--device cuda] [--every N --offset K]

Eager's own answer may depend on where an element stands (vector loop or its scalar tail): any of
its answers will do, and `OTHERS`. NaN, infinities and the sign of zero must be one of them exactly,
integers too, other floats to a few roundings. An error must be raised by both, of the same type.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import jitney
from tests.conformance import special_calls
from tests.conformance.special_calls import DTYPES, Call, few, rows, special

#: Relative error allowed, in roundings of the dtype.
ROUNDINGS = {torch.float32: 40, torch.float64: 400, torch.bfloat16: 1.01, torch.float16: 1.01}
#: The processor's conversion to bfloat16 takes denormals for zero.
FLUSHED = 1.2e-38
#: Results above may be what is left of numbers near one.
CANCELLED = 1e-20
#: Names of cases that are known to differ, and why they may.
KNOWN = {
    r"xlog1py|mish .*float64|tanhshrink .*bfloat16|erf .*bfloat16|logaddexp2 .*float16":
        "signs of zeros, and what is left of denormals",
    r"logsigmoid .*float16": "-0.0 where eager's other formula for 16 bits has 0.0",
    r"pow_0.333.* torch.bfloat16": "eager rounds the exponent to 16 bits",
    r"(fmax|fmin) .*bfloat16|matmul .*one_column": "the sign of zero",
    r"max_pool1d torch.(u?int|bool)": "eager has no kernel, we answer",
    r"(var|std)\w* torch.float64|cumsum torch.b?float(64|16)|matmul|layer_norm .*one_column"
    r"|(sum|mean)\w* torch.(bfloat16|float32|float64) tall":
        "sums of the largest numbers there are: whether one overflows is a matter of order",
    r"cummin torch.bfloat16": "denormals, which are zeros to us",
    r"mish torch.float32": "the least denormal there is, or zero, times a hundred",
    r"lcm torch.int(32|64)": "eager's division of the least number by -1 ends the process",
    r"layer_norm torch.(float16 (hard|tall)|bfloat16 tall)":
        "of equal largest numbers eager's vectors of AVX2 leave what its scalar loop does not",
    r"(sum_f64|mean_f32) torch.int": "sums that cancel",
}  # fmt: skip


def reflected(x: Tensor) -> Tensor:
    """digamma of the distance to the next pole, which is exact."""
    tangent = torch.tan((x - x.round()) * math.pi)
    return torch.where(x < 0, torch.digamma(1 - x) - math.pi / tangent, torch.nan)


#: Answers that will do beside eager's: its digamma takes the tangent of an angle that it has
#: rounded, which beside a pole is far off.
OTHERS: dict[tuple[Call, torch.dtype], Call] = {(torch.digamma, torch.float64): reflected}


def attempt(fn: Call, *inputs: Tensor) -> Any:
    """The leaves of the result, on the CPU, or the exception."""
    try:
        return [leaf.cpu() for leaf in tree_leaves(fn(*inputs)) if isinstance(leaf, Tensor)]
    except Exception as error:  # noqa: BLE001 - compared by the caller
        return error


def layouts(*inputs: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """The inputs as they are, and in memory that no vector load reads."""
    yield "plain", inputs
    spread = tuple(x.repeat_interleave(2, -1)[..., ::2] if x.dim() else x for x in inputs)
    yield "spread", spread


def agree(ours: Tensor, answers: list[Tensor]) -> Tensor:
    """Which elements are one of eager's answers."""
    good = torch.zeros(ours.shape, dtype=torch.bool)
    for theirs in answers:
        good |= same(ours, theirs)
    return good


def same(ours: Tensor, theirs: Tensor) -> Tensor:
    """Elements that are equal: exactly where they are special, else but for roundings."""
    if ours.is_complex():
        return same(*map(torch.view_as_real, (ours, theirs))).all(-1)
    if not ours.is_floating_point():
        return ours == theirs
    limits = torch.finfo(ours.dtype)
    a, e = ours.double(), theirs.double()
    room = ROUNDINGS[ours.dtype] * limits.eps * e.abs() + 2 * limits.tiny * limits.eps
    room = torch.where(torch.maximum(a.abs(), e.abs()) > CANCELLED, room + 4 * limits.eps, room)
    if ours.dtype is torch.bfloat16:
        room = room + FLUSHED
    near = ((a - e).abs() <= room) & torch.isfinite(a) & torch.isfinite(e)
    exact = (a == e) | (a.isnan() & e.isnan())
    zero = (a == 0) & (e == 0)
    return (near | exact) & (~zero | (a.signbit() == e.signbit()))


def check(name: str, fn: Call, *inputs: Tensor) -> Iterator[str]:
    """What differs, in words."""
    expected = [attempt(fn, *arrangement) for _, arrangement in layouts(*inputs)]
    if other := OTHERS.get((fn, inputs[0].dtype)):
        expected.append(attempt(other, *inputs))
    jitney.reset()
    compiled = jitney.compile(lambda *operands: fn(*operands))
    for layout, arrangement in layouts(*inputs):
        yield from compared(f"{name} {layout}", attempt(compiled, *arrangement), expected, inputs)


def compared(
    name: str, ours: Any, expected: list[Any], inputs: tuple[Tensor, ...]
) -> Iterator[str]:
    """Differences between our result and eager's answers."""
    theirs = expected[0]
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        if type(ours) is not type(theirs):
            yield f"{name}: ours {brief(ours)}, eager {brief(theirs)}"
        return
    if len(ours) != len(theirs):
        yield f"{name}: {len(ours)} results, not {len(theirs)}"
        return
    for k, result in enumerate(ours):
        answers = [answer[k] for answer in expected]
        if (result.dtype, result.shape) != (answers[0].dtype, answers[0].shape):
            yield f"{name}[{k}]: {result.dtype} {tuple(result.shape)}, not {answers[0].dtype}"
            continue
        for place in torch.nonzero(~agree(result, answers)).tolist()[:4]:
            at = tuple(place)
            yield (
                f"{name}[{k}] at {place} of {given(inputs, at)}: {result[at].item()!r}, "
                f"eager {' or '.join(repr(a[at].item()) for a in answers)}"
            )


def given(inputs: tuple[Tensor, ...], place: tuple[int, ...]) -> str:
    """The operands of one element, where they broadcast to the result."""
    try:
        shape = torch.broadcast_shapes(*(x.shape for x in inputs))
        return ", ".join(repr(x.expand(shape)[place].item()) for x in inputs)
    except (RuntimeError, IndexError, ValueError):
        return "a row"


def brief(result: Any) -> str:
    """An exception, or that there was none."""
    if isinstance(result, Exception):
        return f"raises {type(result).__name__}: {str(result)[:80]!r}"
    return "answers"


def cases(kind: str) -> Iterator[tuple[str, Call, tuple[Tensor, ...]]]:
    """Everything to check of one kind: a name, the function, its inputs."""
    if kind == "one":
        for (name, fn), dtype in itertools.product(special_calls.calls_of_one().items(), DTYPES):
            yield f"{name} {dtype}", fn, (special(dtype),)
    elif kind == "two":
        for (name, fn), dtype in itertools.product(special_calls.calls_of_two().items(), DTYPES):
            yield f"{name} {dtype}", fn, (few(dtype)[:, None], few(dtype)[None, :])
    elif kind == "mixed":
        yield from mixed_cases()
    elif kind == "rows":
        for (name, fn), dtype in itertools.product(special_calls.calls_of_rows().items(), DTYPES):
            for which, matrix in rows(dtype).items():
                yield f"{name} {dtype} {which}", fn, (matrix,)


def is_known(name: str) -> bool:
    """Whether a case may differ."""
    return any(re.search(pattern, name) for pattern in KNOWN)


def mixed_cases() -> Iterator[tuple[str, Call, tuple[Tensor, ...]]]:
    """Two dtypes, and a tensor of no axes as one of them."""
    for (name, fn), x, y in itertools.product(special_calls.calls_of_two().items(), DTYPES, DTYPES):
        if x != y:
            yield f"{name} {x} {y}", fn, (few(x)[:, None], few(y)[None, :])
            yield f"{name} {x} 0-d {y}", fn, (few(x), few(y)[-1].clone())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="one", choices=("one", "two", "mixed", "rows"))
    parser.add_argument("--only", default="", help="a regular expression for names")
    parser.add_argument("--every", type=int, default=1, help="every n-th case")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--known", action="store_true", help="also those known to differ")
    options = parser.parse_args()
    start, count, bad = time.time(), 0, 0
    chosen = [case for case in cases(options.kind) if re.search(options.only, case[0])]
    chosen = [case for case in chosen if options.known or not is_known(case[0])]
    for name, fn, inputs in chosen[options.offset :: options.every]:
        count += 1
        found = list(check(name, fn, *(x.to(options.device) for x in inputs)))
        bad += bool(found)
        for line in found[:4]:
            print(line, flush=True)
    print(f"{bad} of {count} differ, {time.time() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
