"""Attention masks that depend on shapes alone are looked at, and said in words.

Under tracing transformers always hands attention a mask, even one that keeps everything or is
plainly causal. Kernels that take a mask as data are slower than those that know its shape (an
H200 spends 9.0 ms on GPT-2's attention with a causal mask as data, 3.6 without). A mask computed
from no input is evaluated here, before torch chooses the attention kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.events import log
from jitney.graph.recognise_masks import mask_kind

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def fold_attention_masks(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` (a torch-level graph, changed in place) with constant masks as none or causal."""
    kinds: dict[fx.Node, str | None] = {}
    for node in list(gm.graph.nodes):
        mask = _mask_of(node)
        if mask is None:
            continue
        if mask not in kinds:
            kinds[mask] = _kind(mask)
            log.emit("attention_mask", node=node.name, verdict=kinds[mask] or "data")
        if kinds[mask] is not None:
            _rewrite(node, causal=kinds[mask] == "causal")
    if any(kinds.values()):
        gm.graph.lint()
        gm.recompile()
    return gm


def _mask_of(node: fx.Node) -> fx.Node | None:
    """The mask a call of attention is given, where nothing else is said of it."""
    if node.op != "call_function" or node.target is not _ATTENTION:
        return None
    given = {**dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}
    mask = given.get("attn_mask")
    return mask if isinstance(mask, fx.Node) and not given.get("is_causal") else None


def _rewrite(node: fx.Node, causal: bool) -> None:
    given = {**dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}
    given.update(attn_mask=None, is_causal=causal)
    node.args = tuple(given.pop(name) for name in _PARAMETERS[:3])
    node.kwargs = given


def _kind(mask: fx.Node) -> str | None:
    needed = _ancestors(mask)
    if needed is None:
        return None
    with torch_api.dispatch_modes_off(), torch.no_grad():
        return mask_kind(_evaluate(mask, needed))


def _ancestors(mask: fx.Node) -> list[fx.Node] | None:
    """What the mask is computed from, in order; None if an input or a write is among it."""
    found: set[fx.Node] = set()
    stack = [mask]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        if node.op not in ("call_function", "call_method") or _writes(node):
            return None
        if any(_writes(user) for user in node.users):
            return None
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return None
        found.add(node)
        stack.extend(node.all_input_nodes)
    return [node for node in mask.graph.nodes if node in found]


def _writes(node: fx.Node) -> bool:
    """Whether a torch-level call writes into its operands, or draws random numbers."""
    if node.target is operator.setitem:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    inplace = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name.endswith("__") and name not in _NOT_AUGMENTED
    return inplace or augmented or "out" in node.kwargs or "rand" in name or name in _RANDOM


_NOT_AUGMENTED = frozenset({"__invert__", "__int__", "__index__", "__iter__", "__init__"})
_RANDOM = frozenset({"bernoulli", "dropout", "normal", "multinomial", "poisson", "__setitem__"})


def _evaluate(mask: fx.Node, needed: Iterable[fx.Node]) -> torch.Tensor:
    values: dict[fx.Node, Any] = {}
    for node in needed:
        args = fx.map_arg(node.args, values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, values.__getitem__)
        if node.op == "call_method":
            values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            assert callable(node.target)
            values[node] = node.target(*args, **kwargs)
    result = values[mask]
    assert isinstance(result, torch.Tensor)
    return result
