"""What programs with gradients do, as text. ``{a}``: a recent tensor, ``{b}``, ``{c}``: any,
``{i}``: a number, ``{d}``: a dimension, ``{n}``: a name of its own. Whole numbers stay whole, so
that nothing is rounded. What eager refuses is left out by who draws from here."""

from __future__ import annotations

VIEWS = (
    "{a}[{i}:]", "{a}[:{i}]", "{a}[..., :{i}]", "{a}[{i}]", "{a}[..., {i}]", "{a}[::2]",
    "{a}[None]", "{a}[..., None]", "{a}[:]", "{a}.view(-1)", "{a}.view({i}, -1)", "{a}.reshape(-1)",
    "{a}.view_as({a})", "{a}.flatten()", "{a}.narrow({d}, {i}, {i})", "{a}.select({d}, {i})",
    "{a}.unbind({d})[{i}]", "{a}.split({i}, {d})[-1]", "{a}.chunk(2, {d})[0]", "{a}.t()", "{a}.mT",
    "{a}.transpose(0, -1)", "{a}.permute(*range({a}.dim() - 1, -1, -1))", "{a}.movedim(0, -1)",
    "{a}.expand({i}, *{a}.shape)", "{a}.expand_as({b})", "{a}.expand(-1, {i})", "{a}.squeeze()",
    "{a}.squeeze({d})", "{a}.unsqueeze({d})", "{a}.unfold({d}, {i}, {i})", "{a}.diagonal()",
    "{a}.diagonal({i})", "{a}.as_strided(({i}, {i}), ({i}, 1))", "{a}.as_strided(({i},), ({i},))",
    "{a}.as_strided(({i},), (1,), {a}.storage_offset() + {i})", "{a}.detach()", "{a}.real",
    "{a}.view({a}.dtype)", "torch.view_as_real({a})", "torch.view_as_complex({a})", "{a}.data",
    "{a}.view(torch.int16)", "{a}.unflatten({d}, ({i}, -1))", "{a}.swapaxes(0, -1)", "{a}.H",
    "{a}.contiguous()", "{a}.imag", "torch.broadcast_tensors({a}, {b})[0]", "{a}.hsplit(2)[0]",
)  # fmt: skip
COMPUTED = (
    "{a} + 1", "{a} * 2", "-{a}", "{a} + {b}", "{a} * {b}", "{a} - {b}", "{a}.relu()", "{a}.abs()",
    "{a} @ {b}", "{a}.t() @ {a}", "{a}.sum()", "{a}.sum({d})", "{a}.sum({d}, keepdim=True)",
    "{a}.amax({d})", "{a}.max()", "{a}.min({d})[0]", "{a}.prod({d})", "{a}.median({d})[0]",
    "{a}.cumsum({d})", "{a}.flip({d})", "{a}.roll({i}, {d})", "torch.cat([{a}, {b}])",
    "torch.cat([{a}, {b}, {a}], {d})", "torch.stack([{a}, {b}], {d})", "F.pad({a}, ({i}, {i}))",
    "{a}.repeat(2, *[1] * ({a}.dim() - 1))", "torch.where({a} > 0, {a}, {b})", "{a}.clone()",
    "torch.where({m}, {a}, {b})", "{a}.masked_fill({m}, {i})", "{a}[{m}]", "{a}.masked_select({m})",
    "{a}.gather({d}, {p})", "{a}.index_select({d}, {q})", "{a}[{q}]", "{a}[..., {q}]", "{a}[{p}]",
    "{a}.take({p})", "{a}.clamp(-2, 2)", "{a}.clamp_min(0)", "torch.maximum({a}, {b})", "{a} ** 2",
    "{a}.scatter({d}, {p}, {b})", "{a}.scatter({d}, {p}, {i})", "{a}.scatter_add({d}, {p}, {b})",
    "{a}.scatter_reduce({d}, {p}, {b}, 'sum')", "{a}.scatter_reduce({d}, {p}, {b}, 'amax')",
    "{a}.scatter_reduce({d}, {p}, {b}, 'prod')", "{a}.index_add({d}, {q}, {b})",
    "{a}.scatter_reduce({d}, {p}, {b}, 'amin', include_self=False)",
    "{a}.index_put(({q},), {b}, accumulate=True)", "{a}.index_copy({d}, {q}, {b})",
    "{a}.index_fill({d}, {q}, {i})", "{a}.slice_scatter({b}, {d}, {i})", "{a}.sort({d})[0]",
    "{a}.select_scatter({b}, {d}, {i})", "{a}.diagonal_scatter({b})",
    "{a}.masked_scatter({m}, {b})", "{a}.as_strided_scatter({b}, {b}.shape, {b}.stride())",
    "{a}.tril()", "{a}.diff(dim={d})", "{a}.half()", "{a}.bfloat16()", "{a}.double()",
    "{a}.float()", "{a}.to({b}.dtype)", "{a}.long()", "{a}.bool()", "{a}.to(torch.complex64)",
    "{a}.conj()", "{a} > {b}", "{a} == 0", "{a}.topk(1)[0]", "torch.diag_embed({a})",
    "torch.outer({a}, {b})", "{a}.to(torch.int8)", "torch.zeros_like({a})", "{a}.new_zeros(3)",
    "{a}.any({d})", "{a}.argmax({d})", "{a}.type_as({b})", "torch.addcmul({a}, {b}, {c})",
    "torch.lerp({a}, {b}, 2.0)", "{a}.kron({b})", "torch.einsum('ij,kj->ik', {a}, {b})",
    "F.threshold({a}, 0, {i})", "{a}.repeat_interleave({i}, {d})", "{a}.sum_to_size({b}.shape)",
    "F.leaky_relu({a}, 2.0)", "torch.cummax({a}, {d})[0]", "{a}.aminmax(dim={d})[1]",
    "{a}.sum(dtype=torch.float64)", "{a}.nansum()", "torch.square({a})", "F.embedding({q}, {a})",
)  # fmt: skip
WRITES = (
    "{a}.add_(1)", "{a}.mul_(2)", "{a}.mul_({b})", "{a}.copy_({b})", "{a}.add_({b}, alpha=2)",
    "{a}.sub_({b})", "{a} += {b}", "{a}[{i}] = {b}", "{a}[{i}:] = {b}", "{a}[:{i}] *= {b}",
    "{a}[..., {i}] = {i}", "{a}[..., {i}] -= {b}", "{a}[::2] = {b}", "{a}.fill_({i})",
    "{a}.zero_()", "{a}.fill_({b}.sum())", "{a}.relu_()", "{a}.neg_()", "{a}.abs_()",
    "{a}.clamp_(-2, 2)", "{a}.masked_fill_({m}, {i})", "{a}.masked_fill_({m}, {b}.sum())",
    "{a}[{m}] = {i}", "{a}[{m}] *= 2", "{a}.masked_scatter_({m}, {b})",
    "{a}.index_put_(({q},), {b}, accumulate=True)",
    "{a}.index_put_(({p},), {b}.sum(), accumulate=True)", "{a}[{q}] = {b}", "{a}[{q}] += {b}",
    "{a}.index_put_((None, {q}), {b}, accumulate=True)", "{a}.index_add_({d}, {q}, {b}, alpha=2)",
    "{a}.index_copy_({d}, {q}, {b})", "{a}.index_fill_({d}, {q}, {i})",
    "{a}.index_fill_({d}, {q}, {b}.sum())", "{a}.scatter_({d}, {p}, {b})",
    "{a}.scatter_({d}, {p}, {i})", "{a}.scatter_add_({d}, {p}, {b})",
    "{a}.scatter_({d}, {p}, {b}, reduce='add')", "{a}.scatter_reduce_({d}, {p}, {b}, 'sum')",
    "{a}.scatter_reduce_({d}, {p}, {b}, 'amax')", "{a}.scatter_reduce_({d}, {p}, {b}, 'amin')",
    "{a}.scatter_reduce_({d}, {p}, {b}, 'prod')", "{a}.index_reduce_({d}, {q}, {b}, 'amax')",
    "{a}.scatter_reduce_({d}, {p}, {b}, 'sum', include_self=False)",
    "{a}.put_({p}, {b}, accumulate=True)",
    "{a}.scatter_reduce_({d}, {p}, {b}, 'amax', include_self=False)", "{a}.tril_()",
    "{a}.cumsum_({d})", "{a}.diagonal().copy_({b})", "{a}.diagonal().add_({b})",
    "{a}.fill_diagonal_({i})", "{a}.unfold({d}, {i}, {i}).mul_(2)",
    "{a}.unfold({d}, 1, {i}).copy_({b})", "{a}.as_strided(({i},), ({i},)).mul_({b})",
    "{a}.as_strided({a}.shape, {a}.stride()).add_({b})",
    "{a}.as_strided(({i},), (1,), {a}.storage_offset() + {i}).fill_({i})",
    "{a}[None].expand(1, *{a}.shape).mul_(2)", "{a}.expand({a}.shape).add_({b})",
    "{a}[{i}:].copy_({a}[:-{i}])", "{a}[1:] = {a}[:-1]", "{a}[:-1].add_({a}[1:])",
    "{a}.copy_({a}.t())", "{a}.copy_({a}.flip(0))", "{a}.t().copy_({b})",
    "{a}.transpose(0, -1).add_({b})", "{a}.detach().add_({b})", "{a}.detach().mul_(2)",
    "{a}.detach().zero_()", "{a}.data.add_(1)", "{a}.detach()[{i}:].copy_({b})",
    "{a}.view(-1)[{i}:].mul_({b})", "{a}.unbind({d})[0].add_({b})",
    "{a}.chunk(2, {d})[-1].mul_({b})", "{a}.select({d}, {i}).copy_({b})", "{a}.squeeze_()",
    "{a}.narrow({d}, {i}, {i}).copy_({b})", "torch.cat([{b}, {c}], out={a})", "{a}.unsqueeze_(0)",
    "torch.stack([{b}, {c}], out={a})", "torch.add({b}, {c}, out={a})",
    "torch.mul({b}, 2, out={a}[{i}:])", "torch.sum({b}, {d}, out={a})",
    "torch.cat([{b}.detach(), {c}.detach()], out={a}.detach())",
    "torch.index_select({b}, {d}, {q}, out={a})", "{a}.transpose_(0, -1)", "{a}.t_()",
    "{a}.set_({b}.detach())", "{a}.addmm_({b}, {c})", "{a}.addcmul_({b}, {c})", "{a}.pow_(2)",
    "{a}.requires_grad_()", "{a}.detach_()", "{a}.real.mul_(2)", "{a}.conj().add_(1)",
    "{a}.imag.copy_({b})", "{a}.where({m}, {b}).mul_(2)", "{a}.clone().copy_({b})",
    "torch._foreach_add_([{a}, {b}], 1)", "torch._foreach_mul_([{a}], [{b}])",
    "{a}.swapaxes(0, -1)[{i}:].zero_()", "{a}.logical_not_()", "{a}.bitwise_xor_({b})",
    "{a}.remainder_(3)", "{a}.floor_divide_(2)",
)  # fmt: skip
BLOCKS = (
    "for {n} in range(4):\n    if {a}.sum() > {n} * 3: break\n    {a} = {a} + 1",
    "for {n} in range(3):\n    {a} = {a} * 2\n    if ({a} > {i}).any(): break\nelse:\n"
    "    {a} = -{a}",
    "{n} = 0\nwhile {a}.sum() < 9 and {n} < 3:\n    {a}.add_(1)\n    {n} += 1",
    "for {n} in {a}.unbind(0):\n    if {n}.sum() < 0: break\n    {n}.mul_(2)",
    "for {n} in range({a}.shape[0]):\n    {a}[{n}] = {a}[{n}] * {b}.sum()",
    "{n} = {a}.sum().item()\nif {n} > 0: {a} = {a} + {b}\nelse: {a}.zero_()",
    "for {n} in {b}.flatten().tolist():\n    if {n} > 2: break\n    {a} = {a} + {n}",
    "try: {a}.add_({b})\nexcept RuntimeError: {a} = {a} * 3", "{a}, {b} = {b}, {a}",
    "{a} = [{n} + 1 for {n} in ({a}, {b})][0]",
)  # fmt: skip
DIFFERENTIATED = (
    "torch.autograd.grad(({a} ** 2).sum(), {b}, create_graph=True)[0]",
    "torch.autograd.grad(({a} * {a}).sum(), {b})[0]",
    "torch.autograd.grad({a}.sum(), {b}, create_graph=True, allow_unused=True)[0]",
    "torch.autograd.grad({a}, {b}, {a}.detach(), create_graph=True)[0]",
    "torch.autograd.grad(({a} ** 3).sum(), [{b}, {c}], retain_graph=True)[1]",
)  # fmt: skip
NUMBERS = (
    "0", "1", "1", "2", "2", "3", "k", "-1", "{a}.shape[0]", "{a}.shape[-1] - 1", "{b}.shape[0]",
    "{a}.shape[0] // 2", "x.shape[0]", "k + 1",
)  # fmt: skip
DIMENSIONS = (
    "0", "0", "1", "-1", "-1", "2", "-2",
)  # fmt: skip
MASKS = (
    "({a} > 0)", "({b} > 0)", "({a} == 1).flip(0)", "({b}.detach() < 2)", "m",
)  # fmt: skip
PLACES = (
    "({b}.detach().long() % {a}.shape[{d}])", "({a}.detach().long() % {a}.shape[{d}])",
    "(({b} > 0).long())", "torch.zeros_like({b}, dtype=torch.long)",
)  # fmt: skip
ROWS = (
    "torch.arange({b}.shape[0])", "torch.tensor([0, 0])", "torch.tensor([0, -1])", "q",
    "torch.zeros({b}.shape[0], dtype=torch.long)", "(torch.arange({b}.shape[0]) % 2)",
    "torch.arange({a}.shape[0] - 1, -1, -1)",
)  # fmt: skip
