"""``isinstance`` and ``issubclass`` as eager would answer, of fakes and by metaclasses."""

from __future__ import annotations

import abc
import builtins
import functools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import operators, tensor_attributes
from jitney.capture.builtin_calls import TWO, builtin
from jitney.capture.class_flags import is_heap_type, is_of_c, is_python
from jitney.capture.forced import forced
from jitney.capture.frame import BreakCapture
from jitney.capture.generators import FrameGenerator
from jitney.capture.guard import Kind
from jitney.capture.lookups import guard_bases, look_up
from jitney.capture.source import Fixed, Referent
from jitney.capture.symbols import NUMBERS, SYMBOLS
from jitney.capture.tensors import PLAIN_TENSORS
from jitney.capture.world import raw_dict

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: Whose metaclasses look at classes alone, which guards see to, or at what is never a fake.
_TRUSTED = ("abc", "typing", "typing_extensions", "torch")


@builtin(builtins.isinstance, takes=TWO)
def _isinstance(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    value, classes = forced(interpreter, args)
    return is_instance(interpreter, value, classes)


def is_instance(interpreter: Interpreter, value: Any, classes: Any) -> bool:
    """``isinstance(value, classes)``; breaks where C code would look into the object for it."""
    if _is_asked(interpreter, classes, "__instancecheck__"):
        return _ask(interpreter, value, classes, "__instancecheck__")
    if isinstance(value, SYMBOLS):
        value = NUMBERS[type(value)](1)
    elif isinstance(value, FrameGenerator):
        value = (x for x in ((),))
    elif isinstance(value, torch.Tensor) and not torch_api.is_wrapper(value):
        return _is_tensor_of(interpreter, value, classes)
    _refuse_protocols(value, classes)
    guard_bases(interpreter, type(value))
    answer = bool(interpreter.native(isinstance, value, classes))
    if not answer:
        _assume_unregistered(interpreter, type(value), classes)
    return answer


def _is_tensor_of(interpreter: Interpreter, fake: Any, classes: Any) -> bool:
    members = _one_by_one(classes)
    if members is not None:
        return any(_is_tensor_of(interpreter, fake, member) for member in members)
    if classes is torch.nn.Buffer:
        return tensor_attributes.is_buffer(interpreter, fake)
    if torch_api.is_fake_class(classes):  # a fake stands for what is none
        return False
    answer = bool(interpreter.native(isinstance, fake, classes))
    if not answer and isinstance(classes, abc.ABCMeta):  # which may have been told of its class
        cls = torch.nn.Parameter if isinstance(fake, torch.nn.Parameter) else torch.Tensor
        answer = bool(interpreter.native(issubclass, cls, classes))
        if not answer:
            _assume_unregistered(interpreter, cls, classes)
    return answer


@builtin(builtins.issubclass, takes=TWO)
def _issubclass(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    cls, classes = forced(interpreter, args)
    if _is_asked(interpreter, classes, "__subclasscheck__"):
        return _ask(interpreter, cls, classes, "__subclasscheck__")
    if isinstance(cls, type):
        guard_bases(interpreter, cls)
    answer = interpreter.native(issubclass, cls, classes)
    if not answer:
        _assume_unregistered(interpreter, cls, classes)
    return answer


@builtin(abc.get_cache_token)
def _cache_token(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """Counts what abstract classes have been told of."""
    if args or kwargs:
        return interpreter.native(function, *forced(interpreter, args))  # a TypeError
    return interpreter.world.read(function(), Referent(Fixed(function)))


def _one_by_one(classes: Any) -> tuple[Any, ...] | None:
    """The members of a tuple or union of classes; None of a class."""
    members = classes.__args__ if isinstance(classes, types.UnionType) else classes
    return members if isinstance(members, tuple) else None


def _is_asked(interpreter: Interpreter, classes: Any, hook: str) -> bool:
    """Whether a metaclass of the program's has Python code for the answer."""
    members = _one_by_one(classes)
    if members is not None:
        return any(_is_asked(interpreter, member, hook) for member in members)
    found = look_up(interpreter, type(classes), hook)
    return is_python(found) and str(found.__module__).partition(".")[0] not in _TRUSTED


def _ask(interpreter: Interpreter, value: Any, classes: Any, hook: str) -> bool:
    members = _one_by_one(classes)
    if members is not None:
        return any(_ask(interpreter, value, member, hook) for member in members)
    if not _is_asked(interpreter, classes, hook):
        asked = isinstance if hook == "__instancecheck__" else issubclass
        return bool(interpreter.call(asked, (value, classes), {}, None))
    if hook == "__instancecheck__" and type(value) is classes:
        return True
    found = look_up(interpreter, type(classes), hook)
    answer = interpreter.call(found, (classes, value), {}, None)
    return operators.truth(interpreter, interpreter.world.force(answer))


def _refuse_protocols(value: Any, classes: Any) -> None:
    for cls in _one_by_one(classes) or ():
        _refuse_protocols(value, cls)
    if getattr(classes, "_is_protocol", False) and classes not in type(value).__mro__:
        if raw_dict(value) is not None or is_heap_type(type(value)):  # it may have slots
            raise BreakCapture("callback", f"an object is searched for names of {classes.__name__}")


def _assume_unregistered(interpreter: Interpreter, cls: type, classes: Any) -> None:
    """Guards that nobody tells an abstract class of another one in the meantime."""
    members = _one_by_one(classes)
    if members is not None:
        for member in members:
            _assume_unregistered(interpreter, cls, member)
        return
    if not isinstance(classes, abc.ABCMeta):
        return
    is_ours = is_of_c(cls) or cls in PLAIN_TENSORS
    if is_ours and classes.__module__.partition(".")[0] in sys.stdlib_module_names:
        return
    unregistered = interpreter.world.classes.unregistered
    if (cls, classes) not in unregistered:
        unregistered.add((cls, classes))
        asked = Referent(Fixed(functools.partial(_is_subclass, cls, classes)))
        interpreter.world.guard(Kind.EQUALS, asked, False)


def _is_subclass(cls: type, classes: Any) -> bool:
    """``issubclass``; of a protocol that names data, which refuses it, whether it is a base."""
    try:
        return issubclass(cls, classes)
    except TypeError:
        return classes in cls.__mro__
