"""All that can be seen of a world, as data by which two worlds are compared."""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import re
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

ADDRESS = re.compile(r"0x[0-9a-f]+")
_SEQUENCES = (list, tuple, collections.deque)
_QUIET = ("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__",
          "__firstlineno__", "__static_attributes__", "__annotate_func__",
          "__annotations_cache__")  # fmt: skip


class Snapshot:
    """Values as plain data, an object met again as a number. ``last``: iterators may be asked for
    what they would still give. No code of the world's runs."""

    def __init__(self, module: str, last: bool) -> None:
        self.module, self.last = module, last
        self.met: dict[int, int] = {}
        self.alive: list[Any] = []

    def names(self, names: dict[str, Any]) -> list[Any]:
        """Of each name, what it stands for."""
        return [(name, self.of(value)) for name, value in names.items()]

    def error(self, error: BaseException | None) -> Any:
        """What is compared of an error."""
        if error is None:
            return None
        text = str(error).split("\n")[0] if type(error).__module__ == "builtins" else ""
        return type(error).__name__, ADDRESS.sub("0x", text)

    def of(self, value: Any) -> Any:
        """The value as data."""
        kind = type(value)
        if kind in (int, bool, float, complex, str, bytes, type(None), type(...), torch.dtype):
            return kind.__name__, ADDRESS.sub("0x", repr(value))
        if isinstance(value, np.generic):
            return kind.__name__, repr(value)
        if kind in (slice, range):
            return kind.__name__, ADDRESS.sub("0x", repr(value))
        if kind in (tuple, torch.Size):  # which of equal ones it is, is no promise
            return kind.__name__, [self.of(part) for part in value]
        if id(value) in self.met:
            return "again", self.met[id(value)]
        self.met[id(value)] = len(self.met)
        self.alive.append(value)
        return kind.__name__, *self._whole(value, kind)

    def _whole(self, value: Any, kind: type) -> Iterator[Any]:
        if isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, torch.Tensor):
            yield from self._tensor(value)
        elif kind is types.FunctionType:
            yield value.__name__, self.of(value.__defaults__), self.of(value.__kwdefaults__)
            yield [self.of(c.cell_contents) for c in value.__closure__ or () if not _is_empty(c)]
            yield self.of(value.__dict__)
        elif kind is types.MethodType:
            yield self.of(value.__func__), self.of(value.__self__)
        elif isinstance(value, functools.partial):
            yield self.of(value.func), self.of(value.args), self.of(value.keywords)
        elif kind in (staticmethod, classmethod):
            yield self.of(value.__func__)
        else:
            yield from self._contents(value)
            yield from self._attributes(value, kind)

    def _class(self, cls: type) -> Iterator[Any]:
        yield cls.__name__
        own = type.__getattribute__(cls, "__dict__")
        if type.__getattribute__(cls, "__module__") == self.module:
            yield [self.of(base) for base in type.__getattribute__(cls, "__mro__")]
            yield [(name, self.of(part)) for name, part in own.items() if name not in _QUIET]

    def _tensor(self, tensor: torch.Tensor) -> Iterator[Any]:
        memory = self.met.setdefault(tensor.untyped_storage()._cdata, len(self.met))
        yield str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, tensor.is_leaf, memory
        yield tensor.stride() if tensor.numel() > 1 else (), repr(tensor.detach().tolist())
        yield self.of(tensor.grad) if tensor.is_leaf else None
        yield [(name, self.of(part)) for name, part in tensor.__dict__.items()]

    def _contents(self, value: Any) -> Iterator[Any]:
        base = next((b for b in _SEQUENCES if isinstance(value, b)), None)
        if base is not None:
            yield [self.of(part) for part in base.__iter__(value)]
        elif isinstance(value, dict):
            ordered = isinstance(value, collections.OrderedDict)
            keys = (collections.OrderedDict if ordered else dict).__iter__(value)
            yield [(self.of(key), self.of(dict.__getitem__(value, key))) for key in keys]
            yield self.of(getattr(value, "default_factory", None))
        elif isinstance(value, set | frozenset):
            yield sorted(str(self.of(part)) for part in set(value))
        elif isinstance(value, np.ndarray):
            yield str(value.dtype), repr(value.tolist())
        elif isinstance(value, int | float | str | np.generic | types.MappingProxyType):
            yield ADDRESS.sub("0x", str(value) if isinstance(value, np.generic) else "")
            yield int.__repr__(value) if isinstance(value, int) else ""
            yield float.__repr__(value) if isinstance(value, float) else ""
        elif isinstance(value, contextvars.ContextVar):
            yield self.of(value.get())
        elif isinstance(value, weakref.ref):
            yield self.of(value())
        elif isinstance(value, Iterator) and self.last:
            yield self._left(value)

    def _left(self, iterator: Iterator[Any]) -> Any:
        try:
            return [self.of(part) for part in itertools.islice(iterator, 4)]
        except Exception as error:  # noqa: BLE001 - compared
            return self.error(error)

    def _attributes(self, value: Any, kind: type) -> Iterator[Any]:
        for cls in type.__getattribute__(kind, "__mro__"):
            slots = type.__getattribute__(cls, "__dict__").get("__slots__", ())
            for name in slots if isinstance(slots, tuple) else ():
                slot = type.__getattribute__(cls, "__dict__").get(name)
                if type(slot) is types.MemberDescriptorType:
                    yield name, self._slot(slot, value)
        try:
            own = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            return
        if isinstance(own, dict) and kind is not types.ModuleType:
            yield [(name, self.of(part)) for name, part in own.items()]

    def _slot(self, slot: Any, value: Any) -> Any:
        try:
            return self.of(slot.__get__(value))
        except AttributeError:
            return "absent"


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises
    except ValueError:
        return True
    return False


def difference(path: str, ours: Any, theirs: Any) -> str:
    """The first place at which they differ, and what is there."""
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        if ours and theirs and isinstance(ours[0], str) and ours[0] == theirs[0]:
            path, ours, theirs = f"{path}.{ours[0]}", ours[1:], theirs[1:]
        for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return difference(f"{path}.{number}", a, b)
        ours, theirs = ours[len(theirs) :], theirs[len(ours) :]
    return f"{path}: {str(ours)[:200]} is not {str(theirs)[:200]}"
