"""Which ATen ops are taken apart while tracing, and which stay whole.

Everything stays whole that the lowering knows (`keep`), every view op, and every op that torch
has no decomposition for; the rest is taken apart by torch's core ATen decompositions, and by a
few of our own (`own_decompositions`). An op that neither the lowering nor a decomposition knows
runs as an ATen call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from jitney import torch_api
from jitney.graph.own_decompositions import OWN
from jitney.graph.recorder import Decompositions

#: Kept though the lowering calls ATen for them: one library call beats what they decompose to.
LIBRARY_CALLS = (
    "convolution convolution_backward _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward max_pool2d_with_indices "
    "max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward mkldnn_rnn_layer addmm mm bmm baddbmm native_layer_norm "
    "native_layer_norm_backward native_group_norm native_group_norm_backward embedding "
    "embedding_dense_backward _softmax _softmax_backward_data _log_softmax "
    "_log_softmax_backward_data gelu gelu_backward index_put index_add scatter_add topk sort "
    "grid_sampler_2d upsample_bilinear2d.vec upsample_nearest2d.vec nll_loss_forward "
    "nll_loss_backward cumsum native_dropout bernoulli uniform normal_functional "
    "_native_batch_norm_legit_functional native_batch_norm_backward _to_copy"
)

#: Kept because torch's decomposition counts labels behind the end of a row.
WRONGLY_DECOMPOSED = "multilabel_margin_loss_forward"


@lru_cache(maxsize=8)
def decompositions(keep: frozenset[Any]) -> Decompositions:
    """Overload -> decomposition, for ops that neither ``keep`` nor `LIBRARY_CALLS` holds."""
    table = torch_api.decomposition_table()
    kept = keep | _library_packets()
    torchs = {op: f for op, f in table.items() if op not in kept and _packet(op) not in kept}
    return {**torchs, **OWN}


def _packet(op: Any) -> Any:
    return getattr(op, "overloadpacket", op)


def _library_packets() -> set[Any]:
    names = (name.partition(".")[0] for name in f"{LIBRARY_CALLS} {WRONGLY_DECOMPOSED}".split())
    return {getattr(torch.ops.aten, n) for n in names if hasattr(torch.ops.aten, n)}
