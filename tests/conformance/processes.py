"""A function over a growing list of items, in processes whose death is an answer like another."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Answer(Generic[Result]):
    """What the function gave, or None and why there is nothing."""

    result: Result | None
    failure: str
    seconds: float


def answers(
    function: Callable[[Item], Result], items: list[Item], count: int, device: str, patience: float
) -> Iterator[tuple[Item, Answer[Result]]]:
    """``function`` of every item as it is done, in ``count`` processes; who takes an answer may
    append items. After ``patience`` seconds on one item a process is ended."""
    waiting: queue.Queue[Item | None] = queue.Queue()
    finished: queue.Queue[tuple[Item, Answer[Result]]] = queue.Queue()

    def work() -> None:
        process = Process(function, device)
        while (item := waiting.get()) is not None:
            finished.put((item, process.ask(item, patience)))
        process.end()

    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    given = taken = 0
    while taken < len(items):
        for item in items[given:]:
            waiting.put(item)
        given = len(items)
        yield finished.get()
        taken += 1
    for _ in range(count):
        waiting.put(None)


_STARTING = threading.Lock()


class Process(Generic[Item, Result]):
    """A process that answers one question at a time; a new one follows one that has died.

    Forked with what is imported here; for another device than the CPU a fresh one, since what a
    process knows of its GPU does not survive a fork.
    """

    def __init__(self, function: Callable[[Item], Result], device: str) -> None:
        self._function, self._device = function, device
        self._context: Any = multiprocessing.get_context("fork" if device == "cpu" else "spawn")
        self._process: Any = None

    def ask(self, item: Item, patience: float) -> Answer[Result]:
        """The function's result for ``item``, or how the process ended."""
        if self._process is None:
            self._start()
        start = time.perf_counter()
        result, failure, last = None, "", True
        try:
            self._pipe.send(item)
            if self._pipe.poll(patience):
                result, failure, last = self._pipe.recv()
            else:
                failure = f"no answer after {patience} s"
                self._process.kill()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            failure = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        if last:
            self._process = None
        return Answer(result, failure, round(time.perf_counter() - start, 2))

    def end(self) -> None:
        """The process goes."""
        if self._process is not None:
            self._pipe.send(None)

    def _start(self) -> None:
        with _STARTING:  # filelock forbids a fork while another thread's is under way
            self._pipe, questions = self._context.Pipe()
            given = (self._function, questions, self._device)
            self._process = self._context.Process(target=_answer, args=given)
            self._process.start()
            questions.close()


def _answer(function: Callable[[Any], Any], questions: Any, device: str) -> None:
    """In the process: answers until it is told to go, or has lost its device."""
    sys.stderr = open(os.devnull, "w")
    last = False
    while not last and (item := questions.recv()) is not None:
        result, failure = None, ""
        try:
            result = function(item)
        except Exception:  # noqa: BLE001 - an answer like another
            failure = traceback.format_exc(limit=-4)
        last = is_lost(device)
        questions.send((result, failure, last))


def is_lost(device: str) -> bool:
    """Whether an error took the device from this process, as a bad address does on a GPU."""
    try:
        torch.zeros((), device=device).item()
    except RuntimeError:
        return True
    return False
