"""Python text that reaches objects by their sources, each shared prefix walked once.

The guard check and the glue are both straight-line functions of a frame's inputs; this writer
gives them the statements that fetch a source and the names of the constants they close over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

from jitney.capture.c_methods import slot_of
from jitney.capture.source import (
    Attr,
    BoundFrom,
    CellContents,
    Computed,
    DictItem,
    DictKey,
    DictValue,
    Fixed,
    Function,
    Item,
    Local,
    ModuleOf,
    Referent,
    SizeOf,
    Source,
    TypeLookup,
    dict_key,
    dict_value,
    item_at,
    stored_item,
    type_lookup,
)
from jitney.errors import CompilerBug

FUNCTION = "function"  # first parameter of every generated function: the frame's function object


def frame_locals(code: CodeType) -> tuple[str, ...]:
    """Names bound at entry, in the order in which generated functions take their values:
    positional, keyword-only, ``*args``, ``**kwargs``."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]


class Writer:
    """Collects statements of one generated function and the constants it closes over.

    ``parameters``: names of the frame's locals, which become ``a0, a1, …``; ``exact``: sources
    whose type a guard pins to a built-in, so that plain subscripts are C access; ``bound``:
    sources that need no fetching, with the expression that holds them.
    """

    def __init__(
        self,
        parameters: Sequence[str],
        *,
        exact: Mapping[Source, type] | None = None,
        bound: Mapping[Source, str] | None = None,
    ) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.names: dict[Source, str] = {Function(): FUNCTION}
        self.parameters = [f"a{i}" for i in range(len(parameters))]
        for name, parameter in zip(parameters, self.parameters):
            self.names[Local(name)] = parameter
        self.names.update(bound or {})
        self._exact = exact or {}
        self._constant_names: dict[int, str] = {}
        self._fresh = 0

    def fresh(self) -> str:
        """A new name for a value of the generated function."""
        self._fresh += 1
        return f"v{self._fresh}"

    def constant(self, value: Any) -> str:
        """An expression for ``value``: a literal where it is exact, else a closed-over name."""
        return self._literal(value) or self.reference(value)

    def _literal(self, value: Any) -> str | None:
        if value is None or value is True or value is False:
            return repr(value)
        if type(value) is int and abs(value) < 1 << 62:
            return repr(value)
        if type(value) is str and value.isascii() and value.isidentifier():
            return repr(value)
        return None

    def reference(self, value: Any) -> str:
        """A closed-over name for the object ``value`` itself."""
        name = self._constant_names.get(id(value))
        if name is None:
            name = self._constant_names[id(value)] = f"k{len(self.constants)}"
            self.constants[name] = value
        return name

    def fetch(self, source: Source) -> str:
        """The name that holds what is at ``source``, after statements that get it there."""
        name = self.names.get(source)
        if name is None:
            expression = self._expression(source)
            name = self.fresh()
            self.lines.append(f"{name} = {expression}")
            self.names[source] = name
        return name

    def _expression(self, source: Source) -> str:
        match source:
            case Fixed(value=value):
                return self.constant(value)
            case Referent(base=base):
                return f"{self.fetch(base)}()"
            case ModuleOf(name=name):
                return f"{self.constant(sys.modules)}[{name!r}]"
            case Attr(base=base, name=name):
                if not name.isidentifier():
                    return f"getattr({self.fetch(base)}, {name!r})"
                return f"{self.fetch(base)}.{name}"
            case DictItem(base=base, key=key):
                if self._is_plain_dict(base):
                    return f"{self.fetch(base)}[{self.constant(key)}]"
                return f"{self.constant(stored_item)}({self.fetch(base)}, {self.constant(key)})"
            case DictKey(base=base, position=position):
                return f"{self.constant(dict_key)}({self.fetch(base)}, {position})"
            case DictValue(base=base, position=position):
                return f"{self.constant(dict_value)}({self.fetch(base)}, {position})"
            case Item(base=base, index=index):
                if self._exact.get(base) in (list, tuple) or self._is_closure(base):
                    return f"{self.fetch(base)}[{index}]"
                return f"{self.constant(item_at)}({self.fetch(base)}, {index})"
            case CellContents(base=base):
                return f"{self.fetch(base)}.cell_contents"
            case BoundFrom(base=base):
                return f"{self.constant(slot_of)}({self.fetch(base)})"
            case TypeLookup(base=base, name=name):
                return f"{self.constant(type_lookup)}({self.fetch(base)}, {name!r})"
            case SizeOf(base=base, what=what, dim=dim):
                argument = "" if what == "storage_offset" else str(dim)
                return f"{self.fetch(base)}.{what}({argument})"
            case Computed(symbols=symbols):
                numbers = ", ".join([self.fetch(where) for _, where in symbols])
                return f"{self.reference(source)}.of({numbers})"
        raise CompilerBug(f"no code reaches {source!r}")

    def _is_plain_dict(self, base: Source) -> bool:
        if self._exact.get(base) is dict:
            return True
        return isinstance(base, Attr) and base.name in ("__dict__", "__globals__")

    def _is_closure(self, base: Source) -> bool:
        return isinstance(base, Attr) and base.name == "__closure__"


def build_function(
    name: str,
    parameters: Iterable[str],
    body: Iterable[str],
    constants: Mapping[str, Any],
    *,
    filename: str,
) -> FunctionType:
    """Executes ``def name(*parameters): body`` with ``constants`` as its globals."""
    text = f"def {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in body)
    namespace = dict(constants)
    exec(compile(text, filename, "exec"), namespace)
    function: FunctionType = namespace[name]
    return function
