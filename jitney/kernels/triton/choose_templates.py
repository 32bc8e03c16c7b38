"""Which matrix products and attentions become kernels of ours on a GPU, and which stay calls.

Runs before fusion, so that what is around a library call fuses among itself. A product with one
row is bound by reading its weights once: it stays, takes in its epilogue, and becomes a plain row
reduction afterwards (`products_as_nests`). One of few rows stays too (`gemm_tile`), split along k
where its tiles would leave the GPU idle. A large one is cuBLAS's (measured: a plain Triton GEMM
reaches 0.5 to 0.8 of it), its bias riding along.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeGuard

from jitney.errors import Unsupported
from jitney.kernels.triton.decode_attention import can_split_decode
from jitney.kernels.triton.epilogues import wide_axes, with_accumulator, without_units
from jitney.kernels.triton.schedule_gemm import (
    can_persist,
    can_tile_gemm,
    candidates,
    schedule_gemm,
)
from jitney.kernels.triton.short_attention import can_attend_short
from jitney.kernels.triton.split_product import split_product
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, FloorDiv, Index, index
from jitney.loops.inline_copies import can_read_through, through_copy
from jitney.loops.ir import (
    Access,
    Attention,
    Buffer,
    BufferView,
    Const,
    Expr,
    Extern,
    Gemm,
    Load,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    Ref,
    ScalarArg,
    Stmt,
    Store,
)
from jitney.loops.plan_memory import size_in_bytes
from jitney.loops.points import points_of, row_major
from jitney.loops.pointwise_nest import PointwiseNest, pointwise
from jitney.loops.target import Target
from jitney.loops.visit import (
    body_exprs,
    expr_nodes,
    loads,
    map_expr,
    map_stmt,
    reads,
    statements,
    stmt_exprs,
    writes,
)

#: Up to this many rows of A a product is a row reduction over B.
FEW_ROWS = 1
#: Opcodes of many instructions, as in GELU.
HEAVY = frozenset(("erf", "tanh"))
#: A product over so few elements is no product.
SHORT = 4


class Kernel(Enum):
    """Whose kernel serves a product or an attention."""

    VECTOR = "vector"  # ours, a row reduction (`products_as_nests`)
    TILES = "tiles"  # ours, in so many stretches of k
    PERSISTENT = "persistent"  # ours, whose programs go over several tiles
    OWN = "own"  # our attention
    LIBRARY = "library"


@dataclass(frozen=True)
class Template:
    """A choice; ``splits``: stretches of k, of tiles alone."""

    kernel: Kernel
    splits: int = 1

    def __repr__(self) -> str:
        """A text, under which a `Tuner` keeps on disk what it measured: it stays as it is."""
        parts = f" {self.splits}" if self.kernel is Kernel.TILES else ""
        return repr(self.kernel.value + parts)


#: By the names of products and attentions.
Templates = Mapping[str, Template]


def choose_templates(
    program: LoopProgram, target: Target, measured: Templates | None = None
) -> LoopProgram:
    """``program`` with `Gemm` and `Attention` only where they are kernels of ours; ``measured``:
    what is known to be fastest, where it is not the model's choice."""
    chosen = _Choices(program, target, measured or {})
    for node in program.nodes:
        chosen.add(node)
    return replace(program, nodes=tuple(chosen.nodes), buffers=tuple(chosen.buffers.values()))


def possible_templates(program: LoopProgram, target: Target) -> dict[str, tuple[Template, ...]]:
    """All templates that serve a product or an attention, the model's choice first."""
    chosen = _Choices(program, target, {})
    found: dict[str, tuple[Template, ...]] = {}
    for node in program.nodes:
        if isinstance(node, Gemm | Attention):
            model = chosen.model(node)
            others = () if model.kernel is Kernel.VECTOR else _others(node, target)
            found[node.name] = tuple(dict.fromkeys([model, *others]))
    return found


def _others(node: Gemm | Attention, target: Target) -> list[Template]:
    library = Template(Kernel.LIBRARY)
    if isinstance(node, Attention):
        return [library, Template(Kernel.OWN)] if _is_own_attention(node, target) else [library]
    if can_tile_gemm(node):
        splits = sorted({option.splits for option in candidates(node)})
        return [library, *(Template(Kernel.TILES, n) for n in splits)]
    return [library, Template(Kernel.PERSISTENT)] if can_persist(node, target) else [library]


def _is_own_attention(node: Attention, target: Target) -> bool:
    return bool(can_split_decode(node) or can_attend_short(node, target.shared_memory))


def is_row_reduction(gemm: Gemm) -> Decision:
    """Whether the product costs no more than reading B once, row by row."""
    if gemm.k.extent.is_const and int(gemm.k.extent) <= SHORT:
        return yes("hardly anything to reduce")
    several = not gemm.m.extent.is_const or int(gemm.m.extent) > FEW_ROWS
    if not _is_strided(gemm):
        if several and can_tile_gemm(gemm):
            return no("the library cannot read an operand that is no strided matrix, our tiles can")
        return yes("an operand is no strided matrix the library could read")
    if several:
        return no(f"{gemm.m.extent} rows share each weight: the library's tiles win")
    along_k = gemm.b.index.coefficient(gemm.k)
    if along_k is None or not along_k.is_const or int(along_k) != 1:
        return no("the weights are not contiguous along the reduced axis")
    return yes("one row: bound by reading the weights")


def _is_strided(gemm: Gemm) -> bool:
    """Whether both operands are affine in their axes."""
    for access, axes in ((gemm.a, (gemm.m, gemm.k)), (gemm.b, (gemm.k, gemm.n))):
        if any(access.index.coefficient(axis) is None for axis in (*gemm.batch, *axes)):
            return False
    return True


class _Choices:
    def __init__(self, program: LoopProgram, target: Target, measured: Templates) -> None:
        self.target, self.measured = target, measured
        products = [n for n in program.nodes if isinstance(n, Gemm)]
        self.alike = Counter((g.a.buffer, g.m.extent, g.k.extent) for g in products)
        self.writers = Counter(name for n in program.nodes for name in set(writes(n)))
        self.copies = _final_copies(program, self.writers)
        self.readers: dict[str, list[Node]] = defaultdict(list)
        for node in program.nodes:
            for name in set(reads(node)):
                self.readers[name].append(node)
        self.nodes: list[Node] = []
        self.buffers: dict[str, Buffer] = {b.name: b for b in program.buffers}

    def add(self, node: Node) -> None:
        if not isinstance(node, Gemm | Attention):
            self.nodes.append(node)
            return
        template = self.measured.get(node.name) or self.model(node)
        match template.kernel, node:
            case Kernel.TILES, Gemm():
                self._tiled_gemm(node, template.splits)
            case Kernel.LIBRARY, Gemm():
                self._library_gemm(node)
            case Kernel.LIBRARY, Attention():
                self._library_attention(node)
            case _:
                self.nodes.append(node)

    def model(self, node: Gemm | Attention) -> Template:
        """The template that is likely the fastest."""
        if isinstance(node, Attention):
            own = _is_own_attention(node, self.target)
            return Template(Kernel.OWN if own else Kernel.LIBRARY)
        if is_row_reduction(node):
            return Template(Kernel.VECTOR)
        if can_tile_gemm(node):
            beside = self.alike[node.a.buffer, node.m.extent, node.k.extent]
            return Template(Kernel.TILES, schedule_gemm(node, self.target, beside).splits)
        persists = can_persist(node, self.target) and self._has_heavy_reader(node)
        return Template(Kernel.PERSISTENT if persists else Kernel.LIBRARY)

    def _has_heavy_reader(self, gemm: Gemm) -> Decision:
        """Whether the result is only read by arithmetic that would wait for memory and units of
        its own: as the product's epilogue it costs less than the library's tiles gain."""
        made = {s.buffer for s in gemm.epilogue if isinstance(s, Store)}
        (name, *more) = made
        readers = self.readers[name]
        if more or self.buffers[name].kind != "temp" or len(readers) != 1:
            return no("its result has several readers")
        nest = pointwise(readers[0]) if isinstance(readers[0], LoopNest) else None
        if nest is None or points_of(nest.nest.axes) != points_of((gemm.m, gemm.n)):
            return no("its result is not read element by element")
        ops = {e.op for e in expr_nodes(body_exprs(nest.nest.body)) if isinstance(e, Op)}
        if not ops & HEAVY:
            return no("its reader is light")
        if any(e.buffer != name for e in loads(nest.nest.body)):
            return no("its reader reads more")
        return yes("the reader's arithmetic hides behind the product's memory traffic")

    def _temporary(self, name: str, like: Buffer, shape: tuple[Index, ...]) -> Buffer:
        made = Buffer(name, "extern", like.dtype, like.device, shape, row_major(shape))
        self.buffers[name] = made
        return made

    def _tiled_gemm(self, gemm: Gemm, splits: int) -> None:
        if splits == 1:
            self.nodes.append(gemm)
            return
        part, rest, sums = split_product(gemm, splits, self.buffers[gemm.a.buffer].device)
        self.buffers[sums.name] = sums
        self.nodes += [part, rest]

    def _library_gemm(self, gemm: Gemm) -> None:
        bias, epilogue = split_bias(gemm)
        a, b = (
            self._matrix(gemm, gemm.a, gemm.m, gemm.k),
            self._matrix(gemm, gemm.b, gemm.k, gemm.n),
        )
        axes = (*gemm.batch, gemm.m, gemm.n)
        like = self.buffers[gemm.a.buffer]
        out = self._temporary(gemm.name + "_product", like, tuple(x.extent for x in axes))
        if bias is not None:
            target, args = "aten.addmm.default", (_vector(bias, gemm.n), a, b)
        else:
            target = "aten.bmm.default" if gemm.batch else "aten.mm.default"
            args = (a, b)  # type: ignore[assignment]
        where = index(0)
        for axis, stride in zip(axes, out.strides, strict=True):
            where = where + stride * index(axis)
        direct = self._stored_as_is(epilogue, where, out)
        if direct is not None:
            del self.buffers[out.name]
            out = self.buffers[direct.name] = direct
        reason = "the library's GEMM is faster at this size"
        self.nodes.append(
            Extern(gemm.name, target, args, (), (out.name,), reason=reason, origins=gemm.origins)
        )
        if direct is not None:
            return
        product: Expr = Load(out.name, where, out.dtype)
        if out.dtype != gemm.acc_dtype:
            product = Op("cast", (product,), gemm.acc_dtype)
        body = tuple(with_accumulator(s, product) for s in epilogue)
        nest = LoopNest(
            gemm.name + "_epilogue", wide_axes(axes), without_units(body, axes), gemm.origins
        )
        self.nodes.append(nest)

    def _stored_as_is(self, epilogue: tuple[Stmt, ...], where: Index, out: Buffer) -> Buffer | None:
        """The buffer an epilogue stores the library's result in, element for element."""
        if len(epilogue) != 1 or not isinstance(epilogue[0], Store):
            return None
        store, buffer = epilogue[0], self.buffers[epilogue[0].buffer]
        value = store.value.args[0] if _is_cast(store.value) else store.value
        as_is = isinstance(value, Ref) and value.name == "acc" and store.value.dtype == out.dtype
        if not as_is or store.mask is not None or store.mode != "set" or store.index != where:
            return None
        whole = size_in_bytes(buffer) == size_in_bytes(out) and buffer.kind in ("temp", "output")
        return replace(buffer, kind="extern") if whole else None

    def _matrix(self, gemm: Gemm, access: Access, rows: Axis, columns: Axis) -> BufferView:
        axes = (*gemm.batch, rows, columns) if gemm.batch else (rows, columns)
        view = strided_view(access, axes)
        if len(axes) <= 3:
            return view
        return _merged_batch(view, len(gemm.batch))

    def _library_attention(self, node: Attention) -> None:
        q, k, v = self._attention_operands(node)
        mask = None if node.mask is None else strided_view(node.mask, (*node.batch, node.s, node.t))
        grouped = q.shape[-3] != k.shape[-3]
        kwargs = (("scale", _scale_argument(node)), ("enable_gqa", grouped))
        target = "aten.scaled_dot_product_attention.default"
        args = (q, k, v, mask, 0.0, node.causal)
        old = self.buffers[node.out.buffer]
        self.buffers[old.name] = replace(old, kind="extern")
        reason = "torch's attention kernels are faster for many queries"
        self.nodes.append(
            Extern(
                node.name, target, args, kwargs, (old.name,), reason=reason, origins=node.origins
            )
        )

    def _attention_operands(self, node: Attention) -> tuple[BufferView, BufferView, BufferView]:
        """q, k and v where they lie: heads repeated by a copy (grouped queries) are not copied."""
        through = node
        for name in {x.buffer for x in (node.q, node.k, node.v)}:
            copy = self.copies.get(name)
            if copy is not None and can_read_through(through, copy):
                through = through_copy(through, {name: copy})  # type: ignore[assignment]
        try:
            found = _query_key_value(through)
        except ValueError:
            return _query_key_value(node)
        alike = found[1].shape[:-2] == found[2].shape[:-2]
        return found if alike else _query_key_value(node)


def _scale_argument(node: Attention) -> float | ScalarArg:
    """The scale as the library takes it. Raises Unsupported for what it could not be asked for."""
    if node.window is not None or node.causal_offset != index(0):
        raise Unsupported("attention-window", "the library has no windows, nor triangles set off")
    scale = node.scale
    while _is_cast(scale):
        scale = scale.args[0]
    if isinstance(scale, Const):
        return float(scale.value)
    if not isinstance(scale, ScalarArg):
        raise Unsupported("attention-scale", "an attention's scale is computed")
    return scale


def _query_key_value(node: Attention) -> tuple[BufferView, BufferView, BufferView]:
    return (
        strided_view(node.q, (*node.batch, node.s, node.d)),
        strided_view(node.k, (*node.batch, node.t, node.d)),
        strided_view(node.v, (*node.batch, node.t, node.dv)),
    )


def _final_copies(program: LoopProgram, writers: Counter[str]) -> dict[str, PointwiseNest]:
    """Copies by what they make, where neither that nor the source is ever written again. What
    holds values before it is written (an input) is not made by a copy into a part of it."""
    found: dict[str, PointwiseNest] = {}
    for node in program.nodes:
        nest = pointwise(node) if isinstance(node, LoopNest) else None
        if nest is not None and nest.is_copy and writers[nest.store.buffer] == 1:
            (source,) = reads(nest.nest)
            kept = program.buffer(source).kind != "input" or not writers[source]
            made = program.buffer(nest.store.buffer).kind != "input"
            if made and kept and writers[source] <= 1:
                found[nest.store.buffer] = nest
    return found


def split_bias(gemm: Gemm) -> tuple[Load | None, tuple[Stmt, ...]]:
    """A bias over ``n`` that every use of the accumulator adds first, and the rest.

    ``add(acc, bias)`` becomes ``acc``: the library adds it before it rounds, as eager does.
    """
    if gemm.batch:
        return None, gemm.epilogue
    sums = [e for s in statements(gemm.epilogue) for e in stmt_exprs(s)]
    found: list[Load] = []

    def peel(expr: Expr) -> Expr:
        bias = _added_to_acc(expr, gemm)
        if bias is None:
            return expr
        found.append(bias)
        return Ref("acc", gemm.acc_dtype)

    memo: dict[int, Expr] = {}
    for expr in sums:
        map_expr(expr, peel, memo)
    if len(found) != 1 or _uses_acc(sums) != 1:
        return None, gemm.epilogue
    return found[0], tuple(map_stmt(s, peel) for s in gemm.epilogue)


def _added_to_acc(expr: Expr, gemm: Gemm) -> Load | None:
    if not isinstance(expr, Op) or expr.op != "add":
        return None
    for acc, other in (expr.args, expr.args[::-1]):
        inner = other.args[0] if isinstance(other, Op) and other.op == "cast" else other
        if not (isinstance(acc, Ref) and acc.name == "acc" and isinstance(inner, Load)):
            continue
        stride = inner.index.coefficient(gemm.n)
        alone = inner.index.atoms() <= {gemm.n} and inner.mask is None
        if alone and stride is not None and stride.is_const and inner.dtype == gemm.a.dtype:
            return inner
    return None


def _uses_acc(exprs: list[Expr]) -> int:
    count = 0
    stack = list(exprs)
    while stack:
        expr = stack.pop()
        if isinstance(expr, Ref) and expr.name == "acc":
            count += 1
        elif isinstance(expr, Op):
            stack.extend(expr.args)
        elif isinstance(expr, Load) and expr.mask is not None:
            stack.append(expr.mask)
    return count


def strided_view(access: Access, axes: tuple[Axis, ...]) -> BufferView:
    """An access over ``axes`` as a strided tensor; ``axis // group`` makes a shorter dimension."""
    shape: list[Index] = []
    strides: list[Index] = []
    rest = access.index
    for axis in axes:
        size, stride, atom = axis.extent, rest.coefficient(axis), index(axis)
        for found in rest.atoms():
            if isinstance(found, FloorDiv) and found.numerator == index(axis):
                size, atom = axis.extent // found.denominator, index(found)
                stride = _stride_of(rest, found)
        if stride is None:
            raise ValueError(f"{access.buffer}[{access.index}] is not strided along {axis.name}")
        shape.append(size)
        strides.append(stride)
        rest = rest - stride * atom
    return BufferView(access.buffer, tuple(shape), tuple(strides), rest)


def _stride_of(value: Index, atom: FloorDiv) -> Index:
    marker = Axis("group", index(1 << 30))
    stride = value.substitute({atom: marker}).coefficient(marker)
    if stride is None:
        raise ValueError(f"{value} is not linear in {atom}")
    return stride


def _merged_batch(view: BufferView, count: int) -> BufferView:
    """The first ``count`` dimensions as one; they must be nested without gaps."""
    size, stride = view.shape[count - 1], view.strides[count - 1]
    for outer in reversed(range(count - 1)):
        if view.shape[outer] != index(1) and view.strides[outer] != size * stride:
            raise ValueError(f"batch dimensions of {view.buffer} are not nested")
        size = size * view.shape[outer]
    return replace(view, shape=(size, *view.shape[count:]), strides=(stride, *view.strides[count:]))


def _vector(load: Load, axis: Axis) -> BufferView:
    stride = load.index.coefficient(axis)
    assert stride is not None
    return BufferView(load.buffer, (axis.extent,), (stride,), load.index - stride * index(axis))


def _is_cast(expr: Expr) -> TypeGuard[Op]:
    return isinstance(expr, Op) and expr.op == "cast"
