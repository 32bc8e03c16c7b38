"""Lowerings of ATen ops, one file per family, registered in one table by op object."""

from __future__ import annotations

from jitney.loops.lowerings import (
    activations,
    adaptive_pooling,
    attention,
    batch_norm,
    convolution,
    convolution_backward,
    creation,
    division,
    erfinv,
    gamma,
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
from jitney.loops.lowerings.registry import Refused, find_lowering, functional_twin, lowered_ops
from jitney.loops.lowerings.strided import StridedTensor

FAMILIES = (
    activations,
    adaptive_pooling,
    attention,
    batch_norm,
    convolution,
    convolution_backward,
    creation,
    division,
    erfinv,
    gamma,
    hyperbolic,
    indexing,
    losses,
    matmul,
    normalisation,
    pointwise,
    max_pool,
    pooling,
    random,
    rearrangement,
    reductions,
    resampling,
    scans,
    scattering,
)

__all__ = [
    "LOWERABLE",
    "Builder",
    "FAMILIES",
    "Refused",
    "StridedTensor",
    "find_lowering",
    "functional_twin",
    "lowered_ops",
]
