"""Authors' ops that write: in threads, in comprehensions and generators, defined anew."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.run.test_written_ops import LAYOUTS, OPS, check, is_whole, twice_in_a_row


def test_from_several_threads() -> None:
    compiled, wrong = jitney.compile(twice_in_a_row), []

    def work(seed: int) -> None:
        for size in (3, 4, 5):
            generator = torch.Generator().manual_seed(seed + size)
            inputs = tuple(torch.randn(size, size, generator=generator) for _ in range(2))
            try:
                check(twice_in_a_row, compiled, inputs)
            except AssertionError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(10 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_op_defined_anew_under_its_name() -> None:
    for factor in (2, 3):
        library = torch.library.Library("written_ops_anew", "FRAGMENT")
        library.define("times(Tensor(a!) x) -> ()")

        def times(x: Tensor, by: int = factor) -> None:
            x.mul_(by)

        library.impl("times", times, "CPU")

        def function(x: Tensor) -> Tensor:
            torch.ops.written_ops_anew.times(x)
            return x + 1

        check(function, jitney.compile(function, fullgraph=True), (torch.ones(3),))
        library._destroy()


def test_in_a_comprehension_and_a_generator() -> None:
    """Neither handles errors, whatever their code says."""

    def filled(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        OPS.fill(x, out=out)
        return out

    def each_of(x: Tensor) -> Any:
        for row in x:
            yield filled(row)

    def function(x: Tensor, y: Tensor) -> Any:
        return [filled(part) for part in (x, y)], [*each_of(x)], {k: filled(y) for k in range(2)}

    log.clear()
    check(function, jitney.compile(function), LAYOUTS["rows"](3))
    assert is_whole()
