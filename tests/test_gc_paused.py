"""Pauses of garbage collection."""

from __future__ import annotations

import gc
import threading

import pytest

from jitney.gc_paused import gc_paused


def test_a_pause_ends_with_the_last_thread_in_one() -> None:
    inside, leave = threading.Event(), threading.Event()

    def pause() -> None:
        with gc_paused():
            inside.set()
            leave.wait()

    other = threading.Thread(target=pause)
    other.start()
    inside.wait()
    with gc_paused():
        leave.set()
        other.join()
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("on", [True, False])
def test_a_pause_leaves_collection_as_it_was(on: bool) -> None:
    try:
        gc.enable() if on else gc.disable()
        with gc_paused(), gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is on
    finally:
        gc.enable()
