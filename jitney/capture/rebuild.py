"""Values that a frame leaves behind, as recipes: how to make them after the graph has run."""

from __future__ import annotations

import collections
import enum
import functools
import gc
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from jitney import torch_api
from jitney.capture import construct
from jitney.capture import recipe as r
from jitney.capture.c_methods import bound, slot_of
from jitney.capture.class_flags import is_heap_type, is_native_iterator
from jitney.capture.frame import NULL, BreakCapture, Lazy, Restart, Unread
from jitney.capture.generators import (
    Callback,
    FrameGenerator,
    IndexIterator,
    Iterating,
    MethodIterator,
    Predicate,
)
from jitney.capture.late_texts import refuse_tensor
from jitney.capture.rebuild_iterators import CannotRebuild, iterator_recipe
from jitney.capture.source import Fixed, keys_in_order
from jitney.capture.subscripts import LazyMethod
from jitney.capture.weak_references import callback_of
from jitney.capture.world import IMMUTABLE, is_identity

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

CONSTANTS: tuple[type, ...] = (
    int, float, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), type,
    range, types.ModuleType, types.CodeType, torch.dtype, torch.device, torch.layout,
    torch.memory_format, enum.Enum, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.MethodDescriptorType, types.WrapperDescriptorType, property, classmethod, staticmethod,
    torch.finfo, torch.iinfo, types.GenericAlias, types.UnionType, np.number, np.bool_,
    *torch_api.DEVICE_PROPERTIES,
)  # fmt: skip
#: Those of them that hold other objects.
_HOLDING = (property, classmethod, staticmethod, types.GenericAlias, types.UnionType)
#: Kinds of numbers and texts, and the value of an instance of a derived class, past its methods.
_PLAIN: dict[Any, Any] = {
    int: int.__int__, float: float.__float__, complex: complex.__complex__, str: str.__str__,
    bytes: bytes.__bytes__,
}  # fmt: skip
_VALUES = tuple(_PLAIN)
#: Whose derived classes' instances are made empty, and then filled.
_EMPTY_AT_FIRST = (
    object, dict, list, set, collections.deque, collections.OrderedDict, collections.defaultdict,
)  # fmt: skip
VALUES_OF_MODULES = ("inspect", "re", "typing", "datetime", "decimal", "fractions")


class Rebuilder:
    """Makes recipes. There is one per capture, so that identity is kept."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.outputs: list[Any] = []  # FX nodes
        self._output_of: dict[int, r.Recipe] = {}
        self._made: dict[int, tuple[Any, r.Recipe]] = {}
        self._open: set[int] = set()
        self.effects: list[r.Effect] = []  # that close cycles

    def of(self, value: Any) -> r.Recipe:
        """The recipe of a value; raises CannotRebuild."""
        done = self._made.get(id(value))
        if done is not None:
            return done[1]
        if id(value) in self._open:
            raise CannotRebuild(f"a {type(value).__name__} that holds itself")
        self._open.add(id(value))
        try:
            recipe = self._make(value)
        finally:
            self._open.discard(id(value))
        self._made[id(value)] = (value, recipe)
        return recipe

    def has_made(self, value: Any) -> bool:
        """Whether a recipe for the value was asked for."""
        return id(value) in self._made

    def made_of(self, cls: type) -> list[Any]:
        """The values of type ``cls`` that recipes were asked for."""
        return [value for value, _ in self._made.values() if type(value) is cls]

    def _make(self, value: Any) -> r.Recipe:
        cls = type(value)
        if cls in (Lazy, Unread):
            refuse_tensor(value.source)
            return r.Given(value.source)
        raised = self.vm.raised_at.get(id(value))
        if raised is not None:  # its traceback stays with it, also where it was there before
            raise Restart(raised[0], BreakCapture("traceback", "an exception is left behind"))
        self.vm.world.sized_calls.refuse(value)
        if value is NULL:
            return r.Null()
        known = self.vm.world.inside.get(id(value))
        if known is not None:
            if isinstance(known.source, Fixed):
                return r.Constant(known.original)
            return r.Given(known.source)
        if isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._output(value)
        own = is_heap_type(cls) and self.vm.is_owned(value)  # a number or text with attributes
        if isinstance(value, CONSTANTS) and cls is not functools.partial and not own:
            if isinstance(value, _HOLDING):
                self._refuse_own_parts(value)
            return r.Constant(value)
        maker = _MAKERS.get(cls)
        if maker is not None:
            return maker(self, value)
        return self._object(value, cls)

    def _output(self, value: Any) -> r.Recipe:
        node = self.vm.recorder.value_node(value)
        if node is None:
            raise CannotRebuild("a tensor the capture did not see being made")
        if isinstance(node, int | float | bool):
            return r.Constant(node)
        recipe = self._output_of.get(id(node))
        if recipe is None:
            recipe = self._output_of[id(node)] = r.GraphOutput(len(self.outputs))
            self.outputs.append(node)
        return recipe

    def _refuse_own_parts(self, value: Any) -> None:
        """Raises CannotRebuild for an object that must be the same one in every call, but holds
        something that the frame made or was given."""
        work, seen = [value], {id(value)}
        while work:
            for part in gc.get_referents(work.pop()):
                if id(part) in seen or is_identity(part) or isinstance(part, IMMUTABLE):
                    continue
                seen.add(id(part))
                known = self.vm.world.inside.get(id(part))
                given = known is not None and not isinstance(known.source, Fixed)
                if given or self.vm.is_owned(part):
                    raise CannotRebuild(f"a {type(value).__qualname__} of a {type(part).__name__}")
                if known is None and _is_made_of_parts(type(part)):
                    work.append(part)

    def _all(self, values: Any) -> tuple[r.Recipe, ...]:
        return tuple([self.of(v) for v in values])

    # ------------------------------------------------------------ by type

    def _tuple(self, value: tuple[Any, ...]) -> r.Recipe:
        items = self._all(value)
        if all(isinstance(x, r.Constant) and x.value is v for x, v in zip(items, value)):
            return r.Constant(value)
        return r.MakeTuple(items)

    def _list(self, value: list[Any]) -> r.Recipe:
        return r.MakeList(self._all(value))

    def _dict(self, value: dict[Any, Any]) -> r.Recipe:
        keys = keys_in_order(value)
        return r.MakeDict(tuple([(self.of(k), self.of(dict.__getitem__(value, k))) for k in keys]))

    def _set(self, value: set[Any]) -> r.Recipe:
        return r.MakeSet(self._all(value))

    def _frozenset(self, value: frozenset[Any]) -> r.Recipe:
        return r.MakeSet(self._all(value), frozen=True)

    def _slice(self, value: slice) -> r.Recipe:
        return r.MakeSlice(*self._all((value.start, value.stop, value.step)))

    def _size(self, value: Any) -> r.Recipe:
        items = self._all(value)
        if all(isinstance(x, r.Constant) for x in items):
            return r.Constant(torch.Size([x.value for x in items if isinstance(x, r.Constant)]))
        return r.Apply(torch.Size, (r.MakeTuple(items),))

    def _ordered(self, value: Any) -> r.Recipe:
        state = self._state(value)
        if state:
            return r.MakeObject(collections.OrderedDict, (), self._dict(value), state, ())
        return r.Apply(collections.OrderedDict, (self._dict(value),))

    def _default(self, value: Any) -> r.Recipe:
        return r.Apply(collections.defaultdict, (self.of(value.default_factory), self._dict(value)))

    def _deque(self, value: Any) -> r.Recipe:
        items = r.MakeList(self._all(collections.deque.__iter__(value)))
        return r.Apply(collections.deque, (items, r.Constant(value.maxlen)))

    def _method(self, value: types.MethodType) -> r.Recipe:
        if type(value.__self__) is FrameGenerator:  # send, throw, close: the real one's
            return r.Apply(getattr, (self.of(value.__self__), r.Constant(value.__name__)))
        return r.MakeMethod(self.of(value.__func__), self.of(value.__self__))

    def _c_method(self, value: Any) -> r.Recipe:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType | type):
            return r.Constant(value)
        slot = slot_of(value)
        if slot is None:
            return r.Apply(getattr, (self.of(owner), r.Constant(value.__name__)))
        return r.Apply(bound, (r.Constant(slot), self.of(owner)))

    def _function(self, value: types.FunctionType) -> r.Recipe:
        pull = self.vm.pulls.get(id(value))
        if pull is not None:
            cause = BreakCapture("functorch", "what vjp returned outlives the graph")
            raise Restart(pull.step, cause)
        if not self.vm.is_owned(value):
            return r.Constant(value)
        state = dict(value.__dict__)
        annotate = getattr(value, "__annotate__", None)
        return r.MakeFunction(
            value.__code__,
            r.Constant(value.__globals__),
            value.__name__,
            value.__qualname__,
            self.of(value.__defaults__) if value.__defaults__ else None,
            self.of(value.__kwdefaults__) if value.__kwdefaults__ else None,
            self._all(value.__closure__ or ()),
            self.of(state) if state else None,
            None if annotate or not value.__annotations__ else self.of(value.__annotations__),
            self.of(annotate) if annotate else None,
        )

    def _cell(self, value: types.CellType) -> r.Recipe:
        try:
            contents = value.cell_contents
        except ValueError:
            return r.MakeCell(None)
        if self._may_close_over_itself(contents):
            recipe = r.MakeCell(None)
            self._made[id(value)] = (value, recipe)
            self.effects.append(r.StoreCell(recipe, self.of(contents)))
            return recipe
        return r.MakeCell(self.of(contents))

    def _may_close_over_itself(self, contents: Any) -> bool:
        """Whether it is a function that the frame made, which may close over the cell that holds
        it."""
        return isinstance(contents, types.FunctionType) and self.vm.is_owned(contents)

    def _partial(self, value: Any) -> r.Recipe:
        keywords = tuple([(k, self.of(v)) for k, v in value.keywords.items()])
        return r.Apply(functools.partial, (self.of(value.func), *self._all(value.args)), keywords)

    def _super(self, value: Any) -> r.Recipe:
        return r.Apply(super, self._all((value.__thisclass__, value.__self__)))

    def _lazy_method(self, value: LazyMethod) -> r.Recipe:
        return r.Apply(getattr, (r.Given(value.lazy.source), r.Constant(value.name)))

    def _generator(self, value: FrameGenerator) -> r.Recipe:
        """The recipe of a generator that the frame made, stopped where it is."""
        if value.running:
            raise CannotRebuild("a running generator")
        frame = value.frame
        names: tuple[r.Recipe, ...]
        if value.names is None:
            function = self.of(frame.function)
            both = ("__name__", "__qualname__")
            names = tuple([r.Apply(getattr, (function, r.Constant(n))) for n in both])
        else:
            names = tuple([r.Constant(name) for name in value.names])
        if value.finished:
            return r.Apply(construct.make_ended_generator, names)
        if frame.exceptions is not None:  # stopped in a handler
            self.of(frame.exceptions)  # breaks where it was raised
            raise CannotRebuild("a generator that handles an exception")
        at = frame.program.instructions[frame.index - 1 if value.started else frame.index]
        return r.MakeGenerator(
            frame.code,
            r.Constant(frame.globals),
            at.offset,
            value.started,
            self._all(frame.stack),
            tuple(
                [
                    (name, self.of(v))
                    for name, v in frame.locals.items()
                    if name not in frame.code.co_freevars
                ]
            ),
            self._all(frame.closure),
            names,
        )

    def _method_iterator(self, value: MethodIterator) -> r.Recipe:
        return self.of(value.owner)

    def _index_iterator(self, value: IndexIterator) -> r.Recipe:
        if value.ended:
            return r.Apply(iter, (r.MakeTuple(()),))
        place = (r.Constant(iter), r.MakeTuple((self.of(value.owner),)), r.Constant(value.index))
        return r.Apply(construct.make_iterator, place)

    def _reference(self, value: weakref.ref[Any]) -> r.Recipe:
        callback = callback_of(value)
        parts = (value(),) if callback is None else (value(), callback)
        return r.Apply(weakref.ref, self._all(parts))

    def _callback(self, value: Callback) -> r.Recipe:
        return self.of(value.function)

    # ------------------------------------------------------------ instances

    def _object(self, value: Any, cls: type) -> r.Recipe:
        if isinstance(value, tuple):
            items = r.MakeTuple(self._all(tuple.__iter__(value)))
            if hasattr(cls, "n_sequence_fields"):
                return r.Apply(cls, (items,))
            state, slots = self._state(value), self._slots(value, cls)
            if state or slots:
                return r.MakeObject(cls, (items,), None, state, slots)
            return r.Apply(tuple.__new__, (r.Constant(cls), items))
        if isinstance(value, BaseException):
            args = r.MakeTuple(self._all(value.args))
            chain = [(name, getattr(value, name)) for name in ("__cause__", "__context__")]
            links = [(name, self.of(error)) for name, error in chain if error is not None]
            slots = (("args", args), *links, *self._slots(value, cls))
            return r.MakeObject(cls, args.items, None, self._state(value), slots)
        if not self.vm.is_owned(value):
            if cls.__module__.split(".")[0] in VALUES_OF_MODULES:
                self._refuse_own_parts(value)
                return r.Constant(value)
            if is_native_iterator(cls):
                return iterator_recipe(self, value)
            raise CannotRebuild(f"a {cls.__module__}.{cls.__qualname__}")
        base: r.Recipe | None = None
        plain: tuple[r.Recipe, ...] = ()
        if isinstance(value, _VALUES):
            kind = next(kind for kind in _VALUES if isinstance(value, kind))
            plain = (r.Constant(_PLAIN[kind](value)),)
        elif isinstance(value, frozenset):
            plain = (r.MakeTuple(self._all(frozenset.__iter__(value))),)
        elif construct.c_base(cls) not in _EMPTY_AT_FIRST:
            raise CannotRebuild(f"a {cls.__module__}.{cls.__qualname__}")
        elif isinstance(value, collections.deque):
            base = self._deque(value)
        elif isinstance(value, dict):
            base = self._dict(value)
        elif isinstance(value, list):
            base = r.MakeList(self._all(list.__iter__(value)))
        elif isinstance(value, set):
            base = r.MakeSet(self._all(set.__iter__(value)))
        return r.MakeObject(cls, plain, base, self._state(value), self._slots(value, cls))

    def _state(self, value: Any) -> tuple[tuple[str, r.Recipe], ...]:
        namespace = getattr(value, "__dict__", None)
        if not isinstance(namespace, dict):
            return ()
        return tuple([(name, self.of(item)) for name, item in namespace.items()])

    def _slots(self, value: Any, cls: type) -> tuple[tuple[str, r.Recipe], ...]:
        """What C-level members hold: ``__slots__``, and what classes of C code keep (``code`` and
        ``errno`` of exceptions, a ``default_factory``), where None stands for nothing."""
        found = []
        for base in cls.__mro__:
            for name, member in base.__dict__.items():
                if type(member) is not types.MemberDescriptorType:
                    continue
                try:
                    item = member.__get__(value, cls)
                    if not is_heap_type(base):
                        if item is None:
                            continue
                        member.__set__(value, item)  # `__new__` makes what is read-only
                except AttributeError:
                    continue
                found.append((name, self.of(item)))
        return tuple(found)


def _is_made_of_parts(cls: type) -> bool:
    """Whether C code, or a module of value classes, may just have put an instance together from
    parts."""
    if cls.__module__.split(".")[0] in VALUES_OF_MODULES:
        return True
    return not is_heap_type(cls) and cls is not types.FunctionType


_MAKERS: dict[type, Any] = {
    tuple: Rebuilder._tuple,
    list: Rebuilder._list,
    dict: Rebuilder._dict,
    set: Rebuilder._set,
    frozenset: Rebuilder._frozenset,
    slice: Rebuilder._slice,
    torch.Size: Rebuilder._size,
    collections.OrderedDict: Rebuilder._ordered,
    collections.defaultdict: Rebuilder._default,
    collections.deque: Rebuilder._deque,
    types.MethodType: Rebuilder._method,
    types.BuiltinFunctionType: Rebuilder._c_method,
    types.MethodWrapperType: Rebuilder._c_method,
    types.FunctionType: Rebuilder._function,
    types.CellType: Rebuilder._cell,
    functools.partial: Rebuilder._partial,
    super: Rebuilder._super,
    LazyMethod: Rebuilder._lazy_method,
    FrameGenerator: Rebuilder._generator,
    MethodIterator: Rebuilder._method_iterator,
    IndexIterator: Rebuilder._index_iterator,
    Callback: Rebuilder._callback,
    Iterating: Rebuilder._callback,
    Predicate: Rebuilder._callback,
    weakref.ref: Rebuilder._reference,
}
