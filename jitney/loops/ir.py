"""LoopProgram: what a graph of ATen ops becomes before kernels are made of it.

Everything here is frozen data, comparable, hashable and printable as Python. A program is a list
of nodes run in order: loop nests, templates (GEMM, attention) and extern calls. Scalars of a nest
form expression trees (`Expr`), its statements a short tree (`Stmt`). The kind of a loop follows
from where it stands: axes of a `LoopNest` are parallel, axes of a `Loop` serial, axes of a
`Reduce` reduced. How they map to vectors, tiles and threads is each backend's own schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from jitney.loops.index import Axis, Dim, Index

Scalar = bool | int | float

# ---------------------------------------------------------------- expressions


class _HashOnce:
    """Expression trees share subtrees, so what is found out about a node (its hash; its loads, by
    `visit`) is kept on it, under names that begin with an underscore.

    That is not pickled: hashes of strings differ from process to process.
    """

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = hash(tuple([v for k, v in self.__dict__.items() if k[0] != "_"]))
            object.__setattr__(self, "_hash", found)
        return int(found)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k[0] != "_"}


@dataclass(frozen=True)
class Const:
    """A literal; ``value`` may be nan or ±inf for float dtypes. -0.0 and 0.0 are not equal."""

    value: Scalar
    dtype: torch.dtype

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Const)
            and repr(self.value) == repr(other.value)
            and self.dtype == other.dtype
        )

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@dataclass(frozen=True)
class Load(_HashOnce):
    """``buffer[index]``, ``index`` counted in elements from the buffer's data pointer.

    Where ``mask`` (a bool expression) is false nothing is read and the value is ``other``.
    """

    buffer: str
    index: Index
    dtype: torch.dtype
    mask: Expr | None = None
    other: Scalar = 0

    __hash__ = _HashOnce.__hash__


@dataclass(frozen=True)
class Ref:
    """The value a `Let`, `Reduction` or template accumulator bound to ``name``."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True)
class IndexValue:
    """An index as a number: ``arange``, positions, a symbolic size in arithmetic."""

    index: Index
    dtype: torch.dtype


@dataclass(frozen=True)
class ScalarArg:
    """A Python float (or int) handed over at run time instead of baked in."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Op(_HashOnce):
    """``op`` applied to ``args``; the table `OPS` says what each means. ``cast`` converts."""

    op: str
    args: tuple[Expr, ...]
    dtype: torch.dtype

    __hash__ = _HashOnce.__hash__


Expr = Const | Load | Ref | IndexValue | ScalarArg | Op

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_TESTS = ("isnan", "isinf", "signbit")  # of one operand
#: What gives a bool of operands that are none.
GIVE_BOOL = frozenset((*COMPARISONS, *_TESTS))

#: Opcode -> number of arguments. Operands share the result's dtype, but for `GIVE_BOOL`,
#: ``where`` (bool first operand) and ``cast``. Meanings are eager's: max/min keep
#: NaN; ``floordiv`` and ``remainder`` round to -inf, ``truncdiv`` and ``fmod`` to zero; integer
#: arithmetic wraps; bit operations on bool are logical; ``round`` is half to even.
OPS: dict[str, int] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "floordiv", "truncdiv", "remainder", "fmod"), 2),
    **dict.fromkeys(("pow", "atan2", "hypot", "copysign", "nextafter", "max", "min"), 2),
    **dict.fromkeys(("fmax", "fmin", "and", "or", "xor", "shl", "shr"), 2),
    **dict.fromkeys(COMPARISONS, 2),
    **dict.fromkeys(("neg", "abs", "sign", "not", "reciprocal", "sqrt", "rsqrt", "square"), 1),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"), 1),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), 1),
    **dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), 1),
    **dict.fromkeys(("erf", "erfc", "lgamma", "sigmoid"), 1),
    **dict.fromkeys(("floor", "ceil", "trunc", "round", *_TESTS), 1),
    **dict.fromkeys(("cast", "bitcast"), 1),
    **dict.fromkeys(("where", "fma"), 3),
    # (value, position): reduces the values of the enclosing `Loop`'s iterations up to this one;
    # position is the `IndexValue` of its only axis. On a GPU alone.
    **dict.fromkeys(("running_sum", "running_prod", "running_logaddexp"), 2),
    # A number of eager's CUDA stream for (seed, offset, threads, together, element), all i64;
    # `philox.words_of` says what they are. Bits are i64, the others f32. On a GPU alone.
    **dict.fromkeys(("philox_uniform", "philox_normal", "philox_bits"), 5),
}

RUNNING = frozenset(op for op in OPS if op.startswith("running_"))

#: Reduction -> identity is the backend's; ``any``/``all`` on bool; ``argmax``/``argmin`` give the
#: first position (i64) of the extreme, a NaN winning; ``welford`` gives (mean, m2, count),
#: ``softmax`` (max, sum of exp(value - max)).
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin", "welford",
              "softmax")  # fmt: skip

#: Those that give a position, and the reduction whose result lies there.
POSITIONAL = {"argmax": "max", "argmin": "min"}
#: Those that keep more than one value on their way along a row.
OF_SEVERAL_VALUES = frozenset((*POSITIONAL, "welford", "softmax"))

#: How a colliding `Store` combines.
COMBINING = ("add", "mul", "max", "min")

# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class Let:
    """Binds a scalar; an integer one may be used inside an index as ``Value(name)``."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Store:
    """Writes ``value`` (of the buffer's dtype). ``mode`` is "set", or for a scatter whose positions
    may collide one of `COMBINING`: an opcode of the old value and the new (atomic where iterations
    run in parallel; a GPU knows no "mul"); "sum" for the sum of all that the nest has for a place,
    whatever was there (a GPU's walk over rows: only the nest's last axis leads to the same place,
    and programs go over it in turn); or "assert" of a check: true if any value is. A GPU's kernel
    stops there as eager's does, by a device assertion, and stores nothing."""

    buffer: str
    index: Index
    value: Expr
    mask: Expr | None = None
    mode: str = "set"

    @property
    def combines(self) -> bool:
        """Whether the old value is part of the new one."""
        return self.mode not in ("set", "sum")


@dataclass(frozen=True)
class Reduction:
    """One result of a `Reduce`. ``names`` has one entry, three for welford, two for softmax.

    ``dtype`` is the accumulator's; ``value`` has that dtype (argmax's value keeps its own).
    """

    names: tuple[str, ...]
    op: str
    value: Expr
    dtype: torch.dtype


@dataclass(frozen=True)
class Reduce:
    """Runs ``body`` over ``axes`` and reduces; its results are in scope after it.

    ``body`` holds Lets (and Stores of values that do not depend on the results).
    """

    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]
    results: tuple[Reduction, ...]


@dataclass(frozen=True)
class Loop:
    """Runs ``body`` over ``axes`` in order; iterations may be vectorised (they do not conflict,
    but for a `Store` that combines)."""

    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]


Stmt = Let | Store | Reduce | Loop

# ---------------------------------------------------------------- nodes


@dataclass(frozen=True)
class LoopNest:
    """One kernel: ``body`` for every point of ``axes`` (outermost first), in any order.

    ``origins``: names of the FX nodes it came from, for reports.
    """

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Access:
    """An operand of a template: ``buffer[index]`` with ``index`` over the template's axes."""

    buffer: str
    index: Index
    dtype: torch.dtype


@dataclass(frozen=True)
class Gemm:
    """``acc[batch, m, n] = sum_k a[batch, m, k] * b[batch, k, n]``, then ``epilogue``.

    ``a_value`` (if any) is the expression used for an element of A instead of a plain load (a
    prologue, e.g. a norm; ``row_prologue`` statements over (batch, m) run before it, such as the
    norm's own reduction). ``epilogue`` runs for every (batch, m, n) with ``Ref("acc",
    acc_dtype)`` in scope and holds the stores. ``b_is_parameter``: B is a parameter of the model,
    which ``freeze`` may lay out once. ``m.extent == 1`` is a GEMV.
    """

    name: str
    batch: tuple[Axis, ...]
    m: Axis
    n: Axis
    k: Axis
    a: Access
    b: Access
    acc_dtype: torch.dtype
    epilogue: tuple[Stmt, ...]
    row_prologue: tuple[Stmt, ...] = ()
    a_value: Expr | None = None
    b_is_parameter: bool = False
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attention:
    """Softmax attention of one head per point of ``batch`` (batch and query-head axes).

    ``out[batch, s, d] = sum_t softmax_t(scale * q[batch, s, :] . k[batch, t, :] + mask) v[t, d]``.
    Accesses range over ``batch`` and the axes named; grouped queries show in the index of k and v
    (head axis // group). ``mask`` is additive (float) or keep (bool), or None. ``causal`` keeps
    ``t <= s + causal_offset``; ``window`` further keeps ``t > s + causal_offset - window``.
    ``logsumexp`` (over batch, s; f32), when given, is stored for the backward pass, 0 for a row
    with nothing kept. ``before``: nests that run before anything is read here, in the same launch:
    rotary embedding of the query and the new key, its row's store into the cache.
    """

    name: str
    batch: tuple[Axis, ...]
    s: Axis
    t: Axis
    d: Axis  # of q and k, reduced
    dv: Axis  # of v and the output
    q: Access
    k: Access
    v: Access
    out: Access
    scale: Expr
    mask: Access | None = None
    causal: bool = False
    causal_offset: Index = Index()
    window: int | None = None
    logsumexp: Access | None = None
    before: tuple[LoopNest, ...] = ()
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class BufferView:
    """A buffer seen as a strided tensor (``offset`` in elements); an extern call's operand."""

    buffer: str
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index = Index()

    def is_whole(self, buffer: Buffer) -> bool:
        """Whether it is the whole of ``buffer``, the one it names, as that is laid out."""
        laid_out = self.shape == buffer.shape and self.strides == buffer.strides
        return laid_out and self.offset == Index()


@dataclass(frozen=True)
class Extern:
    """A library or ATen call kept as it is.

    ``target`` names an overload ("aten.convolution.default"); ``args``/``kwargs`` nest tuples,
    lists, scalars, dtypes, `Index` for symbolic ints, `ScalarArg` (or an `Op` of them) and
    `BufferView`. Results go to
    ``outputs`` in order (None where a result is not a tensor or is unused): new tensors owned by
    torch, or, when the op writes into its arguments, none at all. ``mutates``: buffers written.
    ``effectful`` externs (RNG, prints) keep their order among themselves. ``refuses``: it raises
    for some values of what it is given, and nothing has asked about them before. ``reason`` says
    why it was not lowered.
    """

    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str | None, ...]
    mutates: tuple[str, ...] = ()
    effectful: bool = False
    refuses: bool = False
    reason: str = ""
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Together:
    """Nests (or products) that do not depend on each other, run by one launch
    (`group_launches`, GPU only)."""

    name: str
    nests: tuple[LoopNest | Gemm, ...]

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of all its nests."""
        return tuple(dict.fromkeys(o for nest in self.nests for o in nest.origins))


Node = LoopNest | Gemm | Attention | Extern | Together

# ---------------------------------------------------------------- program


@dataclass(frozen=True)
class Buffer:
    """Storage a node reads or writes; indices into it count elements of ``dtype``.

    ``kind``: "input" (the caller's tensor; ``shape``/``strides`` as guarded), "output" (allocated
    by torch for each call), "temp" (lives in the workspace), "large" (a temp with memory of its
    own, from its first use to its last), "extern" (made by an extern call),
    "constant" (a tensor lifted into the program, ``LoopProgram.constants``), "check" (one bool,
    true where eager's answer is another, as of an index out of range: the call then raises
    `LeftToEager`).
    """

    name: str
    kind: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    is_parameter: bool = False


@dataclass(frozen=True)
class Output:
    """A result: a view of a buffer (of the whole buffer in the common case)."""

    view: BufferView


@dataclass(frozen=True)
class IntOutput:
    """A result that is a Python int (a symbolic size, or a constant)."""

    value: Index


@dataclass(frozen=True)
class ScalarOutput:
    """A result that is a runtime scalar (`ScalarArg`, or an `Op` of them and of sizes), or a
    constant such as None."""

    value: Any


ProgramOutput = Output | IntOutput | ScalarOutput


@dataclass(frozen=True)
class Assumption:
    """``low <= value <= high`` (None: no bound) in every call: a guard sees to it. ``value`` is of
    one symbol."""

    value: Index
    low: int | None
    high: int | None


@dataclass(frozen=True)
class LoopProgram:
    """A whole compiled graph. ``arguments`` in call order: buffer names of kind "input", `Dim`s
    and `ScalarArg`s. ``slots`` places temp buffers in the workspace (`plan_memory`): name ->
    byte offset; ``workspace`` is its size in bytes. ``assumptions``: what guards say of sizes
    beyond the ranges of their `Dim`s."""

    arguments: tuple[str | Dim | ScalarArg, ...]
    buffers: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[ProgramOutput, ...]
    slots: tuple[tuple[str, Index], ...] = ()
    workspace: Index = Index()
    assumptions: tuple[Assumption, ...] = ()

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; KeyError if there is none."""
        return self.buffer_table()[name]

    def buffer_table(self) -> dict[str, Buffer]:
        """Buffers by name (computed once per program)."""
        table = self.__dict__.get("_table")
        if table is None:
            table = {b.name: b for b in self.buffers}
            object.__setattr__(self, "_table", table)
        return table
