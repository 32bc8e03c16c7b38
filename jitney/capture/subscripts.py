"""``container[key]`` for real containers, unseeded dict shadows, tensors and Python classes."""

from __future__ import annotations

import collections
import operator
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import callbacks, operators
from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised
from jitney.capture.guard import ABSENT
from jitney.capture.lookups import look_up
from jitney.capture.shadows import is_plain_key
from jitney.capture.special_methods import hook_of, type_name
from jitney.capture.symbols import concrete, concrete_key
from jitney.capture.tensor_index import get_tensor, set_tensor

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_LOOKUPS = ("get", "__getitem__", "__contains__")
LAZY_METHODS: dict[type, tuple[str, ...]] = {
    dict: _LOOKUPS, collections.OrderedDict: _LOOKUPS, list: ("append", "extend"),
}  # fmt: skip


class LazyMethod:
    """A method of a dict or list nobody has looked at as a whole."""

    __slots__ = ("lazy", "name")

    def __init__(self, lazy: Lazy, name: str) -> None:
        self.lazy, self.name = lazy, name

    def call(self, vm: Interpreter, args: Any, kwargs: Any) -> Any:
        """Calls it."""
        if kwargs or not args:
            raise BreakCapture("arguments", f"{type(self.lazy.value).__name__}.{self.name}")
        name = vm.world.force(args[0])
        if isinstance(self.lazy.value, list):  # whatever it holds
            grown = vm.world.sequence_shadow(self.lazy.value, self.lazy.source).inside
            return vm.call(getattr(grown, self.name), (name, *args[1:]), {}, None)
        if not is_plain_key(name):
            bound = getattr(vm.world.force(self.lazy), self.name)
            return vm.call(bound, (name, *args[1:]), {}, None)
        shadow = vm.world.dict_shadow(self.lazy.value, self.lazy.source)
        if self.name == "__contains__":
            return shadow.has(vm.world, name)
        value = shadow.get(vm.world, name)
        if value is not ABSENT:
            return value
        if self.name == "__getitem__":
            raise Raised(KeyError(name))
        return args[1] if len(args) > 1 else None


def key(vm: Interpreter, value: Any) -> Any:
    """A key of a new dict or set: symbols become the numbers they are."""
    callbacks.refuse_key(vm, value, None)
    return concrete_key(value)


def get(vm: Interpreter, container: Any, index: Any, site: Frame | None) -> Any:
    """``container[index]`` (maybe `Lazy`)."""
    if type(container) is Lazy and isinstance(container.value, dict) and is_plain_key(index):
        shadow = vm.world.dict_shadow(container.value, container.source)
        value = shadow.get(vm.world, index)
        if value is ABSENT:
            raise Raised(KeyError(index))
        return value
    container = vm.world.force(container)
    if isinstance(container, torch.Tensor):
        return get_tensor(vm, container, index)
    hook = hook_of(vm, container, "__getitem__")
    if hook is not None:
        return vm.call(hook, (container, index), {}, site)
    if isinstance(container, type):
        return _class_item(vm, container, index, site)
    index = _plain_index(vm, container, index)
    if isinstance(container, dict):
        return dict_item(vm, container, index)
    return vm.native(operator.getitem, container, index)


def _class_item(vm: Interpreter, cls: type, index: Any, site: Frame | None) -> Any:
    """``cls[index]`` of a class without a metaclass that says more."""
    found = look_up(vm, cls, "__class_getitem__")
    function = found.__func__ if isinstance(found, classmethod) else None
    if type(function) is FunctionType and not _is_librarys(function):
        return vm.call(vm.get_attr(cls, "__class_getitem__"), (index,), {}, site)
    return vm.native(operator.getitem, cls, index)


def _is_librarys(function: FunctionType) -> bool:
    return str(function.__module__).partition(".")[0] in sys.stdlib_module_names


def dict_item(vm: Interpreter, container: dict[Any, Any], index: Any) -> Any:
    """``dict.__getitem__(container, index)``: what a subclass has for a key that it does not hold
    may be Python's to say, which C code would call by itself."""
    is_there = type(container) is dict or vm.native(dict.__contains__, container, index)
    hook = None if is_there else hook_of(vm, container, "__missing__")
    if hook is not None:
        return vm.call(hook, (container, index), {}, None)
    if not is_there and isinstance(container, collections.defaultdict):
        return default_item(vm, container, index)
    return vm.native(dict.__getitem__, container, index)


def default_item(vm: Interpreter, container: Any, index: Any) -> Any:
    """``collections.defaultdict.__missing__(container, index)``."""
    factory = vm.world.force(vm.get_attr(container, "default_factory"))
    if factory is None:
        raise Raised(KeyError(index))
    value = vm.world.force(vm.call(factory, (), {}, None))
    if not _STORES_BY_METHOD:
        return vm.native(dict.setdefault, container, _plain_index(vm, container, index), value)
    set_item(vm, container, index, value, None)
    return value


def _stores_by_method() -> bool:
    """Whether a defaultdict keeps what it makes by a subclass's ``__setitem__``, which
    CPython 3.14.10 does not do."""

    class Deaf(collections.defaultdict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            return None

    made = Deaf(int)
    return made[0] == 0 and not made


_STORES_BY_METHOD = _stores_by_method()


def _plain_index(vm: Interpreter, container: Any, index: Any) -> Any:
    """An index or key that C code may use by itself: symbols become the numbers they are."""
    if isinstance(container, dict):
        callbacks.refuse_key(vm, index, container)
        return concrete_key(index)
    if isinstance(index, slice):
        parts = (index.start, index.stop, index.step)
        callbacks.refuse_python(vm, parts, callbacks.NUMBERS)
        return slice(*map(concrete, parts))
    callbacks.refuse_python(vm, (index,), callbacks.NUMBERS)
    return concrete(index)


def set_item(vm: Interpreter, container: Any, index: Any, value: Any, site: Frame | None) -> None:
    """``container[index] = value``."""
    if isinstance(container, torch.Tensor):
        set_tensor(vm, container, index, value)
        return
    hook = hook_of(vm, container, "__setitem__")
    if hook is not None:
        vm.call_python(hook, (container, index, value), {}, "drop" if site else None)
        return
    if isinstance(index, slice):  # of an iterator a list is made first
        value = operators.listed(vm, operators.iterable(vm, value))
    elif not isinstance(container, list | dict | collections.deque):  # numbers of C code's
        callbacks.refuse_hooks(vm, value, callbacks.NUMBERS)
    vm.native(operator.setitem, container, _plain_index(vm, container, index), value)


def del_item(vm: Interpreter, container: Any, index: Any) -> None:
    """``del container[index]``."""
    hook = hook_of(vm, container, "__delitem__")
    if hook is not None:
        vm.call_python(hook, (container, index), {}, None)
        return
    vm.native(operator.delitem, container, _plain_index(vm, container, index))


def lazy_contains(vm: Interpreter, container: Any, item: Any) -> bool | None:
    """``item in container`` for a dict not looked at as a whole; None for anything else."""
    if type(container) is Lazy and isinstance(container.value, dict) and is_plain_key(item):
        return vm.world.dict_shadow(container.value, container.source).has(vm.world, item)
    return None


def mapping(vm: Interpreter, value: Any, unique: bool = False) -> dict[Any, Any]:
    """A mapping's items as a dict, or a dict that C code reads as eager's does. ``unique``: breaks
    where a key comes twice."""
    if isinstance(value, dict):
        direct = look_up(vm, type(value), "__iter__") is dict.__iter__  # CPython's own test
        hooks = [hook_of(vm, value, name) for name in ("keys", "__getitem__")]
        if direct or hooks == [None, None]:
            return value
    if look_up(vm, type(value), "keys") is ABSENT:
        raise Raised(TypeError(f"{type_name(value)!r} object is not a mapping"))
    keys = vm.call(vm.get_attr(value, "keys"), (), {}, None)
    items = operators.iterable(vm, vm.world.force(keys))
    found = vm.native(list, items)
    made = {k: vm.world.force(get(vm, value, k, None)) for k in found}
    if unique and len(made) < len(found):
        vm.native_broke = True  # the keys have been asked for: break before them
        raise BreakCapture("arguments", "a keyword comes twice")
    return made


def items(vm: Interpreter, value: Any) -> Any:
    """What dict's constructor and ``update`` are given, as C code may read it."""
    if isinstance(value, dict) or hook_of(vm, value, "keys") is not None:
        return mapping(vm, value)
    return operators.iterable(vm, value)
