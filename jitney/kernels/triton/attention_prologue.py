"""What programs of an attention begin with: which head is theirs, and a nest before it, solved for
the one element that they need."""

from __future__ import annotations

from dataclasses import dataclass

from jitney.loops.index import Atom, Index, Value, index
from jitney.loops.invert_index import invert_index
from jitney.loops.ir import Attention, Let, LoopNest, Store
from jitney.loops.visit import Renaming, stores


@dataclass(frozen=True)
class Prologue:
    """A nest's statements for one head's point: ``lets``, then the store of one element."""

    lets: tuple[Let, ...]
    store: Store


def indices_of_head(node: Attention) -> tuple[list[str], dict[Atom, str]]:
    """Lines that take ``head``, the number of a program, apart into an index of each batch axis,
    and how these are called; the last axis varies fastest."""
    names: dict[Atom, str] = {}
    lines, stride = ["head = tl.program_id(0)"], 1
    for number, axis in reversed(list(enumerate(node.batch))):
        names[axis] = f"b{number}"
        lines.append(f"{names[axis]} = (head // {stride}) % {int(axis.extent)}")
        stride *= int(axis.extent)
    return lines, names


def query_prologue(nest: LoopNest, node: Attention) -> Prologue | None:
    """The query's element at ``node.batch`` and ``node.d``."""
    return _solved(nest, node.q.index.substitute({node.s: index(0)}))


def key_prologue(nest: LoopNest, node: Attention) -> Prologue | None:
    """The new key's element at ``node.batch`` and ``node.d``, stored at `key_position`."""
    position = key_position(nest, node)
    if position is None:
        return None
    return _solved(nest, node.k.index.substitute({node.t: index(position)}))


def key_position(nest: LoopNest, node: Attention) -> Value | None:
    """The number that says which position of the cache the nest's store is at."""
    made = stores(nest.body)
    along = node.k.index.coefficient(node.t)
    found = [a for s in made for a in s.index.atoms() if isinstance(a, Value)]
    if len(made) != 1 or len(found) != 1 or made[0].index.coefficient(found[0]) != along:
        return None
    return found[0]


def _solved(nest: LoopNest, where: Index) -> Prologue | None:
    """The nest's statements at the point that stores the element ``where``."""
    *lets, last = nest.body
    if not isinstance(last, Store) or last.mode != "set" or last.mask is not None:
        return None
    if not all(isinstance(s, Let) for s in lets):
        return None
    solved = invert_index(last.index, nest.axes, where)
    if solved is None:
        return None
    body = Renaming(dict(solved)).block(nest.body)
    store = body[-1]
    assert isinstance(store, Store)
    if store.index != where:
        return None
    return Prologue(tuple(s for s in body if isinstance(s, Let)), store)
