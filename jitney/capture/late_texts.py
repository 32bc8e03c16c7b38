"""Texts of numbers that change from call to call (``f"step {step}"``), made when a call runs.

Such a text is a `Lazy` whose source is computed of the numbers: it may be kept, printed, joined to
others and returned without that anything is assumed of them. Where it has to be looked at (hashed,
compared, put into a tuple or list) the graph ends and Python goes on with the text itself.

The text of a tensor in an f-string (of a check's message, mostly) is not made at all: where it is
looked at, or is left when the graph ends, the frame is captured again up to the f-string.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from jitney import torch_api
from jitney.capture.frame import BreakCapture, Lazy, Restart
from jitney.capture.guard import Kind
from jitney.capture.source import Computed, Source
from jitney.capture.symbols import function_of

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_JOIN, _END = "''.join((", ",))"
_LONGEST = 10000  # of a formula: a loop may add to a text for ever
_CONVERSIONS = re.compile(r"%[-+ #0-9.*]*([a-zA-Z%])")  # %c is of some numbers only


@dataclass(frozen=True)
class _TextOfTensor(Source):
    """What nothing can fetch; ``restart`` goes back to before it."""

    name: str
    restart: Callable[[], Restart] = field(compare=False)

    def __str__(self) -> str:
        return f"the text of a tensor ({self.name})"


def text_of_tensor() -> BreakCapture:
    """The break where a tensor's text is made."""
    return BreakCapture("tensor-text", "a tensor is turned into text", "print its shape instead")


def of_tensor(interpreter: Interpreter) -> Lazy:
    """The text of a tensor in an f-string."""
    frame = interpreter.frames[-1]
    step = frame.step

    def restart() -> Restart:
        if interpreter.frames:  # where it is looked at, which tells tries apart (`Questions`)
            interpreter.broken_frames = list(interpreter.frames)
        return Restart(step, text_of_tensor())

    name = f"tensor{step}_{frame.index}"
    return Lazy("", _source(name, {name: _TextOfTensor(name, restart)}))


def refuse_tensor(source: Source) -> None:
    """Goes back to the f-string where a text is of a tensor."""
    for part in _tensors(source):
        raise part.restart()


def is_of_tensor(value: Any) -> bool:
    """Whether it is a text that nothing has made."""
    return type(value) is Lazy and bool(_tensors(value.source))


def _tensors(source: Source) -> list[_TextOfTensor]:
    parts = source.symbols if is_computed_text(source) else ()
    return [part for _, part in parts if type(part) is _TextOfTensor]


def is_late(value: Any) -> bool:
    """Whether it is a text that nobody has looked at, made of numbers that change."""
    return type(value) is Lazy and is_computed_text(value.source)


def is_computed_text(source: Source) -> TypeGuard[Computed]:
    """Whether it is where such a text comes from."""
    return isinstance(source, Computed) and source.kind is str


def made(interpreter: Interpreter, call: str, *values: Any) -> Lazy | None:
    """The text that ``call`` makes of values (``"str({})"``), one of which is a symbol and a number
    of the program's; None for sizes, and where no formula has the numbers."""
    if interpreter.options.fullgraph or not any(map(_changes, values)):
        return None
    symbols = interpreter.recorder.symbols
    texts, names = [], {}
    for value in values:
        operand = (repr(value), {}) if type(value) is str else symbols.operand(value)
        if operand is None:
            return None
        texts.append(operand[0])
        names.update(operand[1])
    origins = {name: symbols.origin[symbol] for name, symbol in names.items()}
    source = _source(call.format(*texts), {name: where for name, (where, _) in origins.items()})
    now = source.of(*(symbol.node.hint for _, symbol in origins.values()))
    return Lazy(now, source) if type(now) is str else None


def _changes(value: Any) -> bool:
    if isinstance(value, torch.SymInt):
        return torch_api.has_numbers(value)
    return isinstance(value, torch.SymFloat)


def formatted(interpreter: Interpreter, value: Any, spec: str) -> Lazy | None:
    """``format(value, spec)`` as `made` has it."""
    return None if spec[-1:] == "c" else made(interpreter, "format({}, {})", value, spec)


def filled(interpreter: Interpreter, template: Any, values: Any) -> Lazy | None:
    """``template % values`` as `made` has it."""
    items = values if type(values) is tuple else (values,)
    if type(template) is not str or "c" in _CONVERSIONS.findall(template):
        return None
    return made(interpreter, f"{{}} % ({'{}, ' * len(items)})", template, *items)


def of_template(interpreter: Interpreter, template: str, values: Sequence[Any]) -> Lazy | None:
    """``template.format(*values)`` as `made` has it."""
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError:  # format itself will raise it
        return None
    for _, name, spec, _ in fields:
        if "{" in (spec or "") or (spec or "").endswith("c") or not (name or "0").isdigit():
            return None
    return made(interpreter, f"{{}}.format({'{}, ' * len(values)})", template, *values)


def joined(interpreter: Interpreter, parts: Sequence[Any]) -> Lazy | None:
    """``"".join(parts)`` where a part is late; None where none is, or not all are texts."""
    if not any(map(is_late, parts)):
        return None
    if not all(type(p.value if type(p) is Lazy else p) is str for p in parts):
        return None
    sources: dict[str, Source] = {}
    texts, values = [], []
    for part in parts:
        if is_late(part):
            sources.update(part.source.symbols)
            formula = part.source.formula
            is_join = formula.startswith(_JOIN)
            texts.append(formula[len(_JOIN) : -len(_END)] if is_join else formula)
            values.append(part.value)
        elif is_unread(interpreter, part):
            name = interpreter.recorder.symbols.name_of_text(part.source)
            sources[name] = part.source
            texts.append(name)
            values.append(part.value)
        else:
            values.append(interpreter.world.force(part))
            texts.append(repr(values[-1]))
    formula = f"{_JOIN}{', '.join(texts)}{_END}"
    return Lazy("".join(values), _source(formula, sources)) if len(formula) < _LONGEST else None


def is_unread(interpreter: Interpreter, value: Any) -> bool:
    """Whether it is a text that nobody has looked at; then only that it is one is assumed."""
    if type(value) is not Lazy or type(value.value) is not str:
        return False
    if not is_late(value):
        interpreter.world.note(value.source)
        interpreter.world.guard(Kind.TYPE, value.source, str)
    return True


def _source(formula: str, sources: dict[str, Source]) -> Computed:
    return Computed(formula, tuple(sources.items()), function_of(formula, sources), str)
