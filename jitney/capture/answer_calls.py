"""Functions that are answered during capture: whether it compiles, and what state torch is in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import module_calls
from jitney.capture.builtin_calls import Handler
from jitney.capture.frame import Frame, Unread
from jitney.capture.functions import cell_get
from jitney.capture.guard import Kind
from jitney.capture.questions import place_of
from jitney.capture.source import Function
from jitney.torch_api import modules, names

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def answering(value: Any) -> Handler:
    """A handler that answers a constant during capture; True means that the function asks whether
    it is being compiled."""

    def answer(interpreter: Interpreter, *rest: Any) -> Any:
        return interpreter.says_compiling() if value is True else value

    return answer


def answer_compiling_here(interpreter: Interpreter, *rest: Any) -> bool:
    """Answers a library's question whether what it does next is being compiled."""
    if not interpreter.options.compiling:
        return False
    told = interpreter.questions.answer(place_of(interpreter.frames[-1]))
    return told and interpreter.says_compiling()


def answer_compiling(interpreter: Interpreter, *rest: Any) -> bool:
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


def answer_attention_fastpath(
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


def answer_default_device(interpreter: Interpreter, *rest: Any) -> torch.device:
    """``torch.get_default_device``: the one that every capture guards."""
    device = torch_api.read_state("default_device")
    if device is None:
        return torch.device("cpu")
    if device.type == "cuda" and device.index is None:
        interpreter.recorder.gpu_asked = True
        return torch.device("cuda", torch.cuda.current_device())
    found: torch.device = device
    return found


def answer_process_group(interpreter: Interpreter, function: Any, *rest: Any) -> bool:
    """``torch.distributed.is_initialized``."""
    value: bool = interpreter.native(function)
    asked = (names.HAS_PROCESS_GROUP, value)
    interpreter.world.guard(Kind.STATE, Function(), asked, names.HAS_PROCESS_GROUP)
    return value
