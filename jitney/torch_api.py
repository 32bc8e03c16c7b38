"""The only file that names torch's private API; supports torch 2.11 to 2.15.

One section per folder that uses it. Modules that are slow to import are imported inside functions.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

# ---------------------------------------------------------------- loops


def symbolic_expression(value: torch.SymInt) -> tuple[int | None, Any, Any]:
    """(the integer if it is one, else None; the sympy expression; the ShapeEnv) of a SymInt."""
    node: Any = value.node
    known = node.maybe_as_int()
    if known is not None:
        return int(known), None, None
    return None, node.expr, node.shape_env


def symbol_range(symbol: Any, shape_env: Any) -> tuple[int | None, int | None, int | None]:
    """(least, greatest, example) value of a ShapeEnv symbol, None where unknown."""
    known = shape_env.var_to_range.get(symbol)
    low = high = None
    if known is not None:
        low = int(known.lower) if known.lower.is_Integer else None
        high = int(known.upper) if known.upper.is_Integer else None
    values = getattr(shape_env, "backed_var_to_val", None)  # torch >= 2.12
    if values is None:
        values = shape_env.var_to_val
    hint = values.get(symbol)
    return low, high, None if hint is None else int(hint)
# ---------------------------------------------------------------- graph


def dispatch_mode_class() -> type:
    """``TorchDispatchMode``: a mode that sees every ATen call below autograd."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def new_fake_mode(symbolic: bool = False) -> Any:
    """A FakeTensorMode of its own, with a ShapeEnv."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=not symbolic)


def fake_mode_of(value: Any) -> Any:
    """The FakeTensorMode a tensor belongs to; None for a real one."""
    return getattr(value, "fake_mode", None)


def is_tensor_subclass(value: torch.Tensor) -> bool:
    """A subclass that is neither Parameter nor FakeTensor: it may redefine what ops mean."""
    return type(value).__name__ != "FakeTensor" and type(value) not in (
        torch.Tensor,
        torch.nn.Parameter,
        torch.nn.Buffer,
    )


def is_composite(op: Any) -> bool:
    """Whether torch itself decomposes ``op`` into other ops (CompositeImplicitAutograd)."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(op.name(), "CompositeImplicitAutograd"))


def symbol_expression(value: Any) -> Any:
    """The sympy expression of a SymInt, SymFloat or SymBool (a sympy number if it is constant)."""
    return value.node.expr


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of ATen ops into core ATen: overload -> function.

    Without ops that are composite for autograd (looking those up takes a tenth of a second).
    """
    import torch._decomp

    quick = getattr(torch._decomp, "_core_aten_decompositions_post_autograd", None)
    return dict(quick() if quick is not None else torch._decomp.core_aten_decompositions())


@contextmanager
def autocast_cache_off() -> Iterator[None]:
    """A context in which autocast does not keep casts of parameters (they would be fakes)."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def preserved_modes() -> Iterator[None]:
    """Grad mode and CPU/CUDA autocast are put back as they were, whatever ran inside."""
    grad = torch.is_grad_enabled()
    kinds = ("cpu", "cuda")
    casts = [(torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds]
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        for kind, (enabled, dtype) in zip(kinds, casts):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def bump_version(tensor: torch.Tensor) -> None:
    """Tells autograd that ``tensor`` was written to (inference tensors keep no version)."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)

# ---------------------------------------------------------------- state


def _autocast_state() -> tuple[Any, ...]:
    per_device = (
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    )
    return (*per_device, torch.is_autocast_cache_enabled())


def _set_autocast_state(state: tuple[Any, ...]) -> None:
    *per_device, cache = state
    for device, (enabled, dtype) in zip(("cpu", "cuda"), per_device):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cache)


def _default_device() -> Any:
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def _set_inference_mode(enabled: bool) -> None:
    raise TypeError("inference mode is a scope: it cannot be left changed by a frame")


def _set_modes(counts: tuple[int, int]) -> None:
    raise TypeError("modes are scopes: they cannot be left changed by a frame")


def _mode_counts() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "grad_enabled": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "inference_mode": (torch.is_inference_mode_enabled, _set_inference_mode),
    "autocast": (_autocast_state, _set_autocast_state),
    "modes": (_mode_counts, _set_modes),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (_default_device, torch.set_default_device),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
}


def state_names() -> tuple[str, ...]:
    """What a ``STATE`` guard and a ``SetState`` effect may name."""
    return tuple(_STATE)


def state_reader(name: str) -> Callable[[], Any]:
    """The function that reads a piece of process or thread state (KeyError: unknown name)."""
    return _STATE[name][0]


def read_state(name: str) -> Any:
    """The state now, in a form that compares by value."""
    return _STATE[name][0]()


def set_state(name: str, value: Any) -> None:
    """Makes the state what `read_state` gave."""
    _STATE[name][1](value)


def active_modes() -> tuple[int, int]:
    """How many torch function modes and dispatch modes are active in this thread."""
    return _mode_counts()


def without_torch_function() -> Any:
    """A scope in which subclasses' ``__torch_function__`` is not called."""
    return torch._C.DisableTorchFunctionSubclass()


def no_overlap(tensor: torch.Tensor, others: tuple[torch.Tensor, ...]) -> bool:
    """Whether the memory ``tensor`` spans is apart from that of each of ``others``."""
    start, end = _span(tensor)
    for other in others:
        low, high = _span(other)
        if low < end and start < high:
            return False
    return True


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (last + 1) * tensor.element_size()


def shape_expression_names() -> dict[str, Any]:
    """What the text of a ShapeEnv guard may name besides its symbols."""
    import math

    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    return {**SYMPY_INTERP, "math": math, "torch": torch}

def tracing(context: Any) -> Any:
    """A scope in which backends find the capture's TracingContext (and so its FakeTensorMode)."""
    from contextlib import nullcontext

    from torch._guards import tracing as scope

    return nullcontext() if context is None else scope(context)


def symbol_name(value: Any) -> str | None:
    """The name of the symbol a SymInt or SymFloat is; None if it is a number or an expression."""
    expression = value.node.expr
    return str(expression) if expression.is_Symbol else None


def expression_text(value: Any) -> tuple[str, tuple[str, ...]]:
    """(Python text of a symbolic scalar, names of the symbols in it)."""
    return _python_text(value.node.expr)


def _python_text(expression: Any) -> tuple[str, tuple[str, ...]]:
    from torch.utils._sympy.printers import PythonPrinter

    names = tuple(sorted(str(s) for s in expression.free_symbols))
    return PythonPrinter().doprint(expression), names


def shape_assumptions(shape_env: Any, symbols: Any) -> list[tuple[str, tuple[str, ...], str]]:
    """(Python text, names of symbols in it, where it was assumed) of a ShapeEnv's guards and of
    the ranges of the ``symbols`` (names) that inputs give."""
    found = []
    for guard in list(shape_env.guards):
        expression = shape_env.simplify(guard.expr)
        if str(expression) != "True":
            text, names = _python_text(expression)
            found.append((text, names, str(getattr(guard.sloc, "user_loc", "") or "")))
    for symbol, bounds in shape_env.var_to_range.items():
        if str(symbol) in symbols and symbol not in shape_env.replacements:
            low, high = bounds.lower, bounds.upper
            if low.is_Integer and low > 0:
                found.append((f"{low} <= {symbol}", (str(symbol),), "range"))
            if high.is_Integer and high < 2**62:
                found.append((f"{symbol} <= {high}", (str(symbol),), "range"))
    return found


def backend_names() -> list[str]:
    """Backends registered with torch or by entry points."""
    from torch._dynamo.backends.registry import list_backends

    return list_backends(exclude_tags=())


def find_backend(name: str) -> Any:
    """A registered backend by name."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


def inductor_with(mode: str | None, options: dict[str, Any]) -> Any:
    """Inductor as ``torch.compile(mode=…, options=…)`` sets it up."""
    return torch._TorchCompileInductorWrapper(mode, options or None, False)

def mark_function(name: str) -> Any:
    """One of torch's ``mark_dynamic``, ``maybe_mark_dynamic``, ``mark_static``, …, by name."""
    from torch._dynamo import decorators

    return getattr(decorators, name)


def mark_allowed_in_graph(function: Any) -> Any:
    """torch's ``allow_in_graph``: one opaque call."""
    return torch.compiler.allow_in_graph(function)

@lru_cache(maxsize=64)
def c_symbol(name: str) -> int:
    """Address of a function that torch's libraries export; LookupError if none does."""
    import ctypes

    for library in ("libtorch_cpu.so", "libc10.so"):
        try:
            handle = ctypes.CDLL(f"{torch.__path__[0]}/lib/{library}")
            address = ctypes.cast(getattr(handle, name), ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
        if address:
            return address
    raise LookupError(name)


def impl_address(tensor: torch.Tensor) -> int:
    """Address of the C++ tensor's implementation object."""
    return int(tensor._cdata)


def raw_key_set(tensor: torch.Tensor) -> int:
    """A tensor's dispatch keys as one 64-bit word."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())

def native_state(name: str, expected: Any) -> list[tuple[int, int, int, int]] | None:
    """State as C calls: (function, argument, mask, value) hold if ``function(argument) & mask``
    is ``value``; None if C cannot tell."""
    byte, full = 0xFF, (1 << 64) - 1
    flags = {
        "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
        "inference_mode": "_ZN3c1013InferenceMode10is_enabledEv",
    }
    functions = "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"
    if name in flags:
        return [(c_symbol(flags[name]), 0, byte, int(expected))]
    if name == "default_dtype":
        address = c_symbol("_ZN3c1031get_default_dtype_as_scalartypeEv")
        return [(address, 0, byte, scalar_type(expected))]
    if name == "deterministic":
        context = _call(c_symbol("_ZN2at13globalContextEv"))
        address = c_symbol("_ZNK2at7Context23deterministicAlgorithmsEv")
        return [(address, context, byte, int(expected))]
    if name == "modes":
        dispatches = "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"
        return [
            (c_symbol(functions), 0, full, expected[0]),
            (c_symbol(dispatches), 0, full, expected[1]),
        ]
    if name == "default_device" and expected is None and active_modes()[0] == 0:
        return [(c_symbol(functions), 0, full, 0)]
    return _native_autocast(expected) if name == "autocast" else None


def _native_autocast(expected: tuple[Any, ...]) -> list[tuple[int, int, int, int]]:
    *per_device, cache = expected
    enabled_of = c_symbol("_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE")
    dtype_of = c_symbol("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE")
    calls = []
    for device_type, (enabled, dtype) in enumerate(per_device):  # c10: CPU is 0, CUDA is 1
        calls.append((enabled_of, device_type, 0xFF, int(enabled)))
        calls.append((dtype_of, device_type, 0xFF, scalar_type(dtype)))
    calls.append((c_symbol("_ZN2at8autocast25is_autocast_cache_enabledEv"), 0, 0xFF, int(cache)))
    return calls


def _call(address: int) -> int:
    import ctypes

    return int(ctypes.CFUNCTYPE(ctypes.c_uint64)(address)())


# ---------------------------------------------------------------- capture


def new_capture_mode() -> tuple[Any, Any]:
    """(FakeTensorMode, ShapeEnv) for one capture: data-dependent sizes and scalars raise."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    return FakeTensorMode(shape_env=shape_env, static_shapes=True), shape_env


def new_tracing_context(fake_mode: Any) -> Any:
    """The context that torch backends expect to find around them."""
    from torch._guards import TracingContext

    return TracingContext(fake_mode)


def is_fake(value: Any) -> bool:
    """Whether it is a FakeTensor."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


def fake_of(mode: Any, tensor: torch.Tensor) -> Any:
    """A FakeTensor with the static sizes of ``tensor``."""
    return mode.from_tensor(tensor, static_shapes=True)


def unsupported_by_fakes() -> tuple[type[BaseException], ...]:
    """What FakeTensors raise when an answer depends on data."""
    from torch._subclasses import fake_tensor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
        GuardOnDataDependentSymNode,
    )


def is_allowed_in_graph(function: Any) -> bool:
    """Whether the user marked it with ``torch.compiler.allow_in_graph``."""
    import sys

    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and id(function) in rules._allowed_callable_ids.function_ids


def _symbol_source(name: str) -> Any:
    """A torch Source that is only a name: ours know how to fetch."""
    import functools

    from torch._guards import GuardSource, Source

    as_property = not callable(Source.__dict__["name"])  # a method before torch 2.10

    class Named(Source):
        def __hash__(self) -> int:
            return hash(name)

        def __eq__(self, other: object) -> bool:
            return self is other

        @property
        def guard_source(self) -> Any:
            return GuardSource.LOCAL

    named: Any = Named
    named.name = property(lambda self: name) if as_property else lambda self: name
    named._name_template = name
    del functools
    return Named()


def symbolic_fake_of(
    mode: Any, tensor: torch.Tensor, name: str, dynamic: frozenset[int], marked: frozenset[int]
) -> Any:
    """A FakeTensor whose sizes in ``dynamic`` are symbols; equal sizes share one, except
    ``marked`` ones. ``name``: how errors and symbols call the tensor."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    unmarked = [DimDynamic.DUCK if d in dynamic else DimDynamic.STATIC for d in range(tensor.dim())]
    kinds = [DimDynamic.DYNAMIC if d in marked else kind for d, kind in enumerate(unmarked)]
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=kinds, constraint_sizes=[None] * tensor.dim()
    )
    if tensor._is_view() and not tensor.requires_grad:
        with torch.no_grad():  # the same memory, not a view: a base of fixed size would specialise
            place = (tensor.storage_offset(), tensor.size(), tensor.stride())
            alone = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            tensor = alone.set_(tensor.untyped_storage(), *place)
    return mode.from_tensor(
        tensor, static_shapes=False, source=_symbol_source(name), symbolic_context=context
    )


def symbolic_number(shape_env: Any, value: int | float, name: str) -> Any:
    """A SymInt or SymFloat for a Python number."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = _symbol_source(name)
    symbol = shape_env.create_unspecified_symbol(
        value, source=source, dynamic_dim=DimDynamic.DYNAMIC
    )
    if isinstance(value, int):
        return shape_env.create_symintnode(symbol, hint=value, source=source)
    return shape_env.create_symfloatnode(symbol, hint=value, source=source)


def free_symbols(value: Any) -> frozenset[Any]:
    """The sympy symbols in a SymInt, SymFloat or SymBool."""
    return frozenset(getattr(value.node.expr, "free_symbols", ()))


def constant_of(value: Any) -> Any:
    """The number that a SymInt, SymFloat or SymBool is known to be, else None."""
    expr = value.node.expr
    if getattr(expr, "free_symbols", None):
        return None
    if isinstance(value, torch.SymInt):
        return int(expr)
    return float(expr) if isinstance(value, torch.SymFloat) else bool(expr)


def build_expression(graph: Any, value: Any, nodes: dict[Any, Any]) -> Any:
    """A node that computes a symbol's expression from its symbols' ``nodes``, added to the end."""
    from torch.fx.proxy import GraphAppendingTracer, Proxy
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = GraphAppendingTracer(graph)
    proxies = {symbol: Proxy(node, tracer) for symbol, node in nodes.items()}

    def recorded(function: Any) -> Any:
        return staticmethod(
            lambda x, dtype: tracer.create_proxy("call_function", function, (x,), {})
        )

    class Analysis(PythonReferenceAnalysis):
        trunc_to_int = recorded(math.trunc)
        floor_to_int = recorded(math.floor)
        ceil_to_int = recorded(math.ceil)
        round_to_int = recorded(round)

    return sympy_interp(Analysis, proxies, value.node.expr).node


@contextmanager
def quiet_fakes() -> Iterator[None]:
    """A scope in which FakeTensor does not log the errors it raises: eager will raise them."""
    import logging

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


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


def is_symbolic(value: Any) -> bool:
    """A SymInt, SymFloat or SymBool that is not a constant, or a tensor with such a size."""
    if isinstance(value, torch.Tensor):
        return any(is_symbolic(size) for size in (*value.shape, *value.stride()))
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return not value.node.expr.is_number
    return False


def python_dispatcher() -> Any:
    """torch's Python dispatcher: Python kernels of composite ops, which keep sizes symbolic."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


def dispatch_modes_off() -> Any:
    """A context without any dispatch mode (function modes stay)."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def functional_mode() -> Any:
    """torch's functionalization as a dispatch mode."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    return FunctionalTensorMode()


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` wrapped for functionalization; requires_grad and leafness kept."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    wrapped: torch.Tensor = FunctionalTensor.to_functional(tensor)
    return wrapped


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The current value of a functional tensor, pending mutations applied."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    if not isinstance(tensor, FunctionalTensor):
        return tensor
    torch._sync(tensor)
    inner: torch.Tensor = torch._from_functional_tensor(tensor.elem)
    return inner


def written_under_no_grad(tensor: torch.Tensor) -> bool:
    """Whether every write to a functional tensor happened under no_grad."""
    check = torch._functionalize_are_all_mutations_under_no_grad_or_inference_mode
    return bool(check(tensor.elem))  # type: ignore[attr-defined]


def fake_tangent(fake_mode: Any, result: torch.Tensor) -> torch.Tensor:
    """A fake gradient of ``result``: its sizes and strides, row-major where it overlaps itself."""
    with dispatch_modes_off(), fake_mode, torch.no_grad():
        return torch.empty_like(result)


def graph_module(root: dict[str, Any], graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A GraphModule whose Python code is written only when it is called or read."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    module: torch.fx.GraphModule = _LazyGraphModule(root, graph, "Region")
    return module


def hint_of(size: Any) -> int:
    """A likely value of a size that may be symbolic (4096 where nothing is known)."""
    if isinstance(size, int):
        return size
    if size.node.has_hint():
        return int(size.node.hint)
    return 4096


def has_side_effects(op: Any) -> bool:
    """Whether an op must not be dropped though nothing reads its value (asserts, prints)."""
    return op in torch.fx.node._side_effectful_functions


# ---------------------------------------------------------------- cuda


def raw_cuda_stream(device: torch.device) -> int:
    """The handle of torch's current CUDA stream on ``device``."""
    number = device.index if device.index is not None else torch.cuda.current_device()
    return int(torch._C._cuda_getCurrentRawStream(number))


def find_op(name: str) -> Any:
    """The overload called "aten.view.default"."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def make_infra_mode(mode: Any, node_of: Callable[[torch.Tensor], Any]) -> None:
    """Gives a dispatch mode the tracer's place: below functionalization, above fake tensors.

    ``node_of``: the graph node of a tensor, KeyError if there is none (torch annotates nodes).
    """
    mode._mode_key = torch._C._TorchDispatchModeKey.PROXY
    mode.tracer = SimpleNamespace(tensor_tracker=_TensorTracker(node_of))


class _TensorTracker:
    """What torch's functionalization reads of its own tracer."""

    def __init__(self, node_of: Callable[[torch.Tensor], Any]) -> None:
        self._node_of = node_of

    def __getitem__(self, tensor: torch.Tensor) -> Any:
        return SimpleNamespace(proxy=SimpleNamespace(node=self._node_of(tensor)))


def not_differentiable(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same gradients, made under ``create_graph``: differentiating them raises."""
    message = "trying to differentiate twice a function that was compiled to be differentiated once"
    tensors = [g.detach().requires_grad_() for g in gradients if g is not None]
    marked = torch._C._functions.DelayedError(message.encode(), len(tensors))(*tensors)
    supply = iter((marked,) if isinstance(marked, torch.Tensor) else marked)
    return tuple(None if g is None else next(supply) for g in gradients)


# ---------------------------------------------------------------- native calls


def tensor_handle_offset() -> int:
    """Bytes from a Python tensor object to the ``at::Tensor`` in it, which torch's C interface
    takes the address of; found by looking for the TensorImpl's address. RuntimeError if hidden."""
    return _handle_offset()


@lru_cache(maxsize=1)
def _handle_offset() -> int:
    probe = torch.empty(1)
    for offset in range(16, type(probe).__basicsize__, 8):
        if ctypes.c_size_t.from_address(id(probe) + offset).value == probe._cdata:
            return offset
    raise RuntimeError("this torch does not keep the tensor inside its Python object")


def tensor_wrap_symbol() -> str:
    """The C++ function ``PyObject* THPVariable_Wrap(const at::TensorBase&)``: a new reference."""
    return "_Z16THPVariable_WrapRKN2at10TensorBaseE"


def scalar_type(dtype: torch.dtype) -> int:
    """The number of a dtype in torch's C interface (``c10::ScalarType``)."""
    return _SCALAR_TYPES[dtype]


_SCALAR_TYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}


def fake_tensor_class() -> Any:
    """torch's FakeTensor: ``FakeTensor(mode, meta tensor, device)`` makes one."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


@contextmanager
def below_fakes(fake_mode: Any) -> Iterator[None]:
    """A context in which ops on fake tensors of ``fake_mode`` run meta kernels and give meta
    tensors."""
    with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
        fake_mode.in_kernel_invocation = True
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            yield
        finally:
            fake_mode.in_kernel_invocation = False


def node_apply(function: Any) -> Callable[..., Any]:
    """``function.apply`` without the Python part that only functorch transforms need."""
    apply: Callable[..., Any] = torch._C._FunctionBase.__dict__["apply"].__get__(None, function)
    return apply


def functorch_is_active() -> bool:
    """Whether a functorch transform (grad, vmap) surrounds the call."""
    return bool(torch._C._are_functorch_transforms_active())


def is_data_dependent_error(error: BaseException) -> bool:
    """Whether fake tensors refused an op because its result depends on values."""
    from torch._subclasses import fake_tensor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
        GuardOnDataDependentSymNode,
    )
    return isinstance(error, kinds)


def surely_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever the symbols in them are; adds no guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if is_symbolic(a) and is_symbolic(b):
        return bool(a.node.expr == b.node.expr)
    return False


def is_symbolic_value(node: torch.fx.Node) -> bool:
    """Whether a graph node's value, or an operand's, has a symbolic size."""
    return any(
        isinstance(value, torch.Tensor) and is_symbolic(value)
        for value in (node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes))
    )
