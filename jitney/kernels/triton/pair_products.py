"""Library products that share their input and the shape of their weights run as one call."""

from __future__ import annotations

from dataclasses import replace

from jitney.kernels.paired_product import NAME
from jitney.loops.decision import Decision, no, yes
from jitney.loops.ir import BufferView, Extern, LoopProgram, Node
from jitney.loops.visit import writes


def pair_products(program: LoopProgram) -> LoopProgram:
    """``program`` with each pair joined where its first product is: the weights are parameters,
    there from the start, and the input is the same."""
    nodes: list[Node] = []
    single: list[int] = []
    for node in program.nodes:
        single = [at for at in single if not _overwrites(node, nodes[at])]
        if not isinstance(node, Extern) or not is_plain_product(node, program):
            nodes.append(node)
            continue
        at = next((at for at in single if can_pair(nodes[at], node)), None)
        if at is None:
            single.append(len(nodes))
            nodes.append(node)
        else:
            single.remove(at)
            nodes[at] = _paired(nodes[at], node)
    return replace(program, nodes=tuple(nodes))


def is_plain_product(node: Extern, program: LoopProgram) -> Decision:
    """Whether a call is ``x @ weight`` with a parameter and nothing added."""
    if node.target != "aten.mm.default":
        return no("it is no plain product")
    weight = node.args[1]
    if not isinstance(weight, BufferView) or not program.buffer(weight.buffer).is_parameter:
        return no("it has no parameter for a weight")
    if program.buffer(weight.buffer).dtype.itemsize != 2:
        return no("wide products fill the GPU")
    return yes("it is a product with a parameter")


def can_pair(first: Node, second: Extern) -> Decision:
    """Whether one strided batch holds both products."""
    assert isinstance(first, Extern)
    (x, one), (y, other) = first.args, second.args
    if x != y:
        return no("they have different inputs")
    if one.buffer == other.buffer:
        return no("they read one weight")
    if (one.shape, one.strides, one.offset) != (other.shape, other.strides, other.offset):
        return no("their weights are laid out differently")
    return yes("one input, two weights of one shape")


def _overwrites(node: Node, product: Node) -> bool:
    """Whether the product could no longer be moved past, its operands changing."""
    assert isinstance(product, Extern)
    operands = {view.buffer for view in product.args}
    return bool(operands & set(writes(node)))


def _paired(first: Node, second: Extern) -> Extern:
    assert isinstance(first, Extern)
    return Extern(
        first.name,
        NAME,
        (*first.args, second.args[1]),
        (),
        (*first.outputs, *second.outputs),
        reason="the library fills the GPU with both",
        origins=tuple(dict.fromkeys((*first.origins, *second.origins))),
    )
