"""What programs over slices do, as text. ``{a}``: a recent tensor, ``{b}``: any, ``{i}``: a number,
by way of sizes mostly, ``{d}``: a dimension. What eager refuses is left out by who draws from here.
Bounds are such as no sum of whole numbers meets, from which rounding would fall to either side.
"""

from __future__ import annotations

VIEWS = (
    "{a}[{i}:]", "{a}[:{i}]", "{a}[..., {i}:]", "{a}[..., :{i}]", "{a}[:, {i}:]", "{a}[{i}]",
    "{a}[:, {i}]", "{a}[..., {i}]", "{a}[::2]", "{a}[..., {i}::2]", "{a}[None]", "{a}[..., None]",
    "{a}[{i}:-{i}, {i}:]", "{a}[{i}:{i} + {i}]", "{a}[:]", "{a}[:, None]", "{a}.view(-1)",
    "{a}.view({i}, -1)", "{a}.view(-1, {i})", "{a}.view({i}, {i}, -1)", "{a}.view({i}, {i})",
    "{a}.reshape(-1)", "{a}.reshape({i}, -1)", "{a}.reshape(-1, {i})", "{a}.reshape({i}, {i}, -1)",
    "{a}.view({a}.shape)", "{a}.view_as({b})", "{a}.reshape({b}.shape)", "{a}.flatten()",
    "{a}.flatten(0, 1)", "{a}.flatten(-2)", "{a}.ravel()", "{a}.unflatten({d}, ({i}, -1))",
    "{a}.unflatten({d}, (-1, {i}))", "{a}.narrow({d}, {i}, {i})", "{a}.select({d}, {i})",
    "{a}.unbind({d})[{i}]", "{a}.unbind({d})[-1]", "{a}.split({i}, {d})[-1]",
    "{a}.split({i}, {d})[{i}]", "{a}.split([{i}, {a}.shape[{d}] - {i}], {d})[1]",
    "{a}.chunk(2, {d})[-1]", "{a}.tensor_split(3, {d})[1]", "{a}.movedim(0, -1)",
    "{a}.movedim({d}, {d})", "{a}.transpose({d}, {d})", "{a}.transpose(0, -1)", "{a}.t()",
    "{a}.mT", "{a}.permute(*range({a}.dim() - 1, -1, -1))", "{a}.expand({i}, *{a}.shape)",
    "{a}.expand(-1, {i})", "{a}.expand({i}, -1)", "{a}.expand_as({b})", "{a}.unsqueeze({d})",
    "{a}.squeeze()", "{a}.squeeze({d})", "{a}.unfold({d}, {i}, {i})", "{a}.diagonal()",
    "{a}.as_strided(({i}, {i}), ({i}, 1))", "{a}.as_strided(({i}, {i}), (1, {i}))",
    "{a}.as_strided(({i},), ({i},), {i})", "{a}.as_strided({a}.shape, {a}.stride())",
    "{a}.as_strided(({i},), ({i},), {a}.storage_offset() + {i})",
    "{a}.as_strided(({i}, {i}), {a}.stride()[-2:], {a}.storage_offset())", "{a}.detach()",
)  # fmt: skip
PAIRS = (
    "{a}.chunk(2, {d})", "{a}.split([{i}, {a}.shape[{d}] - {i}], {d})", "{a}.unbind({d})[:2]",
    "{a}[{i}:], {a}[:{i}]", "{a}[{i}:], {a}[{i}:]", "{a}.tensor_split(2, {d})",
)  # fmt: skip
DROPPED = (
    "{a} * 1", "{a} / 1", "{a} + 0", "{a} - 0.0", "{a}.contiguous()", "{a}.clone()",
    "{a}.to({a}.dtype)", "{a}.to(torch.float32).to({a}.dtype)", "torch.cat([{a}])", "+{a}",
    "F.pad({a}, (0, 0))", "{a}.repeat(1, 1)", "{a} ** 1", "{a}.flip(0).flip(0)", "{a}.detach() * 1",
    "{a}.expand({a}.shape)", "{a}.transpose(0, -1).transpose(0, -1)", "F.dropout({a}, 0.0)",
    "{a}.repeat_interleave(1, 0)", "{a}[None].sum(0)", "{a}[None].squeeze(0)", "{a}.tril(99)",
    "{a}[..., None].mean(-1)", "torch.stack([{a}]).view({a}.shape)", "{a}.cumsum(-1).diff(dim=-1)",
    "{a}.view({a}.shape) * 1", "{a}.contiguous().view({a}.shape)", "{a}.roll(0, 0)", "{a}[[0]]",
    "{a}.clone(memory_format=torch.contiguous_format)", "{a}.new_tensor(1) * {a}",
    "{a}.index_select(0, torch.arange({a}.shape[0]))", "torch.where({a} == {a}, {a}, 0)",
    "{a}.contiguous(memory_format=torch.channels_last)", "{a}.to(torch.float64).to({a}.dtype)",
    "torch.empty_like({a}).copy_({a})", "torch.zeros_like({a}) + {a}", "{a}.new_zeros(1) + {a}",
)  # fmt: skip
COMPUTED = (
    "{a} + 1", "{a} * 2", "-{a}", "{a} + {b}", "{a} * {b}", "{a} - {b}.sum()", "{a}.relu()",
    "{a} @ {b}", "{a} @ {b}.t()", "{a}.t() @ {b}", "{a}.t() @ {a}", "{a}.sum()", "{a}.sum({d})",
    "{a}.sum({d}, keepdim=True)", "{a}.amax({d})", "{a}.mean({d})", "{a}.max({d})[0]",
    "{a}.argmax({d})", "torch.softmax({a}, {d})", "{a}.cumsum({d})", "{a}.flip({d})",
    "torch.cat([{a}, {b}])", "torch.cat([{a}, {b}], {d})", "torch.cat([{a}[{i}:], {a}[:{i}]])",
    "torch.stack([{a}, {b}], {d})", "torch.cat([{a}.reshape(-1), {b}.reshape(-1)])",
    "{a}.roll({i}, {d})", "F.pad({a}, ({i}, {i}))", "F.pad({a}, (-{i}, {i}))",
    "{a}.repeat({i}, *[1] * ({a}.dim() - 1))", "{a}.repeat_interleave({i}, {d})",
    "torch.where({a} > 0.37, {a}, {b})", "{a}[torch.arange({i})]", "{a}[:, torch.arange({i})]",
    "{a}.gather({d}, ({a} + 0.37).long() % {a}.shape[{d}])", "{a}.tril({i})",
    "{a}.scatter({d}, ({b} + 0.37).long() % {a}.shape[{d}], {b})",
    "{a}.index_select({d}, torch.arange({i}))",
    "{a}.index_add({d}, torch.arange({b}.shape[{d}]), {b})", "{a}.masked_fill({a} > 1.37, {i})",
    "{a}.index_put((torch.arange({i}),), {b})", "{a}.sort({d}, stable=True)[0]",
    "F.conv1d({a}, torch.ones({i}, {a}.shape[-2], {i}, dtype={a}.dtype))", "{a}.diff(dim={d})",
    "F.conv2d({a}, torch.ones({i}, {a}.shape[-3], {i}, 1, dtype={a}.dtype))", "{a}.cumsum(0)",
    "F.layer_norm({a}, {a}.shape[-1:])", "F.max_pool1d({a}, 2)", "{a}.slice_scatter({b}, 0, {i})",
    "F.linear({a}, {b})", "torch.einsum('ij,kj->ik', {a}, {b})", "{a}.select_scatter({b}, {d}, 0)",
    "F.scaled_dot_product_attention({a}, {a}, {a})", "{a} * {a}.shape[{d}]",
    "{a}.new_full((2,), {i})", "torch.bmm({a}, {b})", "{a}.half().to({a}.dtype)",
    "{a} - 0.37 > {b}", "({a} + 0.37).long()", "{a}.topk({i}, {d})[0]", "{a}.diagonal_scatter({b})",
    "torch.outer({a}, {b})", "{a}.norm(dim={d})",
)  # fmt: skip
WRITES = (
    "{a}.add_(1)", "{a}.mul_(2)", "{a}.copy_({b})", "{a}[{i}:].add_(1)", "{a}[..., {i}] = 3",
    "{a}[{i}] = {b}", "{a}[{i}:] = {b}", "{a}[:{i}] += {b}", "{a}[:, {i}:] -= {b}", "{a}.add_({b})",
    "{a} += {b}", "{a}.sub_({b}.sum())", "{a}.t().mul_(2)", "{a}.view(-1)[{i}:].add_(1)",
    "{a}[::2] = {i}", "{a}.masked_fill_({a} > 0.37, -1)", "{a}.clamp_(max=3)", "{a}.fill_({i})",
    "{a}.zero_()", "{a}.index_fill_({d}, torch.arange({i}), 5)", "{a}[{a} > 1.37] = 0",
    "{a}.index_add_(0, torch.arange({b}.shape[0]), {b})", "{a}[torch.arange({i})] = {b}",
    "{a}.scatter_({d}, ({b} + 0.37).long() % {a}.shape[{d}], {b})", "torch.add({a}, 1, out={a})",
    "torch.mul({b}, 2, out={a})", "{a}.transpose({d}, {d}).copy_({b})", "{a}.cumsum_({d})",
    "{a}.neg_()", "{a}.relu_()", "{a}.data.add_(1)", "{a}.detach().mul_(3)", "{a}.triu_({i})",
    "{a}.select({d}, {i}).copy_({b})", "{a}.diagonal().add_(1)", "{a}.unbind({d})[-1].mul_(2)",
    "{a}.chunk(2, {d})[0].add_({b})", "{a}.index_copy_(0, torch.arange({i}), {b})",
    "{a}.as_strided(({i},), ({i},)).fill_(1)", "{a}.as_strided(({i},), ({i},), {i}).add_(1)",
    "{a}.narrow({d}, {i}, {i}).zero_()", "{a}.view({i}, -1)[{i}].fill_(4)",
    "{a}[{i}:] = {a}[{i}:] * 2", "{a}.unfold({d}, {i}, {i}).add_(1)",
    "{a}[{i}:].copy_({a}[:-{i}].clone())", "{a}.copy_({a} + 1)", "{a}.movedim(0, -1).add_({b})",
    "{a}.reshape(-1)[:{i}].zero_()", "{a}.squeeze().add_(1)", "{a}.addmm_({b}, {b})",
    "{a}.scatter_add_({d}, ({b} + 0.37).long() % {a}.shape[{d}], {b})",
    "{a}.copy_({b}.detach().flip(0))", "{a}.where({a} > 0.37, {b}).mul_(2)",
    "{a}.index_put_((torch.arange({i}),), {b}, accumulate=True)",
    "{a}.unsqueeze(0).expand({i}, *{a}.shape)[0].add_(2)",
)  # fmt: skip
NUMBERS = (
    "0", "1", "1", "2", "2", "3", "k", "k", "-1", "{a}.shape[0]", "{a}.shape[-1]",
    "{a}.shape[0] // 2", "{a}.shape[-1] - 1", "x.shape[0]", "x.shape[-1]", "y.shape[0]",
    "{a}.numel() // 2", "x.shape[0] // k", "len({a}) - 1", "{b}.shape[0]", "k - 1", "4",
)  # fmt: skip
DIMENSIONS = ("0", "0", "1", "-1", "-1", "2", "-2")
