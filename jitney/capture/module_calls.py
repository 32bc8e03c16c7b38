"""Calling ``nn.Module``s: straight to ``forward`` when no hook is there, which is guarded."""

from __future__ import annotations

from types import FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.attributes import dict_get
from jitney.capture.frame import CALLER, BreakCapture, Frame, Lazy
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.lookups import look_up, type_lookup
from jitney.capture.source import Attr, DictItem, ModuleOf
from jitney.capture.stand_ins import disabled_because, is_disabled
from jitney.torch_api import modules

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def call_module(
    interpreter: Interpreter,
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> Any:
    """``module(*args, **kwargs)``."""
    cls = type(module)
    if _is_compiled(cls):
        _refuse_disabled(interpreter, module)
        original = interpreter.world.force(interpreter.get_attr(module, "_orig_mod"))
        return call_module(interpreter, original, args, kwargs, site)
    found = look_up(interpreter, cls, "__call__")
    if found is not modules.CALL or _has_hooks(interpreter, module):
        check_hooks(interpreter, module)
        if found is not modules.CALL:
            return interpreter.call(found, (module, *args), kwargs, site)
        target = getattr(torch.nn.Module, modules.CALL_WITH_HOOKS)
        return interpreter.call_python(
            target, (module, *args), kwargs, "push" if site is not None else None
        )
    forward = interpreter.get_attr(module, "forward")
    function = getattr(forward, "__func__", None)
    source = interpreter.world.source_of(module)
    if type(function) is FunctionType and type(forward) is MethodType and not function.__dict__:
        return interpreter.call_python(
            function,
            (forward.__self__, *args),
            kwargs,
            "push" if site is not None else None,
            (str(source), cls) if source is not None else None,
        )
    return interpreter.call(forward, args, kwargs, site)


def _is_compiled(cls: type) -> bool:
    """A module compiled by itself: inside another capture, the original is meant."""
    return torch_api.is_compiled_class(cls) or (
        type(type_lookup(cls, "_orig_mod")) is MemberDescriptorType
    )


def _refuse_disabled(interpreter: Interpreter, module: torch.nn.Module) -> None:
    """``torch.compiler.disable`` of a module makes it one that torch compiled, but not to compile
    its ``forward``."""
    forward = interpreter.world.force(interpreter.get_attr(module, "forward"))
    if type(forward) is FunctionType and is_disabled(forward):
        raise BreakCapture("disabled", *disabled_because(forward))


def _has_hooks(interpreter: Interpreter, module: torch.nn.Module) -> bool:
    """Whether any hook would run; guards that none appears."""
    world = interpreter.world
    namespace = world.instance_dict(module)
    for name in modules.HOOKS:
        hooks = dict_get(interpreter, namespace, name)
        if hooks is ABSENT:
            continue
        if _holds(interpreter, hooks):
            return True
    if any(_holds_globally(interpreter, name) for name in modules.GLOBAL_HOOKS):
        return True
    return modules.has_global_hooks()


def check_hooks(interpreter: Interpreter, module: torch.nn.Module) -> None:
    """Raises BreakCapture before the call of a module with a backward hook of the old kind
    (`register_backward_hook`): it goes on the node of autograd's that made the result, and is told
    what that node is given and gives, which a graph's one node for all does not know."""
    held, is_full = modules.HOOKS_ON_NODES
    world, source = interpreter.world, Attr(ModuleOf(modules.HOOKS_MODULE), "__dict__")
    shared = world.dict_shadow(vars(torch.nn.modules.module), source)
    for start, namespace in (("", world.instance_dict(module)), ("_global", shared)):
        hooks = dict_get(interpreter, namespace, start + held)
        if hooks is ABSENT or not _holds(interpreter, hooks):
            continue
        if world.force(dict_get(interpreter, namespace, start + is_full)) is False:
            cause = f"{type(module).__name__} has a backward hook on its node of autograd's"
            raise BreakCapture(CALLER, cause, "use register_full_backward_hook")


def has_hooks_of_errors(interpreter: Interpreter, module: torch.nn.Module) -> bool:
    """Whether hooks would run after an error; guards that none appears."""
    name = modules.HOOKS_OF_ERRORS
    hooks = dict_get(interpreter, interpreter.world.instance_dict(module), name)
    if hooks is not ABSENT and _holds(interpreter, hooks):
        return True
    return _holds_globally(interpreter, f"_global{name}")


def _holds_globally(interpreter: Interpreter, name: str) -> bool:
    place = DictItem(Attr(ModuleOf(modules.HOOKS_MODULE), "__dict__"), name)
    return _holds(interpreter, Lazy(modules.global_hooks(name), place))


def _holds(interpreter: Interpreter, hooks: Any) -> bool:
    if type(hooks) is not Lazy:
        return len(hooks) > 0
    shadow = interpreter.world.shadows.dicts.get(id(hooks.value))
    if shadow is not None:
        return len(shadow.inside) > 0 or len(hooks.value) > 0
    interpreter.world.guard(Kind.LENGTH, hooks.source, len(hooks.value))
    return len(hooks.value) > 0
