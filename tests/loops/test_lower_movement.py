"""Views, indexing, rearrangement, creation and writes in place, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.errors import LeftToEager, Unsupported
from jitney.loops.interpret import interpret
from jitney.loops.ir import LoopNest, LoopProgram
from jitney.loops.lower_graph import lower_graph
from jitney.loops.verify import verify
from tests.equal import assert_equal
from tests.loops.lowered import CPU, GPU, check, externs, lower, trace

aten = torch.ops.aten
X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
AT = torch.tensor([[0, 2], [1, 3]])

MOVES: dict[str, Callable[[Any], Any]] = {
    "views": lambda x: (x[1:, ::2] + 1, x.view(2, 10).t() + 1, x.unfold(0, 2, 1) + 1),
    "diagonal": lambda x: (x.diagonal() + 1, x.tril(), x.triu(1), x.diagonal_scatter(x[0, :4], 1)),
    "chunks": lambda x: [part + 1 for part in (*x.chunk(2, 1), *x.split([1, 3]), *x.unbind(0))],
    "copies_of_views": lambda x: x.t().reshape(2, 10) * x.t().contiguous().view(2, 10),
    "cat": lambda x: (torch.cat([x, x * 2]), torch.cat([x] * 6, 1), torch.stack([x, x], 1)),
    "cat_promotes": lambda x: torch.cat([x, x.double(), x.long()], 1),
    "pad": lambda x: (F.pad(x, (1, 2, -1, 1), value=3.0), F.pad(x, (1, 1))),
    "strided_write": lambda x: x.slice_scatter(x[:, 1:4:2] * 2, 1, 1, 4, 2),
    "roll_flat": lambda x: x.roll(3),
    "flip": lambda x: (x.flip(0, 1), x.roll(1, 0), x.roll((1, -2), (0, 1))),
    "repeat": lambda x: (x.repeat(2, 3, 1), x.expand(3, 4, 5).sum(0), x[:1].repeat(3, 1)),
    "scatters": lambda x: (x.slice_scatter(x[:2] * 2, 0, 1, 3), x.select_scatter(x[0], 0, -1)),
    "rotate_half": lambda x: torch.cat((-x[..., 3:], x[..., :3]), -1) * x,
    "new": lambda x: (x.new_full((2,), 7), torch.ones_like(x), x.new_zeros(3), torch.eye(3)),
    "counted": lambda x: (torch.arange(5), torch.arange(1, 2, 0.3), torch.linspace(0, 1, 7)),
}


@pytest.mark.parametrize("name", MOVES)
def test_move(name: str) -> None:
    check(MOVES[name], X)


INDEXING: dict[str, Callable[[Any, Any], Any]] = {
    "index": lambda x, i: (x[i], x[:, i], x[i, i], x[i[0], None], x[-i - 1]),
    "index_apart": lambda x, i: x.view(4, 5, 1).expand(4, 5, 3)[i, :, i % 3],
    "gather": lambda x, i: (x.gather(0, i), x.index_select(1, i[0])),
    "scatter": lambda x, i: (x.scatter(1, i, 2.0), x.scatter(0, i, x * 2), x.scatter_add(0, i, x)),
    "rows": lambda x, i: (x.index_add(0, i[0], x[:2]), x.index_copy(1, i[0], x[:, :2])),
    **{
        f"scatter_{how}": lambda x, i, how=how: tuple(
            (
                x.scatter_reduce(0, i, x * 2, how, include_self=keep),
                x.index_reduce(1, i[1], x[:, :2] * 2, how, include_self=keep),
            )
            for keep in (True, False)
        )
        for how in ("mean", "prod", "amax", "amin")
    },
    "index_fill": lambda x, i: x.index_fill(0, i[1], 3.0),
    "index_put": lambda x, i: aten.index_put(x, [None, i], x[0, 0]),
    "accumulate": lambda x, i: aten.index_put(x, [i * 0, i], x[:2, :2], True),
    "masked_put": lambda x, i: aten.index_put(x, [x > 0], x[0, 0]),
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_backward": lambda x, i: aten.embedding_dense_backward(x[i], i % 2, 4, 1, False),
}


def test_borders_of_zeros_with_either_sign() -> None:
    def borders(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 1 / F.pad(x, (1, 1), value=0.0), 1 / F.pad(x, (1, 1), value=-0.0)

    x = torch.ones(1, 2)
    assert_equal(jitney.compile(borders, fullgraph=True)(x), borders(x))


def test_scalars_are_indexed_as_one_element() -> None:
    def run(x: torch.Tensor, i: torch.Tensor) -> Any:
        return x.scatter(0, i, x * 2), x.index_add(0, i, x), x.index_fill(0, i, 3.0)

    check(run, torch.randn(()), torch.tensor(0))


@pytest.mark.parametrize(
    "fill",
    [
        lambda x: F.pad(x, (1, 1), value=300),
        lambda x: torch.where(x > 0, x, 300),
        lambda x: x.scatter(0, x.long(), 300),
        lambda x: x.index_fill(0, x.long(), 300),
        lambda x: x.new_full((3,), 300),
        lambda x: x.masked_fill(x > 0, 300),
        lambda x: x.clone().fill_(300),
        lambda x: x.new_full((3,), float("inf")),
        lambda x: F.pad(x.half(), (1, 1), value=1e6),
    ],
)
def test_numbers_that_a_dtype_does_not_hold_are_eagers_error(fill: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        jitney.compile(fill)(torch.tensor([0, 1], dtype=torch.uint8))


@pytest.mark.parametrize(
    "fill",
    [
        lambda x, v: x.masked_fill(x > 0, v),
        lambda x, v: x.index_fill(0, (x > 0).long(), v),
        lambda x, v: (x.masked_fill(x > 0, v), x + 1)[1],
    ],
)
@pytest.mark.parametrize(
    ("dtype", "held", "other"),
    [
        (torch.uint8, 7, 300),
        (torch.int64, 2.5, float("nan")),
        (torch.int32, -1.0, 2.0**31),
        (torch.float16, float("-inf"), 1e6),
        (torch.float32, float("nan"), -1e300),
    ],
)
def test_a_tensor_to_fill_with_is_held_by_the_dtype(
    fill: Callable[[Any, Any], Any], dtype: torch.dtype, held: float, other: float
) -> None:
    x, compiled = torch.tensor([0, 1], dtype=dtype), jitney.compile(fill)
    of = torch.float64 if isinstance(held, float) else torch.int64
    good = torch.tensor(held, dtype=of)
    assert_equal(compiled(x, good), fill(x, good))
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(x, torch.tensor(other, dtype=of))


@pytest.mark.parametrize(
    "edges",
    [
        [-1.0, 0.0, 0.5, 0.5, 2.0],
        [0.0, 1.0, float("nan")],
        [0.0, 1.0, 2.0] + [float("nan")] * 4,
        [2.0, -1.0, 0.5, 0.1, 9.0, -3.0],
        [0.5],
        [float(n) for n in range(-150, 150)],
    ],
)
def test_bucketize(edges: list[float]) -> None:
    """NaN among the boundaries, and ones that are not sorted, lead eager's search astray."""
    values = torch.tensor([0.5, -3.0, float("nan"), 2.0, 9.0, 0.1])
    both = torch.tensor(edges)
    check(lambda x, e: (torch.bucketize(x, e), torch.bucketize(x, e, right=True)), values, both)
    check(lambda x, e: torch.bucketize(x, e, out_int32=True), values.nan_to_num().long(), both)


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    check(INDEXING[name], X, AT)


def test_positions_outside_are_never_read() -> None:
    program = lower(lambda x, i: x[i], X, AT)
    _, nest = program.nodes
    assert isinstance(nest, LoopNest)
    assert "max(0, min(" in str(_printed(program))
    with pytest.raises(LeftToEager):
        interpret(program, {}, [X, AT + 2])


def _printed(program: LoopProgram) -> str:
    from jitney.loops.print_program import print_program

    return print_program(program)


def _writes(program: LoopProgram) -> int:
    """How many elements the program stores."""
    total = 0
    for node in program.nodes:
        assert isinstance(node, LoopNest)
        points = 1
        for axis in node.axes:
            points *= int(axis.extent)
        total += points
    return total


def test_a_dead_input_is_written_in_place() -> None:
    def decode(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, new)
        return cache.sum(1)

    program = check(decode, torch.randn(2, 6, 3), torch.randn(2, 1, 3), torch.tensor([2]))
    assert _writes(program) == 2 * 3 + 2 * 3 + 1  # and one check of the position


def test_an_old_value_that_is_read_later_survives() -> None:
    def decode(cache: torch.Tensor, new: torch.Tensor) -> Any:
        old = cache * 1
        view = cache[:, 1:]
        cache[:, 2:4] = new
        return cache.sum(1) + old.sum(1), view.sum(), old

    check(decode, torch.randn(2, 6, 3), torch.randn(2, 2, 3))


def test_slices_written_through_views() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[:, 2:4][:, 0] = y[:, 0]
        x[0].add_(1)
        x += 1
        return x.mean(1) + y.sum(1)

    check(write, torch.randn(2, 6, 3), torch.randn(2, 2, 3))


@pytest.mark.parametrize("dynamic", [None, True])
def test_parts_of_windows_change_others(dynamic: bool | None) -> None:
    def parts(x: torch.Tensor) -> Any:
        new = -x[:, 0].clone(), -x[:1].clone(), -x.diagonal().clone()
        return (
            x.select_scatter(new[0], 1, 1),
            x.slice_scatter(new[1], 0, 2, 3),
            x.diagonal_scatter(new[2]),
        )

    x = torch.arange(1.0, 8.0).unfold(0, 3, 1)
    assert_equal(jitney.compile(parts, dynamic=dynamic)(x), parts(x))


def test_an_operand_in_the_same_storage_forbids_writing_in_place() -> None:
    def shift(x: torch.Tensor) -> torch.Tensor:
        x[1:] = x[:-1].clone()
        return x * 2

    check(shift, torch.randn(5, 3))


def test_unknown_ops_stay_library_calls() -> None:
    program = check(lambda x: x.kthvalue(2).values + x.sort(1).values[:, 0], X, allow_extern=True)
    assert externs(program) == ["aten.kthvalue.default", "aten.sort.default"]


def test_reinterpreting_views_are_copied_out_of_the_workspace() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex((x * 2).view(4, 5, 1).expand(4, 5, 2).contiguous()) * 2

    check(run, X, allow_extern=True)


def test_views_follow_a_base_whose_strides_a_pass_has_changed() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return (x.expand(4, 5) * 2).view(2, 2, 5).transpose(0, 1) + 1

    gm = trace(run, X[:1].clone())
    (product,) = [n for n in gm.graph.nodes if n.target is aten.mul.Tensor]
    (expand,) = product.all_input_nodes
    product.replace_input_with(expand, expand.args[0])
    product.meta["val"] = expand.args[0].meta["val"] * 2
    with gm.graph.inserting_after(product):
        late = gm.graph.call_function(aten.expand.default, (product, [4, 5]))
    late.meta["val"] = product.meta["val"].expand(4, 5)
    product.replace_all_uses_with(late, delete_user_cb=lambda user: user is not late)
    program, constants = lower_graph(gm, CPU)
    verify(program)
    torch.testing.assert_close(interpret(program, constants, [X[:1].clone()])[0], run(X[:1]))


@pytest.mark.parametrize("place", [([3, 2], [4, 1], 1), ([3, 4], [4, 1], 0), ([4], [3], None)])
def test_scatter_by_storage_offset(place: Any) -> None:
    """Of a temporary, whose storage is not its own (a channels-last flatten's gradient)."""

    src = torch.randn(place[0])
    check(lambda x, y: aten.as_strided_scatter(x * 2, y, *place) + 1, torch.randn(3, 4), src)


@pytest.mark.parametrize("place", [((3,), (3, 1)), ((2,), (4, 1)), ((1, 1, 3), (3, 9, 9, 1))])
def test_scatter_by_storage_offset_of_any_number_of_rows(place: Any) -> None:
    """The gradient of a channels-last mean, the batch's size a symbol."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sizes, strides = place
        whole = x.new_zeros(y.shape[0] * 4) + x
        return aten.as_strided_scatter(whole, y, [y.shape[0], *sizes], strides, 0) + 1

    x = torch.randn(1)
    gm = trace(run, x, torch.randn(5, *place[0]), symbolic=True)
    program, constants = lower_graph(gm, CPU)
    verify(program)
    for rows in (5, 7):
        y = torch.randn(rows, *place[0])
        torch.testing.assert_close(interpret(program, constants, [x, y])[0], run(x, y))


def test_scatter_by_storage_offset_into_a_view() -> None:
    """Of a whole temporary, transposed; a part of one runs eager."""
    check(lambda x: aten.as_strided_scatter((x * 2).t(), x[0], [4], [1], 0), torch.randn(3, 4))
    with pytest.raises(Unsupported):
        lower(lambda x: aten.as_strided_scatter((x * 2)[:, 1:], x[0], [5], [1], 0), X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_counts_of_16_bits_are_eagers_to_the_bit(dtype: torch.dtype) -> None:
    """Past the whole numbers that the dtype holds eager rounds twice, by the width of a vector."""

    def far(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        many = torch.arange(2049, 2349, dtype=x.dtype)
        return x * many, torch.arange(0, 90, 0.3, dtype=x.dtype)

    def near(x: torch.Tensor) -> torch.Tensor:
        return x[:100] * torch.arange(6, 206, 2, dtype=x.dtype)

    x = torch.randn(300, generator=torch.Generator().manual_seed(0)).to(dtype)
    for fn in (far, near):
        expected, found = fn(x), jitney.compile(fn)(x)
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b)
    assert externs(lower(far, x)) and not externs(lower(near, x))


def test_a_gpus_graph_that_makes_a_sparse_tensor_runs_eager() -> None:
    """Its kernels find each tensor by one address."""
    gm = trace(lambda x: x.to_sparse() * 2, torch.eye(3))
    assert externs(lower_graph(gm, CPU)[0])
    with pytest.raises(Unsupported, match="sparse"):
        lower_graph(gm, GPU)
