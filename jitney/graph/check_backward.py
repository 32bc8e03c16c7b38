"""A last look at a backward graph: it takes what the autograd node passes, no more, no less."""

from __future__ import annotations

import torch
from torch import fx

from jitney.errors import CompilerBug
from jitney.graph.region import RegionFacts


def check_backward(gm: fx.GraphModule, facts: RegionFacts, missing: int) -> None:
    """Raises CompilerBug unless ``gm`` takes the sizes, then the tensors that ``facts`` saves,
    then all gradients but ``missing`` of them: native code believes what it is called with."""
    tensors = len(facts.saved_tensors) + len(facts.tangents) - missing
    passed = ["size"] * len(facts.saved_sizes) + ["tensor"] * tensors
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in placeholders]
    taken = ["tensor" if isinstance(v, torch.Tensor) else "size" for v in values]
    if taken != passed:
        message = f"a backward graph of {', '.join(map(str, placeholders))} is passed"
        raise CompilerBug(f"{message} {len(facts.saved_sizes)} sizes and {tensors} tensors")
