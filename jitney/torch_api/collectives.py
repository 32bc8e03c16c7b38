"""What `torch.distributed` knows of process groups, and its collectives as operators of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import distributed

_AVAILABLE = distributed.is_available()


@dataclass(frozen=True)
class Group:
    """A process group as its collectives see it: the name by which an operator of the graph finds
    it, this process's rank in it, and how many it has."""

    name: str
    rank: int
    size: int


def method_of_groups(name: str) -> Any:
    """The C function of a process group's method; a function that nobody calls where torch was
    built without groups."""
    method = getattr(distributed.ProcessGroup, name) if _AVAILABLE else lambda group: group
    return getattr(method, "__func__", method)  # torch 2.11's pybind11 has a type of its own


def default_group() -> Any:
    """The process group of all processes; None before it is initialized."""
    return distributed.GroupMember.WORLD if _AVAILABLE else None


def default_group_facts() -> Group | None:
    """The `Group` of all processes; None before it is initialized."""
    group = default_group()
    return None if group is None else facts_of(group)


def facts_of(group: Any) -> Group:
    """The `Group` of a process group of torch's."""
    return Group(str(group.group_name), group.rank(), group.size())


def is_group(value: Any) -> bool:
    """Whether it is a process group, or a mesh of devices, each dimension of which has one."""
    kinds = (distributed.ProcessGroup, distributed.DeviceMesh) if _AVAILABLE else ()
    return isinstance(value, kinds)


def is_setting(value: Any) -> bool:
    """Whether it says among whom, or how, a collective is done: a group, a mesh, a reduction."""
    return is_group(value) or (_AVAILABLE and type(value) is distributed.ReduceOp.RedOpType)


def group_of(asked: Any, tag: str = "") -> Any:
    """The process group that a collective is ``asked`` to use: None for that of all processes, one
    itself, a mesh of one dimension, a mesh and a dimension, a name, or a list of ranks. None where
    there is none; what torch raises for others."""
    if asked is None:
        return default_group()
    if isinstance(asked, distributed.ProcessGroup):
        return asked
    if isinstance(asked, distributed.DeviceMesh):
        return asked.get_group()
    if isinstance(asked, str):
        c10d = distributed.distributed_c10d
        return c10d._resolve_process_group(c10d.GroupName(asked))
    if isinstance(asked, list):
        return distributed.distributed_c10d._find_pg_by_ranks_and_tag(tag, asked)
    mesh, dim = asked
    return mesh.get_group(dim)


def is_coalescing(group: Any) -> bool:
    """Whether the collectives of the group are being collected, to begin together."""
    return bool(distributed.distributed_c10d._world.pg_coalesce_state.get(group))


def reduction_named(op: Any) -> str | None:
    """The name by which the operators know a reduction ("sum"); None where they do not."""
    if isinstance(op, str):
        return op.lower()
    return _reductions().get(op) if type(op) is distributed.ReduceOp.RedOpType else None


@cache
def _reductions() -> dict[Any, str]:
    names = "SUM AVG PRODUCT MIN MAX BAND BOR BXOR".split()
    return {getattr(distributed.ReduceOp, name): name.lower() for name in names}


def collective(name: str) -> Callable[..., Any]:
    """The operator that begins a collective, by name ("all_reduce"). Its result is to be passed
    through "wait_tensor"."""
    found: Callable[..., Any] = getattr(torch.ops._c10d_functional, name).default
    return found


def is_collective(function: Any) -> bool:
    """Whether it is one of the operators that `collective` finds."""
    return str(function).startswith("_c10d_functional.")


def rank_inside(group: Any, rank: int) -> int:
    """The rank in a group (None: that of all) of the process that has ``rank`` among all."""
    return rank if group is None else distributed.get_group_rank(group, rank)
