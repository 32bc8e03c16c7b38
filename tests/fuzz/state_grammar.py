"""What programs of layers that keep state do, as text. A hole ``{m}`` is any tensor of the kind
``m``, ``{e:m}`` an expression of it: a tensor, or the value of one that is drawn from here.

Kinds: m matrices (S, D), p images (N, C, R, R), h heads (N, H, S, E), v vectors (D,), s numbers, i
positions below S. Fixed: u some that differ, t one, f a mask, w and o weights (D, D), q (C, C, 3,
3), g and c vectors (C,). What they compute stays small, so that rounding does.
"""

from __future__ import annotations

VALUES = {
    "m": (
        "{e:m} @ w", "F.linear({e:m}, w, {v})", "F.linear({m}, w).relu() + {e:m}", "{m} * {e:v}",
        "F.layer_norm({e:m}, ({m}.shape[-1],))", "F.layer_norm({m}, ({m}.shape[-1],), {v}, {v})",
        "F.softmax({e:m}, -1)", "F.softmax({m}, 0)", "{e:m}.cumsum(0) / 8", "{m}.cumsum(-1) / 8",
        "{e:m}[i]", "{m}[i] + {e:m}", "{m}.index_select(0, i)", "F.embedding(i, {m})",
        "{e:m}.flip(0)", "{m}.roll(1, 0)", "{e:m}.t().contiguous().t()",
        "({m} @ {m}.t()) @ {m} / 64", "{m} - {m}.mean(0)",
        "{m} / ({m}.norm(dim=-1, keepdim=True) + 1)", "F.gelu({e:m} @ o)",
        "F.silu({m}) * ({e:m} @ o)", "torch.addmm({m}, {e:m}, o)", "torch.addmm({e:v}, {m}, w)",
        "torch.where(f, {e:m}, {m})", "{e:m}.masked_fill(f, 0.5)",
        "torch.cat([{m}[2:], {e:m}[:2]])", "{m}.tanh()", "torch.cat([{m}[:, 3:], {m}[:, :3]], 1)",
        "F.pad({m}, (0, 0, 1, 0))[:-1]", "{h}[0].transpose(0, 1).reshape({m}.shape)",
        "{h}[t % {h}.shape[0]].mean(0).repeat(1, {h}.shape[1])", "{m}.index_add(0, i, {e:m} / 4)",
        "{m}.index_copy(0, u, {e:m}[:3])", "{m}.sort(0)[0]",
        "{m}.scatter_add(0, i[:, None].expand({m}.shape), {e:m} / 4)",
        "{m}.gather(0, i[:, None].expand({m}.shape))", "{m}.amax(0) - {m}", "{m} * {m}.sum() / 256",
        "torch.outer({m}[:, 0], {v})", "{m}[t].expand({m}.shape) + {m}",
        "{e:m} / (1 + {e:m}.var(0))", "{m}.clone()", "torch.rand_like({m})",
        "F.dropout({e:m}, 0.3)", "torch.lerp({m}, {e:m}, 0.25)", "{m} * 0.5 + {e:m} * 0.5",
        "F.normalize({m}, dim=0)", "torch.einsum('sd,de->se', {e:m}, w)",
        "{m}.topk({m}.shape[0], 0)[0]", "{m}.logcumsumexp(0) / 8",
        "torch.baddbmm({m}[None], {e:m}[None], w[None])[0]", "{m}.cummax(0)[0]",
        "{m} @ torch.diag({v})",
    ),
    "p": (
        "F.conv2d({e:p}, q, g, padding=1)", "F.conv2d({p}, q, padding=2, dilation=2)",
        "F.conv2d({p}, q[:, :1], padding=1, groups={p}.shape[1])",
        "F.relu(F.conv2d({p}, q, g, padding=1)) + {p}", "F.conv_transpose2d({p}, q, padding=1)",
        "F.batch_norm({e:p}, g, g.abs() + 0.5, g, g, False)",
        "F.batch_norm({p}, g, c, training=True, momentum=0.2)", "F.instance_norm({e:p})",
        "{p} - {e:p}", "F.group_norm({e:p}, 2)", "F.avg_pool2d({e:p}, 3, 1, 1)",
        "F.max_pool2d({p}, 3, 1, 1)", "{p}.relu()",
        "F.interpolate(F.avg_pool2d({p}, 2, 2, ceil_mode=True), {p}.shape[-2:])", "{p}.flip(-1)",
        "F.interpolate({e:p}[..., ::2, ::2], {p}.shape[-2:], mode='bilinear')", "{p}.softmax(1)",
        "{p} * torch.sigmoid({p}.mean((2, 3), keepdim=True))",
        "torch.cat([{p}[:, 1:], {e:p}[:, :1]], 1)", "{p}.transpose(2, 3)", "{p} + g[:, None, None]",
        "{p}.cumsum(2) / 8", "F.layer_norm({p}, {p}.shape[-1:])",
        "{p}.to(memory_format=torch.channels_last) * 0.5", "F.pad({p}, (1, 0, 0, 1))[..., 1:, :-1]",
        "{e:p} * 0.5 + {s}", "{p}[torch.arange({p}.shape[0]).flip(0)]",
        "{p} / (1 + {p}.std((0, 2, 3), keepdim=True))",
    ),
    "h": (
        "F.scaled_dot_product_attention({e:h}, {h}, {h})",
        "F.scaled_dot_product_attention({h}, {h}, {e:h}, is_causal=True)",
        "F.scaled_dot_product_attention({h}, {h}, {h}, attn_mask={h}.mean(-1)[..., None, :])",
        "{e:h} * 0.5", "F.scaled_dot_product_attention({h}, {h}[:, :, :4], {h}[:, :, :4])",
        "{h}[:, :, i]", "{h}.softmax(-1)",
        "F.scaled_dot_product_attention({h}[:, :, -1:], {h}, {h}).expand({h}.shape)",
        "{h}.flip(2) + {e:h}",
        "torch.cat([-{h}[..., {h}.shape[-1] // 2:], {e:h}[..., :{h}.shape[-1] // 2]], -1)",
        "{h}.cumsum(2) / 8",
        "{e:m}.view({h}.shape[2], {h}.shape[1], -1).transpose(0, 1)[None].expand({h}.shape) + {h}",
        "{h} * {h}.sum(-1, keepdim=True) / 8", "({h} @ {h}.transpose(-1, -2)).softmax(-1) @ {h}",
        "({h} @ {h}.mT).tril() @ {h} / 32", "{h}.roll(1, 2)", "{h}.tanh()",
        "{h}.index_select(2, i)", "{h} / ({h}.pow(2).mean(-1, keepdim=True) + 1).sqrt()",
        "F.dropout({h}, 0.3)",
    ),
    "v": (
        "{e:m}.sum(0) / 8", "{m}.mean(0)", "{m}.amax(0)", "{m}[t]", "{m}[-1]", "{v} @ w",
        "w @ {e:v}", "{v} + {e:v}", "{v} * 0.9 + {m}.var(0) * 0.1", "{v}.softmax(0)",
        "{v}.cumsum(0) / 8", "{m}.select(0, t)", "{v}.sort()[0]", "{m}.std(0, unbiased=False)",
        "{m}.cumsum(0)[-1] / 8", "{m}.t() @ {m}[:, 0] / 8", "{m}[u].sum(0)", "{v}.roll(1)",
        "{m}.prod(0).clamp(-1, 1)", "torch.mv({m}.t(), {m}[:, 1]) / 8", "{v} - {v}.mean()",
        "{m}.median(0)[0]",
    ),
    "i": (
        "(i + 1) % i.shape[0]", "(i + t) % i.shape[0]", "i.flip(0)", "i[i]", "{m}[:, 0].argsort()",
        "i.argsort()", "i.roll(1) * 1", "{v}.argsort().argsort()[:1].expand(i.shape) * 0 + i",
    ),
    "s": (
        "{m}.mean()", "{m}.sum() / 64", "{v}.amax()", "F.mse_loss({m}, {e:m})", "{p}.mean()",
        "{h}.var()", "{v} @ {v} / 16", "F.cross_entropy({m}, i % {m}.shape[1])", "{m}[t, 0]",
        "{m}.norm() / 8", "{v}[0]", "{m}.logsumexp((0, 1)) / 8",
    ),
}  # fmt: skip
#: ``{e}``: an expression of the kind that is written.
WRITES = {
    "m": (
        "{m}.copy_({e:m})", "{m}.add_({e:m}, alpha=0.25)", "{m}.mul_({e:v})", "{m}[u] = {e:m}[:3]",
        "{m}[i] = {v}", "{m}[t] = {e:v}", "{m}[1:].copy_({m}[:-1] * 0.5)",
        "{m}[:, 1:] = {e:m}[:, :-1] * 0.5",
        "{m}.t().copy_({e:m}.t())", "{m}[::2] *= 0.5", "{m}.index_add_(0, i, {e:m}, alpha=0.25)",
        "{m}.index_copy_(0, u, {m}[:3])", "{m}.index_put_((u,), {e:m}[-3:])",
        "{m}.index_put_((i,), {e:m} / 4, accumulate=True)", "{m}.masked_fill_(f, 0.5)",
        "{m}[f] = 0.25", "{m}.lerp_({e:m}, 0.1)", "torch.mm({m}, w, out={m})",
        "torch.add({m}, {e:m}, out={m})", "torch.cumsum({m}, 0, out={m})", "{m}.addmm_({m}, o)",
        "{m}.scatter_(0, i[:, None].expand({m}.shape), {e:m})", "{m}.zero_()",
        "{m}.index_fill_(0, u, 0.5)", "{m}.tanh_()", "{m}.copy_({m}[i] @ w)",
        "{m}.copy_({m}.flip(0))", "{m}[2:-1, 1:4].add_({e:s})", "{m}.view(-1)[::3].mul_(0.5)",
        "{m}.mul_(0.5)", "{m}[None].baddbmm_({m}[None], w[None])",
        "{m}.diagonal().copy_({m}[0, :1])", "{m}.copy_(F.softmax({m} @ w, -1))",
        "{m}[:, t] = {e:m}[:, 0]", "{m}.narrow(0, 1, 2).copy_({e:m}[:2])", "{m}.uniform_()",
        "{m}.where(f, {m}).mul_(2)", "{m}.cumsum_(0).div_(8)", "{m}.put_(i, {m}[:, 0])",
        "{m}.clamp_(max=0.75)",
    ),
    "p": (
        "{p}.copy_({e:p})", "{p}.add_({e:p}, alpha=0.5)", "{p}[:, 1:] = {e:p}[:, :-1].relu()",
        "{p}[:, 0] += {e:p}[:, -1]", "{p}.relu_()", "{p}[..., 1:, :] = {e:p}[..., :-1, :] + g[0]",
        "{p}[:, :, ::2, ::2].copy_({e:p}[:, :, ::2, ::2])", "{p}.mul_(g[:, None, None])",
        "{p}[t % {p}.shape[0]] = {e:p}[0]",
        "{p}.permute(0, 2, 3, 1).copy_({p}.permute(0, 3, 2, 1).clone())",
        "{p}.sub_({p}.mean((2, 3), True))", "{p}.copy_(F.conv2d({p}, q, padding=1))",
        "F.relu({p}, inplace=True)", "{p}.transpose(2, 3).mul_(0.5)",
        "F.hardtanh({p}, -1, 1, True)",
    ),
    "h": (
        "{h}.copy_({e:h})", "{h}[:, :, t] = {e:h}[:, :, 0]",
        "{h}.index_copy_(2, u, {e:h}[:, :, :3])", "{h}[:, :, u] = {e:h}[:, :, -3:]",
        "{h}[:, :, 1:] = {h}[:, :, :-1].clone()", "{h}[..., ::2] *= -0.5", "{h}[:, :, i] = {e:h}",
        "{h}.add_({e:h}, alpha=0.25)", "{h}.copy_(F.scaled_dot_product_attention({h}, {h}, {h}))",
        "{h}.index_copy_(2, t[None], {h}[:, :, :1])", "{h}.index_add_(2, i, {e:h}, alpha=0.25)",
        "{h}.transpose(1, 2)[:, 1:3].mul_(0.5)", "{h}[0] = {e:h}[-1]",
    ),
    "v": (
        "{v}.copy_({e:v})", "{v}.mul_(0.9).add_({e:v}, alpha=0.1)", "{v}[1:] = {v}[:-1].clone()",
        "{v}.add_({e:s})", "{v}[t] = {e:s}", "{v}.lerp_({e:v}, 0.1)", "torch.mean({m}, 0, out={v})",
        "{v}.copy_({m}[t])", "torch.mv(w, {v}, out={v})", "{v}.addmv_(w, {v})",
        "{v}.index_add_(0, u, {v}[:3])", "{v}[:3] += {v}[-3:]", "{v}.clamp_(-1, 1)",
        "{v}.copy_({m}[i].sum(0) / 8)",
    ),
}  # fmt: skip
#: Of a program's tensors, what they are added to in the end.
TOTALS = {"m": "{m}.sum() / 8", "p": "{p}.mean()", "h": "{h}.mean()", "v": "{v}.sum()", "s": "{s}"}
