"""Bytes that a node moves: what it indexes, not all that lies in the buffers it names."""

import torch

from jitney.diagnostics.kernel_costs import node_bytes
from jitney.loops.ir import LoopNest
from jitney.loops.target import Target
from tests.loops.lowered import lower_for, trace

GPU = Target("cuda", "a GPU", multiprocessors=8)


def moved(fn, *args):
    program = lower_for(trace(fn, *args), GPU)[0]
    nests = [n for n in program.nodes if isinstance(n, LoopNest)]
    return [node_bytes(nest, program.buffer_table()) for nest in nests]


def test_a_gather_counts_its_rows_not_the_table():
    table, rows = torch.randn(1000, 64), torch.arange(8)
    gathered = moved(torch.nn.functional.embedding, rows, table)[-1]
    assert gathered <= 2 * 8 * 64 * 4 + 8 * 8


def test_each_buffer_counts_once_and_what_is_repeated_by_its_elements():
    x, row = torch.randn(32, 16), torch.randn(16)
    assert moved(torch.mul, x, row) == [2 * 32 * 16 * 4 + 16 * 4]
    assert moved(lambda x: x[:4] + 1, x) == [2 * 4 * 16 * 4]


def test_a_reduction_counts_what_it_runs_over():
    x = torch.randn(32, 16)
    assert moved(lambda x: (x * x).sum(1), x)[-1] <= 32 * 16 * 4 + 32 * 16 * 4 + 32 * 4
