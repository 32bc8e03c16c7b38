"""Guards that exist only once the backend ran: what was assumed of symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.cached_sizes import SizedCall
from jitney.capture.guard import Guard, Kind
from jitney.capture.result import Capture
from jitney.capture.source import Fixed, Function, SizeOf, Source
from jitney.capture.symbols import LARGEST_FLOAT
from jitney.errors import CompilerBug, Unsupported


def guards_of_shapes(capture: Capture) -> tuple[Guard, ...]:
    """What the ShapeEnv assumed, as expressions over the sizes, ints and floats symbols stand for.

    A symbol's source is the first input extent that is the symbol itself; every other symbolic
    extent must equal its expression (two sizes that share a symbol are equal).
    """
    if capture.shape_env is None:
        return ()
    sources: dict[str, Source] = {}
    others: list[tuple[Source, Any]] = []
    extents = [e for i in capture.inputs for e in _symbolic_extents(i.source, i.example)]
    for source, value in dict([*capture.symbolic, *extents]).items():
        name = torch_api.symbol_name(value)
        if name is None or name in sources:
            others.append((source, value))
        else:
            sources[name] = source
    guards = []
    assumed = torch_api.shape_assumptions(capture.shape_env, sources, LARGEST_FLOAT)
    hidden = {*_sizes_of_storages(capture)} - {*sources}
    for text, names, reason in assumed:
        if not hidden.isdisjoint(names):  # `fill_diagonal_` of an input that shares its storage
            raise Unsupported("storage-size", "what is assumed of the size of an input's storage")
        guards.append(_guard(text, names, sources, {}, reason))
    for source, value in others:
        text, names = torch_api.expression_text(value)
        guards.append(_guard(f"({text}) == extent", names, sources, {"extent": source}, ""))
    return (*guards, *[_of_cache(call, sources) for call in capture.sized_calls])


def _of_cache(call: SizedCall, sources: dict[str, Source]) -> Guard:
    """What a function under lru_cache was taken to return for symbolic sizes, it returns."""
    texts = [torch_api.expression_text(size) for size in call.sizes]
    text = f"cached({', '.join([text for text, _ in texts])})"
    names = tuple(dict.fromkeys([name for _, names in texts for name in names]))
    check = Fixed(replace(call, sizes=()))
    guard = _guard(text, names, sources, {"cached": check}, call.function.__qualname__)
    return replace(guard, kind=Kind.CACHED)


def _guard(
    text: str,
    names: tuple[str, ...],
    sources: dict[str, Source],
    more: dict[str, Source],
    reason: str,
) -> Guard:
    missing = [name for name in names if name not in sources]
    if missing:
        raise CompilerBug(f"nothing gives the size {missing[0]} in {text}")
    symbols = {name: sources[name] for name in names}
    return Guard(Kind.EXPRESSION, Function(), (text, {**symbols, **more}), reason)


def _sizes_of_storages(capture: Capture) -> Iterator[str]:
    """The symbols in how large the inputs' storages are."""
    examples = [given.example for given in capture.inputs]
    for example in [e for e in examples if isinstance(e, torch.Tensor)]:
        if example.layout is torch.strided:
            size: Any = example.untyped_storage().nbytes()
            if isinstance(size, torch.SymInt):
                yield from torch_api.expression_text(size)[1]


def _symbolic_extents(source: Source, example: Any) -> Iterator[tuple[Source, Any]]:
    if isinstance(example, torch.SymInt | torch.SymFloat):
        yield source, example
    elif isinstance(example, torch.Tensor) and example.layout is torch.strided:
        for what, extents in (("size", example.size()), ("stride", example.stride())):
            for dim, extent in enumerate(extents):
                if isinstance(extent, torch.SymInt):
                    yield SizeOf(source, what, dim), extent
        offset = example.storage_offset()
        if isinstance(offset, torch.SymInt):
            yield SizeOf(source, "storage_offset"), offset
