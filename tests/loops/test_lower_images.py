"""Convolution and resampling, lowered and interpreted, against eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.diagnostics.report import report
from jitney.events import log
from jitney.loops.ir import Gemm
from jitney.loops.lowerings.adaptive_pooling import longest_window
from jitney.loops.target import Target
from tests.equal import assert_equal_to_eager
from tests.loops.lowered import check, externs, lower


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "pointwise": ((2, 8, 9, 9), (16, 8, 1, 1), {}),
    "pointwise_strided": ((2, 8, 19, 20), (16, 8, 1, 1), {"stride": 2}),
    "whole_rows": ((2, 8, 19, 20), (16, 8, 3, 3), {"padding": 1}),
    "strided": ((2, 8, 19, 20), (16, 8, 3, 3), {"padding": 1, "stride": 2}),
    "single_places": ((2, 8, 5, 5), (16, 8, 3, 3), {"padding": 1, "stride": 2}),
    "patches": ((2, 3, 32, 32), (16, 3, 8, 8), {"stride": 8}),
    "groups": ((2, 8, 9, 9), (16, 4, 3, 3), {"padding": 1, "groups": 2}),
    "by_channel": ((2, 8, 9, 9), (16, 1, 3, 3), {"padding": 1, "groups": 8}),
    "by_channel_strided": ((2, 8, 9, 9), (8, 1, 5, 5), {"padding": 2, "stride": 2, "groups": 8}),
    "by_channel_wide": ((1, 2, 12, 12), (2, 1, 8, 8), {"groups": 2}),
    "dilated": (
        (2, 8, 19, 20),
        (8, 8, 3, 2),
        {"padding": (1, 2), "stride": 2, "dilation": (2, 3)},
    ),
    "one_dimension": ((2, 8, 9), (16, 8, 3), {"padding": 1, "dilation": 2}),
    "three_dimensions": ((2, 4, 4, 5, 6), (8, 4, 3, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    image, filters, options = CONVOLUTIONS[name]

    def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.convolution(x, w, bias, **_complete(options, x.dim() - 2)).relu()

    check(convolve, rand(*image), rand(*filters), rand(filters[0]), rtol=1e-4, atol=1e-4)


def _complete(options: dict[str, Any], rank: int) -> dict[str, Any]:
    def spread(value: Any) -> list[int]:
        return list(value) if isinstance(value, tuple) else [value] * rank

    return {
        "stride": spread(options.get("stride", 1)),
        "padding": spread(options.get("padding", 0)),
        "dilation": spread(options.get("dilation", 1)),
        "transposed": False,
        "output_padding": [0] * rank,
        "groups": options.get("groups", 1),
    }


CHANNELS_LAST = (
    *(c for c in CONVOLUTIONS if not c.endswith("dimensions") and c != "one_dimension"),
    "many",
)


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_convolution_in_channels_last(name: str) -> None:
    many = ((2, 24, 9, 10), (40, 24, 3, 3), {"padding": 1, "stride": (1, 2)})
    image, filters, options = CONVOLUTIONS.get(name, many)

    def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.convolution(x, w, bias, **_complete(options, 2)).relu()

    x = rand(*image).to(memory_format=torch.channels_last)
    check(convolve, x, rand(*filters), rand(filters[0]), rtol=1e-4, atol=1e-4)
    weight = rand(*filters).to(memory_format=torch.channels_last)
    check(convolve, x, weight, rand(filters[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_patches_on_a_gpu_are_one_product(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.loops.lowered.CPU", Target("cuda", "test"))
    monkeypatch.setattr("jitney.loops.lower_graph._check_tensors", lambda *_: None)
    image = rand(2, 3, 17, 25).half().to(memory_format=layout)
    weight, bias = rand(16, 3, 8, 4).half() / 10, rand(16).half()
    close = {"rtol": 1e-2, "atol": 1e-2}
    check(lambda x, w, b: F.conv2d(x, w, b, stride=(8, 4)), image, weight, bias, **close)
    program = check(lambda x, w: F.conv2d(x, w, stride=(8, 4)), image, weight, **close)
    assert sum(isinstance(n, Gemm) for n in program.nodes) == 1
    overlapping = lower(lambda x, w: F.conv2d(x, w, stride=4), image, weight)
    assert externs(overlapping) == ["aten.convolution.default"]


TRANSFORMED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "whole_tiles": ((1, 64, 32, 32), (64, 64, 3, 3), {"padding": 1}),
    "broken_tiles": ((2, 64, 21, 30), (80, 64, 3, 3), {"padding": 1}),
    "no_border": ((1, 64, 33, 31), (64, 64, 3, 3), {}),
    "wide_border": ((1, 64, 30, 30), (64, 64, 3, 3), {"padding": 2}),
    "groups": ((1, 128, 40, 40), (128, 64, 3, 3), {"padding": 1, "groups": 2}),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_convolution_with_fewer_multiplications(name: str) -> None:
    image, filters, options = TRANSFORMED[name]

    def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.convolution(x, w, bias, **_complete(options, 2)).relu()

    inputs = (rand(*image).to(memory_format=torch.channels_last), rand(*filters), rand(filters[0]))
    products = [n for n in lower(convolve, *inputs).nodes if isinstance(n, Gemm)]
    assert [int(axis.extent) for axis in products[0].batch][:1] == [6]
    check(convolve, *inputs, rtol=1e-4, atol=1e-3)


def test_few_places_are_summed_plainly() -> None:
    x = rand(1, 64, 4, 4).to(memory_format=torch.channels_last)
    program = lower(lambda x, w: F.conv2d(x, w, padding=1), x, rand(64, 64, 3, 3))
    assert all(not n.batch for n in program.nodes if isinstance(n, Gemm))


def test_transposed_convolution_stays_a_library_call() -> None:
    program = lower(lambda x, w: F.conv_transpose2d(x, w), rand(1, 2, 5, 5), rand(2, 3, 3, 3))
    assert externs(program) == ["aten.convolution.default"]


SIZES: list[dict[str, Any]] = [{"scale_factor": 2}, {"size": (7, 9)}, {"size": (16, 20)}]


@pytest.mark.parametrize("options", SIZES, ids=str)
def test_resampling(options: dict[str, Any]) -> None:
    def resample(x: torch.Tensor) -> Any:
        return (
            F.interpolate(x, mode="nearest", **options),
            F.interpolate(x, mode="bilinear", **options),
            F.interpolate(x, mode="bilinear", align_corners=True, **options),
        )

    check(resample, rand(2, 3, 8, 10))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_resampling_by_a_fraction_of_symbolic_sizes(mode: str, scale: float) -> None:
    def resample(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=scale, mode=mode)

    log.clear()
    compiled = jitney.compile(resample, dynamic=True)
    for shape in ((2, 3, 6, 9), (2, 3, 7, 12)):
        x = rand(*shape).requires_grad_()
        assert_equal_to_eager(resample, compiled, (x,), training=True, calls=1)
    assert not log.events("eager_graph")


def test_resampling_in_other_dimensions() -> None:
    check(lambda x: F.interpolate(x, mode="linear", size=15), rand(2, 3, 8))
    check(lambda x: F.interpolate(x, mode="trilinear", scale_factor=2), rand(2, 3, 4, 5, 6))


@pytest.mark.parametrize("options", [{"scale_factor": 1.7}, {"scale_factor": 0.6}, {"size": 7}])
def test_linear_resampling_in_double_precision(options: dict[str, Any]) -> None:
    """Eager takes the step from one element to the next in double precision then."""

    def resample(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode="linear", **options)

    x, y = (rand(2, 3, 8).double().requires_grad_() for _ in range(2))
    ours, theirs = jitney.compile(resample)(x), resample(y)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    weights = torch.linspace(0.5, 1.5, ours.numel(), dtype=torch.float64).view_as(ours)
    ours.backward(weights)
    theirs.backward(weights)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("scale", [1.1, 2.2])
@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last, torch.channels_last_3d]
)
def test_nearest_by_a_scale_that_rounds_to_one_or_two(
    layout: torch.memory_format, scale: float
) -> None:
    """Which element eager takes then goes with its kernel: by dimensions, layout, direction."""
    ranks = {torch.channels_last: (2,), torch.channels_last_3d: (3,)}.get(layout, (1, 2, 3))
    for rank in ranks:
        x = rand(2, 4, *(2, 3)[: rank - 1], 4 if scale > 2 else 8).contiguous(memory_format=layout)

        def resample(x: torch.Tensor, rank: int = rank) -> torch.Tensor:
            return F.interpolate(x, scale_factor=(*[1.0] * (rank - 1), scale)) * 2

        compiled = jitney.compile(resample, fullgraph=True)
        assert_equal_to_eager(resample, compiled, (x.requires_grad_(),), training=True, calls=1)


def test_nearest_gradient() -> None:
    backward = torch.ops.aten.upsample_nearest2d_backward
    check(lambda grad: backward(grad, [16, 20], [2, 3, 8, 10]), rand(2, 3, 16, 20))


def test_pools_of_volumes() -> None:
    check(
        lambda x: (F.max_pool3d(x, 2, return_indices=True), F.avg_pool3d(x, 2)),
        rand(2, 3, 4, 6, 5),
    )


RESAMPLED: dict[str, Callable[[torch.Tensor], Any]] = {
    "nearest": lambda x: F.interpolate(x, size=(5, 11)),
    "nearest_exact": lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, size=(5, 11), mode="bilinear"),
    "corners": lambda x: F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True),
    "mean": lambda x: F.adaptive_avg_pool2d(x, (3, 7)),
    "maximum": lambda x: F.adaptive_max_pool2d(x, (3, 7), return_indices=True),
    "unpooled": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "replicated": lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"),
    "reflected": lambda x: F.pad(x, (2, 1, 0, 3), mode="reflect"),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", RESAMPLED)
def test_resampling_and_its_gradient(name: str, channels_last: bool) -> None:
    x = rand(2, 3, 8, 10)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    compiled = jitney.compile(RESAMPLED[name], fullgraph=True)
    log.clear()
    assert_equal_to_eager(RESAMPLED[name], compiled, (x.requires_grad_(),), training=True, calls=1)
    assert not report(log.events()).extern


BORDERS = [
    ("reflect", (2, 3, 17), (4, 16)),
    ("reflect", (2, 3, 9, 13), (2, 1, 8, 0)),
    ("reflect", (2, 2, 5, 9), (-2, 3, 0, -1)),
    ("reflect", (1, 2, 4, 5, 6), (1, 2, 3, 0, 0, 3)),
    ("replicate", (3, 5), (0, 9)),
    ("replicate", (2, 3, 9, 13), (20, 1, 0, 11)),
    ("replicate", (0, 3, 4, 5), (1, 1, 1, 1)),
    ("replicate", (1, 2, 4, 5, 6), (1, 2, -1, 0, 9, 3)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("mode, shape, pad", BORDERS)
def test_borders_of_the_image_itself(
    mode: str, shape: tuple[int, ...], pad: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = rand(*shape)
    x.view(-1)[::7], x.view(-1)[1::11] = torch.nan, torch.inf
    x = x.to(dtype) if dtype.is_floating_point else x.nan_to_num(0, 1).to(dtype)
    for layout in (x, torch.cat([x, x], -1)[..., : shape[-1]], x.mT.contiguous().mT):
        ours = jitney.compile(lambda x: F.pad(x, pad, mode=mode), fullgraph=True)(layout)
        eager = F.pad(layout, pad, mode=mode)
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
        assert ours.stride() == eager.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(
    "shape, size", [((2, 3, 7), (23,)), ((2, 3, 5, 7), (9, 16)), ((1, 2, 3, 4, 5), (6, 2, 11))]
)
def test_widened_rows(
    shape: tuple[int, ...], size: tuple[int, ...], corners: bool, dtype: torch.dtype
) -> None:
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)]

    def widen(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.relu(), size, mode=mode, align_corners=corners) * 2

    x = rand(*shape).to(dtype)
    for layout in (x, torch.cat([x, x], -1)[..., : shape[-1]], x.mT.contiguous().mT):
        compiled = jitney.compile(widen, fullgraph=True)
        assert_equal_to_eager(widen, compiled, (layout,), calls=1)


def test_a_dimension_that_keeps_its_size_takes_nothing_of_its_neighbours() -> None:
    x = rand(1, 2, 4, 5)
    x[0, 0, 2, 2], x[0, 1, 0, 4] = torch.inf, torch.nan
    for size in ((4, 5), (8, 5), (4, 10)):
        ours = jitney.compile(lambda x, s=size: F.interpolate(x, s, mode="bilinear"))(x)
        torch.testing.assert_close(ours, F.interpolate(x, size, mode="bilinear"), equal_nan=True)


def test_the_longest_of_adaptive_windows() -> None:
    """Of as many windows as one asks for: all but those of a small tensor are not looked at."""
    for have, want in itertools.product(range(1, 14), repeat=2):
        lengths = [-(-((i + 1) * have) // want) - i * have // want for i in range(want)]
        assert longest_window(have, want) == max(lengths)
    assert longest_window(3, 2**31) == 2
    compiled = jitney.compile(lambda x: F.adaptive_avg_pool1d(x, 2**31))
    assert compiled(torch.ones(0, 3, 4)).shape == (0, 3, 2**31)
