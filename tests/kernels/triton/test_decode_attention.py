"""The decode attention kernels against torch's own attention."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.decode_attention import (
    can_split_decode,
    emit_decode_attention,
    scratch_of,
    split_count,
)
from jitney.kernels.triton.fold_into_attention import fold_into_attention
from jitney.kernels.triton.kernel_source import PREFETCH, WAIT
from jitney.loops.index import Axis, Value, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import (
    Access,
    Attention,
    Buffer,
    BufferView,
    Const,
    IndexValue,
    Let,
    Load,
    LoopNest,
    LoopProgram,
    Op,
    Output,
    Store,
)
from jitney.loops.verify import verify
from tests.targets import H200

F32, I64 = torch.float32, torch.int64


def run(source, tensors):
    text = source.text(interpret=True)
    kernel = load_function(text)
    kernel[tuple(int(g) for g in source.grid)](*[tensors[p.name] for p in source.parameters])


def attention(heads, kv_heads, positions, depth, mask_dtype):
    h, s, t = Axis("h", index(heads)), Axis("s", index(1)), Axis("t", index(positions))
    d, dv = Axis("d", index(depth)), Axis("dv", index(depth))
    group = index(h) // index(heads // kv_heads)
    k = Access("k", group * (positions * depth) + index(t) * depth + d, F32)
    v = Access("v", group * (positions * depth) + index(t) * depth + dv, F32)
    mask = None if mask_dtype is None else Access("mask", index(t), mask_dtype)
    return Attention(
        "attention", (h,), s, t, d, dv,
        Access("q", index(h) * depth + d, F32), k, v,
        Access("out", index(h) * depth + dv, F32),
        Const(depth**-0.5, F32), mask,
    )  # fmt: skip


@pytest.mark.parametrize("mask_dtype", [None, torch.bool, F32])
@pytest.mark.parametrize("positions,splits", [(64, 1), (300, 1), (200, 4), (130, 2)])
def test_equals_torch(mask_dtype, positions, splits):
    heads, kv_heads, depth = 4, 2, 24
    node = attention(heads, kv_heads, positions, depth, mask_dtype)
    assert can_split_decode(node)
    q, out = torch.randn(heads, depth), torch.full((heads, depth), 7.0)
    k, v = (torch.randn(kv_heads, positions, depth) for _ in range(2))
    mask = None
    if mask_dtype is not None:
        mask = torch.arange(positions) < positions // 2
        mask = mask if mask_dtype == torch.bool else torch.where(mask, 0.0, float("-inf"))
    scratch = scratch_of(node, splits)
    tensors = {"q": q, "k": k, "v": v, "out": out, "mask": mask}
    tensors[scratch.name] = torch.full((scratch.elements,), float("nan"))
    sources = emit_decode_attention(node, splits)
    assert len(sources) == (1 if splits == 1 else 2)
    for source in sources:
        run(source, tensors)
    want = torch.nn.functional.scaled_dot_product_attention(
        q[None, :, None], k[None], v[None], None if mask is None else mask[None], enable_gqa=True
    )[0, :, 0]
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", [1, 40])
@pytest.mark.parametrize("mask_dtype", [torch.bool, F32])
def test_a_mask_of_one_element_is_read_as_a_tile(positions, mask_dtype):
    node = attention(4, 2, positions, 24, mask_dtype)
    node = replace(node, mask=Access("mask", index(0), mask_dtype))
    (source,) = emit_decode_attention(node, 1)
    loaded = [line for line in source.body.splitlines() if "tl.load" in line and "< 24" not in line]
    assert loaded and all("+ t * 0," in line for line in loaded)  # Triton asks for a tile's mask
    q, out = torch.randn(4, 24), torch.full((4, 24), 7.0)
    k, v = torch.randn(2, positions, 24), torch.randn(2, positions, 24)
    mask = torch.ones(1).to(mask_dtype)
    run(source, {"q": q, "k": k, "v": v, "out": out, "mask": mask})
    want = torch.nn.functional.scaled_dot_product_attention(
        q[None, :, None], k[None], v[None], mask[None, None, None], enable_gqa=True
    )
    torch.testing.assert_close(out, want[0, :, 0], rtol=1e-5, atol=1e-5)


def test_short_caches_take_one_kernel_and_long_ones_fill_the_gpu():
    assert split_count(attention(32, 8, 256, 128, None), 132) == 1
    assert split_count(attention(32, 8, 512, 128, None), 132) == 16
    wide = attention(32, 8, 512, 128, None)
    assert split_count(replace(wide, k=replace(wide.k, dtype=torch.bfloat16)), 132) == 1
    assert split_count(attention(32, 8, 8192, 128, None), 132) == 16


def test_a_cache_beyond_32_bits_is_the_librarys():
    assert can_split_decode(attention(512, 512, 1 << 14, 128, None))
    assert not can_split_decode(attention(1025, 1025, 1 << 14, 128, None))


def test_doubles_are_the_librarys():
    node = attention(8, 8, 64, 16, None)
    query = replace(node.q, dtype=torch.float64)
    assert "float32" in can_split_decode(replace(node, q=query)).reason


def rotated(name, source, out, heads, depth, at=None):
    """``out[h, d] = source[h, d] * c[d] + source[h, d ^ half] * 2``, at position ``at`` of a cache
    of 96 positions if that is given."""
    h, d = Axis(name + "_h", index(heads)), Axis(name + "_d", index(depth))
    here, half = index(h) * depth + d, depth // 2
    low = Op("lt", (IndexValue(index(d), I64), Const(half, I64)), torch.bool)
    high = Op("not", (low,), torch.bool)
    swapped = Op(
        "where",
        (low, Load(source, here + half, F32, low), Load(source, here - half, F32, high)),
        F32,
    )
    value = Op("add", (
        Op("mul", (Load(source, here, F32), Load("c", index(d), F32)), F32),
        Op("mul", (swapped, Const(2.0, F32)), F32),
    ), F32)  # fmt: skip
    if at is None:
        return LoopNest(name, (h, d), (Store(out, here, value),))
    lets = (Let("place", Load(at, index(0), I64)),)
    where = index(h) * 96 * depth + index(Value("place")) * depth + d
    return LoopNest(name, (h, d), (*lets, Store(out, where, value)))


def decode_step(heads, kv_heads, depth):
    """Rotation of query and key, the key's store, attention, as separate nodes."""
    nests = (
        rotated("rotate_q", "raw_q", "q", heads, depth),
        rotated("rotate_k", "raw_k", "k", kv_heads, depth, "at"),
    )
    node = attention(heads, kv_heads, 96, depth, torch.bool)
    sizes = {"raw_q": heads * depth, "raw_k": kv_heads * depth, "c": depth, "at": 1, "mask": 96,
             "k": kv_heads * 96 * depth, "v": kv_heads * 96 * depth}  # fmt: skip
    dtypes = {"at": I64, "mask": torch.bool}
    cpu = torch.device("cpu")
    buffers = [
        Buffer(n, "input", dtypes.get(n, F32), cpu, (index(s),), (index(1),))
        for n, s in sizes.items()
    ]
    for name, kind in (("q", "temp"), ("out", "output")):
        buffers.append(Buffer(name, kind, F32, cpu, (index(heads * depth),), (index(1),)))
    out = Output(BufferView("out", (index(heads * depth),), (index(1),)))
    return LoopProgram(tuple(sizes), tuple(buffers), (*nests, node), (out,))


@pytest.mark.parametrize("heads,kv_heads,depth", [(4, 2, 16), (3, 3, 8), (4, 1, 12)])
def test_rotation_and_the_new_key_in_the_attention(heads, kv_heads, depth):
    program = decode_step(heads, kv_heads, depth)
    folded = fold_into_attention(program, H200)
    assert [type(n) for n in folded.nodes] == [Attention]
    verify(folded, "folding")
    inputs = {b.name: torch.randn(int(b.shape[0])) for b in program.buffers if b.kind == "input"}
    inputs |= {"at": torch.tensor([41]), "mask": torch.arange(96) <= 41}
    ours, theirs = ({n: t.clone() for n, t in inputs.items()} for _ in range(2))
    (want,) = interpret(program, {}, list(theirs.values()))
    (again,) = interpret(folded, {}, [t.clone() for t in inputs.values()])
    assert torch.equal(want, again)
    ours["k"].view(kv_heads, 96, depth)[:, 41] = float("nan")  # what is there must not be read
    ours["out"] = torch.full((heads * depth,), 7.0)
    (source,) = emit_decode_attention(folded.nodes[0], 1)
    run(source, ours)
    torch.testing.assert_close(ours["out"], want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours["k"], theirs["k"])


def test_a_query_that_is_read_again_stays_a_kernel_of_its_own():
    program = decode_step(4, 2, 16)
    i = Axis("again", index(64))
    more = LoopNest("more", (i,), (Store("out", index(i), Load("q", index(i), F32)),))
    program = replace(program, nodes=(*program.nodes, more))
    assert fold_into_attention(program, H200) == program


def test_rows_of_the_cache_are_asked_for_before_the_wait_and_read_after():
    (source,) = emit_decode_attention(attention(4, 2, 64, 24, torch.bool), 1)
    before, after = source.text(early=True).split(WAIT)
    labels = {p.name: p.label for p in source.parameters}
    assert before.count(PREFETCH) == 2 and PREFETCH not in after
    assert before.count("tl.load(") == before.count(".cg") == 1  # the mask, past the L1 cache
    assert all(f"tl.load({labels[name]} " in after for name in ("q", "k", "v", "mask"))
    assert PREFETCH not in source.text()
