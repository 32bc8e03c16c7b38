"""Strides of sizes of 1 are eager's also where the other sizes are symbols."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitney
from jitney.torch_api import view_strides

CONV = torch.nn.Conv2d(16, 3, 3, padding=1)
NORM = torch.nn.GroupNorm(4, 16)


def test_strides_of_views_are_eagers() -> None:
    random.seed(0)
    views = 0
    for _ in range(3000):
        sizes = random.choices((1, 2, 3, 4), k=random.randint(1, 5))
        order = random.sample(range(len(sizes)), len(sizes))
        base = torch.empty([sizes[d] for d in order]).permute(
            [order.index(d) for d in range(len(sizes))]
        )
        pairs = zip(base.stride(), sizes, strict=True)
        steps = [random.choice((1, 2, 8, step)) if size == 1 else step for step, size in pairs]
        base = base.as_strided(sizes, steps)
        wanted = _other_sizes(sizes)
        try:
            expected = base.view(wanted).stride()
        except RuntimeError:
            assert view_strides.view_strides(base, wanted) is None
            continue
        views += 1
        assert view_strides.view_strides(base, wanted) == list(expected), (sizes, steps, wanted)
    assert views > 500


def _other_sizes(sizes: list[int]) -> list[int]:
    """Some joined with their neighbours, ones put in."""
    made = [1] if random.random() < 0.3 else []
    for size in sizes:
        if made and random.random() < 0.4:
            made[-1] *= size
        else:
            made += [size, *[1] * (random.random() < 0.2)]
    return made


def _rows_as_image(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    rows = x.view(batch, channels, height * width).transpose(1, 2)
    rows = F.linear(rows, torch.eye(channels))
    return rows.transpose(-1, -2).reshape(batch, channels, height, width)


@pytest.mark.parametrize(
    "after",
    [
        lambda image, x: image,
        lambda image, x: image + x,
        lambda image, x: CONV(image),
        lambda image, x: CONV(F.silu(NORM(image + x))),
        lambda image, x: F.interpolate(image + x, scale_factor=2.0),
    ],
    ids=["view", "sum", "convolution", "norm", "interpolation"],
)
def test_image_of_attention(after: Callable[[Tensor, Tensor], Tensor]) -> None:
    """diffusers' decoders of images at a second size gave results with channels last."""

    def f(x: Tensor) -> Tensor:
        return after(_rows_as_image(x), x)

    compiled = jitney.compile(f, dynamic=True)
    for sizes in ((1, 16, 8, 8), (1, 16, 12, 10), (2, 16, 8, 8)):
        x = torch.randn(sizes)
        expected, result = f(x), compiled(x)
        assert result.stride() == expected.stride()
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("part", [lambda x: x.chunk(2, 0)[0], lambda x: x[: x.shape[0] // 2]])
def test_a_size_that_is_1_by_its_symbols(part: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> tuple[tuple[int, ...], Tensor]:
        view = part(x).view(part(x).shape)
        return view.stride(), view * 2

    compiled = jitney.compile(f, dynamic=True, fullgraph=True)
    for rows in (2, 6, 2, 4):
        x = torch.randn(rows, 8)[:, :6]
        assert compiled(x)[0] == f(x)[0]
        torch.testing.assert_close(compiled(x)[1], f(x)[1])


def _written_copy(x: Tensor) -> Tensor:
    y = x.contiguous()
    return y.add_(1)


def _written_row(x: Tensor) -> Tensor:
    y = torch.ravel(x)
    return y.add_(1)


def _asked(x: Tensor) -> Tensor:
    return x * (2 if x.is_contiguous() else 3)


def _asked_for_images(x: Tensor) -> Tensor:
    return x * (2 if x[None, :, :, None].is_contiguous(memory_format=torch.channels_last) else 3)


@pytest.mark.parametrize("function", [_written_copy, _written_row, _asked, _asked_for_images])
def test_a_layout_that_changes_with_the_sizes(function: Callable[[Tensor], Tensor]) -> None:
    """torch says of strides that are symbols that they are not those of rows."""
    layouts = [
        lambda memory: memory.view(4, 10)[2:, 3:],
        lambda memory: memory[:12].view(3, 4)[1:],
        lambda memory: memory.view(8, 5).t(),
        lambda memory: memory.view(5, 8),
        lambda memory: memory.view(4, 10)[2:, 4:7],
    ]
    compiled = jitney.compile(function, dynamic=True, fullgraph=True)
    for layout in layouts:
        memories = torch.arange(40.0), torch.arange(40.0)
        expected, result = function(layout(memories[0])), compiled(layout(memories[1]))
        assert result.stride() == expected.stride()
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(memories[1], memories[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_lies_in_a_row_already(dynamic: bool) -> None:
    row, same = (
        jitney.compile(f, dynamic=dynamic) for f in (lambda x: x.ravel(), lambda x: x.contiguous())
    )
    for memory in (torch.ones(10), torch.ones(12)):
        x = memory[2:]
        assert same(x) is x
        assert row(x) is not x
        assert row(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("again", [lambda x: x.view(x.shape), lambda x: x.reshape(x.shape)])
def test_parts_of_what_is_empty_begin_where_eagers_do(again: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> tuple[tuple[int, ...], int, Tensor]:
        part = again(x[5:-1, 1:])
        split = part.tensor_split(3, 2)[1]
        return part.stride(), split.storage_offset(), split + 1

    x = torch.arange(100.0).as_strided((5, 5, 3), (1, 20, 5))
    expected, found = f(x), jitney.compile(f)(x)
    assert found[:2] == expected[:2]
    assert found[2].shape == expected[2].shape


def test_windows_of_a_symbolic_image_keep_the_sizes_they_were_given() -> None:
    """Fakes write ``s // (s // 4)`` for 4, and more of it in each view of a view: most of a minute
    to compile attention over shifted windows."""

    def windows(x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = x.view(n, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c).cumsum(1)
        return x.view(n, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(n, h, w, c)

    sizes: list[object] = []

    def backend(gm: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        values = [node.meta.get("example_value") for node in gm.graph.nodes]
        sizes.extend(n for value in values if isinstance(value, Tensor) for n in value.shape)
        return gm.forward

    x = torch.randn(2, 20, 24, 3)
    compiled = jitney.compile(windows, dynamic=True, backend=backend)
    torch.testing.assert_close(compiled(x), windows(x))
    assert sizes.count(4) >= 4
    assert max(len(str(size)) for size in sizes) < 40
    y = torch.randn(3, 32, 16, 5)
    torch.testing.assert_close(jitney.compile(windows, dynamic=True)(y), windows(y))


def test_new_dimensions_of_size_1_have_eagers_strides_beside_symbols() -> None:
    def program(z: Tensor, x: Tensor, y: Tensor) -> tuple[Any, ...]:
        rows = z.shape[0] + z
        grown = (x.expand(1), x.expand(1, 1), x.expand(1, 3, 1), y.expand(1, 3), y.expand(1, 1, 2))
        return tuple(t.stride() for t in grown), rows, grown

    inputs = torch.ones(4, 3), torch.ones(()), torch.ones(1)
    got, _, tensors = jitney.compile(program, dynamic=True, fullgraph=True)(*inputs)
    assert got == program(*inputs)[0] == tuple(t.stride() for t in tensors)


def test_a_write_that_eager_refuses_is_refused_beside_symbols() -> None:
    def program(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = z.shape[0] + z
        try:
            x.expand(1).add_(x.as_strided((1,), (1,)))
        except RuntimeError:
            x = x * 3
        return rows, x

    inputs = torch.ones(4, 3), torch.ones(())
    assert jitney.compile(program, dynamic=True)(*inputs)[1] == program(*inputs)[1] == 3
