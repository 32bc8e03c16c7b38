"""A `LoopProgram` for the CPU as a callable: one module, one native function per segment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import llvmlite
import torch

from jitney.config import Config
from jitney.disk_cache import DiskCache, open_cache
from jitney.errors import CompilerBug, LeftToEager
from jitney.events import log
from jitney.kernels.llvm import native_runtime, native_threads
from jitney.kernels.llvm.emit_call import LargeResult, emit_call, large_results
from jitney.kernels.llvm.emit_node import NodeEmitter
from jitney.kernels.llvm.emit_segment import emit_run
from jitney.kernels.llvm.freeze_weights import FrozenCall, FrozenParts, freeze_weights
from jitney.kernels.llvm.hoist_parameters import hoist_parameters
from jitney.kernels.llvm.machine_code import LoadedObject, compile_text, provide_cell
from jitney.kernels.llvm.result_memory import KEPT
from jitney.kernels.llvm.run_steps import RunSteps, is_plain
from jitney.kernels.llvm.segments import Segment, Step, cut_segments
from jitney.loops import visit
from jitney.loops.ir import Extern, LoopProgram, Output
from jitney.loops.target import Target, target_text
from jitney.native_code import Calls, python_function

Callee = Callable[..., Any]


@dataclass(frozen=True)
class Module:
    """A module's text, the functions Python calls, and the symbols it takes from the process."""

    text: str
    functions: tuple[str, ...]
    imports: tuple[str, ...]


@dataclass(frozen=True)
class NativeProgram:
    """A built program as data, which `load_program` makes a callable of in any process.

    ``constants``: names of the constant buffers each function holds, ``large``: what it asks
    memory for. ``parts``: the program and
    its steps where more than one native call is needed. ``frozen``: what a frozen program
    is called with, and the program that prepares it, if any. ``checks``: a call may raise
    `LeftToEager`.
    """

    machine_code: bytes
    functions: tuple[str, ...]
    imports: tuple[str, ...]
    constants: tuple[tuple[str, ...], ...]
    large: tuple[tuple[LargeResult, ...], ...]
    parts: tuple[LoopProgram, tuple[Step, ...]] | None
    frozen: tuple[FrozenParts, NativeProgram | None] | None
    checks: bool = False


def make_native(
    program: LoopProgram,
    target: Target,
    options: Config | None = None,
    cache: DiskCache | None = None,
) -> NativeProgram:
    """Compiles ``program`` up to what depends on this process: everything but linking.

    Object files are kept in ``cache``, by default the one ``options`` name (none without options).
    """
    if cache is None and options is not None:
        cache = open_cache(options)
    frozen = None
    if options is not None and options.freeze:
        program, frozen = _frozen(program, target, cache)
    emitter = NodeEmitter(target)
    with log.stage("kernel text", nodes=len(program.nodes)):
        steps = cut_segments(program, _refused(program, emitter))
        segments = [s for s in steps if isinstance(s, Segment)]
        module = emit_module(program, segments, emitter, target)
    log.emit("llvm module", text=module.text, functions=module.functions)
    return NativeProgram(
        machine_code=machine_code(module, target, cache),
        functions=module.functions,
        imports=module.imports,
        constants=tuple(segment.constants for segment in segments),
        large=tuple(tuple(large_results(program, s).values()) for s in segments),
        parts=None if is_plain(program, steps) else (program, steps),
        frozen=frozen,
        checks=any(b.kind == "check" for b in program.buffers),
    )


def _frozen(
    program: LoopProgram, target: Target, cache: DiskCache | None
) -> tuple[LoopProgram, tuple[FrozenParts, NativeProgram | None] | None]:
    """The program as it runs once its parameters are known, and how to compute what it takes
    instead of them."""
    main, preparation = hoist_parameters(program)
    main, weights = freeze_weights(main, target)
    if preparation is None and not weights:
        return program, None
    own, read = program.arguments, {name for node in main.nodes for name in visit.reads(node)}
    more = [a for a in main.arguments[len(own) :] if isinstance(a, str)]
    extra = tuple(name for name in more if name in read)
    buffers = tuple(b for b in main.buffers if b.name in read or b.name not in more)
    main = replace(main, arguments=own + extra, buffers=buffers)
    if preparation is None:
        return main, (FrozenParts(own, extra, (), (), weights), None)
    given = tuple(a for a in preparation.arguments if isinstance(a, str))
    made = tuple(o.view.buffer for o in preparation.outputs if isinstance(o, Output))
    native = make_native(preparation, target, None, cache)
    return main, (FrozenParts(own, extra, given, made, weights), native)


def load_program(native: NativeProgram, constants: Mapping[str, torch.Tensor]) -> Callee:
    """A built program as a callable of its ``arguments`` that returns a tuple of its outputs;
    ``constants``: the tensors of its constant buffers."""
    provide_cell(native_runtime.POOL)
    provide_cell(native_runtime.SERIAL)
    with log.stage("link", bytes=len(native.machine_code)):
        loaded = LoadedObject(native.machine_code, native.functions, native.imports)
    calls = [
        python_function(
            name,
            loaded.addresses[name],
            Calls.WITH_MANY,
            (*(constants[c] for c in names), LeftToEager, *map(_lessor, large)),
            loaded,
        )
        for name, names, large in zip(native.functions, native.constants, native.large, strict=True)
    ]
    call: Callee = calls[0] if native.parts is None else RunSteps(*native.parts, calls, constants)
    if native.frozen is None:
        return call
    parts, preparation = native.frozen
    prepare = None if preparation is None else load_program(preparation, {})
    return FrozenCall(call, parts, prepare)


def _lessor(result: LargeResult) -> Callable[[], torch.Tensor]:
    return KEPT.lessor(result.shape, result.strides, result.dtype)


def _refused(program: LoopProgram, emitter: NodeEmitter) -> dict[int, str]:
    """The nodes for which there is no code, by position; each is reported to the log."""
    refused = {}
    for position, node in enumerate(program.nodes):
        if isinstance(node, Extern):
            continue
        try:
            emitter.emit(node)
        except CompilerBug as reason:
            refused[position] = str(reason)
            log.emit("interpreted_node", name=node.name, reason=str(reason))
    return refused


def emit_module(
    program: LoopProgram, segments: Sequence[Segment], emitter: NodeEmitter, target: Target
) -> Module:
    """All text of a program."""
    texts: list[str] = []
    declarations: set[str] = {*native_runtime.IMPORTS, *native_threads.IMPORTS}
    functions = []
    for k, segment in enumerate(segments):
        code = emit_run(program, segment, f"run{k}", emitter, target)
        call = emit_call(program, segment, code, f"jitney_call{k}")
        texts += [*code.texts, call.finish()]
        declarations |= code.declarations | call.declarations
        functions.append(call.name)
    definitions = _distinct_functions(texts)
    runtime = (native_runtime.TEXT, native_threads.TEXT)
    text = "\n".join([*sorted(declarations), *runtime, *definitions])
    return Module(text, tuple(functions), _imports(text))


def _distinct_functions(texts: Iterable[str]) -> list[str]:
    """Every function definition once: nodes share what they have in common by name."""
    found: dict[str, str] = {}
    for text in texts:
        for part in text.split("\n}\n"):
            if part.strip():
                name = _DEFINED.search(part)
                if name is None:
                    raise CompilerBug(f"not a function: {part[:80]!r}")
                found.setdefault(name[1], part + "\n}\n")
    return list(found.values())


_DEFINED = re.compile(r"define [^@]*@([\w.]+)\(")
_DECLARED = re.compile(r"^declare [^@]*@([\w.]+)\(", re.MULTILINE)


def _imports(text: str) -> tuple[str, ...]:
    names = {n for n in _DECLARED.findall(text) if not n.startswith("llvm.")}
    return (*sorted(names), native_runtime.POOL, native_runtime.SERIAL)


def machine_code(module: Module, target: Target, cache: DiskCache | None) -> bytes:
    """The module's object file, from the cache if it holds it."""
    key = f"{module.text}|{target_text(target)}|{torch.__version__}|{llvmlite.__version__}"
    data = cache.get(key) if cache is not None else None
    if data is None:
        with log.stage("machine code", bytes=len(module.text)):
            data = compile_text(module.text, target)
        if cache is not None:
            cache.put(key, data)
    return data


def _serial_after_fork() -> None:
    """Makes kernels run on one thread in forked processes: libgomp's threads do not survive a fork,
    and a child would wait for them for ever."""
    provide_cell(native_runtime.SERIAL).value = 1


os.register_at_fork(after_in_child=_serial_after_fork)
