"""Everything a program can see of its state, as data that two runs can be compared by."""

from __future__ import annotations

import collections
import enum
import itertools
import math
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

ADDRESS = re.compile(r"0x[0-9a-f]+")
ATOMS = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, torch.dtype)
ITERATORS = (
    *(types.GeneratorType, enumerate, zip, map, filter, type(iter([])), type(iter(()))),
    *(cls for cls in vars(itertools).values() if isinstance(cls, type)),
)
#: Whose objects are what their text says.
TELLING = ("builtins", "datetime", "decimal", "fractions", "re")
#: Relative error of a compiled graph by dtype; None where capture alone is judged.
ROUNDING = {torch.bfloat16: 0.05, torch.float32: 1e-4, torch.float64: 1e-4}


@dataclass(frozen=True)
class Seen:
    """One fact: where it was seen, and the text or the numbers."""

    path: str
    fact: Any


class Visitor:
    """Walks objects from names down; each object is numbered where it is first met."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._kept: list[Any] = []
        self._facts: list[Seen] = []

    def visit(self, names: dict[str, Any]) -> list[Seen]:
        """Facts of every object that the names lead to."""
        for name, value in names.items():
            self._walk(name, value)
        return self._facts

    def _walk(self, path: str, value: Any) -> None:
        if type(value) in ATOMS:
            self._facts.append(Seen(path, f"{type(value).__name__} {value!r}"))
            return
        if id(value) in self._numbers:
            self._facts.append(Seen(path, f"the same as object {self._numbers[id(value)]}"))
            return
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        self._facts.append(Seen(path, f"{type(value).__name__} object {len(self._kept)}"))
        for name, part in self._parts(path, value):
            self._walk(f"{path}{name}", part)

    def _parts(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """What an object consists of, by how it is reached."""
        if isinstance(value, torch.Tensor):
            self._facts += [Seen(path, fact) for fact in self._tensor_facts(value)]
            yield ".grad", value.grad if value.is_leaf else None
        elif isinstance(value, types.FunctionType):
            yield ".__name__", value.__name__
            for name in ("__defaults__", "__kwdefaults__"):
                yield f".{name}", getattr(value, name)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
                yield f" cell {name}", contents(cell)
        elif isinstance(value, ITERATORS):
            yield " left", left_in(value)
        elif isinstance(value, type | types.ModuleType | torch.Generator):
            if getattr(value, "__module__", "") != "random_program":
                yield " name", getattr(value, "__name__", "")
                return
        elif isinstance(value, dict):
            kind = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
            for i, key in enumerate(kind.__iter__(value)):
                yield f" key {i}", key
                yield f"[{key!r}]", dict.__getitem__(value, key)
        elif isinstance(value, set | frozenset):
            yield " members", sorted(map(repr, value))
        elif isinstance(value, list | tuple | collections.deque):
            for i in range(len(value)):
                yield f"[{i}]", type(value).__mro__[-2].__getitem__(value, i)  # not an override
        elif isinstance(value, types.MethodType):
            yield ".__self__", value.__self__
            yield ".__func__", value.__func__
        elif isinstance(value, enum.Enum):
            yield ".value", value.value
        elif type(value).__module__ in TELLING:
            yield " text", ADDRESS.sub("0x", repr(value))
        yield from attributes(value)

    def _tensor_facts(self, tensor: torch.Tensor) -> Iterator[Any]:
        sizes, strides = tensor.shape, tensor.stride()
        memory = tensor.untyped_storage().data_ptr()
        number = self._memory.setdefault(memory, len(self._memory))
        yield f"{tensor.dtype} {tuple(sizes)} leaf {tensor.is_leaf} {tensor.requires_grad}"
        yield f"strides {[s for n, s in zip(sizes, strides) if n > 1]} of memory {number}"
        if tensor.numel():
            yield f"offset {tensor.storage_offset()}"
        yield tensor.detach().clone()


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What is in an object's dict and slots, but for what Python keeps there for itself."""
    for cls in type(value).__mro__:
        for name in cls.__dict__.get("__slots__", ()):
            yield f".{name}", getattr(value, name, "absent")
    for name, part in dict(getattr(value, "__dict__", {})).items():
        if not name.startswith("__"):
            yield f".{name}", part


def contents(cell: types.CellType) -> Any:
    """What is in it, or a word where nothing is."""
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def left_in(iterator: Iterator[Any]) -> list[Any]:
    """What an iterator would still give, taken from it, and the error that ends it."""
    found = []
    try:
        found.extend(itertools.islice(iterator, 9))
    except Exception as error:  # noqa: BLE001 - compared as any other value
        found.append(describe(error))
    return found


def describe(error: BaseException | None) -> str:
    """Type and text, and those of the errors it was raised from or in the handling of."""
    if error is None:
        return "none"
    text = ADDRESS.sub("0x", f"{type(error).__name__}({error})")
    return f"{text} from {describe(error.__cause__)} in {describe(error.__context__)}"


def difference(ours: list[Seen], eager: list[Seen], bitwise: bool) -> str:
    """The first fact that is another; empty where there is none."""
    for mine, right in itertools.zip_longest(ours, eager, fillvalue=Seen("", "nothing")):
        if mine.path != right.path:
            return f"{mine.path or right.path}: ours {mine}, eager {right}"
        if not same(mine.fact, right.fact, bitwise):
            return f"{mine.path}: ours {mine.fact}, eager {right.fact}"
    return ""


def same(mine: Any, right: Any, bitwise: bool) -> bool:
    """Equal texts; equal numbers, NaN like NaN, to rounding unless bitwise."""
    if not isinstance(mine, torch.Tensor) or not isinstance(right, torch.Tensor):
        return type(mine) is type(right) and (mine == right or close(mine, right, bitwise))
    tolerance = 0.0 if bitwise else ROUNDING.get(right.dtype, 0.0)
    if mine.dtype != right.dtype or mine.shape != right.shape:
        return False
    scale = right.abs().max().item() if right.numel() and right.dtype != torch.bool else 0.0
    allowed = tolerance * scale if math.isfinite(scale) else 0.0
    return torch.allclose(mine, right, tolerance, allowed, equal_nan=True)


def close(mine: str, right: str, bitwise: bool) -> bool:
    """Whether two texts of one float differ by rounding alone."""
    if bitwise or not (mine.startswith("float ") and right.startswith("float ")):
        return False
    return math.isclose(float(mine[6:]), float(right[6:]), rel_tol=1e-4, abs_tol=1e-5)
