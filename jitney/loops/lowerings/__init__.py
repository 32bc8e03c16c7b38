"""Lowerings of ATen ops, one file per family, registered in one table by op object."""

from __future__ import annotations

from jitney.loops.lowerings import (  # noqa: F401  (each fills the table)
    activations,
    adaptive_pooling,
    assertions,
    attention,
    batch_norm,
    borders,
    convolution,
    convolution_backward,
    creation,
    division,
    erfinv,
    gamma,
    grouped_product,
    hyperbolic,
    indexing,
    losses,
    matmul,
    max_pool,
    normalisation,
    pointwise,
    pooling,
    random,
    rearrangement,
    reductions,
    resampling,
    scans,
    scattering,
)
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.expressions import LOWERABLE
from jitney.loops.lowerings.registry import (
    Refused,
    find_lowering,
    functional_twin,
    known_numbers,
    lowered_ops,
)
from jitney.loops.lowerings.strided import StridedTensor

__all__ = [
    "LOWERABLE",
    "Builder",
    "Refused",
    "StridedTensor",
    "find_lowering",
    "functional_twin",
    "known_numbers",
    "lowered_ops",
]
