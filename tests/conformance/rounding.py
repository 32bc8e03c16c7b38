"""How far results are from a float64 run, ours and eager's: sums of many terms, every way they run.

    python -m tests.conformance.rounding [--only REGEX] [--dtype float32] [--all]

The error is the root of the mean square over all elements and seeds. It may be twice eager's, and
one rounding of the result besides. `--all` prints every case, not only those further off.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import jitney

SEEDS = 4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Long rows, few or many of them; long columns; and an axis between two others.
ROWS = ((7, 100_003), (100, 4099), (2, 3_000_000), (300, 70))
COLUMNS = ((100_003, 7), (4099, 100), (200_000, 3), (1031, 256), (70, 300))
MIDDLE = ((5, 2111, 48), (3, 60_000, 4), (40, 130, 16))
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """A function and the shapes of its inputs; ``gradients``: its gradients are what is judged.

    ``shift`` is added to normal numbers: around 0 sums stay small, around 1 they grow.
    """

    name: str
    fn: Function
    shapes: tuple[tuple[int, ...], ...]
    shift: float = 0.0
    gradients: bool = False


@dataclass(frozen=True)
class Errors:
    """Distances from the float64 run, and its own size."""

    ours: float
    eager: float
    scale: float

    def acceptable(self, dtype: torch.dtype) -> bool:
        """Whether ours is no more than twice eager's, but for a rounding."""
        return self.ours <= 2 * self.eager + torch.finfo(dtype).eps * self.scale


def running_mean(x: Tensor) -> Tensor:
    """The mean of each channel as batch norm keeps it."""
    mean, variance = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    F.batch_norm(x, mean, variance, training=True, momentum=1.0)
    return mean


def over(dim: int) -> dict[str, Function]:
    """Reductions over one dimension."""
    return {
        "sum": lambda x: x.sum(dim),
        "mean": lambda x: x.mean(dim),
        "nansum": lambda x: x.nansum(dim),
        "sum_of_products": lambda x: (x * (x + 1)).sum(dim),
        "var": lambda x: x.var(dim),
        "std_mean": lambda x: torch.stack(torch.std_mean(x, dim)),
        "norm": lambda x: x.norm(dim=dim),
        "norm_1": lambda x: x.norm(p=1, dim=dim),
        "norm_3": lambda x: torch.linalg.vector_norm(x, 3, dim=dim),
        "logsumexp": lambda x: torch.logsumexp(x, dim),
        "softmax": lambda x: torch.softmax(x, dim),
        "log_softmax": lambda x: torch.log_softmax(x, dim),
        "log_of_prod": lambda x: torch.exp((x - x.round()) * 0.03).prod(dim).log(),
        "cumsum": lambda x: x.cumsum(dim),
        "logcumsumexp": lambda x: torch.logcumsumexp(x, dim),
        "cosine_similarity": lambda x: F.cosine_similarity(x, x.abs() + 1, dim=dim),
        "normalize": lambda x: F.normalize(x, dim=dim),
        "trapezoid": lambda x: torch.trapezoid(x, dim=dim),
    }


def of_rows() -> dict[str, Function]:
    """Norms of rows, and losses."""
    return {
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
        "instance_norm": lambda x: F.instance_norm(x[None]),
        "group_norm": lambda x: F.group_norm(x[None], 1),
        "mse_loss": lambda x: F.mse_loss(x, x.flip(0)),
        "l1_loss": lambda x: F.l1_loss(x, x.flip(0)),
        "cross_entropy": lambda x: F.cross_entropy(x, x[:, 0].abs().long()),
        "kl_div": lambda x: F.kl_div(x, x.abs(), reduction="batchmean"),
        "sum_all": lambda x: x.sum(),
        "mean_all": lambda x: x.mean(),
        "var_all": lambda x: x.var(),
        "norm_all": lambda x: x.norm(),
        "pool": lambda x: F.adaptive_avg_pool1d(x[None], 1),
        "matmul": lambda x: x @ x.t()[:, :5],
        "vector": lambda x: x @ x[0],
        "pdist": lambda x: torch.cdist(x[:9], x[:5]),
        "cov": lambda x: torch.cov(x[:5]),
    }


def of_columns() -> dict[str, Function]:
    """What is summed or normalised over all rows at once."""
    return {
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
        "products": lambda x: x.t() @ x[:, :5],
        "vector": lambda x: x[:, 0] @ x,
        "sum_bools": lambda x: torch.where(x > 0, x, 0).sum(0),
        "transposed": lambda x: x.t().contiguous().sum(1),
        "index_add": lambda x: x.new_zeros(4, x.shape[1]).index_add(0, torch.arange(len(x)) % 4, x),
        "scatter_add": lambda x: x.new_zeros(4, x.shape[1]).scatter_add(
            0, (torch.arange(len(x)) % 4)[:, None].expand_as(x), x
        ),
    }


def gradients() -> dict[str, tuple[Function, tuple[tuple[int, ...], ...]]]:
    """Functions whose gradients are sums over rows."""
    return {
        "bias": (lambda x, b: torch.tanh(x + b), ((20_011, 48), (48,))),
        "bias_of_images": (lambda x, b: F.gelu(x + b[:, None, None]), ((8, 16, 60, 60), (16,))),
        "scale": (lambda x, a: x * a, ((20_011, 48), (1,))),
        "linear": (F.linear, ((9001, 48), (32, 48), (32,))),
        "layer_norm": (
            lambda x, w, b: F.layer_norm(x, w.shape, w, b),
            ((9001, 48), (48,), (48,)),
        ),
        "rms_norm": (lambda x, w: F.rms_norm(x, w.shape, w), ((9001, 48), (48,))),
        "batch_norm": (
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            ((16, 8, 50, 50), (8,), (8,)),
        ),
        "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((64, 8, 30, 30), (8,), (8,))),
        "convolution": (
            lambda x, w, b: F.conv2d(x, w, b, padding=1),
            ((8, 6, 50, 50), (12, 6, 3, 3), (12,)),
        ),
        "prelu": (lambda x, a: F.prelu(x, a), ((2000, 16, 3), (16,))),
        "softmax": (lambda x: torch.softmax(x, -1), ((20, 5003),)),
        "embedding": (
            lambda w: F.embedding(torch.arange(9001) % 7, w),
            ((7, 48),),
        ),
        "expand": (lambda x: x.expand(5, 9001, 32) * 1.5, ((32,),)),
    }


def cases() -> Iterator[Case]:
    """Every case, around 0 and around 1."""
    for shift in (0.0, 1.0):
        for shapes, dim, functions in (
            (ROWS, 1, over(1) | of_rows()),
            (COLUMNS, 0, over(0) | of_columns()),
            (MIDDLE, 1, over(1) | {"running_mean": running_mean}),
        ):
            for shape, (name, fn) in itertools.product(shapes, functions.items()):
                label = f"{name} {'x'.join(map(str, shape))} over {dim} around {shift:g}"
                yield Case(label, fn, (shape,), shift)
        for name, (fn, given) in gradients().items():
            yield Case(f"gradient of {name} around {shift:g}", fn, given, shift, gradients=True)


def measure(case: Case, dtype: torch.dtype) -> list[Errors]:
    """The errors of each of the results; none where eager has no kernel for the dtype."""
    jitney.reset()
    compiled = jitney.compile(case.fn)
    squares: dict[int, list[float]] = {}
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        inputs = [(torch.randn(s, generator=generator) + case.shift).to(dtype) for s in case.shapes]
        try:
            eagers = results(case, case.fn, inputs, seed)
        except NotImplementedError:
            return []
        truth = results(case, case.fn, [x.double() for x in inputs], seed)
        ours = results(case, compiled, inputs, seed)
        for k, (t, mine, theirs) in enumerate(zip(truth, ours, eagers, strict=True)):
            found = squares.setdefault(k, [0.0, 0.0, 0.0])
            for place, value in enumerate((mine.double() - t, theirs.double() - t, t)):
                found[place] += float(value.square().mean()) / SEEDS
    return [Errors(*(value**0.5 for value in found)) for found in squares.values()]


def results(case: Case, fn: Function, inputs: list[Tensor], seed: int) -> list[Tensor]:
    """The result, or the gradients of all inputs for a random one of the result."""
    if not case.gradients:
        return [fn(*inputs)]
    leaves = [x.clone().requires_grad_() for x in inputs]
    out: Any = fn(*leaves)
    generator = torch.Generator().manual_seed(seed)
    given = torch.randn(out.shape, generator=generator).to(inputs[0].dtype) + case.shift
    return list(torch.autograd.grad(out, leaves, given.to(out.dtype)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression for names")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument("--all", action="store_true", help="every case, not those further off")
    options = parser.parse_args()
    dtype, start, count, bad = getattr(torch, options.dtype), time.time(), 0, 0
    for case in cases():
        if not re.search(options.only, case.name):
            continue
        for k, errors in enumerate(measure(case, dtype)):
            good = errors.acceptable(dtype)
            count, bad = count + 1, bad + (not good)
            if options.all or not good:
                ratio = errors.ours / max(errors.eager, 1e-30)
                print(
                    f"{case.name}[{k}]: ours {errors.ours:.3g}, eager {errors.eager:.3g} "
                    f"({ratio:.1f}), scale {errors.scale:.3g}",
                    flush=True,
                )
    print(f"{bad} of {count} are further off, {time.time() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
