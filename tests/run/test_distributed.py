"""Training on several processes: gradients are averaged, parameters shared out, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import jitney

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)
PROCESSES = 2


class Blocks(nn.Module):
    """Two residual blocks, with a buffer that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.norm(x)


def in_parallel(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def compiled_by_block(model: nn.Module) -> nn.Module:
    for place, block in enumerate(model.blocks):
        model.blocks[place] = jitney.compile(block)
    return model


#: What is compared: eager, and orders of compiling and wrapping.
WAYS: dict[str, tuple[Callable[[nn.Module], nn.Module], ...]] = {
    "parallel": (
        in_parallel,
        lambda model: jitney.compile(in_parallel(model)),
        lambda model: in_parallel(jitney.compile(model)),
        lambda model: in_parallel(compiled_by_block(model)),
    ),
    "sharded": (
        sharded,
        lambda model: jitney.compile(sharded(model)),
        lambda model: sharded(compiled_by_block(model)),
    ),
}


def train(model: nn.Module, rank: int) -> list[torch.Tensor]:
    """Losses of three steps and the parameters after them; each process has its own data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(3):
        loss = model(torch.randn(4, 8, generator=data)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    whole = [getattr(p, "full_tensor", p.detach)() for p in model.parameters()]
    return [*losses, *whole, *(b.clone() for b in model.buffers())]


def work(rank: int, address: str, folder: str) -> None:
    """What one process does: trains in all ways, from the same parameters."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=PROCESSES
    )
    torch.manual_seed(0)
    model = Blocks()
    seen = {
        name: [train(way(copy.deepcopy(model)), rank) for way in ways]
        for name, ways in WAYS.items()
    }
    torch.save(seen, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_training_on_several_processes(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/store"  # a free port may be taken by the time it is used
    torch.multiprocessing.spawn(work, (address, str(tmp_path)), nprocs=PROCESSES)
    every = [torch.load(tmp_path / f"{rank}.pt") for rank in range(PROCESSES)]
    for name in WAYS:
        for eager, *others in (seen[name] for seen in every):
            for other in others:
                torch.testing.assert_close(other, eager, rtol=1e-4, atol=1e-5)
        parameters = [seen[name][0][3:-3] for seen in every]
        assert all(map(torch.equal, *parameters))
    losses = [seen["parallel"][0][0] for seen in every]
    assert losses[0] != losses[1]
