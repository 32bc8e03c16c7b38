"""Two products of one input in one library call, the weights where they lie.

Two matrices of one shape are a strided batch whose stride is the distance between their
addresses, so that the library fills the GPU with the tiles of both: no copy of the weights, and
no second partly filled wave of tiles.
"""

from __future__ import annotations

import torch

from jitney import torch_api

NAME = "jitney.paired_mm.default"
#: Bytes a matrix in a batch must be aligned to for the library's fast kernels.
ALIGNED = 16

_LIBRARY = torch.library.Library("jitney", "FRAGMENT")
_LIBRARY.define("paired_mm(Tensor x, Tensor first, Tensor second) -> (Tensor, Tensor)")


def paired_mm(
    x: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x @ first, x @ second`` for x [m, k] and weights [k, n] of the same layout."""
    low, high = sorted((first, second), key=torch.Tensor.data_ptr)
    apart = high.data_ptr() - low.data_ptr()
    if apart % ALIGNED or first.stride() != second.stride():
        return x @ first, x @ second
    strides = (apart // low.element_size(), *low.stride())
    both = torch_api.tensor_at(low, (2, *low.shape), strides)
    made = torch.bmm(x.expand(2, -1, -1), both)
    return (made[0], made[1]) if low is first else (made[1], made[0])


_LIBRARY.impl("paired_mm", paired_mm, "CompositeExplicitAutograd")
