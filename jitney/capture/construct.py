"""Run-time pieces of generated glue: raw construction and raw stores, past users' overrides."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType
from typing import Any

from jitney.errors import CompilerBug

EMPTY = object()
_FEW = 1024
_SET: Any = object.__setattr__


def make_cell(contents: Any) -> CellType:
    """A new closure cell, empty for `EMPTY`."""
    return CellType() if contents is EMPTY else CellType(contents)


def make_function(
    code: CodeType,
    globals_: dict[str, Any],
    name: str,
    qualname: str,
    defaults: tuple[Any, ...] | None,
    kwdefaults: dict[str, Any] | None,
    closure: tuple[CellType, ...],
    state: dict[str, Any] | None,
    annotations: dict[str, Any] | None,
    annotate: FunctionType | None,
) -> FunctionType:
    """A function as MAKE_FUNCTION would make it."""
    function = FunctionType(code, globals_, name, defaults, closure or None)
    function.__qualname__ = qualname
    function.__kwdefaults__ = kwdefaults
    if state:
        function.__dict__.update(state)
    if annotations:
        function.__annotations__ = annotations
    if annotate:
        function.__annotate__ = annotate  # type: ignore[attr-defined]
    return function


def make_ended_generator(name: str, qualified: str) -> Any:
    """A generator with these names that gives nothing more."""

    def nothing() -> Iterator[Any]:
        yield from ()

    generator: Any = nothing()
    generator.close()
    generator.__name__, generator.__qualname__ = name, qualified
    return generator


def make_iterator(function: Any, arguments: tuple[Any, ...], *state: Any) -> Any:
    """An iterator of C code that is somewhere on its way, from what pickling it keeps."""
    made = function(*arguments)
    set_state(made, *state)
    return made


def set_state(iterator: Any, *state: Any) -> None:
    """Takes an iterator of C code to where it was."""
    for part in state:
        if part is not None:
            iterator.__setstate__(part)


def walk(owner: Any, view: Callable[[Any], Any], rest: int, size: int) -> Iterator[Any]:
    """An iterator over what ``view`` shows of a container of ``size`` items, with ``rest`` of them
    to go."""
    iterator = iter(view(owner))
    for _ in range(size - rest):
        next(iterator)
    return iterator


def walk_later(owner: Any, view: Callable[[Any], Any], rest: int, size: int) -> Iterator[Any]:
    """The same over a container that has that size only when it is first asked."""
    if len(owner) != size:
        kinds = (OrderedDict, dict, set, deque)
        yield from disturbed(next(kind for kind in kinds if isinstance(owner, kind)), view)
    yield from walk(owner, view, rest, size)


def disturbed(kind: Any, view: Callable[[Any], Any]) -> Iterator[Any]:
    """An iterator over a container that has changed its size since: it raises what those do."""
    owner = kind()
    fill(owner, {0: 0})
    iterator = iter(view(owner))
    fill(owner, {1: 0})
    return iterator


def make_object(
    cls: type,
    new_args: tuple[Any, ...],
    base: Any,
    state: tuple[tuple[str, Any], ...],
    slots: tuple[tuple[str, Any], ...],
) -> Any:
    """An instance made without ``__init__``: contents first, then attributes."""
    made = c_new(cls)(cls, *new_args)
    if base is not EMPTY:
        fill(made, base)
    if state:
        attributes = made.__dict__
        for name, value in state:
            attributes[name] = value
    for name, value in slots:
        store_attribute(made, name, value)
    return made


def c_base(cls: type) -> type:
    """The class of C code whose ``__new__`` the program's own ones end in."""
    return next(
        b for b in cls.__mro__ if isinstance(b.__dict__.get("__new__"), BuiltinFunctionType)
    )


def c_new(cls: type) -> Any:
    """That ``__new__``: the program's own ones have run already."""
    return c_base(cls).__dict__["__new__"]


def fill(target: Any, contents: Any) -> None:
    """Adds ``contents`` to an empty container, keeping their order."""
    if isinstance(target, dict):
        for key, value in contents.items():
            store_item(target, key, value)
    elif isinstance(target, list):
        list.extend(target, contents)
    elif isinstance(target, set):
        set.update(target, contents)
    elif isinstance(target, deque):
        if isinstance(contents, deque):
            deque.__init__(target, (), contents.maxlen)
        deque.extend(target, contents)
    else:
        raise CompilerBug(f"contents for a {type(target).__name__}")


def replace_contents(target: Any, contents: Any) -> None:
    """Clears a container and fills it again; of a deque that stays as long, only items are set,
    which its iterators do not notice; of a set, members go and come."""
    if isinstance(target, deque) and len(target) == len(contents) <= _FEW:
        for place, value in enumerate(contents):
            deque.__setitem__(target, place, value)
        return
    if isinstance(target, set):  # whose order comes of its history
        kept = {id(value) for value in contents}
        set.difference_update(target, [x for x in set.__iter__(target) if id(x) not in kept])
        set.update(target, contents)
        return
    for kind in (OrderedDict, dict, list, deque):
        if isinstance(target, kind):
            kind.clear(target)  # type: ignore[arg-type]
            break
    fill(target, contents)


def store_item(target: dict[Any, Any], key: Any, value: Any) -> None:
    """``target[key] = value`` past a subclass's ``__setitem__``."""
    kind = OrderedDict if isinstance(target, OrderedDict) else dict
    kind.__setitem__(target, key, value)


def delete_item(target: dict[Any, Any], key: Any) -> None:
    """``del target[key]`` past a subclass's ``__delitem__``."""
    kind = OrderedDict if isinstance(target, OrderedDict) else dict
    kind.__delitem__(target, key)


def store_attribute(target: Any, name: str, value: Any) -> None:
    """A store through C descriptors or into ``__dict__``, past a class's ``__setattr__``."""
    try:
        _SET(target, name, value)
    except TypeError:  # a C type with a __setattr__ of its own
        kind: Any = type(target)
        kind.__setattr__(target, name, value)


def store_cell(cell: CellType, contents: Any) -> None:
    """Sets or, with `EMPTY`, empties a closure cell."""
    if contents is not EMPTY:
        cell.cell_contents = contents
        return
    try:
        del cell.cell_contents
    except ValueError:  # empty already
        return
