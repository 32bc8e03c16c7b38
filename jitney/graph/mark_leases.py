"""What of a traced region's memory is held between its forward and its backward pass, and after."""

from __future__ import annotations

from jitney.graph.region import Input, Region


def mark_leases(region: Region) -> None:
    """Marks the outputs of both graphs that their receiver keeps as they are (``leased``): what
    the backward graph reads, and the gradients. And the backward graph's placeholders: what the
    forward graph left there (``kept``); inputs that stay where they are, as `mark_static` has
    marked them in the forward graph."""
    assert region.backward is not None
    facts = region.facts
    kept = [place.index for place in facts.saved_tensors if not isinstance(place, Input)]
    region.forward.graph.output_node().meta["leased"] = frozenset(kept)
    gradients = range(len(facts.grad_inputs))
    region.backward.graph.output_node().meta["leased"] = frozenset(gradients)
    inputs = [n for n in region.forward.graph.nodes if n.op == "placeholder"]
    taken = [n for n in region.backward.graph.nodes if n.op == "placeholder"]
    saved = taken[len(facts.saved_sizes) :][: len(facts.saved_tensors)]
    for place, node in zip(facts.saved_tensors, saved, strict=True):
        if isinstance(place, Input):
            node.meta["static"] = inputs[place.index].meta.get("static", False)
        else:
            node.meta["kept"] = True
