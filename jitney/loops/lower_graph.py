"""An FX graph of ATen ops becomes a `LoopProgram`, one node per realised value, unfused.

What later passes may rely on (`fuse_nests` does the merging):

- every tensor is a strided view of one buffer; view ops emit nothing. A buffer made here has the
  strides of the node's ``meta["val"]`` (row-major in the common case, but not always), and nest
  axes stand in order of falling output stride;
- a pointwise op is one nest: axes over the output's dimensions (size-1 dimensions have none),
  ``body = (Let…, Store(out, index, expression))``. Lets appear only where an index is data
  dependent (gather). Loads may be masked (pad, cat): inlining into one must keep the mask;
- a reduction is one nest over the kept axes: ``(Reduce, Store…)``. Softmax, layer norm and the
  like are one nest over rows: Reduce statements, then a `Loop` of stores;
- a scatter, and whatever writes in place, is a nest that stores into a buffer with an earlier
  writer; only such buffers (inputs among them) have more than one. An expression that loads such
  a buffer must not move past a write of it, unless it reads the very element that is written;
- axis names are local to a nest, names of Lets and Reductions are unique in the program;
- 16-bit floats are computed in f32: loads are cast, stores cast back;
- writes to inputs come where ``aten.copy_`` stands, or earlier where the old value is dead.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.graph.effects import can_repeat
from jitney.loops.index import Dim, Index, bare_dim
from jitney.loops.ir import (
    Assumption,
    IndexValue,
    IntOutput,
    LoopProgram,
    Op,
    Output,
    ProgramOutput,
    ScalarArg,
    ScalarOutput,
)
from jitney.loops.lowerings import (
    LOWERABLE,
    Builder,
    Refused,
    StridedTensor,
    find_lowering,
    functional_twin,
    known_numbers,
)
from jitney.loops.lowerings.expressions import as_expr
from jitney.loops.lowerings.liveness import Liveness, analyse_liveness
from jitney.loops.lowerings.views import is_view, lower_view
from jitney.loops.lowerings.written_calls import lower_written_call
from jitney.loops.read_sizes import symbols_of
from jitney.loops.symbols import assumptions_of, to_index
from jitney.loops.target import Target
from jitney.loops.visit import returned
from jitney.torch_api import OpOverload
from jitney.torch_api.written_ops import writing_form_of

aten = torch.ops.aten
Lowered = dict[fx.Node, Any]

#: Arithmetic of symbolic floats: Python operator -> opcode.
_SCALAR_OPS = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.pow: "pow",
    operator.neg: "neg",
}
_EXTREMES: dict[Any, str] = {torch.sym_max: "gt", torch.sym_min: "lt"}


def lower_graph(
    gm: fx.GraphModule, target: Target, frozen: bool = False
) -> tuple[LoopProgram, dict[str, torch.Tensor]]:
    """Lowers a functional graph whose nodes carry fake tensors in ``meta["val"]``.

    Placeholders may be tensors, symbolic ints and floats. The second result holds tensors the
    graph owns, by buffer name. Whatever has no lowering is an `Extern` with a reason. ``frozen``:
    parameters are constants, so work on them alone costs no call anything.
    Raises `Unsupported` for a graph with calls that are not ATen-like operators.
    """
    b = Builder(target, frozen, _rerunnable(gm.graph))
    live = analyse_liveness(gm.graph)
    values: Lowered = {}
    arguments: list[str | Dim | ScalarArg] = []
    outputs: tuple[ProgramOutput, ...] = ()
    for node in gm.graph.nodes:
        b.node, b.fake = node, node.meta.get("val")
        if node.op == "placeholder":
            values[node], argument = _placeholder(b)
            arguments.append(argument)
        elif node.op == "get_attr":
            values[node] = _constant(b, gm)
        elif node.op == "call_function":
            values[node] = _call(b, values, live)
        elif node.op == "output":
            outputs = tuple(_output(_argument(x, values)) for x in _flat(node.args[0]))
        else:
            raise Unsupported("graph-node", f"a graph node of kind {node.op}")
    _check_sizes(b, arguments)
    program = LoopProgram(tuple(arguments), tuple(b.buffers), tuple(b.nodes), outputs)
    program = replace(program, assumptions=_assumptions(gm.graph))
    return _allocate_outputs(program), b.constants


def _assumptions(graph: fx.Graph) -> tuple[Assumption, ...]:
    """What guards say of the sizes that inputs have."""
    fakes = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
    tensors = [fake for fake in fakes if isinstance(fake, torch.Tensor)]
    sizes = [size for fake in tensors for size in (*fake.shape, *fake.stride())]
    for value in (*fakes, *sizes):
        if isinstance(value, torch.SymInt):
            known, _, shape_env = torch_api.symbolic_expression(value)
            if known is None:
                return assumptions_of(shape_env)
    return ()


def _rerunnable(graph: fx.Graph) -> bool:
    """Whether a call can be given up for eager: it writes no input and draws no random number."""
    return all(map(can_repeat, graph.nodes))


def _placeholder(b: Builder) -> tuple[Any, str | Dim | ScalarArg]:
    fake, name = b.fake, b.node.name
    if isinstance(fake, torch.Tensor):
        if fake.layout is not torch.strided:
            raise Unsupported("layout", f"an input of layout {fake.layout}")
        parameter = bool(b.node.meta.get("is_parameter"))
        value = b.add_buffer(name, "input", fake, is_parameter=parameter)
        return value, value.buffer
    if isinstance(fake, torch.SymInt):
        size = to_index(fake)
        return size, bare_dim(size) or ScalarArg(b.fresh(name), torch.int64)
    dtype = torch.int64 if isinstance(fake, int) else torch.float64
    scalar = ScalarArg(b.fresh(name), dtype)
    return (fake if isinstance(fake, bool | int) else scalar), scalar


def _check_sizes(b: Builder, arguments: list[str | Dim | ScalarArg]) -> None:
    """Every symbol is an argument, or a size or stride of an input: none may depend on data."""
    known = {a for a in arguments if isinstance(a, Dim)}
    for buffer in b.buffers:
        if buffer.kind == "input":
            known |= {symbol.dim for symbol in symbols_of(buffer)}
    for buffer in b.buffers:
        for size in (*buffer.shape, *buffer.strides):
            unknown = {a for a in size.atoms() if isinstance(a, Dim)} - known
            if unknown:
                names = ", ".join(sorted(d.name for d in unknown))
                raise Unsupported("data-dependent-size", f"{buffer.name} has the size {names}")


def _constant(b: Builder, gm: fx.GraphModule) -> StridedTensor:
    value: Any = gm
    for part in str(b.node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise Unsupported("graph-attribute", f"the graph holds {type(value).__name__}")
    fake = b.fake if isinstance(b.fake, torch.Tensor) else value
    tensor = b.add_buffer(b.node.name, "constant", fake)
    b.constants[tensor.buffer] = value.detach()
    return tensor


def _argument(argument: Any, values: Lowered) -> Any:
    """A graph argument with nodes replaced by what they were lowered to."""
    if isinstance(argument, fx.Node):
        return values[argument]
    if isinstance(argument, tuple | list):
        return type(argument)(_argument(item, values) for item in argument)
    if isinstance(argument, slice):
        return slice(*(_argument(x, values) for x in (argument.start, argument.stop)))
    return argument


def _call(b: Builder, values: Lowered, live: Liveness) -> Any:
    node, target = b.node, b.node.target
    if isinstance(b.fake, torch.SymInt | int) and not isinstance(b.fake, bool):
        return to_index(b.fake)
    if isinstance(b.fake, torch.SymBool | bool):
        taken = any(isinstance(user.target, OpOverload) for user in node.users)
        return bool(b.fake) if taken else None  # guards hold these
    args = tuple(_argument(a, values) for a in node.args)
    kwargs = {key: _argument(a, values) for key, a in node.kwargs.items()}
    if target is getitem:
        return args[0][args[1]]
    if target is aten.copy_.default:
        return _copied_into(b, args[0], args[1])
    if isinstance(b.fake, torch.SymFloat | float):
        return _scalar_call(target, args)
    if not isinstance(target, OpOverload):
        return _unknown_call(target)
    if (written := writing_form_of(target)) is not None:
        return lower_written_call(b, written, args, kwargs, live.overwritten[node])
    b.may_overwrite = live.may_overwrite(node)
    if torch_api.schema_of(target).is_mutable and not is_view(target):
        return _mutating_call(b, target, args, kwargs)
    mark = b.mark()
    try:
        if is_view(target):
            base = node.args[0]
            assert isinstance(base, fx.Node)
            return lower_view(b, args[0], base.meta["val"], args[1:], kwargs)
        lowering = find_lowering(target)
        if lowering is None:
            raise Refused("no lowering")
        _check_tensors(b, args, kwargs)
        given, named = known_numbers(lowering, args, kwargs)
        return lowering(b, *given, **named)
    except Refused as refusal:
        b.take_back(mark)
        return _library_call(b, args, kwargs, str(refusal))


def _unknown_call(target: Any) -> Any:
    name = getattr(target, "__name__", str(target))
    if name in ("_assert_scalar", "_assert_async", "sym_constrain_range"):
        return None
    raise Unsupported("graph-call", f"the graph calls {name}, which is not an ATen operator")


def _check_tensors(b: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses dtypes, devices and layouts that loop nests do not know."""
    found = [x for x in _flat((args, tuple(kwargs.values()))) if isinstance(x, StridedTensor)]
    fakes = [x for x in _flat(b.fake) if isinstance(x, torch.Tensor)]
    for dtype in (*(x.dtype for x in found), *(x.dtype for x in fakes)):
        if dtype not in LOWERABLE:
            raise Refused(f"{dtype} is left to the library")
    inputs = [a.meta.get("val") for a in b.node.all_input_nodes]
    for fake in (*fakes, *(x for x in inputs if isinstance(x, torch.Tensor))):
        if fake.layout is not torch.strided or fake.is_neg():
            raise Refused("a layout or a lazy negation that loops do not read")
        if fake.device.type != b.target.kind:
            raise Refused(f"a tensor on {fake.device}")


def _library_call(b: Builder, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """The node as an `Extern`; a result that would alias an argument is copied at once."""
    target = b.node.target
    assert isinstance(target, OpOverload)
    many = isinstance(b.fake, tuple | list)
    fakes = [x if isinstance(x, torch.Tensor) else None for x in _flat(b.fake)]
    sparse = any(f is not None and f.layout is not torch.strided for f in fakes)
    if sparse and b.target.kind != "cpu":
        raise Unsupported("layout", f"{target} makes a sparse tensor, which has no one address")
    if any(r.alias_info is not None for r in torch_api.schema_of(target).returns) and fakes:
        # what shares a place in eager's alias has one each here: nothing can be copied into it
        fakes = [fake if fake is None or 0 not in fake.stride() else fake.clone() for fake in fakes]
        views = b.extern(target, args, kwargs, fakes, reason)
        results: tuple[Any, ...] = tuple(
            _materialised(b, view, fake) for view, fake in zip(views, fakes, strict=True)
        )
    else:
        results = b.extern(target, args, kwargs, fakes, reason)
    if not many:
        return results[0] if results else None
    return results


def _mutating_call(
    b: Builder, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """An op that writes into its arguments (a custom op, or a decomposition's in-place step)."""
    arguments = torch_api.schema_of(target).arguments
    given = {**dict(zip((a.name for a in arguments), args, strict=False)), **kwargs}
    functional = functional_twin(target)
    if functional is not None and isinstance(args[0], StridedTensor):
        mark = b.mark()
        try:
            _check_tensors(b, args, kwargs)
            passed, named = known_numbers(functional, args, kwargs)
            return _write_back(b, args[0], functional(b, *passed, **named))
        except Refused:
            b.take_back(mark)
    written = [
        given[a.name]
        for a in arguments
        if a.alias_info is not None and a.alias_info.is_write and a.name in given
    ]
    if not all(isinstance(x, StridedTensor) for x in written):
        raise Unsupported("graph-mutation", f"{target} writes into a list of tensors")
    returns = torch_api.schema_of(target).returns
    fakes = [
        fake if r.alias_info is None and isinstance(fake, torch.Tensor) else None
        for r, fake in zip(returns, _flat(b.fake), strict=True)
    ]
    fresh: Sequence[torch.Tensor | None] = fakes if any(f is not None for f in fakes) else ()
    made = iter(b.extern(target, args, kwargs, fresh, "it writes into its arguments", written))
    kept = iter(written)
    results = tuple(next(kept if r.alias_info else made, None) for r in returns)
    return results if len(returns) > 1 else (results or (None,))[0]


def _materialised(b: Builder, view: StridedTensor | None, fake: torch.Tensor | None) -> Any:
    if view is None or fake is None:
        return None
    return b.extern(aten.clone.default, (view,), {}, [fake], "no memory of ours behind an alias")[0]


def _copied_into(b: Builder, destination: StridedTensor, value: StridedTensor) -> StridedTensor:
    """``aten.copy_`` to an input, by the library where no nest holds its dtype."""
    try:
        _check_tensors(b, (destination, value), {})
    except Refused as refusal:
        if value != destination:
            b.extern(b.node.target, (destination, value), {}, (), str(refusal), (destination,))
        return destination
    return _write_back(b, destination, value)


def _write_back(b: Builder, destination: StridedTensor, value: StridedTensor) -> StridedTensor:
    """``aten.copy_`` to an input: nothing when the value already lies there."""
    if value != destination:
        b.copy(destination, value)
    return destination


def _scalar_call(target: Any, args: tuple[Any, ...]) -> Any:
    """Arithmetic on runtime floats, as an f64 expression (Python computes in doubles too)."""
    operands = tuple(as_expr(a, torch.float64) for a in args)
    if getattr(target, "__name__", "") == "sym_float":
        return operands[0]
    if target in _EXTREMES:  # as Python's: the first of equal ones
        is_other = Op(_EXTREMES[target], operands[::-1], torch.bool)
        return Op("where", (is_other, *operands[::-1]), torch.float64)
    if target not in _SCALAR_OPS:
        raise Unsupported("graph-scalar", f"a symbolic float is computed by {target}")
    return Op(_SCALAR_OPS[target], operands, torch.float64)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _output(value: Any) -> ProgramOutput:
    if isinstance(value, StridedTensor):
        return Output(value.as_view())
    if isinstance(value, Index):
        return IntOutput(value)
    if isinstance(value, IndexValue):
        return IntOutput(value.index)
    return ScalarOutput(value)


def _allocate_outputs(program: LoopProgram) -> LoopProgram:
    """Temporaries that leave the program become outputs, allocated by torch for each call."""
    escaping = returned(program.outputs)
    buffers = tuple(
        replace(x, kind="output") if x.kind == "temp" and x.name in escaping else x
        for x in program.buffers
    )
    return replace(program, buffers=buffers)
