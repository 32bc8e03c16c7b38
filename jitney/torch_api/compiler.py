"""What ``torch.compile`` and ``torch.compiler`` registered: backends and users' marks."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

DISABLED = "_torchdynamo_disable"  # the mark of functions that run eager: True
DISABLED_BECAUSE = "_torchdynamo_disable_msg"  # and why: a text or None
WRAPPED = "_torchdynamo_orig_callable"  # the function that one which runs compiled stands for
WRAPPER_ID = "_torchdynamo_wrapper_id"  # and which function got that mark, by id
ERROR_ON_BREAK = "_error_on_graph_break"  # a global: whether graph breaks are errors
COMPUTES_WITH_EXAMPLES = "torch._dynamo.backends.tvm"  # the one of torch's own that does
SCRIPTED = "_torchdynamo_inline"  # where a function of TorchScript keeps the Python it was made of


def backend_names(for_debugging: bool = True) -> list[str]:
    """Backends registered with torch or by entry points; with those that torch tags as experiments
    or ``for_debugging``, or without."""
    from torch._dynamo.backends.registry import list_backends

    return list_backends(exclude_tags=() if for_debugging else ("debug", "experimental"))


def find_backend(name: str) -> Any:
    """A registered backend by name."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


def float_given_as_tensor(node: torch.fx.Node) -> torch.SymFloat | None:
    """The number that a placeholder's tensor stands for, of which alone the graph asks."""
    given = getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
    asks = all((n.op, n.target, n.args) == ("call_method", "item", (node,)) for n in node.users)
    if not given or not asks or not node.users:
        return None
    number = next(iter(node.users)).meta.get("example_value")
    return number if isinstance(number, torch.SymFloat) else None


def symbolic_float_error() -> type[Exception]:
    """The error that AOTAutograd raises for a symbolic float where it needs a number, and that
    torch's capture catches."""
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    return TensorifyScalarRestartAnalysis


def inductor_with(mode: str | None, options: dict[str, Any]) -> Any:
    """Inductor, set up as ``torch.compile(mode=…, options=…)`` does it."""
    return torch._TorchCompileInductorWrapper(mode, options or None, False)


def hide_from_dynamo(function: Callable[..., Any]) -> None:
    """Marks ``function`` so that torch's capture calls it without looking into it, or into what it
    calls."""
    evaluation = torch._C._dynamo.eval_frame
    skip = evaluation._FrameAction.SKIP
    evaluation.set_code_exec_strategy(function.__code__, evaluation._FrameExecStrategy(skip, skip))
    function.__dict__[DISABLED] = "from torch's capture"


def mark_disabled(function: Callable[..., Any], reason: str | None) -> None:
    """Marks ``function`` as ``torch.compiler.disable`` does what it returns."""
    setattr(function, DISABLED, True)
    setattr(function, DISABLED_BECAUSE, reason)


def mark_constant(function: Callable[..., Any]) -> None:
    """Marks ``function`` as ``torch.compiler.assume_constant_result`` does."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextmanager
def compiled_autograd_off() -> Iterator[None]:
    """A scope in which autograd is C++'s own: torch's compiled autograd would compile our traces,
    with us again where it was told to."""
    import sys

    module = sys.modules.get("torch._dynamo.compiled_autograd")
    if module is None or not module.compiled_autograd_enabled:
        yield
        return
    with module._disable():
        yield


def compiled_script(function: Callable[..., Any] | None) -> torch.jit.ScriptFunction | None:
    """TorchScript's compiled function for a Python function; None if there is none."""
    found: torch.jit.ScriptFunction | None = torch.jit._state._try_get_jit_cached_function(function)
    return found


def is_scripted(function: torch.jit.ScriptFunction) -> bool:
    """Whether ``torch.jit.script`` compiled it from its `SCRIPTED`. (``torch.jit.trace`` only ran
    that.)"""
    made = compiled_script(getattr(function, SCRIPTED, None))
    return made is not None and made.qualified_name == function.qualified_name


def kind_of_argument(schema: str, position: int) -> str:
    """The type that an operator's schema gives an argument: "FloatType", "TensorType", …"""
    return str(torch._C.parse_schema(schema).arguments[position].type.kind())


def is_compiled_class(cls: type) -> bool:
    """Whether a class is that of the modules which ``torch.compile`` returns."""
    return cls.__module__ == "torch._dynamo.eval_frame"


def follow_dynamo(on_stance: Callable[[str, Any], None], on_reset: Callable[[], None]) -> None:
    """From now on ``torch.compiler.set_stance`` and ``reset`` tell us too, by whatever name they
    are called: the stance and the backend it forces. One that is in force is told at once."""
    import torch._dynamo as dynamo
    from torch._dynamo import decorators, eval_frame

    set_stance, reset = decorators._set_stance, dynamo.reset
    if hasattr(reset, "__wrapped__"):
        return

    @functools.wraps(set_stance)
    def set_and_tell(stance: Any) -> Any:
        before = set_stance(stance)
        on_stance(stance.stance, stance.backend)
        return before

    @functools.wraps(reset)
    def reset_and_tell() -> None:
        reset()
        on_reset()

    decorators._set_stance, dynamo.reset = set_and_tell, reset_and_tell
    stance = eval_frame._stance
    if stance != eval_frame.DynamoStance():
        on_stance(stance.stance, stance.backend)


def break_settings() -> dict[str, Any]:
    """The globals that hold `ERROR_ON_BREAK`, once torch's capture has been imported."""
    import sys

    module = sys.modules.get("torch._dynamo.utils")
    return {} if module is None else module.__dict__


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside one that ``torch.compile`` returned; any other module as it is."""
    while is_compiled_class(type(module)):
        module = module._modules["_orig_mod"]  # type: ignore[assignment]
    return module


def mark_function(name: str) -> Any:
    """One of torch's ``mark_dynamic``, ``mark_static``, ``error_on_graph_break``, …, by name."""
    from torch._dynamo import decorators

    return getattr(decorators, name)


_DISABLING = torch._disable_dynamo(backend_names).__code__


def is_disabling(code: types.CodeType) -> bool:
    """Whether it is the wrapper by which torch disables its own functions for compilers."""
    return code is _DISABLING


def traces_what_is_skipped(scope: Any) -> bool:
    """Whether all that a ``with`` block of it changes is what torch's capture leaves out."""
    patches = mark_function("DynamoConfigPatchProxy")
    return isinstance(scope, patches) and scope.changes.keys() == {"dont_skip_tracing"}


def mark_allowed_in_graph(function: Any) -> Any:
    """Marks a function as torch's ``allow_in_graph`` does: one opaque call."""
    return torch.compiler.allow_in_graph(function)


def is_allowed_in_graph(function: Any) -> bool:
    """Whether the user marked it with ``torch.compiler.allow_in_graph``."""
    import sys

    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and id(function) in rules._allowed_callable_ids.function_ids


def mark_of(tensor: torch.Tensor, mark: str) -> Any:
    """A mark torch's ``mark_dynamic`` and siblings leave on a tensor ("dynamic",
    "weak_dynamic", "static": sets of dims; "address": a string or None)."""
    name = {
        "dynamic": "_dynamo_dynamic_indices",
        "weak_dynamic": "_dynamo_weak_dynamic_indices",
        "static": "_dynamo_static_indices",
        "address": "_dynamo_static_input_type",
    }[mark]
    return getattr(tensor, name, None if mark == "address" else frozenset())


@contextmanager
def without_notes(annotation_dict: Any) -> Iterator[None]:
    """`torch.fx.traceback.annotate`, which leaves notes in the graphs of torch's own tracers."""
    yield
