"""A capture as one generated Python function of the frame's inputs.

It fetches what existed before, calls the graph, builds every new object, replays the effects, and
leaves, in this order. Whatever raises does so before the first effect, so that no mutation is half
done. Where the graph itself raises and leaves no trace, eager runs the frame instead: errors then
arise at the user's lines, in order with everything else that the frame does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from types import CellType, CodeType, FunctionType
from typing import Any, Protocol, runtime_checkable

from jitney.capture import recipe as r
from jitney.capture.build_resume import Point, run_tails, step_code, stopped_at
from jitney.capture.check_guards import exact_types, write_guards
from jitney.capture.cpython import CALLED_LIES_BELOW, KEYWORDS_OR_NULL
from jitney.capture.edit_code import list_code
from jitney.capture.emit_fetch import FUNCTION, Writer, build_function
from jitney.capture.frame import CALLER, OPTIMIZER
from jitney.capture.guard import Guard
from jitney.capture.open_blocks import leave_blocks
from jitney.capture.result import Break, Capture, Exit, FrameState, Return
from jitney.capture.source import Local, Source
from jitney.capture.write_recipes import EffectWriter, RecipeWriter
from jitney.errors import LeftToEager
from jitney.events import log
from jitney.signals import is_of_signal

Glue = Callable[..., Any]


class Linker(Protocol):
    """What the glue of a frame that stops in the middle needs at run time."""

    def resume(self, point: Point, globals_: dict[str, Any]) -> Callable[..., Any]:
        """``enter(closure, *arguments)`` of the compiled resume function at ``point``."""

    def callee(self, value: Any) -> Any:
        """The callable to use for ``value``, called by the operation that broke the graph."""

    @property
    def run_eager(self) -> Callable[..., Any]:
        """``call(function, *locals)``: the frame, not compiled."""


@runtime_checkable
class Bindable(Protocol):
    """A compiled graph that can be told once which inputs are the same objects in every call."""

    def __call__(self, *inputs: Any) -> Any:
        """The graph's results, a flat tuple."""

    def bind(self, known: tuple[Any, ...]) -> Callable[..., Any] | None:
        """The graph as a function of the inputs that are ``...`` in ``known``; None where it
        cannot be one."""


@dataclass(frozen=True)
class Armed:
    """What is known to be unchanged when an armed glue runs: ``stable`` sources are given as a
    tuple, ``guards`` are left to check, and ``miss`` is called if one fails."""

    stable: tuple[Source, ...]
    guards: tuple[Guard, ...]
    miss: Callable[..., Any]


@dataclass(frozen=True)
class _Context:
    """What writing one glue needs throughout."""

    writer: Writer
    recipes: RecipeWriter
    linker: Linker


def build_glue(
    capture: Capture,
    graph: Callable[..., Any] | None,
    parameters: Sequence[str],
    linker: Linker,
    name: str,
    is_resume: bool,
    armed: Armed | None,
) -> Callable[[tuple[Any, ...]], Glue]:
    """A function from the values of ``armed.stable`` to the glue ``(function, *locals)``.

    ``graph`` takes the capture's inputs and returns a flat sequence. A resume function's glue
    hands tails to its caller; any other runs them to the end.
    """
    bound = {source: f"b{i}" for i, source in enumerate(armed.stable)} if armed else {}
    made: list[str] = []
    writer = Writer(parameters, exact=exact_types(capture.guards), bound=bound)
    arguments = ", ".join([FUNCTION, *writer.parameters])
    checks = _residual_guards(writer, armed.guards) if armed else []
    recipes = RecipeWriter(writer)
    for given in _given(capture):
        recipes.expression(given)
    if graph is not None:
        inputs = [writer.fetch(i.source) for i in capture.inputs]
        call, made = _graph_call(writer, graph, inputs, set(bound.values()))
        start = len(writer.lines)
        writer.lines.append(f"results = {call}")
        if capture.checked_again is not None:
            watch = writer.constant(capture.checked_again.watcher(parameters, name))
            writer.lines.append(f"{watch}(results, {arguments})")
    effects = [EffectWriter(writer, recipes).statement(effect) for effect in capture.effects]
    leave = _write_exit(_Context(writer, recipes, linker), capture.exit, is_resume=is_resume)
    body = [*writer.lines, *effects, leave]
    if graph is not None and (handler := _graph_handler(writer, capture, name)):
        leave = f"return {writer.constant(linker.run_eager)}({arguments})"
        body[start:] = [*_or_else(body[start : start + 1], handler, body[start + 1 :]), leave]
    if armed and checks:
        leave = f"return {writer.constant(armed.miss)}({arguments})"
        handler = [f"except {writer.constant(Exception)}:", "    pass"]
        body = [*_or_else(checks, handler, body), leave]
    opening = [f"def glue({arguments}):", *_indented(body), "return glue"]
    if bound:
        opening[:0] = [f"({' '.join(f'{n},' for n in bound.values())}) = stable", *made]
    filename = f"<jitney glue of {name}>"
    return build_function("arm", ["stable"], opening, writer.constants, filename=filename)


def _graph_handler(writer: Writer, capture: Capture, name: str) -> list[str]:
    """What the glue does where the graph raises: eager runs the frame, or the error, as any of a
    signal's handler, leaves its blocks."""
    leave, handler = ["raise"], []
    if capture.blocks:
        exits = "".join(f"{writer.fetch(Local(name))}, " for name in capture.blocks)
        leave = [f"{writer.constant(leave_blocks)}(error, ({exits}))", "raise"]
    if capture.rerun_on:
        caught, tell = writer.constant(capture.rerun_on), writer.constant(_teller(capture, name))
        of_signal = writer.constant(is_of_signal)
        handler += [f"except {caught} as error:", f"    if {of_signal}(error):"]
        handler += [*_indented(_indented(leave)), f"    {tell}(error)"]
    if capture.blocks:
        handler += [f"except {writer.constant(BaseException)} as error:", *_indented(leave)]
    return handler


def _or_else(tried: list[str], handler: list[str], rest: list[str]) -> list[str]:
    """``tried``, then ``rest``; where ``tried`` raises, ``handler``, then what comes behind all
    this. (So that it runs in no handler: the user's program asks what exception is handled.)"""
    return ["try:", *_indented(tried), *handler, "else:", *_indented(rest)]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _teller(capture: Capture, name: str) -> Callable[[Exception], None]:
    """What tells the log that the graph raised, and whose it is."""
    assert capture.graph is not None
    nodes = sum(n.op.startswith("call") for n in capture.graph.graph.nodes)
    facts = {"function": name, "nodes": nodes, **capture.graph.meta.get("frame", {})}

    def tell(error: Exception) -> None:
        if isinstance(error, LeftToEager):
            log.emit("rerun_eagerly", reason=str(error))
        else:
            reason = f"its graph raised {type(error).__name__}: {error}"
            log.emit("graph_raised", reason=reason, **facts)

    return tell


def _graph_call(
    writer: Writer, graph: Callable[..., Any], inputs: list[str], known: set[str]
) -> tuple[str, list[str]]:
    """The call, and statements that make once what it names: inputs that are ``known`` are bound,
    where the graph can bind, else handed over as tuples."""
    if known and isinstance(graph, Bindable):
        values = "".join(f"{name if name in known else '...'}, " for name in inputs)
        made = [f"bound = {writer.constant(bind)}({writer.constant(graph)}, ({values}))"]
        return f"bound({', '.join(name for name in inputs if name not in known)})", made
    arguments: list[str] = []
    made = []
    for stable, group in groupby(inputs, known.__contains__):
        if not stable:
            arguments += group
            continue
        made.append(f"run{len(made)} = ({' '.join(f'{name},' for name in group)})")
        arguments.append(f"*run{len(made) - 1}")
    return f"{writer.constant(graph)}({', '.join(arguments)})", made


def bind(graph: Bindable, known: tuple[Any, ...]) -> Callable[..., Any]:
    """``graph`` as a function of the inputs that are ``...`` in ``known``: by its own ``bind``, or,
    where that gives None, called with all of them."""
    bound = graph.bind(known)
    if bound is not None:
        return bound
    places = [position for position, value in enumerate(known) if value is ...]

    def call(*given: Any) -> Any:
        inputs = list(known)
        for position, value in zip(places, given):
            inputs[position] = value
        return graph(*inputs)

    return call


def _residual_guards(writer: Writer, guards: Sequence[Guard]) -> list[str]:
    """Statements that raise where a guard does not hold."""
    outer, writer.lines = writer.lines, []
    write_guards(writer, guards, "raise LookupError")
    checks, writer.lines = writer.lines, outer
    return checks


def sources_used(capture: Capture) -> tuple[Source, ...]:
    """Every source the glue fetches."""
    inputs = [i.source for i in capture.inputs]
    return tuple(dict.fromkeys([*inputs, *(g.source for g in _given(capture))]))


def _given(capture: Capture) -> list[r.Given]:
    """Every object from before the frame that recipes name, in the order they are met."""
    found: dict[int, r.Given] = {}
    stack: list[Any] = [capture.exit, capture.effects]
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, r.Given):
            found[id(value)] = value
        elif isinstance(value, tuple):
            stack.extend(value)
        elif isinstance(value, r.Recipe | r.Effect | Return | Break | FrameState):
            stack.extend(vars(value).values())
    return list(found.values())


# ---------------------------------------------------------------- leaving


def _write_exit(glue: _Context, leaving: Exit, *, is_resume: bool) -> str:
    """Builds what the exit needs; the statement that leaves."""
    if isinstance(leaving, Return):
        return f"return {glue.recipes.expression(leaving.value)}"
    constant = glue.writer.constant
    thunk, kind = None, leaving.kind
    for state in leaving.frames[:-1]:
        call = ", ".join([constant(_run_step), *_write_frame(glue, state, thunk, kind)])
        thunk = glue.writer.fresh()
        glue.writer.lines.append(f"{thunk} = {constant(partial)}({call})")
    step, *arguments = _write_frame(glue, leaving.frames[-1], thunk, kind)
    call = f"{step}({', '.join(arguments)})"
    return f"return {call}" if is_resume else f"return {constant(run_tails)}({call})"


def _run_step(step: Callable[..., Any], *arguments: Any) -> Any:
    return run_tails(step(*arguments))


def _write_frame(glue: _Context, state: FrameState, thunk: str | None, kind: str = "") -> list[str]:
    """The step function of a stopped frame and its arguments, as expressions. By the ``kind`` of
    break what it calls is compiled or not, and what that is given to call."""
    code, build, constant = state.code, glue.recipes.expression, glue.writer.constant
    values = dict(state.locals)
    owned = {name: values.pop(name) for name in code.co_cellvars if name in values}
    cells = {**owned, **dict(zip(code.co_freevars, state.closure))}
    nulls = tuple(isinstance(slot, r.Null) for slot in state.stack)
    point = stopped_at(code, state.offset, nulls, tuple(sorted(values)))
    step = step_code(point, outer=thunk is not None, pushes=state.pushes)
    globals_ = state.globals
    if not point.cells:
        expression = constant(FunctionType(step.code, globals_))
    else:
        empty = r.MakeCell(None)
        closure = "".join(f"{build(cells.get(name, empty))}, " for name in point.cells)
        expression = f"{constant(_close)}({constant(step.code)}, {constant(globals_)}, ({closure}))"
    stack = [build(slot) for slot in state.stack if not isinstance(slot, r.Null)]
    called = None if kind == CALLER or thunk is not None else _callable_slot(point)
    if called is not None:
        place = called - sum(nulls[:called])
        for at in range(place, len(stack) if kind == OPTIMIZER else place + 1):
            stack[at] = f"{constant(glue.linker.callee)}({stack[at]})"
    enters = [constant(glue.linker.resume(to, globals_)) for to in step.successors] or ["None"]
    names = [build(values[name]) for name in point.names]
    if point.handled:
        names.insert(0, "None" if state.handling is None else build(state.handling))
    return [expression, *enters, *([thunk] if thunk else []), *stack, *names]


def _close(code: CodeType, globals_: dict[str, Any], closure: tuple[CellType, ...]) -> FunctionType:
    return FunctionType(code, globals_, None, None, closure)


def _callable_slot(point: Point) -> int | None:
    """Stack slot of what the instruction at ``point`` calls."""
    listing, index = list_code(point.code), point.index
    while listing.names[index] in ("KW_NAMES", "PRECALL"):
        index += 1
    argument, depth = listing.arguments[index] or 0, len(point.nulls)
    if listing.names[index] == "CALL":
        slot = depth - argument - 2
        return slot + 1 if point.nulls[slot] else slot
    if listing.names[index] == "CALL_KW":
        return depth - argument - 3
    if listing.names[index] == "CALL_FUNCTION_EX":
        keywords = KEYWORDS_OR_NULL or argument & 1
        return depth - 2 - keywords - CALLED_LIES_BELOW
    return None
