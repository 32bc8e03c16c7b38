"""Python functions that are not simply interpreted: answers, deferred calls, breaks."""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import (
    autograd_functions,
    checkpoints,
    copies,
    jacobians,
    module_calls,
    polyfills,
    transforms,
    validation,
)
from jitney.capture import deferred as deferred_calls
from jitney.capture.attributes import dict_get
from jitney.capture.builtin_calls import builtin
from jitney.capture.callbacks import TEXTS
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import CALLER, OPTIMIZER, BreakCapture, Frame, Restart, Unread
from jitney.capture.functions import cell_get
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.lookups import look_up
from jitney.capture.questions import place_of
from jitney.capture.source import Function
from jitney.capture.symbols import SYMBOLS
from jitney.capture.told_later import refuse_own_code
from jitney.capture.tracebacks import traceback_of
from jitney.capture.world import is_identity
from jitney.torch_api import flex_attention, modules, names

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

Handler = Callable[..., Any]
#: Whose text never changes.
_UNCHANGING = frozenset(
    (int, float, bool, complex, str, bytes, type(None), types.FunctionType)
    + (torch.Size, torch.device, range, slice)
)


def answering(value: Any) -> Handler:
    """A handler that answers a constant during capture; True means that the function asks whether
    it is being compiled."""

    def answer(interpreter: Interpreter, *rest: Any) -> Any:
        return interpreter.says_compiling() if value is True else value

    return answer


def says_compiling_here(interpreter: Interpreter, *rest: Any) -> bool:
    """Answers a library's question whether what it does next is being compiled."""
    if not interpreter.options.compiling:
        return False
    told = interpreter.questions.answer(place_of(interpreter.frames[-1]))
    return told and interpreter.says_compiling()


def breaking(kind: str, reason: str) -> Handler:
    """A handler for a function that is not captured."""

    def refuse(interpreter: Interpreter, *rest: Any) -> Any:
        raise BreakCapture(kind, reason)

    return refuse


def installing(flag: str) -> Handler:
    """A handler for a function that does something to a module, unless its ``flag`` is set."""

    def install(
        interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
    ) -> Any:
        given = [*forced(interpreter, args), *forced_keywords(interpreter, kwargs).values()]
        if len(given) == 1 and isinstance(given[0], torch.nn.Module):
            world = interpreter.world
            found = world.force(dict_get(interpreter, world.instance_dict(given[0]), flag))
            if found is ABSENT or found is False:
                raise BreakCapture("installation", f"{function.__qualname__} changes modules")
        return interpreter.call_python(function, args, kwargs, "push" if site else None)

    return install


def looking_at_callers(interpreter: Interpreter, function: Any, *rest: Any) -> Any:
    """A function that looks at the frames which called it: the program's own frame calls it, or
    what of the standard library will call it, without ours in between."""
    cause = BreakCapture(CALLER, f"{function.__qualname__} looks at its callers' frames")
    frames = interpreter.frames
    own = next((f for f in reversed(frames) if not _is_of_stdlib(f)), frames[0])
    if own is frames[-1]:
        raise cause
    raise Restart(own.step, cause)


def _is_of_stdlib(frame: Frame) -> bool:
    module = frame.globals.get("__name__")
    return isinstance(module, str) and module.split(".")[0] in sys.stdlib_module_names


def native(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> Any:
    """Calls the function for real."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    if function.__module__ == "re" and any(map(callable, (*values, *keywords.values()))):
        raise BreakCapture("callback", f"re.{function.__name__} would call back into Python")
    if any(isinstance(value, re.RegexFlag) and value & re.DEBUG for value in values):
        raise BreakCapture("output", f"re.{function.__name__} prints what it compiles")
    if function.__module__ == "dataclasses":  # it reads a class, be it that of an instance
        for value in (*values, *keywords.values()):
            cls = value if isinstance(value, type) else type(value)
            look_up(interpreter, cls, "__dataclass_fields__")
            if look_up(interpreter, type(cls), "__getattr__") is not ABSENT:
                raise BreakCapture("callback", f"a class is asked of {type(cls).__qualname__}")
    return interpreter.native(function, *values, **keywords)


def _update_wrapper(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Copies names to a function of the frame's own for real; one from outside changes once the
    graph has run, or breaks."""
    wrapper = interpreter.world.force(args[0] if args else kwargs.get("wrapper"))
    if interpreter.is_owned(wrapper):
        return native(interpreter, function, args, kwargs, site)
    return interpreter.call_python(function, args, kwargs, "push" if site is not None else None)


def of_gpus(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> Any:
    """Calls the function for real; which GPU is current becomes a guard."""
    interpreter.recorder.gpu_asked = True
    return native(interpreter, function, args, kwargs, site)


def deferred(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> None:
    """A logging call, put off until the graph has run: it logs values as they are now."""
    logger, *values = forced(interpreter, args)
    keywords = forced_keywords(interpreter, kwargs)
    name = function.__qualname__
    told = keywords.get("exc_info", name == "Logger.exception")
    if told or keywords.get("stack_info"):
        exception = told if isinstance(told, BaseException) else interpreter.current_exception()
        if exception is not None:
            traceback_of(interpreter, exception)  # it is raised for real
        raise BreakCapture("traceback", f"{name} tells of an exception, or of the stack")
    values = [_as_it_is(interpreter, name, value) for value in values]
    keywords = {key: _as_it_is(interpreter, name, value) for key, value in keywords.items()}
    level = _LEVELS.get(name, values[0] if values else None)
    _refuse_own_code(interpreter, logger, level if type(level) is int else sys.maxsize)
    said = values if name in _LEVELS else values[1:]
    if said and type(level) is int and keywords.keys() <= _KEYWORDS and _finds_callers(logger):
        place = _place_of(interpreter, keywords.get("stacklevel", 1))
        keywords = {"extra": keywords.get("extra")}
        function, values = deferred_calls.log_at, [level, place, *said]
    interpreter.deferred.append((function, (logger, *values), keywords))


def _refuse_own_code(interpreter: Interpreter, logger: logging.Logger, level: int) -> None:
    """Breaks where a record would be told to code of the program's: the frame may read its state.
    Assumes that it is not where it is not now."""
    world = interpreter.world
    if interpreter.is_owned(logger):
        raise BreakCapture("logging", "a logger of the program's own would be told later")
    source = world.source_of(logger)
    if source is not None:
        world.guard(Kind.IS, source, logger)
    refuse_own_code(interpreter, deferred_calls.asking_for_own_code(logger, level), "logging")


_LEVELS = {
    "Logger.debug": logging.DEBUG,
    "Logger.info": logging.INFO,
    "Logger.warning": logging.WARNING,
    "Logger.error": logging.ERROR,
    "Logger.critical": logging.CRITICAL,
}
_KEYWORDS = {"exc_info", "stack_info", "stacklevel", "extra"}


def _finds_callers(logger: Any) -> bool:
    """Whether its records name the line that logs, as the standard library's do."""
    own = all(
        getattr(type(logger), name, None) is getattr(logging.Logger, name)
        for name in ("_log", "findCaller")
    )
    return own and bool(getattr(logging, "_srcfile", None))


def _place_of(interpreter: Interpreter, level: Any) -> tuple[str, int, str]:
    """File, line and function of the ``level``-th frame that logs, itself the first, those of
    `logging` aside; of the outermost one that is captured where it is further out."""
    inside = os.path.normcase(logging.addLevelName.__code__.co_filename)
    frames = [f for f in interpreter.frames if os.path.normcase(f.code.co_filename) != inside]
    frames = frames or interpreter.frames
    frame = frames[-min(max(int(level), 1), len(frames))]
    return frame.code.co_filename, frame.current.line, frame.code.co_name


def _as_it_is(interpreter: Interpreter, name: str, value: Any) -> Any:
    """What would print the same later, after changes to ``value``; breaks where nothing does."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        raise BreakCapture("deferred-tensor", f"{name} is given a tensor")
    if kind in (list, tuple):
        return kind([_as_it_is(interpreter, name, item) for item in value])
    if kind is dict:
        return {key: _as_it_is(interpreter, name, item) for key, item in value.items()}
    if kind in _UNCHANGING or isinstance(value, (*SYMBOLS, BaseException)) or is_identity(value):
        return value
    if any(look_up(interpreter, kind, hook) is not getattr(object, hook) for hook in TEXTS):
        raise BreakCapture("deferred-state", f"{name} is given a {kind.__qualname__}")
    return value


def _interpreted(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Interprets a plain function of a package whose other functions run eager."""
    return interpreter.call_python(function, args, kwargs, None)


def _inlined(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """As `_interpreted`, and a break inside it can be resumed."""
    return interpreter.call_python(function, args, kwargs, "push" if site is not None else None)


def _within_settings(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """A function within settings of torch's capture, of which one is for that alone."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__))
    if torch_api.traces_what_is_skipped(cells["self"].cell_contents):
        return interpreter.call(cells["func"].cell_contents, args, kwargs, site)
    return _inlined(interpreter, function, args, kwargs, site)


def _nested_call(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """A region that torch's capture is to compile once: it is inlined; equal kernels are shared
    anyway."""
    region = interpreter.world.force(args[0])
    return interpreter.call(region, tuple(args[1:]), kwargs, site)


def _cond(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    return interpreter.call_python(
        polyfills.cond_, args, kwargs, "push" if site is not None else None
    )


def disabled_by_torch(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """But for the steps of optimizers that are fused: those of others look at what is counted on a
    GPU, and torch disables them all."""
    inside = function.__wrapped__
    if interpreter.world.force(kwargs.get("fused")) is True and torch_api.is_step(inside):
        return interpreter.call_python(inside, args, kwargs, "push" if site is not None else None)
    raise BreakCapture("disabled", f"torch disables {inside.__qualname__} for compilers")


def _wraps(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    return interpreter.native(functools.wraps, *args, **kwargs)


def _attention_fastpath(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``torch.backends.mha.get_fastpath_enabled``: no, where it only chooses one opaque kernel
    for what is written out below. `nn.MultiheadAttention`, whose kernel is called by a name of its
    own, gets eager's answer; so does `nn.TransformerEncoder` with a padding mask: nested tensors
    make zeros of padded rows."""
    frame = interpreter.frames[-1]
    if frame.code is torch.nn.MultiheadAttention.forward.__code__:
        return interpreter.call_python(function, args, kwargs, None)
    if frame.code is torch.nn.TransformerEncoder.forward.__code__:
        mask = frame.locals.get("src_key_padding_mask")
        if isinstance(mask, Unread):
            mask = interpreter.world.read(mask.value, mask.source)
        if interpreter.world.force(mask) is not None:
            return interpreter.call_python(function, args, kwargs, None)
    return False


def _default_device(interpreter: Interpreter, *rest: Any) -> torch.device:
    """``torch.get_default_device``: the one that every capture guards."""
    device = torch_api.read_state("default_device")
    if device is None:
        return torch.device("cpu")
    if device.type == "cuda" and device.index is None:
        interpreter.recorder.gpu_asked = True
        return torch.device("cuda", torch.cuda.current_device())
    found: torch.device = device
    return found


def _has_process_group(interpreter: Interpreter, function: Any, *rest: Any) -> bool:
    """``torch.distributed.is_initialized``."""
    value: bool = interpreter.native(function)
    asked = (names.HAS_PROCESS_GROUP, value)
    interpreter.world.guard(Kind.STATE, Function(), asked, names.HAS_PROCESS_GROUP)
    return value


def _is_compiling(interpreter: Interpreter, *rest: Any) -> bool:
    """``torch.compiler.is_compiling``: yes, but not to `nn.TransformerEncoder`, which for a
    compiler would leave padded rows other than the zeros they are in eager, nor to a module's call
    that would leave out the hooks that are to run after an error, nor to an exported module's,
    which would not look at its inputs."""
    frame = interpreter.frames[-1]
    if frame.code.co_filename == torch.nn.modules.transformer.__file__:
        return False
    if f"{frame.globals.get('__name__')}.{frame.code.co_qualname}" == names.CHECKS_EXPORTED:
        return False
    if frame.code is _CALL_WITH_HOOKS:
        module = cell_get(interpreter, frame.locals["self"])  # the function inside reads it too
        if module_calls.has_hooks_of_errors(interpreter, module):
            return False
    return interpreter.says_compiling()


_CALL_WITH_HOOKS = getattr(torch.nn.Module, modules.CALL_WITH_HOOKS).__code__


def _in_place_of_it(ours: Callable[..., Any], leaves_out: Any = None) -> Handler:
    """The program of ours is interpreted where torch's own is called; torch's where one of the
    arguments is what ours ``leaves_out``."""

    def handler(
        interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
    ) -> Any:
        if leaves_out is not None and any(map(leaves_out, map(interpreter.world.force, args))):
            return interpreter.call_python(function, args, kwargs, None)
        return interpreter.call_python(ours, args, kwargs, None)

    return handler


def _compiled_by_torch(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``torch.compile(function)`` where torch itself goes on to call it: it is captured here."""
    if interpreter.frames[-1].code.co_filename.endswith(names.COMPILES_ITSELF):
        return args[0]
    return _inlined(interpreter, function, args, kwargs, site)


def _call_of_positions(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``mod(*args)`` of positions, which are tensors: what it reads there is gathered."""
    recorder = interpreter.recorder
    outside, recorder.gathers = recorder.gathers, True
    try:
        return interpreter.call(args[0], tuple(args[1:]), kwargs, None)
    finally:
        recorder.gathers = outside


def _graph_break(interpreter: Interpreter, *rest: Any) -> None:
    """torch's own ``graph_break``: nothing where an optimizer's step asks for it, for the sake of
    torch's own compiler alone."""
    if not torch_api.is_of_optimizers(interpreter.frames[-1].code):
        raise BreakCapture("graph_break", names.GRAPH_BREAK_REASON)


def _stepping_by_values(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """The step of an optimizer that looks at values in the middle, mostly for each parameter: by
    parts it takes longer than in eager. Capturable ones may not look."""
    optimizer = interpreter.world.force(args[0] if args else kwargs["self"])
    if torch_api.is_capturable(optimizer):
        return interpreter.call_python(function, args, kwargs, None)
    name = function.__qualname__
    raise BreakCapture(OPTIMIZER, f"{name} looks at the values of tensors on its way")


def _attention_kinds(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``torch.nn.attention.sdpa_kernel`` of known kinds; others raise by its own code."""
    kinds = interpreter.world.force(args[0] if args else kwargs.get("backends"))
    known = isinstance(kinds, list | torch.nn.attention.SDPBackend)
    scope: Any = torch_api.attention_kinds
    if not hasattr(function, "__wrapped__"):  # its generator, of the same name
        scope = scope.__wrapped__
    return interpreter.call_python(scope if known else function, args, kwargs, None)


def _module_init(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``nn.Module.__init__`` as `torch.compile` leaves it behind in a process that has used it: a
    wrapper that also counts generations for its own guards."""
    variables, cells = function.__code__.co_freevars, function.__closure__
    original = cells[variables.index("init")].cell_contents
    return interpreter.call(original, tuple(args), kwargs, site)


HANDLERS: dict[str, Handler] = {
    names.PATCHED_MODULE_INIT: _module_init,
    "torch.cond": _cond,
    names.VMAP: transforms.call_vmap,
    names.GRAD_AND_VALUE: transforms.call_grad,
    names.JVP: jacobians.call_jvp,
    names.VJP: jacobians.call_vjp,
    names.PULL: jacobians.call_pull,
    **dict.fromkeys((*names.TRANSFORMS, *names.BREAK_SETTING), _interpreted),
    names.NESTED_REGION: _inlined,
    names.BREAK_SETTING_SCOPE: _within_settings,
    **dict.fromkeys(names.GRAPH_MODULE_CALLS, _inlined),
    names.NESTED_CALL: _nested_call,
    **dict.fromkeys(("torch.jit.annotate", names.JIT_UNWRAP), _interpreted),
    "torch.nn.attention.sdpa_kernel": _attention_kinds,
    names.COMPILED_MODULE_GETATTR: _interpreted,
    **dict.fromkeys(
        ("torch.compiler.is_compiling", "torch.compiler.is_dynamo_compiling"), _is_compiling
    ),
    "torch.get_default_device": _default_device,
    "torch.distributed.distributed_c10d.is_initialized": _has_process_group,
    "torch.backends.mha.get_fastpath_enabled": _attention_fastpath,
    "torch.utils.checkpoint.checkpoint": checkpoints.call_checkpoint,
    "torch.autograd.function.Function.apply": autograd_functions.apply,
    "functools.wraps": _wraps,
    "functools.update_wrapper": _update_wrapper,
    "copy.copy": copies.call_copy,
    **dict.fromkeys(names.CHECKS_OF_TENSORS, validation.call_check),
    "copy.deepcopy": copies.call_deepcopy,
    names.MASKED_FILL: _in_place_of_it(torch_api.fill_masked_out, torch_api.is_masked_tensor),
    "torch.compile": _compiled_by_torch,
    names.FLEX_ATTENTION: _in_place_of_it(flex_attention.attend),
    "torch.nn.attention.flex_attention.create_mask": _in_place_of_it(flex_attention.create_mask),
    "jitney.torch_api.flex_attention.call_of_positions": _call_of_positions,
    "torch.fx.traceback.annotate": _in_place_of_it(torch_api.without_notes),
    names.GRAPH_BREAK: _graph_break,
    **dict.fromkeys(names.STEPS_BY_VALUES, _stepping_by_values),
    names.GROUP_TENSORS: _in_place_of_it(torch_api.group_tensors),
    names.NUMBER_OF_STEP: _in_place_of_it(torch_api.number_of_step),
}

builtin(torch_api.NATIVE_ATTENTION)(_in_place_of_it(torch_api.attend_to_itself))
