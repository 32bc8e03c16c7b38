"""Code of the process: made once, and there as long as somebody may call it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from jitney.native_code import once

#: Threads that are the first of the process to ask for its code.
_RACE = """
import sys, threading
import torch
from jitney.capture import native_check, native_program, watch_dicts
from jitney.torch_api import addresses

native_program.tensor_layout(), addresses.storage_layout(), watch_dicts.verified()
sys.setswitchinterval(1e-5)
for make in (native_check._code, addresses._code, watch_dicts.watcher):
    found, start = [], threading.Barrier(6)

    def ask():
        start.wait()
        found.append(make())

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(one is found[0] for one in found), make
"""


def test_what_threads_ask_for_at_once_is_made_once() -> None:
    made = []

    @once
    def make() -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(make())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and found == made * 4


def test_code_of_the_process_is_made_once() -> None:
    subprocess.run([sys.executable, "-c", _RACE], check=True, timeout=300)


#: Functions that die in a cycle, behind what writes over the memory that the collector gives back.
_CYCLES = r"""
import ctypes, gc
from jitney.native_code import Calls, NativeCode, python_function

code = NativeCode("define i64 @same(i64 %self, i64 %argument) { ret i64 %argument }")
kept = []

class Spoiler:
    def __del__(self):
        kept.append([ctypes.create_string_buffer(b"\xff" * 31) for _ in range(100)])

ctypes.create_string_buffer(31)
for _ in range(20):
    spoiler = Spoiler()
    gc.freeze()  # to the collector it is no garbage, and so dies in the midst of its work
    function = python_function("same", code.address("same"), Calls.WITH_ONE, None)
    cycle = {"first": spoiler, "second": function}
    cycle["third"] = cycle
    del spoiler, function, cycle
    gc.collect()
"""


def test_the_collector_does_not_empty_what_a_function_still_reads() -> None:
    subprocess.run([sys.executable, "-c", _CYCLES], check=True, timeout=300)
