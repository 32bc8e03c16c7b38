"""Facts about the machine that choices may depend on, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Target:
    """``kind`` "cpu" or "cuda". Sizes in bytes; ``vector_bits`` of one SIMD register (CPU);
    ``threads_each``: that one multiprocessor runs at once (GPU)."""

    kind: str
    name: str
    features: frozenset[str] = frozenset()
    cores: int = 1
    vector_bits: int = 256
    l2: int = 1 << 20
    multiprocessors: int = 0
    threads_each: int = 2048
    shared_memory: int = 0
    capability: tuple[int, int] = (0, 0)


def target_text(target: Target) -> str:
    """Everything of a target, in one order."""
    return f"{replace(target, features=frozenset())}{sorted(target.features)}"
