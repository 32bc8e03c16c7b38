"""Forks while another thread compiles."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FORK = """
import gc, os, signal, sys, threading
import torch
import jitney
from jitney.events import log

compiling, forked = threading.Event(), threading.Event()

def slow(graph, inputs):
    if threading.current_thread() is not threading.main_thread():
        compiling.set()
        forked.wait()
    return graph

wait = sys.argv[1] == "True"
with jitney.options(wait_for_compile=wait):
    compiled = jitney.compile(lambda x: x + 1, backend=slow)
thread = threading.Thread(target=compiled, args=(torch.ones(2),))
thread.start()
compiling.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    log.clear()
    good = compiled(torch.ones(2)).tolist() == [2, 2]
    good &= log.events("entry") != [] and gc.isenabled()
    os._exit(0 if good else 1)
forked.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("wait", [False, True])
def test_a_child_compiles_what_another_thread_was_compiling(wait: bool) -> None:
    subprocess.run([sys.executable, "-c", _FORK, str(wait)], check=True, timeout=200)
