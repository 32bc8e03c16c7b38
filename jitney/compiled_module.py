"""A compiled nn.Module: it is the original in everything but its call."""

from __future__ import annotations

import copy
import functools
import inspect
from _abc import _abc_init
from abc import ABCMeta
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakValueDictionary

import torch

from jitney import torch_api
from jitney.capture.stand_ins import OfInstances, mark_stand_in, plain_forward
from jitney.errors import UserError
from jitney.run.session import Session
from jitney.run.traceback import clean
from jitney.torch_api import modules

#: By the id of the original's class, which a class made of it keeps alive. Nothing else does: a
#: class defined in a function may hold on to a model.
_classes: WeakValueDictionary[int, type] = WeakValueDictionary()


class CompiledModule(torch.nn.Module):
    """Base of all compiled modules, ahead of the original's class.

    The instance's ``__dict__`` is the original's own: parameters, buffers, training mode and
    state_dict keys are shared. ``_orig_mod`` is the original.
    """

    __slots__ = ("_orig_mod", "_session")

    _orig_mod: torch.nn.Module
    _session: Session

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An instance of the original's class, as ``type(self)(…)`` in its methods means it."""
        original: Any = cls.__mro__[cls.__mro__.index(CompiledModule) + 1]
        return original(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The original's call, compiled; its errors show no frame of ours."""
        try:
            return call_module(self._session, self._orig_mod, args, kwargs)
        except BaseException as error:
            clean(error, CompiledModule.__call__.__code__)
            raise

    def _forward(self) -> Any:
        """The original's ``forward``, compiled; its signature is kept."""
        forward = plain_forward(self._orig_mod)
        if type(forward) is MethodType and isinstance(forward.__func__, FunctionType):
            owner, plain = forward.__self__, forward.__func__
            compiled = self._session.wrapper(plain, self._orig_mod)
            if compiled is plain:  # marked to run eager
                return forward
            functools.update_wrapper(compiled, plain)
            mark_stand_in(compiled, plain)
            return MethodType(compiled, owner)
        return forward

    def _set_forward(self, value: Any) -> None:
        self._orig_mod.forward = value

    def _del_forward(self) -> None:
        del self._orig_mod.forward

    forward: Any = OfInstances(_forward, _set_forward, _del_forward)

    @functools.wraps(torch.nn.Module.load_state_dict)  # the original's: what it raises names it
    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """The original's own."""
        return self._orig_mod.load_state_dict(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restore, (self._orig_mod, _settings_of(self._session))

    def __copy__(self) -> Any:
        session = self._session.again()
        return session.hand_out(compile_module(copy.copy(self._orig_mod), session))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        session = self._session.again()
        return session.hand_out(compile_module(copy.deepcopy(self._orig_mod, memo), session))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), "_orig_mod"})


for _function in (CompiledModule.__call__, CompiledModule._forward):
    torch_api.hide_from_dynamo(_function)
_SLOTS: dict[str, Any] = dict(vars(CompiledModule))


def compile_module(module: torch.nn.Module, session: Session) -> torch.nn.Module:
    """A compiled twin of ``module`` that shares its state."""
    module = torch_api.uncompiled(module)
    if isinstance(module, CompiledModule):
        module = module._orig_mod
    cls = type(module)
    twin_class = _classes.get(id(cls))
    if twin_class is None:
        twin_class = _classes[id(cls)] = _twin_class(cls)
    twin: Any = object.__new__(twin_class)
    object.__setattr__(twin, "__dict__", module.__dict__)
    _SLOTS["_orig_mod"].__set__(twin, module)
    _SLOTS["_session"].__set__(twin, session)
    return twin


#: Of a twin that does not share the memory of the original.
_LOOKUPS: dict[str, Any] = {
    "__getattr__": lambda self, name: getattr(self._orig_mod, name),
    "__setattr__": lambda self, name, value: setattr(self._orig_mod, name, value),
    "__delattr__": lambda self, name: delattr(self._orig_mod, name),
}


def _twin_class(cls: type) -> type:
    """A subclass of `CompiledModule` and ``cls``, with the latter's name: checkpoints keep it. What
    ``cls`` does when it is subclassed (registries) is not done. Where its instances are laid out
    in memory as no others are (``__slots__``, a base of C code) it is no subclass of ``cls``."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    members = {**_members_by_identity(cls), "__slots__": (), **names}
    if hasattr(cls, "__del__"):  # the original's, which may live on: it is called when that dies
        members["__del__"] = lambda _: None
    made: type = type.__new__(type(cls), cls.__name__, (CompiledModule,), members)
    try:
        type.__setattr__(made, "__bases__", (CompiledModule, cls))
        if isinstance(made, ABCMeta):  # not to share what the original's has found
            _abc_init(made)
    except TypeError:
        for name, of_original in _LOOKUPS.items():
            setattr(made, name, of_original)
    return made


def _members_by_identity(cls: type) -> dict[str, Any]:
    """For the twin's class: what ``cls`` has of packages that find a module's state by the module
    itself, or change its class. There, ``self`` is the original."""
    found = {}
    for base in cls.__mro__:
        if not f"{base.__module__}.".startswith(_BY_IDENTITY):
            continue
        for name, member in vars(base).items():
            if isinstance(member, FunctionType | property | classmethod):
                found[name] = inspect.getattr_static(cls, name)
    kept = {name for name in found if name.startswith("__") and name.endswith("__")}
    names = found.keys() - kept - {"forward"} - _SLOTS.keys()
    return {name: _of_original(name, found[name]) for name in sorted(names)}


_BY_IDENTITY = ("torch.distributed.", "torch.fx.")


def _of_original(name: str, member: Any) -> Any:
    """A member of a class, asked of the original; a method that returns ``self`` gives the twin."""
    if not isinstance(member, FunctionType):
        return OfInstances(
            lambda self: getattr(self._orig_mod, name),
            lambda self, value: setattr(self._orig_mod, name, value),
        )

    def method(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._orig_mod, name)(*args, **kwargs)
        return self if result is self._orig_mod else result

    return functools.update_wrapper(method, member)


def forward_wrapper(compiled: CompiledModule) -> FunctionType:
    """The function, of the module and its arguments, that a call without hooks runs."""
    forward = plain_forward(compiled._orig_mod)
    if type(forward) is not MethodType or not isinstance(forward.__func__, FunctionType):
        raise UserError(f"forward of {type(compiled._orig_mod).__name__} is not a plain method")
    return compiled._session.wrapper(forward.__func__, compiled._orig_mod)


def call_in_place(compiled: CompiledModule) -> MethodType:
    """What ``nn.Module.__call__`` of the original calls, once that is compiled in place."""
    original: Any = getattr(torch.nn.Module, modules.CALL_WITH_HOOKS)

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            return _call_plain(compiled._session, module, args, kwargs)
        except BaseException as error:
            clean(error, call.__code__)
            raise

    wrapper: Any = functools.update_wrapper(call, original)
    mark_stand_in(wrapper, original)
    return MethodType(wrapper, compiled._orig_mod)


def call_module(
    session: Session, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls ``module`` compiled: its class's ``__call__``, if that is one of its own."""
    function: Any = type(module).__call__
    if function is modules.CALL:
        return _call_plain(session, module, args, kwargs)
    if isinstance(function, FunctionType) and not modules.hooks_nodes(module):
        return session.wrapper(function, module)(module, *args, **kwargs)
    return module(*args, **kwargs)


def _call_plain(
    session: Session, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What ``nn.Module.__call__`` comes to, compiled: ``forward``, or, with hooks, what calls
    these too; in eager where backward hooks of the old kind are to see the node that autograd
    makes for its result. (Not ``__call__`` itself: compiled in place, that would lead here.)"""
    with_hooks: Any = getattr(torch.nn.Module, modules.CALL_WITH_HOOKS)
    if _has_hooks(module.__dict__) or modules.has_global_hooks():
        if modules.hooks_nodes(module):
            return with_hooks(module, *args, **kwargs)
        return session.compiled(with_hooks, module).wrap(with_hooks)(module, *args, **kwargs)
    forward = plain_forward(module)
    if type(forward) is MethodType and isinstance(forward.__func__, FunctionType):
        compiled = session.wrapper(forward.__func__, module)
        return compiled(forward.__self__, *args, **kwargs)
    if isinstance(forward, FunctionType):
        return session.wrapper(forward, module)(*args, **kwargs)
    return with_hooks(module, *args, **kwargs)


def _has_hooks(state: dict[str, Any]) -> bool:
    return any(state.get(name) for name in modules.HOOKS)


def _restore(module: torch.nn.Module, settings: dict[str, Any]) -> torch.nn.Module:
    from jitney.api import compile as compile_again

    return compile_again(module, **settings)


def _settings_of(session: Session) -> dict[str, Any]:
    if session.settings is None:
        raise UserError("a module compiled with a backend that is no name cannot be pickled")
    return session.settings
