"""Results whose layout or shape torch foretells wrongly in some version."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import jitney
from jitney.torch_api import forecast
from tests.equal import assert_equal_to_eager


@pytest.mark.parametrize("name", ["fft", "rfft", "ihfft"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_strides_of_transforms_are_eagers(name: str, dim: int) -> None:
    def transform(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.fft, name)(x, dim=dim)

    assert_equal_to_eager(transform, jitney.compile(transform), (torch.randn(5, 6, 7),))


@pytest.mark.parametrize("name", ["fft", "rfft", "ihfftn"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_strides_of_transforms_of_symbolic_sizes(name: str, dim: int) -> None:
    def transform(x: torch.Tensor) -> torch.Tensor:
        dims = {"dim": (dim,)} if name.endswith("n") else {"dim": dim}
        return getattr(torch.fft, name)(x, **dims)

    compiled = jitney.compile(transform, dynamic=True)
    for x in (torch.randn(5, 6, 7), torch.randn(3, 9, 4), torch.randn(4, 5, 6).transpose(0, 2)):
        assert_equal_to_eager(transform, compiled, (x,))


def test_an_index_that_repeats() -> None:
    def fill(x: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, index, value) * 2

    inputs = torch.randn(5, 5), torch.tensor([3, 1, 3]), torch.tensor(2.0, requires_grad=True)
    assert_equal_to_eager(fill, jitney.compile(fill), inputs, training=True)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("norm", ["batch_norm", "instance_norm"])
def test_running_statistics_of_half_types(norm: str, parameters: torch.dtype) -> None:
    """torch foretells float32 for new running statistics, and the input's dtype for a batch's."""

    def training(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return getattr(torch.nn.functional, norm)(x, *others, True, 0.5)

    torch.manual_seed(0)
    affine = [torch.randn(5).to(parameters).requires_grad_() for _ in range(2)]
    statistics = torch.zeros(5).to(parameters), torch.ones(5).to(parameters)
    inputs = torch.randn(5, 5, 5).bfloat16().requires_grad_(), *statistics, *affine
    compiled = jitney.compile(training, options={"eager_on_bug": False})
    assert_equal_to_eager(training, compiled, inputs, training=True)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("norm", ["group_norm", "layer_norm"])
def test_statistics_of_half_types(norm: str, dynamic: bool, parameters: torch.dtype) -> None:
    """Float32 where the parameters are, as under autocast: the library's backward pass asks for
    them so."""

    def normed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if norm == "group_norm":
            return F.gelu(F.group_norm(x, 4, weight, bias))
        return F.gelu(F.layer_norm(x, (8,), weight, bias))

    torch.manual_seed(0)
    x = torch.randn(2, 8, 8).bfloat16().requires_grad_()
    affine = [torch.randn(8).to(parameters).requires_grad_() for _ in range(2)]
    assert_equal_to_eager(
        normed, jitney.compile(normed, dynamic=dynamic), (x, *affine), training=True
    )


def test_a_weighted_bag_of_bfloat16() -> None:
    def bag(table: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        starts = torch.tensor([0, 2])
        return torch.nn.functional.embedding_bag(
            index, table, starts, mode="sum", per_sample_weights=weights
        )

    torch.manual_seed(0)
    table, weights = torch.randn(10, 5).bfloat16(), torch.randn(5).bfloat16()
    inputs = table.requires_grad_(), torch.tensor([1, 4, 1, 7, 0]), weights.requires_grad_()
    compiled = jitney.compile(bag, options={"eager_on_bug": False})
    assert_equal_to_eager(bag, compiled, inputs, training=True)


def test_attention_in_double_precision() -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    inputs = [torch.randn(2, 4, n, 8, dtype=torch.float64).requires_grad_() for n in (3, 6, 6)]

    def attend(*operands: torch.Tensor) -> torch.Tensor:
        return attention(*operands)

    assert_equal_to_eager(attend, jitney.compile(attend), tuple(inputs), training=True)


@pytest.mark.parametrize(
    "scatter",
    [
        lambda x: x.diagonal_scatter(torch.zeros(4)) + 1,
        lambda x: x.select_scatter(torch.zeros(4), 1, 2),
        lambda x: x.slice_scatter(torch.zeros(2, 5), 0, 1, 3),
    ],
)
def test_a_scatter_into_an_expanded_tensor_has_memory_of_its_own(scatter: Any) -> None:
    x = torch.arange(4.0)[:, None].expand(4, 5)
    assert_equal_to_eager(scatter, jitney.compile(scatter), (x,))


@pytest.mark.parametrize("dim", [-1, (-2,), (-2, -1)])
def test_a_norm_over_dimensions_of_size_one(dim: int | tuple[int, ...]) -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(x, 2, dim=dim)

    compiled = jitney.compile(norm, fullgraph=True)
    for x in (torch.randn(1, 1), torch.randn(3, 1)):
        assert_equal_to_eager(norm, compiled, (x,))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels_behind_the_end_of_a_row_of_symbolic_size(reduction: str) -> None:
    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, labels, reduction=reduction)

    compiled = jitney.compile(loss, dynamic=True)
    x, labels = torch.randn(5), torch.tensor([1, 0, -1, 2, 3])
    assert_equal_to_eager(loss, compiled, (x, labels))
    assert_equal_to_eager(loss, compiled, (x.expand(3, 5), labels.expand(3, 5)))


def test_dropout_of_nothing_is_its_operand() -> None:
    x = torch.randn(5)
    for train, p in ((True, 0.0), (False, 0.3)):
        traced = jitney.compile(lambda x, p=p, train=train: F.dropout(x, p, train), dynamic=True)
        assert traced(x) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("columns", [8, 5])
def test_products_of_groups(dtype: torch.dtype, columns: int) -> None:
    def product(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return F.grouped_mm(x, weights.transpose(1, 2), offs=ends) * 2

    torch.manual_seed(0)
    x, weights = torch.randn(10, 16, dtype=dtype), torch.randn(3, columns, 16, dtype=dtype)
    training = columns == 8  # eager's backward takes rows of multiples of 16 bytes
    ends = torch.tensor([2, 2, 10], dtype=torch.int32)
    inputs = x.requires_grad_(training), weights.requires_grad_(training), ends
    compiled = jitney.compile(product, fullgraph=True, options={"eager_on_bug": False})
    assert_equal_to_eager(product, compiled, inputs, training=training)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_of_batch_norm_of_a_transposed_tensor(training: bool, dynamic: bool) -> None:
    """Eager's result is contiguous, so that it can be viewed."""
    norm = torch.nn.BatchNorm1d(5).train(training)

    def normed(x: torch.Tensor) -> torch.Tensor:
        return norm(x.transpose(1, 2)).view(-1, 5)

    compiled = jitney.compile(normed, dynamic=dynamic)
    for batch in (4, 3):
        x = torch.randn(batch, 7, 5).requires_grad_()
        assert_equal_to_eager(norm, jitney.compile(norm, dynamic=dynamic), (x.mT,))
        assert torch.allclose(compiled(x), normed(x), atol=1e-5)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_shuffled_channels_stay_last(rank: int, dynamic: bool, gradient: bool) -> None:
    def shuffle(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        out = torch.channel_shuffle(x, 2)
        return out, out.stride()

    last = torch.channels_last if rank == 2 else torch.channels_last_3d
    x = torch.randn(2, 6, *(4, 5, 6)[:rank]).contiguous(memory_format=last)
    compiled = jitney.compile(shuffle, dynamic=dynamic, fullgraph=True)
    assert_equal_to_eager(shuffle, compiled, (x.requires_grad_(gradient),), training=gradient)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_program_reads_strides_of_a_padded_image(mode: str, rank: int) -> None:
    """torch foretells no channels last, of two dimensions before 2.13 and of three."""

    def pad(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        out = F.pad(x, (1, 2) * rank, mode=mode)
        return out, out.stride()

    last = torch.channels_last if rank == 2 else torch.channels_last_3d
    x = torch.randn(2, 3, *(4, 5, 6)[:rank]).contiguous(memory_format=last)
    assert_equal_to_eager(pad, jitney.compile(pad), (x,))


def test_strides_of_angles_of_complex_numbers() -> None:
    z = torch.randn(2, 3, 4, dtype=torch.complex64).permute(2, 0, 1)
    assert_equal_to_eager(torch.angle, jitney.compile(torch.angle), (z,))


@pytest.mark.parametrize("training", [False, True])
def test_strides_of_sizes_of_one_in_a_view(training: bool) -> None:
    """One image of positions last, seen as a plane: eager does not take it for channels last."""

    def convolved(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        plane = x.transpose(1, 2).view(1, 8, 4, 4)
        return plane, F.conv2d(plane + 1, weight)

    inputs = torch.randn(1, 16, 8), torch.randn(3, 8, 3, 3)
    for x in inputs:
        x.requires_grad_(training)
    compiled = jitney.compile(convolved, dynamic=False)
    assert_equal_to_eager(convolved, compiled, inputs, training=training)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 4, 5, 6), (2, 4, 5, 6), (4, 1, 5, 6)])
def test_results_that_eager_makes_in_rows(sizes: tuple[int, ...], dynamic: bool) -> None:
    def f(x: torch.Tensor) -> list[Any]:
        filled = x.masked_fill(x > 0, 1.0), x.masked_fill(x > 0, torch.tensor(2.0))
        made = [*filled, 2**x, 1.0**x, 2**x.mT, torch.mvlgamma(x.abs() + 2, 2)]
        return [*made, *(out.stride() for out in made)]

    x = torch.randn(sizes).contiguous(memory_format=torch.channels_last)
    assert_equal_to_eager(f, jitney.compile(f, dynamic=dynamic, fullgraph=True), (x,))


@pytest.mark.parametrize("turned", [False, True])
def test_a_cut_gradient_lies_as_what_was_cut(turned: bool) -> None:
    op = torch.ops.aten.threshold_backward.default
    x = torch.randn(1, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    operands = (x.contiguous(), x) if turned else (x, x.contiguous())
    compiled = jitney.compile(lambda gradient, cut: op(gradient, cut, 0.0))
    assert compiled(*operands).stride() == op(*operands, 0.0).stride()


def test_larger_images_of_a_gpu_keep_their_channels_last() -> None:
    """torch's decomposition makes rows of fewer than 16 channels."""
    with FakeTensorMode():
        x = torch.empty_strided((2, 3, 5, 6), (90, 1, 18, 3), device="cuda")
        rows = torch.empty(x.shape, device="cuda")
        larger = torch.ops.aten.upsample_bilinear2d
        for op, rest in ((larger.default, ()), (larger.vec, (None,))):
            out = forecast(op, (x, [7, 9], True, *rest), {})
            assert out.is_contiguous(memory_format=torch.channels_last)
            assert forecast(op, (rows, [7, 9], True, *rest), {}).is_contiguous()


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_hot_rows_lie_in_rows(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        out = torch.nn.functional.one_hot(x, 3)
        return out, out.stride()

    x = torch.randint(3, (2, 4, 5, 6)).to(memory_format=torch.channels_last)
    (found, strides), (expected, wanted) = jitney.compile(f, dynamic=dynamic)(x), f(x)
    assert torch.equal(found, expected) and found.stride() == strides == wanted


@pytest.mark.parametrize("shifts, dims, dynamic", [
    (1, -1, None), (2, 1, True), ((1, -1), (2, 3), None), ((1, -1), (2, 3), True), (1, 0, True),
    (3, None, None),
])  # fmt: skip
def test_a_roll_keeps_channels_that_lie_last(shifts: Any, dims: Any, dynamic: bool | None) -> None:
    """Images of one row or one column are among them; on a CPU eager joins two parts."""

    def rolled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.roll(shifts, dims)
        return y, (y * 2).permute(0, 2, 3, 1).flatten(1)

    compiled = jitney.compile(rolled, dynamic=dynamic)
    for shape in [(5, 3, 2, 4), (1, 3, 2, 4), (5, 3, 1, 4), (5, 3, 4, 1), (2, 3, 5, 5)]:
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last).requires_grad_()
        assert_equal_to_eager(rolled, compiled, (x,), training=True)
    assert_equal_to_eager(rolled, compiled, (torch.randn(2, 3, 4, 5).transpose(1, 3),))


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_of_losses_and_random_numbers(dynamic: bool) -> None:
    """Whatever is transposed, a loss of each label and what is drawn lie in rows."""

    def losses(x: torch.Tensor, labels: torch.Tensor) -> Any:
        likelihoods = F.cross_entropy(x, labels.t(), reduction="none")
        drawn = torch.normal(x[0].t(), 1.0), torch.normal(x[0].t(), x[0].t().abs())
        return likelihoods, *drawn, torch.poisson(x[1].t().abs())

    compiled = jitney.compile(losses, dynamic=dynamic, options={"eager_on_bug": False})
    for size in (4, 6):
        inputs = torch.randn(size, 3, 5), torch.randint(3, (5, size))
        torch.manual_seed(0)
        wanted = [t.stride() for t in losses(*inputs)]
        assert [t.stride() for t in compiled(*inputs)] == wanted


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rank", [1, 2])
def test_places_of_a_pool_that_lie_transposed(rank: int, dynamic: bool) -> None:
    unpool = getattr(F, f"max_unpool{rank}d")

    def unpooled(x: torch.Tensor, places: torch.Tensor) -> Any:
        return unpool(x, places, 2)

    compiled = jitney.compile(unpooled, dynamic=dynamic, options={"eager_on_bug": False})
    for size in (4, 6):
        x = torch.randn(2, 3, *[size] * rank)
        pair = getattr(F, f"max_pool{rank}d")(x, 2, return_indices=True)
        turned = [t.movedim(1, -1).contiguous().movedim(-1, 1) for t in pair]
        assert_equal_to_eager(unpooled, compiled, tuple(turned))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_gradients_of_losses_lie_in_rows(name: str, dynamic: bool) -> None:
    def slope(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.autograd.grad(getattr(F, name)(x, y), x)[0]

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        return getattr(F, name)(x, y)

    compiled = jitney.compile(step, dynamic=dynamic, options={"eager_on_bug": False})
    for size in (3, 5):
        x, y = torch.randn(size, 4).t().requires_grad_(), torch.randn(size, 4).t()
        (gradient,) = torch.autograd.grad(compiled(x, y), x)
        assert gradient.stride() == slope(x, y).stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loss_of_each_pixel_lies_in_rows(dynamic: bool) -> None:
    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, labels.permute(2, 1, 0), reduction="none")

    compiled = jitney.compile(loss, dynamic=dynamic, options={"eager_on_bug": False})
    for size in (4, 6):
        x = torch.randn(size, 5, 2, 3).permute(3, 2, 1, 0)
        assert_equal_to_eager(loss, compiled, (x, torch.randint(2, (size, 5, 3))))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_the_gradient_of_a_padded_image_keeps_its_channels_last(mode: str) -> None:
    compiled = jitney.compile(lambda x: F.pad(x, (1, 1, 1, 1), mode))
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dynamic", [False, True])
def test_filled_rows_of_a_transposed_slice_keep_its_order(dynamic: bool) -> None:
    rows = torch.tensor([1])

    def filled(x: torch.Tensor) -> torch.Tensor:
        return x[:, ::2].index_fill(1, rows, 2.0)

    compiled = jitney.compile(filled, dynamic=dynamic, options={"eager_on_bug": False})
    for size in (6, 8):
        x = torch.randn(size, 4, 3).permute(1, 0, 2)
        assert compiled(x).stride() == filled(x).stride()
        assert_equal_to_eager(filled, compiled, (x,))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_norm_keeps_the_channels_of_a_single_image_last(dynamic: bool) -> None:
    weight = torch.randn(3)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, weight, weight, True)

    compiled = jitney.compile(norm, dynamic=dynamic, options={"eager_on_bug": False})
    for size in (5, 7):
        image = torch.randn(size, size + 1, 3).permute(2, 0, 1)
        x = image.expand(1, *image.shape)  # the stride of the only image is 0
        assert compiled(x).stride() == norm(x).stride()
        assert_equal_to_eager(norm, compiled, (x,))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": 1}])
def test_windows_of_one_element_lie_in_rows(options: dict[str, int], dynamic: bool | None) -> None:
    def windows(x: torch.Tensor) -> Any:
        found = torch.nn.functional.unfold(x, 1, **options)
        return found, found.stride(), found.view(-1).sin()

    x = torch.randn(2, 3, 4, 5).permute(3, 1, 0, 2)
    assert_equal_to_eager(windows, jitney.compile(windows, dynamic=dynamic), (x,))
