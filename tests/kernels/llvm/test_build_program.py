"""What holds of a compiled program whatever it computes: threads, processes, caches, bad files."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jitney.config import Config
from jitney.disk_cache import DiskCache, cache_directory
from jitney.errors import UserError
from jitney.events import log
from jitney.kernels.llvm.host import host_target
from jitney.loops.ir import Extern
from tests.kernels.llvm.compiled import HOST, build_program, check, compile_function, program_of


def _mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).relu() @ w).softmax(-1)


def test_calls_from_many_threads_do_not_mix() -> None:
    """Each call has its own workspace: temps of one never show in another."""
    w = torch.randn(96, 96)
    compiled = compile_function(_mlp, torch.randn(64, 96), w)
    inputs = [torch.randn(64, 96) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: compiled(x, w)[0], inputs))
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, _mlp(x, w), rtol=1e-4, atol=1e-5)


def test_externs_between_segments() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2 + 1
        values, order = y.sort(dim=1)
        return values.exp() + y, order, y.t()

    x = torch.randn(9, 33)
    program, _ = program_of(function, x)
    assert any(isinstance(n, Extern) for n in program.nodes)
    check(function, x, lowered=False)


def test_large_results_ask_for_huge_pages() -> None:
    """Linux says so in the flags of the mapping an address lies in ("hg")."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has none")
    x = torch.zeros(8 << 20)
    (result,) = compile_function(lambda x: x + 1, x)(x)
    middle, inside = result.data_ptr() + (16 << 20), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split(" ", 1)[0]
        if not word.endswith(":"):
            first, last = (int(bound, 16) for bound in word.split("-"))
            inside = first <= middle < last
        elif inside and word == "VmFlags:":
            assert "hg" in line.split()
            return
    raise AssertionError("the result lies in no mapping")


def test_results_are_fresh_tensors() -> None:
    x = torch.randn(5)
    compiled = compile_function(lambda x: x + 1, x)
    first, second = compiled(x)[0], compiled(x)[0]
    assert first.data_ptr() != second.data_ptr()
    assert first._base is None and not first.requires_grad


def test_no_memory_is_lost() -> None:
    compiled = compile_function(lambda x: (x + 1, x * 2), torch.randn(4))
    x = torch.randn(4)
    before = sys.getrefcount(x)
    results = [weakref.ref(t) for _ in range(100) for t in compiled(x)]
    assert sys.getrefcount(x) == before
    assert not any(r() is not None for r in results)


def test_equal_nodes_share_code() -> None:
    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = F.layer_norm(x, (64,), w)
        return x

    weights = [torch.randn(64) for _ in range(4)]
    log.clear()
    compile_function(function, torch.randn(8, 64), *weights, fuse=False)
    text = log.events("llvm module")[-1].data["text"]
    assert text.count("define void @nest_") < 4


def test_object_comes_back_from_disk(tmp_path: Path) -> None:
    x = torch.randn(100)
    program, constants = program_of(lambda x: x.exp() * 3, x)
    cache = DiskCache(tmp_path)
    build_program(program, constants, HOST, cache=cache)
    (stored,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    log.clear()
    again = build_program(program, constants, HOST, cache=cache)
    assert not [e for e in log.events("stage") if e.data["name"] == "machine code"]
    torch.testing.assert_close(again(x)[0], x.exp() * 3)
    stored.write_bytes(stored.read_bytes()[:-7] + b"garbage")
    repaired = build_program(program, constants, HOST, cache=cache)
    torch.testing.assert_close(repaired(x)[0], x.exp() * 3)
    assert cache.get("something else") is None


def test_unwritable_cache_costs_only_the_caching(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    program, constants = program_of(lambda x: x + 1, torch.ones(3))
    with pytest.warns(UserWarning, match="nothing is kept in"):
        compiled = build_program(program, constants, HOST, cache=DiskCache(blocked / "below"))
    assert compiled(torch.ones(3))[0].tolist() == [2.0] * 3


def test_a_full_disk_keeps_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.warns(UserWarning, match="No space left"):
        DiskCache(tmp_path).put("key", b"content")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_directory(Config()).name.startswith("jitney-")
    assert cache_directory(Config(cache_dir="here")) == Path("here")


def test_features_can_only_be_taken_away() -> None:
    assert not any(f.startswith("avx512") for f in host_target("-avx512").features)
    with pytest.raises(UserError, match="takes features away"):
        host_target("+amx")


_NO_COMPILER = """
import os, torch
from tests.kernels.llvm.compiled import compile_function
torch.manual_seed(0)
x = torch.randn(1000, 30)
y = compile_function(lambda x: x.softmax(1), x)(x)[0]
torch.testing.assert_close(y, x.softmax(1))
assert os.environ["PATH"] == "/nowhere"
"""

_FORK = """
import os, torch
from tests.kernels.llvm.compiled import compile_function
torch.set_num_threads(2)
x = torch.randn(2000, 2000)
f = compile_function(lambda x: x.exp() + 1, x)
expected = f(x)[0]
child = os.fork()
if child == 0:
    os._exit(0 if (f(x)[0].numpy() == expected.numpy()).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""


_FORK_MEANWHILE = """
import os, threading
from jitney.kernels.llvm import machine_code
held = threading.Event()
def compile_for_long():
    with machine_code._LOCK:
        held.set()
        threading.Event().wait(0.2)
thread = threading.Thread(target=compile_for_long)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    machine_code.provide_cell("cell")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


def _run(code: str, **environment: str) -> None:
    root = Path(__file__).parents[3]
    settings = {**os.environ, "PYTHONPATH": str(root), **environment}
    subprocess.run([sys.executable, "-c", code], check=True, env=settings, timeout=120, cwd=root)


def test_no_compiler_is_needed() -> None:
    _run(_NO_COMPILER, PATH="/nowhere")


def test_a_forked_child_still_runs() -> None:
    """libgomp's threads do not survive a fork; the child must not wait for them."""
    _run(_FORK)


def test_a_child_forked_while_another_thread_compiles_still_runs() -> None:
    _run(_FORK_MEANWHILE)
