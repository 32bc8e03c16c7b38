"""GEMM nodes as code: packing phases where operands need them, then the product itself."""

from __future__ import annotations

from collections.abc import Callable

from jitney.errors import CompilerBug
from jitney.kernels.llvm.gemm_matrix import matrix_phase
from jitney.kernels.llvm.gemm_panel import panel_phase
from jitney.kernels.llvm.gemm_parts import GemmCode
from jitney.kernels.llvm.gemm_plan import (
    GemmPlan,
    LayoutOfA,
    LayoutOfB,
    Style,
    can_emit_gemm,
    plan_gemm,
)
from jitney.kernels.llvm.gemm_skinny import row_dot_phase, stream_phase
from jitney.kernels.llvm.gemm_wide import wide_phase
from jitney.kernels.llvm.isa import isa_of
from jitney.kernels.llvm.node_code import NodeCode
from jitney.kernels.llvm.pack_operands import copy_a_phase, share_b_phase
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.loops import ir
from jitney.loops.index import Index
from jitney.loops.target import Target


def emit_gemm(gemm: ir.Gemm, target: Target) -> NodeCode:
    """The code of a GEMM that `can_emit_gemm` allows; CompilerBug otherwise."""
    allowed = can_emit_gemm(gemm)
    if not allowed:
        raise CompilerBug(f"{gemm.name}: {allowed.reason}")
    isa = isa_of(target)
    code = GemmCode(gemm, plan_gemm(gemm, isa, target), isa)
    if code.plan.a is LayoutOfA.COPIED:
        code.add(*copy_a_phase(code))
    if code.plan.b is LayoutOfB.SHARED:
        code.add(*share_b_phase(code))
    code.add(*_main_phase(code.plan)(code))
    return code.finish()


def _main_phase(plan: GemmPlan) -> Callable[[GemmCode], tuple[PhaseFunction, Index, float]]:
    if plan.beside > 1:
        return matrix_phase if plan.matrix else wide_phase
    match plan.style:
        case Style.PANEL:
            return panel_phase
        case Style.ROW_DOT:
            return row_dot_phase
        case Style.STREAM:
            return stream_phase
