"""What the target's instruction set offers to the emitters, read once from its features."""

from __future__ import annotations

from dataclasses import dataclass

from jitney.loops.target import Target


@dataclass(frozen=True)
class Isa:
    """``bits`` of a vector register; masked loads and stores of any element (``masks``); native
    float32 -> bfloat16 conversion and dot product (``bf16``); fused multiply-add; products of
    bfloat16 in matrix registers (``matrix``: AMX)."""

    bits: int = 256
    masks: bool = False
    bf16: bool = False
    fma: bool = True
    matrix: bool = False

    def lanes(self, element_bits: int) -> int:
        """Elements of that many bits in one register."""
        return self.bits // element_bits


#: What every x86-64 since 2013 has.
DEFAULT_ISA = Isa()


def isa_of(target: Target) -> Isa:
    """The instruction set of a CPU target: AVX-512 (all of F, BW, DQ, VL), AVX2, or less."""
    has = target.features.__contains__
    masks = all(map(has, ("avx512f", "avx512bw", "avx512dq", "avx512vl")))
    bits = 512 if masks and target.vector_bits >= 512 else 256 if has("avx2") else 128
    masks = masks and bits == 512
    bf16 = masks and has("avx512bf16")
    matrix = bf16 and has("amx-tile") and has("amx-bf16")
    return Isa(bits, masks, bf16, has("fma"), matrix)
