"""All guards of an entry as one Python function over a tree of sources.

``check(function, *locals)`` is true when the capture may be used for these inputs. Sources that
guards share are fetched once; whatever a fetch raises means that the world has changed.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.compare import class_attribute_is, fully_equal, same_keys
from jitney.capture.emit_fetch import FUNCTION, Writer, build_function
from jitney.capture.guard import Apart, Guard, Kind, TensorFacts
from jitney.capture.plain_tensor_check import PLAIN_TENSORS, plain_tensor_check
from jitney.capture.source import Source, is_stored, stored_length
from jitney.errors import CompilerBug

Check = Callable[..., bool]


def compile_check(guards: Sequence[Guard], parameters: Sequence[str], name: str = "f") -> Check:
    """The function that tells whether every guard holds. ``parameters``: the names of the frame's
    locals."""
    writer = Writer(parameters, exact=exact_types(guards))
    write_guards(writer, guards, "return False")
    body = ["try:", *(f"    {line}" for line in writer.lines), "    return True"]
    body += [f"except {writer.constant(Exception)}:", "    return False"]
    arguments = [FUNCTION, *writer.parameters]
    return build_function(
        "check", arguments, body, writer.constants, filename=f"<jitney guards of {name}>"
    )


def exact_types(guards: Iterable[Guard]) -> dict[Source, type]:
    """Sources whose exact type is guarded."""
    return {g.source: g.expected for g in guards if g.kind is Kind.TYPE}


def write_guards(writer: Writer, guards: Iterable[Guard], otherwise: str) -> None:
    """Writes each guard once, in order, as ``if not …: <otherwise>``."""
    written: set[tuple[Kind, Source, int]] = set()
    for guard in guards:
        key = (guard.kind, guard.source, id(guard.expected))
        if key not in written:
            written.add(key)
            condition = _CONDITIONS[guard.kind](writer, guard.source, guard.expected)
            writer.lines.append(f"if not ({condition}): {otherwise}")


# ---------------------------------------------------------------- a condition per kind


def _type(writer: Writer, source: Source, expected: type) -> str:
    return f"{writer.constant(type)}({writer.fetch(source)}) is {writer.constant(expected)}"


def _is(writer: Writer, source: Source, expected: Any) -> str:
    known = writer.constant(expected) if expected is None else writer.reference(expected)
    return f"{writer.fetch(source)} is {known}"


def _equals(writer: Writer, source: Source, expected: Any) -> str:
    value, constant = writer.fetch(source), writer.constant(expected)
    if expected is None or isinstance(expected, bool):
        return f"{value} is {constant}"
    if type(expected) in (int, str, bytes):
        type_of, cls = writer.constant(type), writer.constant(type(expected))
        return f"{type_of}({value}) is {cls} and {value} == {constant}"
    return f"{writer.constant(fully_equal)}({value}, {constant})"


def _length(writer: Writer, source: Source, expected: int) -> str:
    return f"{writer.constant(stored_length)}({writer.fetch(source)}) == {expected}"


def _keys(writer: Writer, source: Source, expected: tuple[Any, ...]) -> str:
    value = writer.fetch(source)
    return f"{writer.constant(same_keys)}({value}, {writer.constant(tuple(expected))})"


def _has_key(writer: Writer, source: Source, expected: Any) -> str:
    return f"{writer.constant(is_stored)}({writer.constant(expected)}, {writer.fetch(source)})"


def _no_key(writer: Writer, source: Source, expected: Any) -> str:
    return f"not {_has_key(writer, source, expected)}"


def _class_attr(writer: Writer, source: Source, expected: tuple[str, Any]) -> str:
    name, value = expected
    arguments = f"{writer.fetch(source)}, {name!r}, {writer.constant(value)}"
    return f"{writer.constant(class_attribute_is)}({arguments})"


def _no_attr(writer: Writer, source: Source, expected: str) -> str:
    return f"{writer.constant(lacks)}({writer.fetch(source)}, {expected!r})"


def lacks(value: Any, name: str) -> bool:
    """Whether an attribute is unset: a slot raises AttributeError, a cell ValueError."""
    try:
        getattr(value, name)
    except (AttributeError, ValueError):
        return True
    return False


def _tensor(writer: Writer, source: Source, facts: TensorFacts) -> str:
    value = writer.fetch(source)
    is_class = f"{writer.constant(type)}({value}) is {writer.constant(facts.cls)}"
    if facts.cls not in PLAIN_TENSORS or facts.layout is not torch.strided:
        return f"{is_class} and {writer.constant(tensor_has)}({value}, {writer.constant(facts)})"
    if facts.is_static():
        # A call, not the terms below: a model has hundreds, and Python compiles slowly.
        return f"{writer.constant(plain_tensor_check(facts))}({value})"
    terms = [
        is_class,
        f"{value}.dtype is {writer.constant(facts.dtype)}",
        *_extents(writer, f"{value}.shape", f"{value}.ndim", facts.sizes),
        f"{value}.device == {writer.constant(facts.device)}",
        f"{value}.layout is {writer.constant(facts.layout)}",
        f"{value}.requires_grad is {facts.requires_grad}",
        f"not {writer.constant(torch_api.lacks_memory)}({value})",
        f"{value}.is_conj() is {facts.is_conj} and {value}.is_neg() is {facts.is_neg}",
    ]
    if facts.strides is not None:
        terms += _extents(writer, f"{value}.stride()", None, facts.strides)
    if facts.is_inference is not None:
        terms.append(f"{value}.is_inference() is {facts.is_inference}")
    return " and ".join(terms)


def _extents(
    writer: Writer, text: str, rank: str | None, expected: tuple[int | None, ...]
) -> list[str]:
    if None not in expected:
        return [f"{text} == {writer.constant(tuple(expected))}"]
    terms = [f"{rank} == {len(expected)}"] if rank else []
    return terms + [f"{text}[{i}] == {n}" for i, n in enumerate(expected) if n is not None]


def _same(writer: Writer, source: Source, expected: Source) -> str:
    return f"{writer.fetch(source)} is {writer.fetch(expected)}"


def _distinct(writer: Writer, source: Source, expected: tuple[Source, ...]) -> str:
    identify = writer.constant(id)
    ids = ", ".join(f"{identify}({writer.fetch(s)})" for s in expected)
    return f"{writer.constant(len)}({{{ids}}}) == {len(expected)}"


def _no_overlap(writer: Writer, source: Source, expected: Apart) -> str:
    tensors = "".join(f"{writer.fetch(s)}, " for s in expected.sources)
    check = torch_api.ApartCheck(expected.written, expected.together, expected.static)
    return f"{writer.constant(check)}(({tensors}))"


def _state(writer: Writer, source: Source, expected: tuple[str, Any]) -> str:
    name, value = expected
    reader = writer.constant(torch_api.state_reader(name))
    return f"{reader}() == {writer.constant(value)}"


def _expression(writer: Writer, source: Source, expected: tuple[str, dict[str, Source]]) -> str:
    text, symbols = expected
    for name, value in torch_api.shape_expression_names().items():
        writer.constants.setdefault(name, value)
    for name, where in symbols.items():
        if not name.isidentifier() or keyword.iskeyword(name):
            raise CompilerBug(f"symbol {name!r} in a shape guard")
        writer.lines.append(f"{name} = {writer.fetch(where)}")
    return text


_CONDITIONS: dict[Kind, Callable[[Writer, Source, Any], str]] = {
    Kind.TYPE: _type,
    Kind.IS: _is,
    Kind.EQUALS: _equals,
    Kind.LENGTH: _length,
    Kind.KEYS: _keys,
    Kind.HAS_KEY: _has_key,
    Kind.NO_KEY: _no_key,
    Kind.CLASS_ATTR: _class_attr,
    Kind.NO_ATTR: _no_attr,
    Kind.TENSOR: _tensor,
    Kind.SAME: _same,
    Kind.DISTINCT: _distinct,
    Kind.NO_OVERLAP: _no_overlap,
    Kind.STATE: _state,
    Kind.EXPRESSION: _expression,
    Kind.CACHED: _expression,
}


def tensor_has(value: torch.Tensor, facts: TensorFacts) -> bool:
    """Whether a tensor of any class or layout is as ``facts`` say; its class is not checked
    here."""
    with torch_api.without_torch_function():
        if value.dtype is not facts.dtype or value.device != facts.device:
            return False
        if value.layout is not facts.layout or value.requires_grad is not facts.requires_grad:
            return False
        if not _matches(tuple(value.shape), facts.sizes):
            return False
        if facts.layout is torch.strided:
            if facts.strides is not None and not _matches(value.stride(), facts.strides):
                return False
            if torch_api.lacks_memory(value):
                return False
            if value.is_conj() is not facts.is_conj or value.is_neg() is not facts.is_neg:
                return False
        return facts.is_inference is None or value.is_inference() is facts.is_inference


def _matches(actual: Sequence[int], expected: Sequence[int | None]) -> bool:
    if len(actual) != len(expected):
        return False
    return all(want is None or want == have for have, want in zip(actual, expected))
