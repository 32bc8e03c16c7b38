"""How threads share the items of a phase: each is done once, whoever comes first."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Callable

import llvmlite.binding as llvm
import pytest
import torch

import jitney
from jitney.kernels.llvm import native_threads

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


class Part(ctypes.Structure):
    """What `jitney.take` gives: the first item and the one after the last."""

    _fields_ = [("begin", ctypes.c_int64), ("end", ctypes.c_int64)]


@pytest.fixture(scope="module")
def take() -> Callable[..., Part]:
    """``jitney.take`` as a function of Python."""
    text = "\n".join((*native_threads.IMPORTS, native_threads.TEXT))
    text = re.sub(r"define internal (.*@jitney\.take)", r"define \1", text)
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    llvm.load_library_permanently(str(torch._C.__file__))
    engine.finalize_object()
    kinds = (ctypes.POINTER(ctypes.c_uint64), ctypes.c_int64, ctypes.c_bool)
    found = ctypes.CFUNCTYPE(Part, *kinds)(engine.get_function_address("jitney.take"))
    found.engine = engine  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_range_is_taken_once(take: Callable[..., Part], seed: int) -> None:
    draw = random.Random(seed)
    first = draw.choice([0, 5, 2**31 - 100])
    end, grain = first + draw.randrange(60), draw.randint(1, 7)
    word, taken = ctypes.c_uint64(first | end << 32), []
    while (part := take(ctypes.byref(word), grain, draw.random() < 0.5)).begin < part.end:
        assert part.end - part.begin <= grain
        taken += range(part.begin, part.end)
    assert sorted(taken) == list(range(first, end))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_each_item_is_done_once(threads: int) -> None:
    """A sum in place would tell of an item done twice; a transposed left side is packed by the
    thread that comes to a block, which two may, and anew in each call."""

    def step(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x.add_(x.sigmoid() * 0 + 1)
        return a.t() @ b

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compiled = jitney.compile(step)
        x = torch.zeros(1 << 20)
        b = torch.randint(-8, 9, (256, 700)).float()
        for _ in range(8):
            a = torch.randint(-8, 9, (256, 1000)).float()
            assert torch.equal(compiled(x, a, b), a.t() @ b)
        assert torch.equal(x, torch.full_like(x, 8))
    finally:
        torch.set_num_threads(before)
