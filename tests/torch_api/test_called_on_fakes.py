"""Functions that torch takes apart for fake tensors in another way than for real ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from tests.equal import assert_equal_to_eager


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_pool_over_transposed_words(training: bool, dynamic: bool | None) -> None:
    """A text CNN. Without gradients a CPU's kernel gives rows, with them it keeps the layout."""

    def pooled(x: torch.Tensor) -> list[Any]:
        made = [F.max_pool1d(x.transpose(1, 2), 2), F.max_pool1d(x[0].mT, 3, 1)]
        return [*made, *(out.stride() for out in made), torch.max_pool1d(x.mT, 2).transpose(1, 2)]

    compiled = jitney.compile(pooled, dynamic=dynamic, fullgraph=True)
    for shape in [(3, 8, 4), (5, 8, 4), (5, 6, 1), (1, 6, 4)]:
        x = torch.randn(shape).requires_grad_(training)
        assert_equal_to_eager(pooled, compiled, (x,), training=training)
        with torch.no_grad():
            assert_equal_to_eager(pooled, compiled, (x,))


def test_a_pool_that_gives_places_keeps_the_layout() -> None:
    def pooled(x: torch.Tensor) -> Any:
        return F.max_pool1d(x.mT, 2, return_indices=True)

    assert_equal_to_eager(pooled, jitney.compile(pooled), (torch.randn(3, 8, 4),))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("random", [False, True])
def test_a_randomly_leaking_unit_gives_rows(random: bool, training: bool) -> None:
    def leaked(x: torch.Tensor) -> Any:
        new = F.rrelu(x.mT, 0.25, 0.25, training=random)
        return new, new.stride(), F.rrelu(x.mT * 2, 0.25, 0.25, random, inplace=True)

    compiled = jitney.compile(leaked)
    for rows in (3, 5, 1):
        x = torch.randn(rows, 4).requires_grad_(training)
        assert_equal_to_eager(leaked, compiled, (x,), training=training)


MASKS = [(3, 5), (1, 2, 3, 5), (4, 2, 3, 5), (1, 4, 3, 5), (1, 1, 1, 2, 3, 5), (2, 3, 5)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_mask_does_not_widen_attention(training: bool, dynamic: bool | None) -> None:
    def attended(*given: torch.Tensor) -> Any:
        try:
            return F.scaled_dot_product_attention(*given)
        except RuntimeError as error:
            return str(error)

    compiled = jitney.compile(attended, dynamic=dynamic, recompile_limit=20)
    query, key = torch.randn(1, 2, 3, 4, requires_grad=training), torch.randn(1, 2, 5, 4)
    for batch, mask in [(1, shape) for shape in MASKS] + [(4, MASKS[2]), (4, MASKS[1])]:
        given = query, key.expand(batch, -1, -1, -1), key, torch.randn(mask)
        found, expected = compiled(*given), attended(*given)
        assert isinstance(expected, str) == (batch == 1 and mask in MASKS[2:5])
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_an_image_is_resampled_to_one_that_has_elements(mode: str, dynamic: bool | None) -> None:
    def resampled(x: torch.Tensor, n: int) -> Any:
        try:
            return F.interpolate(x, (n, 7), mode=mode)
        except RuntimeError as error:
            return str(error)

    compiled = jitney.compile(resampled, dynamic=dynamic, recompile_limit=20)
    for shape, n in [(4, 5), (5, 5), (4, 0), (4, 6), (0, 3), (4, -1), (4, 3)]:
        for batch in (2, 0):
            x = torch.randn(batch, 3, shape, 4)
            found, expected = compiled(x, n), resampled(x, n)
            assert isinstance(found, str) == isinstance(expected, str)
            if isinstance(expected, str):
                assert found == expected
            else:
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [None, True])
def test_places_among_more_than_32_bits_tell(dynamic: bool | None) -> None:
    def placed(x: torch.Tensor, n: int) -> Any:
        return torch.unravel_index(x, (n, n, x.shape[0])), torch.unravel_index(x, n)

    compiled, x = jitney.compile(placed, dynamic=dynamic), torch.tensor([5, 1 << 33, 1 << 40])
    for n in (1 << 20, 7, 1 << 31, 1 << 30, 7):
        assert str(compiled(x, n)) == str(placed(x, n))


IMAGES_OF_BYTES = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "corners": lambda x: F.interpolate(x, (x.shape[2] + 5, 7), None, "bilinear", True),
    "bicubic": lambda x: F.interpolate(x, size=(x.shape[2] - 2, 7), mode="bicubic"),
    "upsample": lambda x: F.upsample(x, None, 2, "bicubic"),
    "int8": lambda x: F.interpolate(x.to(torch.int8), scale_factor=2),
    "bool": lambda x: F.interpolate(x > 7, scale_factor=2, mode="bilinear"),
    "module": torch.nn.UpsamplingBilinear2d(scale_factor=2),
    "op": lambda x: torch.ops.aten.upsample_bilinear2d(x, [x.shape[2] * 2, 9], False),
    "overload": lambda x: torch.ops.aten.upsample_bicubic2d.vec(x, None, False, [2.0, 2.0]),
    "torch._C._nn": lambda x: torch._C._nn.upsample_bilinear2d(x, [x.shape[2] * 2, 9], False),
}
IN_ONE_GRAPH = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "exact": lambda x: F.interpolate(x, (x.shape[2] + 3, 5), mode="nearest-exact"),
    "antialias": lambda x: F.interpolate(x, (x.shape[2] - 3, 5), mode="bicubic", antialias=True),
}


@pytest.mark.filterwarnings("ignore:.*upsample. is deprecated")
@pytest.mark.parametrize("name", [*IMAGES_OF_BYTES, *IN_ONE_GRAPH])
@pytest.mark.parametrize("through", [None, "torch"])
def test_images_of_bytes_of_symbolic_sizes(name: str, through: str | None) -> None:
    resampled = {**IMAGES_OF_BYTES, **IN_ONE_GRAPH}[name]
    whole = name in IN_ONE_GRAPH
    if through:
        compiled = torch.compile(resampled, backend="jitney", dynamic=True)
    else:
        compiled = jitney.compile(resampled, dynamic=True, fullgraph=whole)
    for n, h, w in ((1, 7, 9), (2, 8, 12), (1, 11, 10)):
        x = torch.randint(0, 256, (n, 3, h, w), dtype=torch.uint8)
        assert_equal_to_eager(resampled, compiled, (x,))


@pytest.mark.parametrize("shape", [(2, 4, 0, 6), (0, 4, 2, 6), (0, 3, 3, 2), (0,), (2, 4, 2, 6)])
def test_pixels_that_there_are_none_of_are_not_unshuffled(shape: tuple[int, ...]) -> None:
    def unshuffled(x: torch.Tensor) -> Any:
        out = F.pixel_unshuffle(x, 2)
        return out, out.shape, torch.ops.aten.pixel_unshuffle.default(x, 2)

    assert_equal_to_eager(unshuffled, jitney.compile(unshuffled), (torch.randn(shape),))


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_padded_by_nothing_keeps_its_strides(dynamic: bool | None) -> None:
    def f(x: torch.Tensor, k: int) -> Any:
        return (
            F.pad(x, (x.shape[0] // k, 0)),
            F.pad(x, (0, -(x.shape[0] // k))) * 2,
            F.pad(x, (0, 0)),
        )

    compiled = jitney.compile(f, dynamic=dynamic)
    for rows, k in ((4, 2), (4, 1), (3, 5), (6, 7)):
        x = torch.randn(rows, 9, 7).permute(0, 2, 1)
        for got, want in zip(compiled(x, k), f(x, k), strict=True):
            assert torch.equal(got, want)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("drop", [F.dropout, torch.dropout], ids=["functional", "torch"])
@pytest.mark.parametrize("given", [(0.5, False), (0.0, True)])
def test_what_drops_nothing_is_its_input_in_inference_mode(
    drop: Any, given: tuple[float, bool]
) -> None:
    def block(x: torch.Tensor) -> Any:
        h = drop(x, *given)
        h += 1
        y = x * 3
        drop(y, *given).mul_(2)
        return x * 2, y

    compiled = jitney.compile(block, options={"eager_on_bug": False})
    with torch.inference_mode():
        for _ in range(2):
            one, other = torch.ones(4), torch.ones(4)
            torch.testing.assert_close(compiled(one), block(other))
            torch.testing.assert_close(one, other)
    outside = torch.ones(4)
    with torch.inference_mode():
        compiled(outside)
    assert outside.eq(2).all()
