"""Two products of one input as a strided batch over weights that lie apart."""

import torch

from jitney import torch_api
from jitney.kernels.paired_product import NAME, paired_mm
from jitney.kernels.triton.pair_products import pair_products
from jitney.loops.index import index
from jitney.loops.interpret import interpret
from jitney.loops.ir import Buffer, BufferView, Extern, LoopProgram, Output


def test_each_product_is_its_own_whichever_weight_lies_first():
    x, (one, two) = torch.randn(5, 8), torch.randn(40, 2, 6, 8).unbind(1)
    for first, second in ((one[3], two[1]), (two[1], one[3]), (one[0], one[0])):
        got = torch_api.find_op(NAME)(x, first.t(), second.t())
        torch.testing.assert_close(got[0], x @ first.t())
        torch.testing.assert_close(got[1], x @ second.t())


def test_weights_at_odd_distances_are_multiplied_one_by_one():
    x, memory = torch.randn(5, 8), torch.randn(200)
    first, second = memory[:48].view(8, 6), memory[49:97].view(8, 6)
    got = paired_mm(x, first, second)
    torch.testing.assert_close(got, (x @ first, x @ second))


def product(name, x, weight, rows=4, columns=6, depth=8):
    left = BufferView(x, (index(rows), index(depth)), (index(depth), index(1)))
    right = BufferView(weight, (index(depth), index(columns)), (index(1), index(depth)))
    return Extern(name, "aten.mm.default", (left, right), (), (name,))


def program(nodes, weights):
    def buffer(name, kind, *shape, parameter=False):
        sizes = tuple(map(index, shape))
        dtype, device = torch.float16, torch.device("cpu")
        strides = (sizes[1], index(1))
        return Buffer(name, kind, dtype, device, sizes, strides, is_parameter=parameter)

    made = [buffer(n.name, "extern", 4, 6) for n in nodes]
    buffers = [buffer("x", "input", 4, 8), buffer("y", "input", 4, 8), *made]
    buffers += [buffer(w, "input", 6, 8, parameter=w != "data") for w in weights]
    outputs = tuple(Output(BufferView(b.name, b.shape, b.strides)) for b in made)
    return LoopProgram(("x", "y", *weights), tuple(buffers), tuple(nodes), outputs)


def test_pairs_are_one_call_with_the_same_results():
    nodes = [product("a", "x", "u"), product("b", "y", "u"), product("c", "x", "v")]
    whole = program(nodes, ("u", "v"))
    joined = pair_products(whole)
    assert [n.target for n in joined.nodes] == [NAME, "aten.mm.default"]
    values = [torch.randn(s).half() for s in ((4, 8), (4, 8), (6, 8), (6, 8))]
    for got, want in zip(interpret(joined, {}, values), interpret(whole, {}, values), strict=True):
        torch.testing.assert_close(got, want)


def test_what_may_not_be_paired_is_left():
    for nodes in (
        [product("a", "x", "u"), product("b", "y", "v")],
        [product("a", "x", "u"), product("b", "x", "u")],
        [product("a", "x", "u"), product("b", "x", "data")],
    ):
        left = pair_products(program(nodes, ("u", "v", "data")))
        assert [n.target for n in left.nodes] == ["aten.mm.default"] * 2
