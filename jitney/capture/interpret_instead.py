"""Functions of which a program is interpreted: their own, the one they wrap, or one of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import polyfills
from jitney.capture.builtin_calls import Handler
from jitney.capture.frame import Frame
from jitney.torch_api import names

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def interpret(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """A plain function of a package whose other functions run eager."""
    return interpreter.call_python(function, args, kwargs, None)


def interpret_resumably(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """As `interpret`, and a break inside it can be resumed."""
    return interpreter.call_python(function, args, kwargs, "push" if site is not None else None)


def interpreting(ours: Callable[..., Any], leaves_out: Any = None) -> Handler:
    """The program of ours is interpreted where torch's own is called; torch's where one of the
    arguments is what ours ``leaves_out``."""

    def handler(
        interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
    ) -> Any:
        if leaves_out is not None and any(map(leaves_out, map(interpreter.world.force, args))):
            return interpreter.call_python(function, args, kwargs, None)
        return interpreter.call_python(ours, args, kwargs, None)

    return handler


def enter_settings(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """A function within settings of torch's capture, of which one is for that alone."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__))
    if torch_api.traces_what_is_skipped(cells["self"].cell_contents):
        return interpreter.call(cells["func"].cell_contents, args, kwargs, site)
    return interpret_resumably(interpreter, function, args, kwargs, site)


def call_region(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """A region that torch's capture is to compile once: it is inlined; equal kernels are shared
    anyway."""
    region = interpreter.world.force(args[0])
    return interpreter.call(region, tuple(args[1:]), kwargs, site)


def call_cond(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``torch.cond``."""
    return interpreter.call_python(
        polyfills.cond_, args, kwargs, "push" if site is not None else None
    )


def call_compile(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``torch.compile(function)`` where torch itself goes on to call it: it is captured here."""
    if interpreter.frames[-1].code.co_filename.endswith(names.COMPILES_ITSELF):
        return args[0]
    return interpret_resumably(interpreter, function, args, kwargs, site)


def call_of_positions(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``mod(*args)`` of positions, which are tensors: what it reads there is gathered."""
    recorder = interpreter.recorder
    outside, recorder.gathers = recorder.gathers, True
    try:
        return interpreter.call(args[0], tuple(args[1:]), kwargs, None)
    finally:
        recorder.gathers = outside


def call_attention_kinds(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``torch.nn.attention.sdpa_kernel`` of known kinds; others raise by its own code."""
    kinds = interpreter.world.force(args[0] if args else kwargs.get("backends"))
    known = isinstance(kinds, list | torch.nn.attention.SDPBackend)
    scope: Any = torch_api.attention_kinds
    if not hasattr(function, "__wrapped__"):  # its generator, of the same name
        scope = scope.__wrapped__
    return interpreter.call_python(scope if known else function, args, kwargs, None)


def call_module_init(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``nn.Module.__init__`` as `torch.compile` leaves it behind in a process that has used it: a
    wrapper that also counts generations for its own guards."""
    variables, cells = function.__code__.co_freevars, function.__closure__
    original = cells[variables.index("init")].cell_contents
    return interpreter.call(original, tuple(args), kwargs, site)
