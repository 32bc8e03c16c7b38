"""What capture makes of `torch.distributed`: ranks and groups are constants with a guard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

import jitney
from jitney.events import log

if not distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

X = torch.ones(4, 2)


def begin(rank: int, size: int) -> None:
    """As if this were one of ``size`` processes; collectives do nothing."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)


@pytest.fixture
def one_of_four() -> Iterator[None]:
    begin(1, 4)
    yield
    distributed.destroy_process_group()


def breaks() -> list[str]:
    return [e.data["reason"] for e in log.events("graph_break")]


def test_another_rank_is_noticed() -> None:
    def f(x: Tensor) -> Tensor:
        return x * distributed.get_rank() + distributed.get_world_size()

    compiled = jitney.compile(f, fullgraph=True)
    for rank, size in ((1, 4), (2, 4), (2, 8), (1, 4)):
        begin(rank, size)
        try:
            assert compiled(X)[0, 0] == rank + size
        finally:
            distributed.destroy_process_group()
    with pytest.raises(ValueError, match="has not been initialized"):
        jitney.compile(f)(X)


def test_another_group_of_all_is_noticed() -> None:
    def f(x: Tensor) -> Tensor:
        group = distributed.group.WORLD
        return x + 1 if group is None else x * group.size() + group.rank()

    compiled = jitney.compile(f, fullgraph=True)
    assert compiled(X)[0, 0] == 2
    for rank, size in ((1, 4), (2, 8)):
        begin(rank, size)
        try:
            assert compiled(X)[0, 0] == size + rank
        finally:
            distributed.destroy_process_group()
    assert compiled(X)[0, 0] == 2


def test_groups_that_the_program_holds(one_of_four: None) -> None:
    def f(x: Tensor, group: Any) -> Tensor:
        wide = functional.all_gather_tensor(x, 1, group)
        told = distributed.get_rank(group) * 10 + distributed.get_world_size(group)
        return x.new_full(wide.shape, told)

    compiled = jitney.compile(f, fullgraph=True)
    for ranks in ([0, 1], [1, 2, 3], [0, 1, 2, 3], [0, 1]):
        group = distributed.new_group(ranks)
        told = 10 * ranks.index(1) + len(ranks)
        assert torch.equal(compiled(X, group), torch.full((4, 2 * len(ranks)), float(told)))
        y = jitney.compile(lambda x, g=group: g.rank() * x + g.size())(X)
        assert y[0, 0] == ranks.index(1) + len(ranks)


def test_meshes_of_devices(one_of_four: None) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))

    def f(x: Tensor, mesh: DeviceMesh, dim: int) -> Tensor:
        whole = functional.all_gather_tensor(x, 0, (mesh, dim))
        whole = functional.all_gather_tensor(whole, 0, mesh.get_group("model"))
        rank = mesh.get_local_rank(dim)
        return whole.new_full((whole.shape[0], mesh.size(), 1 + rank), 2.0)

    compiled = jitney.compile(f, fullgraph=True)
    assert compiled(X, mesh, 0).shape == f(X, mesh, 0).shape == (16, 4, 1)
    assert compiled(X, mesh, 1).shape == f(X, mesh, 1).shape == (16, 4, 2)


def test_one_that_is_waited_for_by_the_program_runs_eager(one_of_four: None) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        distributed.all_reduce(y, async_op=True).wait()
        return y + 1

    log.clear()
    assert torch.equal(jitney.compile(f)(X), f(X))
    assert breaks()[0] == "all_reduce is not captured: it is waited for by the program"


def test_one_that_writes_beside_gradients_runs_eager(one_of_four: None) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        distributed.all_reduce(y)
        return y + 1

    x = X.clone().requires_grad_()
    log.clear()
    jitney.compile(f)(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))  # type: ignore[arg-type]
    assert "requires grad" in breaks()[0]
    log.clear()
    with torch.no_grad():
        jitney.compile(f)(x)
    assert not breaks()


@pytest.mark.parametrize("shape", [(3,), (5, 2)])
def test_shapes_that_do_not_fit_are_refused_by_eager(
    one_of_four: None, shape: tuple[int, ...]
) -> None:
    def f(x: Tensor, into: Tensor) -> Tensor:
        distributed.all_gather_into_tensor(into, x)
        return into + 1

    errors = []
    log.clear()
    for function in (f, jitney.compile(f)):
        with pytest.raises(RuntimeError) as caught:
            function(X, torch.zeros(shape))
        errors.append(str(caught.value))
    assert errors[0] == errors[1] and f"{shape} is not 4 of (4, 2)" in breaks()[0]


def test_groups_made_in_the_function_are_eager_s(one_of_four: None) -> None:
    def f(x: Tensor) -> Tensor:
        return functional.all_reduce(x, "sum", distributed.new_group([0, 1])) + 1

    assert torch.equal(jitney.compile(f)(X), X + 1)


def exchange(x: Tensor) -> Tensor:
    output = torch.zeros(4, 2)
    distributed.all_to_all_single(output, x[:, :1].contiguous())
    return output


@pytest.mark.parametrize("refused", [exchange, distributed.all_reduce])
def test_one_that_runs_eager_does_so_once(one_of_four: None, refused: Any) -> None:
    """What cannot be captured is not in the graph before the break too."""
    with torch.inference_mode(refused is not exchange):
        x = X.clone()
    compiled = jitney.compile(lambda x: refused(x + 0 if refused is exchange else x))
    with torch.profiler.profile() as profile:
        compiled(x)
    begun = [e.count for e in profile.key_averages() if e.key.startswith("c10d::all")]
    assert begun == [1] and len(breaks()) >= 1


def twice(x: Tensor, group: Any) -> None:
    distributed.broadcast(x, src=0, group=group, group_src=0)


def outside(x: Tensor, group: Any) -> None:
    distributed.broadcast(x, 3, group)


def tuples(x: Tensor, group: Any) -> None:
    distributed.all_gather((x.clone(), x.clone()), x, group)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [twice, outside, tuples])
def test_what_eager_refuses(one_of_four: None, function: Any) -> None:
    group, errors = distributed.new_group([0, 1]), []
    for call in (function, jitney.compile(function)):
        with pytest.raises((TypeError, ValueError)) as caught:
            call(X.clone(), group)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
