"""``copy.copy`` of plain objects; ``copy.deepcopy`` of these, of constants and of lists, dicts,
tuples and sets."""

from __future__ import annotations

import copyreg
import enum
import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import callbacks
from jitney.capture.attributes import dict_get, generic_get
from jitney.capture.class_flags import is_heap_type, is_python
from jitney.capture.finalizers import refuse_finalizer
from jitney.capture.forced import forced
from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.lookups import look_up
from jitney.capture.symbols import SYMBOLS

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: Which `copy` gives back as they are.
_ATOMIC = (
    int, float, bool, complex, bytes, str, type(None), type(Ellipsis), type(NotImplemented), range,
    type, types.FunctionType, types.BuiltinFunctionType, types.CodeType, torch.dtype, *SYMBOLS,
)  # fmt: skip
#: What a class or an object may have to say of how it is copied, or what its attributes are.
_HOOKS = (
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__",
    "__getnewargs_ex__", "__getattr__", "__new__",
)  # fmt: skip


def call_deepcopy(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures a call of ``copy.deepcopy``."""
    if kwargs or len(args) != 1:
        raise BreakCapture("deepcopy", "deepcopy is called with a memo")
    copier = _Copier(interpreter)
    made = copier.copy(args[0])
    copier.guard_distinct()
    return made


def call_copy(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures a call of ``copy.copy``: of a plain object here, of others as it is written."""
    values = forced(interpreter, args)
    if kwargs or len(values) != 1 or not _is_plain(interpreter, values[0], "__copy__"):
        link = "push" if site is not None else None
        return interpreter.call_python(function, tuple(values), kwargs, link)
    made = _new(interpreter, values[0], "__copy__")
    _namespace(made).update(_namespace_in(interpreter, values[0]))
    return made


class _Copier:
    """One call: what is met twice is copied once."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._made: dict[int, tuple[Any, Any]] = {}  # (original, copy) by the original's id

    def copy(self, value: Any) -> Any:
        value = self._interpreter.world.force(value)
        kind = type(value)
        if kind in _ATOMIC:
            return value
        if isinstance(value, type) and type(value) in (type, enum.EnumMeta):
            return value
        if isinstance(value, enum.Enum) and kind.__deepcopy__ is enum.Enum.__deepcopy__:
            return value
        known = self._made.get(id(value))
        if known is not None:
            return known[1]
        if kind is list:
            made = self._keep(value, [])
            made.extend(self._all(value))
            return made
        if kind is dict:
            made = self._keep(value, {})
            callbacks.refuse_python(self._interpreter, value.keys(), callbacks.HASHES)
            for key, item in list(value.items()):
                made[self.copy(key)] = self.copy(item)
            return made
        if kind is set:
            callbacks.refuse_python(self._interpreter, value, callbacks.HASHES)
            return self._keep(value, set(self._all(value)))
        if kind is tuple:
            return self._tuple(value)
        return self._object(value, kind)

    def guard_distinct(self) -> None:
        """What was met once is not met twice in later calls."""
        world = self._interpreter.world
        found = (world.source_of(original) for original, _ in self._made.values())
        sources = tuple([source for source in found if source is not None])
        if len(sources) > 1:
            world.guard(Kind.DISTINCT, sources[0], sources, sources)

    def _keep(self, value: Any, made: Any) -> Any:
        self._made[id(value)] = (value, made)
        return made

    def _all(self, values: Any) -> list[Any]:
        return [self.copy(item) for item in list(values)]

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        items = self._all(value)
        known = self._made.get(id(value))
        if known is not None:  # it holds itself
            return known[1]
        if all(a is b for a, b in zip(value, items, strict=True)):
            return value
        return self._keep(value, tuple(items))

    def _object(self, value: Any, kind: type) -> Any:
        interpreter = self._interpreter
        if not _is_plain(interpreter, value, "__deepcopy__"):
            raise BreakCapture("deepcopy", f"deepcopy of a {kind.__qualname__}")
        made = self._keep(value, _new(interpreter, value, "__deepcopy__"))
        namespace = _namespace(made)
        for name, item in list(_namespace_in(interpreter, value).items()):
            namespace[self.copy(name)] = self.copy(item)
        return made


def _new(interpreter: Interpreter, value: Any, own: str) -> Any:
    """An object of the value's class, with nothing in it."""
    kind = type(value)
    refuse_finalizer(interpreter, kind)
    made = interpreter.native(object.__new__, kind)
    interpreter.owned[id(made)] = made
    if not _answers_plainly(interpreter, made, own):  # of the copy its state is asked
        raise BreakCapture("deepcopy", f"{kind.__qualname__}.__getattribute__ of an empty copy")
    return made


def _namespace(made: Any) -> dict[Any, Any]:
    """Of an object that we made, past its class's ``__getattribute__``."""
    found: dict[Any, Any] = object.__getattribute__(made, "__dict__")
    return found


def _namespace_in(interpreter: Interpreter, value: Any) -> Any:
    """What the call has in the object's ``__dict__``."""
    return interpreter.world.force(generic_get(interpreter, value, "__dict__"))


def _has_reduction(interpreter: Interpreter, kind: type) -> bool:
    """Whether the program has told ``copyreg`` how to copy the class; which is guarded."""
    table = interpreter.get_attr(copyreg, "dispatch_table")
    if type(table) is Lazy:
        table = interpreter.world.dict_shadow(table.value, table.source)
    return dict_get(interpreter, table, kind) is not ABSENT


def _is_plain(interpreter: Interpreter, value: Any, own: str) -> bool:
    """Whether it is copied by its ``__dict__`` alone, not by ``own``; which is guarded of its
    class."""
    kind = type(value)
    if not all(is_heap_type(base) for base in kind.__mro__[:-1]) or type(kind) is not type:
        return False
    if "__dict__" not in dir(kind) or _has_reduction(interpreter, kind):
        return False
    if any(base.__dict__.get("__slots__") for base in kind.__mro__[:-1]):
        return False
    if isinstance(value, torch.Tensor):
        return False
    for hook in (own, *_HOOKS):
        found = look_up(interpreter, kind, hook)
        if found is not object.__dict__.get(hook, ABSENT):
            return False
    if not _namespace_in(interpreter, value).keys().isdisjoint((own, *_HOOKS)):
        return False
    return _answers_plainly(interpreter, value, own)


def _answers_plainly(interpreter: Interpreter, value: Any, own: str) -> bool:
    """Whether a ``__getattribute__`` in Python, if there is one, gives `copy` what ``object``'s
    would give it: it may rename what is asked for, as those of transformers' configurations do.
    It is asked more often than by `copy`, so it may only look."""
    kind = type(value)
    hook = look_up(interpreter, kind, "__getattribute__")
    if hook is object.__getattribute__:
        return True
    interpreter.world.refuse_disguise(kind)
    if not is_python(hook) or _may_compute(interpreter, kind, hook.__code__):
        return False
    return all(
        _answer(interpreter, value, name, interpreter.get_attr)
        == _answer(interpreter, value, name, functools.partial(generic_get, interpreter))
        for name in ("__class__", "__dict__", own, *_HOOKS)
    )


def _may_compute(interpreter: Interpreter, kind: type, code: types.CodeType) -> bool:
    """Whether what the code looks up in an object of this class may be a property or the like."""
    names = {*code.co_names, *(name for name in code.co_consts if isinstance(name, str))}
    found = [look_up(interpreter, kind, name) for name in names - {"__getattribute__"}]
    kinds = {type(value) for value in found if value is not ABSENT}
    return property in kinds or any(map(is_heap_type, kinds))


def _answer(interpreter: Interpreter, value: Any, name: str, ask: Callable[[Any, str], Any]) -> Any:
    try:
        found = interpreter.world.force(ask(value, name))
    except Raised as raised:
        return type(raised.exception)
    return found if isinstance(found, types.BuiltinMethodType) else id(found)
