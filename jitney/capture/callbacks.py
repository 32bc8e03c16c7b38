"""Python methods of the program that C code would call by itself, as ``sorted`` calls ``__lt__``.

Called by C code they would read objects that existed before the frame without a guard, and would
not see what the frame has changed. So they are interpreted; where that is not possible, the call
breaks the graph.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import string
import struct
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.class_flags import is_heap_type
from jitney.capture.frame import BreakCapture
from jitney.capture.lookups import is_callback, look_up
from jitney.capture.scalars import SCALAR_TYPES
from jitney.capture.shadows import is_plain_key
from jitney.capture.symbols import SYMBOLS, beside_symbols, concrete, concrete_keys
from jitney.capture.world import is_identity

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
HASHES = ("__hash__", "__eq__")
TEXTS = ("__repr__", "__str__", "__format__")
NUMBERS = ("__index__", "__int__", "__float__", "__complex__")
CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_VIEWED: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
#: What dicts are looked at through: their keys, values and items.
VIEWS = tuple(type(view) for d in _VIEWED for view in (d.keys(), d.values(), d.items()))
#: What C code compares and prints by what it holds.
_HOLDING = (
    *CONTAINERS, *VIEWS, slice, BaseException, types.SimpleNamespace, types.MappingProxyType,
    functools.partial, itertools.repeat,
)  # fmt: skip
LOOKUPS = ("__getitem__", "__missing__")
_UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)
_FORMATTING = ("format", "format_map", "translate", "__mod__", "__rmod__")
_COMPARING_METHODS = ("count", "index", "remove", "sort", "__contains__", *COMPARISONS)
_COMPARING_MODULES = ("_bisect", "_heapq")
_COMPARING_FUNCTIONS = (operator.countOf, operator.indexOf)
#: Methods of dicts and sets that make or look up keys from what their arguments give.
_OF_MANY_KEYS = frozenset(
    """update union difference difference_update intersection intersection_update issubset
    issuperset isdisjoint symmetric_difference symmetric_difference_update""".split()
)


#: Those of them that may stop early.
_STOPPING = ("isdisjoint", "issuperset")


def asks_python(interpreter: Interpreter, values: Iterable[Any], hooks: Sequence[str]) -> str:
    """'Class.hook' of the first object among ``values``, and what containers among them hold, whose
    class has one of ``hooks`` in Python, or that C code would look into; '' for none. What it reads
    would have no guard, be the object the frame's own or not."""
    opaque, all_held = interpreter.world.opaque, list(held(values))
    for value in all_held:
        if isinstance(value, (torch.Tensor, *SYMBOLS)) or is_identity(value):
            continue
        if id(value) in opaque:
            return f"{type(value).__qualname__}'s C code, which looks into it"
        if not is_heap_type(type(value)):
            continue
        for hook in hooks:
            if is_callback(look_up(interpreter, type(value), hook)):
                return f"{type(value).__qualname__}.{hook}"
    odd = beside_symbols(all_held) if hooks is COMPARISONS else None
    return "" if odd is None else f"{type(odd).__qualname__}.__eq__ of a symbolic number"


def refuse_python(interpreter: Interpreter, values: Iterable[Any], hooks: Sequence[str]) -> None:
    """Breaks where `asks_python` finds an object."""
    values = list(values)
    if hooks is HASHES or hooks is COMPARISONS:
        interpreter.world.hashed(held(values))
    found = asks_python(interpreter, values, hooks)
    if found:
        interpreter.native_broke = True  # an iterator may have been drained to see
        raise BreakCapture("callback", f"C code would call {found}")


def refuse_parts(interpreter: Interpreter, value: Any, hooks: Sequence[str]) -> None:
    """Breaks where `asks_python` finds an object inside ``value``, not counting ``value``
    itself."""
    if isinstance(value, _HOLDING):
        parts = held((value,))
        next(parts)
        refuse_python(interpreter, parts, hooks)


def refuse_hooks(interpreter: Interpreter, value: Any, hooks: Sequence[str]) -> None:
    """Breaks where C code would call one of ``hooks`` of ``value`` itself, in Python."""
    if not is_heap_type(type(value)) or isinstance(value, (torch.Tensor, *SYMBOLS)):
        return
    for hook in hooks:
        if is_callback(look_up(interpreter, type(value), hook)):
            raise BreakCapture("callback", f"C code would call {type(value).__qualname__}.{hook}")


def refuse_lookups(interpreter: Interpreter, value: Any) -> None:
    """Breaks where looking up a key in ``value`` calls Python: methods of its class, a factory."""
    refuse_hooks(interpreter, value, LOOKUPS)
    if isinstance(value, defaultdict) and value.default_factory is not None:
        raise BreakCapture("callback", "C code would call a defaultdict's factory")


def refuse_symbolic_text(values: Iterable[Any]) -> None:
    """Guards the numbers of the symbols from which text is made: sizes then print as these. Breaks
    for symbols that do not print so."""
    for part in held(values):
        number = concrete(part)  # before the symbol's own text is looked at
        if isinstance(part, SYMBOLS) and str(part) != str(number):
            raise BreakCapture("symbolic-text", "a symbolic number becomes text")


def refuse_addresses(interpreter: Interpreter, values: Iterable[Any]) -> None:
    """Breaks where text is made from objects whose text contains their address."""
    for part in held(values):
        shown = type(part).__repr__ is object.__repr__ and type(part).__str__ is object.__str__
        shown = shown or isinstance(part, types.FunctionType | types.MethodType)
        shown = shown or isinstance(part, weakref.ref)
        if shown and not isinstance(part, (torch.Tensor, *SYMBOLS)):
            raise BreakCapture("address", "the address of an object becomes text")


def refuse_key(interpreter: Interpreter, key: Any, container: Any) -> None:
    """Breaks where looking ``key`` up calls Python: its own hash, or comparisons with keys."""
    if not is_plain_key(key):
        keys = container if isinstance(container, dict | set | frozenset) else ()
        plain = interpreter.world.keys.plain
        refuse_python(interpreter, (key, *(k for k in keys if id(k) not in plain)), HASHES)
        for known in keys:
            if type(known) is tuple and id(known) not in plain and _is_plain(known):
                plain[id(known)] = known


def _is_plain(key: tuple[Any, ...]) -> bool:
    """Whether a key is made of numbers and strings only: nothing to call, nothing to guard."""
    return all(type(part) in SCALAR_TYPES for part in key)


def drained(interpreter: Interpreter, function: Any, args: list[Any], iterable: Any) -> list[Any]:
    """``args``, with lists for iterators from which C code would make keys, numbers for symbols in
    lists; ``iterable`` gives what it can go over by itself."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    first = isinstance(function, _UNBOUND) and bool(args)
    owner = args[0] if first else owner
    classes = isinstance(owner, type) and issubclass(owner, dict) and name == "fromkeys"
    if name == "_count_elements" and len(args) > 1:  # of collections.Counter
        return [args[0], concrete_keys(args[1]), *args[2:]]
    if not classes and not (isinstance(owner, dict | set | frozenset) and name in _OF_MANY_KEYS):
        return args
    made = list(args)
    for i in range(first, min(len(args), 1) if classes else len(args)):
        if isinstance(args[i], Iterator) or not isinstance(owner, dict):
            items = iterable(interpreter, args[i])
            if isinstance(items, Iterator) and name in _STOPPING:
                interpreter.native_broke = True  # it has been asked for: break before it
                raise BreakCapture("callback", f"{name} goes over an iterator as far as it must")
            if isinstance(items, Iterator):
                made[i] = interpreter.native(list, items)
        if classes or not isinstance(owner, dict):
            made[i] = concrete_keys(made[i])
    return made


def refuse_callbacks(interpreter: Interpreter, function: Any, args: Sequence[Any]) -> None:
    """Breaks where the C function ``function`` would call Python code for these arguments."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(function, _UNBOUND) and args:
        owner, args = args[0], args[1:]
    if name in COMPARISONS and isinstance(owner, _HOLDING):
        refuse_parts(interpreter, owner, COMPARISONS)
        refuse_python(interpreter, args, COMPARISONS)
    elif isinstance(owner, _HOLDING) and name in TEXTS:
        refuse_parts(interpreter, owner, TEXTS)
        refuse_symbolic_text((owner,))
    elif isinstance(owner, dict | set | frozenset):
        if args and not isinstance(args[0], CONTAINERS):
            refuse_key(interpreter, args[0], owner)
        elif name in _OF_MANY_KEYS and not isinstance(owner, dict):
            refuse_python(interpreter, (owner, *args), HASHES)
        else:
            interpreter.world.hashed(held((owner, *args)))
    elif isinstance(owner, type) and issubclass(owner, dict):  # fromkeys
        refuse_python(interpreter, args[:1], HASHES)
    elif name == "_count_elements":  # of collections.Counter
        if not isinstance(args[1], (str, bytes, *CONTAINERS)):
            raise BreakCapture("callback", "collections.Counter counts what an iterator gives")
        refuse_python(interpreter, args[1], HASHES)
    elif isinstance(owner, str | bytes) and name in _FORMATTING:
        tuples = name == "__mod__" and isinstance(args[0], tuple)
        items = tuple.__iter__(args[0]) if tuples else args
        refuse_python(interpreter, items, (*TEXTS, *NUMBERS))
        refuse_symbolic_text(a for a in args if not isinstance(a, SYMBOLS))
        refuse_addresses(interpreter, args)
        for value in args if name != "format" else ():
            refuse_lookups(interpreter, value)
        if isinstance(owner, str) and name != "translate" and _reads_attributes(owner):
            raise BreakCapture("callback", "str.format reads attributes or items")
    elif isinstance(owner, (*CONTAINERS, *VIEWS)) and name in _COMPARING_METHODS:
        refuse_python(interpreter, (owner, *args), COMPARISONS)
    elif (
        getattr(function, "__module__", "") in _COMPARING_MODULES
        or function in _COMPARING_FUNCTIONS
    ):
        refuse_python(interpreter, args, COMPARISONS)
        refuse_python(interpreter, [a for a in args if not isinstance(a, CONTAINERS)], NUMBERS)
    else:
        hooks = _hooks_of(function, owner)
        numbers = [a for a in args if hooks or not isinstance(a, CONTAINERS)]
        numbers += [owner] if type(owner) is slice else []
        refuse_python(interpreter, numbers, (*NUMBERS, *hooks))


def _hooks_of(function: Any, owner: Any) -> tuple[str, ...]:
    """What the function asks, beside of numbers, of its arguments and of what these hold."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    if function in (bytes, bytearray) or owner is int or isinstance(owner, bytes | bytearray):
        return ("__bytes__",)
    if module in ("math", "cmath"):
        return ("__mul__", "__rmul__", "__add__", "__radd__") if "prod" in name else ("__float__",)
    if module == "_struct" or isinstance(owner, struct.Struct):
        return ("__bool__", "__len__")
    return ("__len__", "__length_hint__") if function is operator.length_hint else ()


def _reads_attributes(template: str) -> bool:
    """Whether a template of ``str.format`` has fields like ``{0.name}``."""
    try:
        names = [name or "" for _, name, _, _ in string.Formatter().parse(template)]
    except ValueError:  # format itself will raise it
        return False
    return any("." in name or "[" in name for name in names)


def held(values: Iterable[Any]) -> Iterator[Any]:
    """The values and what containers and slices among them hold, however deep, each object once."""
    work, seen = list(values), set()
    while work:
        value = work.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, dict):
            work += (*dict.keys(value), *dict.values(value))
        elif isinstance(value, slice):
            work += (value.start, value.stop, value.step)
        elif isinstance(value, VIEWS):
            work += value
        elif isinstance(value, BaseException):
            work += value.args
        elif isinstance(value, types.SimpleNamespace):
            work += vars(value).values()
        elif isinstance(value, types.MappingProxyType):
            work += value.values()
        elif type(value) is functools.partial:
            work += (value.func, *value.args, *value.keywords.values())
        elif type(value) is itertools.repeat:
            work += gc.get_referents(value)
        elif isinstance(value, CONTAINERS):
            kind: Any = next(kind for kind in CONTAINERS if isinstance(value, kind))
            work += kind.__iter__(value)  # whatever its class overrides
