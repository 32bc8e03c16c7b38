"""A `LoopProgram`, or any part of it, as text that reads like Python."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from jitney.loops import ir
from jitney.loops.index import Axis, Dim

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "remainder": "%",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
}
_INDENT = "    "


def print_program(program: ir.LoopProgram) -> str:
    """The whole program as a function definition."""
    return "\n".join(program_lines(program)) + "\n"


def program_lines(program: ir.LoopProgram) -> list[str]:
    """The program line by line: signature, buffers, nodes, return."""
    lines = [f"def program({', '.join(_argument(a) for a in program.arguments)}):"]
    slots = dict(program.slots)
    for buffer in program.buffers:
        place = f"  # at byte {slots[buffer.name]}" if buffer.name in slots else ""
        lines.append(f"{_INDENT}{buffer_text(buffer)}{place}")
    for node in program.nodes:
        lines.extend(_INDENT + line for line in node_lines(node))
    lines.append(f"{_INDENT}return {', '.join(_output(o) for o in program.outputs)}")
    return lines


def buffer_text(buffer: ir.Buffer) -> str:
    """``name: kind f32[2, 3] strides (3, 1)``."""
    shape = ", ".join(str(s) for s in buffer.shape)
    strides = ", ".join(str(s) for s in buffer.strides)
    kind = "parameter" if buffer.is_parameter else buffer.kind
    return f"{buffer.name}: {kind} {dtype_text(buffer.dtype)}[{shape}] strides ({strides})"


def dtype_text(dtype: torch.dtype) -> str:
    """``f32``, ``bf16``, ``i64``, ``bool``."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        name = name.replace(long, short)
    return name


def node_lines(node: ir.Node) -> list[str]:
    """One node line by line."""
    came = f"  # {', '.join(node.origins)}" if node.origins else ""
    if isinstance(node, ir.LoopNest):
        head = f"for {_axes(node.axes)}:  # {node.name}" if node.axes else f"once:  # {node.name}"
        return [head + came.replace("  # ", " from "), *_body(node.body)]
    if isinstance(node, ir.Gemm):
        return _gemm_lines(node, came)
    if isinstance(node, ir.Attention):
        return _attention_lines(node, came)
    if isinstance(node, ir.Together):
        inner = [line for nest in node.nests for line in node_lines(nest)]
        return [f"together:  # {node.name}", *("    " + line for line in inner)]
    args = [_argument_text(a) for a in node.args]
    args += [f"{k}={_argument_text(v)}" for k, v in node.kwargs]
    results = ", ".join(n or "_" for n in node.outputs)
    notes = f"  # mutates {', '.join(node.mutates)}" if node.mutates else ""
    notes += f"  # {node.reason}" if node.reason else ""
    call = f"{node.target}({', '.join(args)})"
    return [(f"{results} = {call}" if results else call) + notes + came]


def _gemm_lines(node: ir.Gemm, came: str) -> list[str]:
    a = expr_text(node.a_value) if node.a_value is not None else _access(node.a)
    b = _access(node.b) + (" (parameter)" if node.b_is_parameter else "")
    lines = [f"gemm {_axes((*node.batch, node.m, node.n))}:  # {node.name}{came}"]
    if node.row_prologue:
        lines += [f"{_INDENT}rows:", *(_INDENT + line for line in _body(node.row_prologue))]
    lines.append(f"{_INDENT}acc = sum({a} * {b} for {_axes((node.k,))})")
    return [*lines, *_body(node.epilogue)]


def _attention_lines(node: ir.Attention, came: str) -> list[str]:
    head = f"attention {_axes((*node.batch, node.s, node.t, node.d, node.dv))}:"
    options = [f"scale={expr_text(node.scale)}"]
    if node.mask is not None:
        options.append(f"mask={_access(node.mask)}")
    if node.causal:
        options.append(f"causal_offset={node.causal_offset}")
    if node.window is not None:
        options.append(f"window={node.window}")
    lines = [
        f"{head}  # {node.name}{came}",
        *(_INDENT + line for nest in node.before for line in node_lines(nest)),
        f"{_INDENT}q={_access(node.q)}, k={_access(node.k)}, v={_access(node.v)}",
        f"{_INDENT}{', '.join(options)}",
        f"{_INDENT}{_access(node.out)} = out",
    ]
    if node.logsumexp is not None:
        lines.append(f"{_INDENT}{_access(node.logsumexp)} = logsumexp")
    return lines


def _body(body: tuple[ir.Stmt, ...]) -> Iterator[str]:
    for stmt in body:
        for line in stmt_lines(stmt):
            yield _INDENT + line


def stmt_lines(stmt: ir.Stmt) -> list[str]:
    """One statement line by line."""
    if isinstance(stmt, ir.Let):
        return [f"{stmt.name} = {expr_text(stmt.value)}"]
    if isinstance(stmt, ir.Store):
        sign = {"set": "=", "add": "+=", "mul": "*="}.get(stmt.mode, f"{stmt.mode}=")
        guard = "" if stmt.mask is None else f"if {expr_text(stmt.mask)}: "
        return [f"{guard}{stmt.buffer}[{stmt.index}] {sign} {expr_text(stmt.value)}"]
    if isinstance(stmt, ir.Loop):
        return [f"for {_axes(stmt.axes)}:", *_body(stmt.body)]
    lines = [f"reduce {_axes(stmt.axes)}:", *_body(stmt.body)]
    for r in stmt.results:
        text = f"{r.op}[{dtype_text(r.dtype)}]({expr_text(r.value)})"
        lines.append(f"{_INDENT}{', '.join(r.names)} = {text}")
    return lines


def expr_text(expr: ir.Expr) -> str:
    """An expression on one line."""
    if isinstance(expr, ir.Const):
        return repr(expr.value)
    if isinstance(expr, ir.Load):
        text = f"{expr.buffer}[{expr.index}]"
        return (
            text if expr.mask is None else f"({text} if {expr_text(expr.mask)} else {expr.other})"
        )
    if isinstance(expr, ir.IndexValue):
        return f"{dtype_text(expr.dtype)}({expr.index})"
    if isinstance(expr, ir.Ref | ir.ScalarArg):
        return expr.name
    args = [expr_text(a) for a in expr.args]
    if expr.op in _INFIX and len(args) == 2:
        return f"({args[0]} {_INFIX[expr.op]} {args[1]})"
    name = dtype_text(expr.dtype) if expr.op == "cast" else expr.op
    return f"{name}({', '.join(args)})"


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{a.name} in {a.extent}" for a in axes)


def _access(access: ir.Access) -> str:
    return f"{access.buffer}[{access.index}]"


def _argument(argument: str | Dim | ir.ScalarArg) -> str:
    return argument if isinstance(argument, str) else argument.name


def _output(out: ir.ProgramOutput) -> str:
    if isinstance(out, ir.Output):
        return _argument_text(out.view)
    return str(out.value)


def _argument_text(value: object) -> str:
    if isinstance(value, ir.BufferView):
        shape, strides = (", ".join(str(s) for s in x) for x in (value.shape, value.strides))
        offset = f" + {value.offset}" if value.offset.terms or value.offset.const else ""
        return f"{value.buffer}{offset} as [{shape}]({strides})"
    if isinstance(value, list | tuple):
        inside = ", ".join(_argument_text(v) for v in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, ir.ScalarArg):
        return value.name
    return str(value)
