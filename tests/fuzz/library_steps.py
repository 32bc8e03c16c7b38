"""Steps of `shape_programs` over what torch has kernels of its own for: sorting, indexing, images,
attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def rows_of(x: Tensor) -> Tensor:
    """As a matrix: the last dimension stays."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def scanned(x: Tensor, k: int) -> Tensor:
    return x.flatten()[:20].cumsum(0).roll(-k)[: max(1, x.shape[0])]


def ordered(x: Tensor, k: int) -> Tensor:
    values, places = x.sort(-1, stable=True)
    return values + places * k


def arranged(x: Tensor, k: int) -> Tensor:
    return x.argsort(stable=True, dim=0, descending=True) * 0.5


def leading(x: Tensor, k: int) -> Tensor:
    return x.topk(min(k, x.shape[-1]), -1, sorted=True).values


def where_largest(x: Tensor, k: int) -> Tensor:
    return x.argmax(-1) * 0.5 if x.numel() else x


def largest_turned(x: Tensor, k: int) -> Tensor:
    """Of all elements, which do not lie in rows."""
    turned = x.transpose(0, -1)
    return turned.argmax() * 0.5 + turned.amax() + turned[:k].argmin() if x.numel() else x


def summed_turned(x: Tensor, k: int) -> Tensor:
    turned = x.transpose(0, -1)
    return turned.sum((0, -1) if x.dim() > 1 else 0, dtype=(torch.float64, None)[k % 2]) * 0.25


def lost(x: Tensor, k: int) -> Tensor:
    loss = (F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, F.soft_margin_loss)[k % 5]
    return loss(x.flip(-1), x, reduction="none") + loss(x, x * 0.5, reduction="sum")


def put(x: Tensor, k: int) -> Tensor:
    places = torch.arange(0, x.shape[0], k, device=x.device)
    return x.index_put((places,), x.new_full((), 0.75), accumulate=k > 2)


def put_pairs(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)
    size = min(rows.shape)
    places = torch.arange(size, device=x.device)
    return rows.index_put((places, places), rows[:size, 0] if size else rows[:0, 0])


def set_by_places(x: Tensor, k: int) -> Tensor:
    y = x.clone()
    places = torch.arange(y.shape[0] // 2, device=x.device)
    y[places] = y[places + y.shape[0] // 2] * 2
    return y


def sent(x: Tensor, k: int) -> Tensor:
    if not x.numel():
        return x
    places = (torch.arange(x.shape[-1], device=x.device) * k % x.shape[-1]).expand(x.shape)
    return torch.zeros_like(x).scatter_add(-1, places, x)


def reduced(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()
    groups = torch.arange(flat.shape[0], device=x.device) // k
    return flat.new_zeros(-(-flat.shape[0] // k)).scatter_reduce(0, groups, flat, "amax")


def split_unevenly(x: Tensor, k: int) -> Tensor:
    size = x.shape[0]
    parts = x.split([size // 3, size - size // 3])
    return torch.cat([parts[1], parts[0] * k, x[:1]])


def unflattened(x: Tensor, k: int) -> Tensor:
    return x.unflatten(-1, (-1, k)).sum(-2) if x.shape[-1] % k == 0 and x.shape[-1] else x


def folded_rows(x: Tensor, k: int) -> Tensor:
    return x.reshape(-1, x.shape[0]) if x.numel() else x


def strided(x: Tensor, k: int) -> Tensor:
    flat = x.flatten()
    if flat.shape[0] < 3:
        return x
    half = flat.shape[0] // 2
    return flat.as_strided((half, 2), (1, half), flat.shape[0] % 2)


def einsummed(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[:10]
    return torch.einsum("ij,kj->ikj", rows, rows[: k + 1]).sum(1)


def traced(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)
    return rows.diagonal(k - 2) * 2 + rows.diagonal(k - 2).sum()


def as_diagonal(x: Tensor, k: int) -> Tensor:
    return torch.diag_embed(x.flatten()[:8], k - 2)


def upper(x: Tensor, k: int) -> Tensor:
    return rows_of(x).triu(k - 1)


def edges(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[:10, :10]
    found = torch.tril_indices(rows.shape[0], rows.shape[1], offset=-1)
    return rows[found[0], found[1]]


def hot(x: Tensor, k: int) -> Tensor:
    places = torch.arange(min(x.shape[0], 9), device=x.device) % 3
    return F.one_hot(places, max(3, x.shape[-1])).to(x.dtype) * k


def grown_image(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, None, :10, :10]
    if not image.numel():
        return x
    return F.interpolate(image, scale_factor=k, mode="nearest")[0, 0]


def fitted_image(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, None, :10, :10]
    if not image.numel():
        return x
    size = (image.shape[3], image.shape[2] + 1)
    return F.interpolate(image, size=size, mode="bilinear", align_corners=k > 2)[0, 0]


def pooled_image(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, None, :12, :12]
    return F.max_pool2d(image, 2, ceil_mode=k > 2)[0, 0] if min(image.shape) > 1 else x


def averaged_image(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, None, :12, :12]
    return F.avg_pool2d(image, 2, 1, 1, count_include_pad=k > 2)[0, 0] if image.numel() else x


def adapted_image(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, None, :12, :12]
    return F.adaptive_max_pool2d(image, (k, 2))[0, 0] if image.numel() else x


def convolved_image(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, None, :12, :12]
    if not image.numel():
        return x
    kernel = torch.linspace(-1, 1, 2 * 9, device=x.device).reshape(2, 1, 3, 3)
    return F.conv2d(image, kernel, padding=2, stride=1 + k % 2)[0].sum(0)


def widened(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, :12, :12]
    if not image.numel():
        return x
    kernel = torch.ones(image.shape[1], 1, 2, device=x.device)
    return F.conv_transpose1d(image, kernel, stride=2, groups=image.shape[1])[0]


def patches(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, None, :10, :10]
    return F.unfold(image, 2, padding=1)[0] if image.numel() else x


def bordered(x: Tensor, k: int) -> Tensor:
    image = rows_of(x)[None, :10, :10]
    if not image.numel():
        return x
    amounts = (image.shape[2] - 1, k % image.shape[2])
    return F.pad(image, amounts, mode=("reflect", "replicate")[k % 2])[0]


def causal(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[:12]
    if not rows.numel():
        return x
    past = torch.cat([rows[:k], rows])[None, None]
    size = (rows.shape[0], past.shape[2])
    mask = torch.ones(size, dtype=torch.bool, device=x.device).tril(past.shape[2] - rows.shape[0])
    return F.scaled_dot_product_attention(rows[None, None], past, past, attn_mask=mask)[0, 0]


def headed(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[:12]
    if not rows.numel() or rows.shape[1] % 2:
        return x
    heads = rows.reshape(1, rows.shape[0], 2, -1).transpose(1, 2)
    made = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return made.transpose(1, 2).reshape(rows.shape)


def swept(x: Tensor, k: int) -> Tensor:
    return torch.logcumsumexp(x, -1) if x.numel() else x


def spans(x: Tensor, k: int) -> Tensor:
    return x.flatten()[:18].unfold(0, min(k, x[:18].numel()), max(1, k - 1)) if x.numel() else x


def measured(x: Tensor, k: int) -> Tensor:
    return torch.linspace(0, 1, x.shape[0], device=x.device) * torch.full(
        (x.shape[0],), float(x.shape[-1]), device=x.device
    )


def batched(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[:8]
    return torch.bmm(rows[:, None], rows[:, :, None]).flatten(1) + k


def normed_groups(x: Tensor, k: int) -> Tensor:
    rows = rows_of(x)[None]
    return F.group_norm(rows, rows.shape[1])[0] if rows.numel() and rows.shape[2] > 1 else x


LIBRARY: dict[str, Callable[[Tensor, int], Tensor]] = {
    function.__name__: function
    for function in (
        scanned, ordered, arranged, leading, where_largest, largest_turned, summed_turned, lost,
        put, put_pairs, set_by_places, sent, reduced, split_unevenly, unflattened, folded_rows,
        strided, einsummed, traced, as_diagonal, upper, edges, hot, grown_image, fitted_image,
        pooled_image, averaged_image, adapted_image, convolved_image, widened, patches, bordered,
        causal, headed, swept, spans, measured, batched, normed_groups,
    )
}  # fmt: skip
