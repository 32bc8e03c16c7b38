"""Tensors: kinds, memory, versions, autograd nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import torch

from jitney.torch_api.addresses import Check, same_addresses
from jitney.torch_api.modes import forward_level
from jitney.torch_api.storages import memory_of


def is_tensor_subclass(value: torch.Tensor) -> bool:
    """A subclass that is neither Parameter nor FakeTensor: it may redefine what ops mean."""
    return type(value).__name__ != "FakeTensor" and type(value) not in (
        torch.Tensor,
        torch.nn.Parameter,
        torch.nn.Buffer,
    )


def is_wrapper(value: Any) -> bool:
    """Whether it is a tensor made of others (quantized weights are) whose class says in Python what
    torch's functions make of it. Such a one is an object like others, until torch's own code is to
    look at it."""
    return isinstance(value, torch.Tensor) and is_wrapper_class(type(value))


def is_wrapper_class(cls: type) -> bool:
    """Whether its instances are as `is_wrapper` says. Not of torch's
    own (nested tensors, `DTensor`): those know of each other, below what classes are asked."""
    if not hasattr(cls, "__tensor_flatten__") or not issubclass(cls, torch.Tensor):
        return False
    if cls.__module__.partition(".")[0] == "torch":
        return False
    override = getattr(cls.__torch_function__, "__func__", None)
    return isinstance(override, FunctionType) and override is not _ANY_TENSORS_OVERRIDE


#: How a class makes a tensor that is made of others: without memory of its own.
make_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
#: A scope in which torch functions do not ask a tensor's class what it makes of them.
FUNCTIONS_OFF: Any = torch._C.DisableTorchFunctionSubclass
_ANY_TENSORS_OVERRIDE: Any = getattr(torch.Tensor.__torch_function__, "__func__", None)
#: ``tensor.data`` as a function: an alias whose writes the tensor does not count.
data_of = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]
#: Whether autograd takes a tensor for a view: an alias, as calls of compiled functions ask it.
is_view = torch.Tensor._is_view


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What it is a view of, for autograd; None for what is no view."""
    return tensor._base


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    """What it is a view of, for autograd, or itself."""
    return tensor if tensor._base is None else tensor._base


def version_of(tensor: torch.Tensor) -> int:
    """How often it has been written to; RuntimeError for an inference tensor, which keeps no
    count."""
    return tensor._version


def gradient_hooks(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The hooks that `torch.Tensor.register_hook` gave it."""
    return tuple((tensor._backward_hooks or {}).values())


def lacks_memory(tensor: torch.Tensor) -> bool:
    """Whether there is nothing to read at the address that ``tensor`` gives: it is a wrapper of a
    functorch transform, or the zeros that forward-mode differentiation uses for a tangent it does
    not need."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return True
    return torch._is_zerotensor(tensor)


def is_more_than_its_memory(tensor: torch.Tensor) -> bool:
    """Whether no kernel can read the tensor's elements from its memory as they are, or something
    would be lost: it is one for many, inside a ``vmap``, is wrapped by another transform of
    functorch, may have a tangent of forward-mode differentiation, is sparse or has no memory."""
    if lacks_memory(tensor) or tensor.layout is not torch.strided or forward_level() >= 0:
        return True
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def bump_versions(tensors: tuple[torch.Tensor, ...]) -> None:
    """Tells autograd that the tensors were written to (inference tensors have no version)."""
    try:
        torch._C._increment_version(tensors)
    except RuntimeError:  # at the first inference tensor; some versions may well rise twice
        torch._C._increment_version([t for t in tensors if not t.is_inference()])


def refuses_writes(tensor: torch.Tensor) -> bool:
    """Whether autograd may refuse a write to ``tensor`` that it would have to differentiate: to a
    leaf, to a view of one, to a view made under no_grad or with others of its kind."""
    if tensor.requires_grad and tensor.is_leaf:
        return True
    base = tensor._base
    if base is None:
        return False
    return base.requires_grad and base.is_leaf or _creation(tensor) != "DEFAULT"


def is_forbidden(tensor: torch.Tensor) -> bool:
    """Whether autograd no longer says what a view's gradient is: taken under no_grad, or with
    others of its kind, before its base was written to."""
    try:
        _ = tensor.grad_fn
    except RuntimeError:
        return True
    return False


def has_left_its_base(view: torch.Tensor) -> bool:
    """Whether a view was given memory other than its base's since (`set_`, `.data = …`)."""
    base = view._base
    return base is not None and memory_of(base) != memory_of(view)


def grad_mode_of(view: torch.Tensor) -> bool | None:
    """The grad mode that a view was taken in; None for what is none, or of inference mode."""
    if not view._is_view() or _creation(view) == "INFERENCE_MODE":
        return None
    return _creation(view) != "NO_GRAD_MODE"


def _creation(view: torch.Tensor) -> str:
    """How autograd says that a view was made."""
    name: str = torch._C._autograd._get_creation_meta(view).name
    return name


def keeps_graph() -> bool:
    """Whether the backward pass that is running retains its graph."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def counts_with(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether autograd counts a write to ``view`` as one to ``base``, whose memory it shares."""
    if view.is_inference() or base.is_inference():
        return True
    view_before, before = view._version, base._version
    bump_versions((view,))
    together = base._version != before
    torch._C._autograd._unsafe_set_version_counter((view,), (view_before,))
    return together


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How often each tensor has been written to; inference tensors, which keep no count: 0."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:
        return [0 if t.is_inference() else t._version for t in tensors]


def tensor_at(like: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor that begins where ``like`` does and may leave its storage: whoever reads it must
    know that every element it names exists, and keep their owners alive."""
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    storage = torch._C._construct_storage_from_data_pointer(
        like.data_ptr(), like.device, (last + 1) * like.element_size()
    )
    return torch.empty(0, dtype=like.dtype, device=like.device).set_(storage, 0, shape, strides)


Span = tuple[int, int]


def span(tensor: torch.Tensor) -> Span:
    """The memory a tensor spans, as addresses: first, and one past the last."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (last + 1) * tensor.element_size()


def overlaps(spans: Sequence[Span], of: Collection[int]) -> set[tuple[int, int]]:
    """The pairs of positions, the larger first, whose spans share an address; one of each is in
    ``of``. Steps: those of a sort, and one for each two spans that meet."""
    order = [at for at, (start, end) in enumerate(spans) if start < end]
    order.sort(key=spans.__getitem__)
    found = set()
    for nth, one in enumerate(order):
        end = spans[one][1]
        for other in itertools.islice(order, nth + 1, None):
            if spans[other][0] >= end:
                break
            if one in of or other in of:
                found.add((max(one, other), min(one, other)))
    return found


class ApartCheck:
    """``check(tensors)``: whether those ``written`` (positions) share memory with others in the
    pairs ``together``, and in no others. Remembers the last addresses that passed (and layouts,
    unless ``static``: guarded elsewhere), since caches and parameters stay where they are."""

    def __init__(
        self, written: frozenset[int], together: frozenset[tuple[int, int]], static: bool
    ) -> None:
        self._written, self._together, self._static = written, together, static
        self._passed: tuple[list[Any], Check] | None = None

    def __call__(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Compares addresses with the last that passed, then the memory itself."""
        layouts = [] if self._static else [(t.shape, t.stride()) for t in tensors]
        passed = self._passed
        if passed is not None and layouts == passed[0] and passed[1](tensors):
            return True
        if overlaps([span(t) for t in tensors], self._written) != self._together:
            return False
        self._passed = layouts, same_addresses(tensors, range(len(tensors)))
        return True


def differentiate_once(results: Sequence[Any]) -> None:
    """Makes it an error to differentiate the gradients of results of torch's AOT graphs, which
    may give zeros (`torch.autograd.functional.hessian`)."""
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    nodes = {t.grad_fn for t in tensors if t.grad_fn is not None}
    for node in nodes:
        if node.name() == "CompiledFunctionBackward":
            after = [step for step, _ in node.next_functions if step is not None]
            node.register_hook(partial(_sealed, after))


def _sealed(after: Sequence[Any], gradients: tuple[Any, ...], _: Any) -> tuple[Any, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return not_differentiable(gradients, "the backend is another", after)


@lru_cache(maxsize=1024)
def saved_names(kind: type) -> tuple[str, ...]:
    """What a kind of autograd node calls the tensors that it may keep."""
    raw = "_raw_saved_"
    return tuple([f"_saved_{n.removeprefix(raw)}" for n in dir(kind) if n.startswith(raw)])


def packed_tensors(node: Any) -> tuple[Any, ...]:
    """What a custom function's node has saved, each to be unpacked by itself; nothing where that
    is freed or went through hooks, or of torch before 2.13, which unpacks all or none."""
    try:
        packed: tuple[Any, ...] = node._raw_saved_tensors
    except RuntimeError:
        return ()
    plain = all(hasattr(each, "unpack") and each.unpack_hook is None for each in packed)
    return packed if plain else ()


def not_differentiable(
    gradients: tuple[Any, ...], reason: str, nodes: Sequence[Any]
) -> tuple[Any, ...]:
    """The same gradients, made under ``create_graph`` by the first of the autograd ``nodes`` or
    what comes before them: differentiating them raises."""
    once = "that was compiled to be differentiated once"
    message = f"trying to differentiate twice a function {once}; eager cannot run again: {reason}"
    some = torch.empty(0, requires_grad=True)  # so that they require grad whatever the inputs do
    leaves = _leaves(nodes)
    supply = iter(_Once.apply(message, [g for g in gradients if g is not None], some, *leaves))
    return tuple(None if g is None else next(supply) for g in gradients)


def _leaves(nodes: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors whose gradients the graph from ``nodes`` ends in."""
    found, seen, stack = [], set(nodes), list(nodes)
    while stack:
        step = stack.pop()
        if hasattr(step, "variable"):
            found.append(step.variable)
        following = {after for after, _ in step.next_functions if after is not None} - seen
        seen |= following
        stack += following
    return found


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, message: str, values: list[torch.Tensor], *inputs: torch.Tensor) -> Any:
        ctx.message = message
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(ctx.message)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


def with_its_history(value: torch.Tensor) -> torch.Tensor:
    """A tensor in the memory of ``value``, with its version and the history that it has now. It
    keeps no reference to ``value``, as a view would."""
    with torch.enable_grad():
        shared: torch.Tensor = _apply_shared(value)
    return shared


def node_apply(function: Any) -> Callable[..., Any]:
    """``function.apply`` without the Python part that only functorch transforms need."""
    apply: Callable[..., Any] = torch._C._FunctionBase.__dict__["apply"].__get__(None, function)
    return apply


_apply_shared = node_apply(_Shared)

_TYPE_OF_OLD = type(torch.FloatTensor)
_TYPES_BY_NAME = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in torch._tensor_classes
    if isinstance(kind, _TYPE_OF_OLD)
}


def dtype_of_old(kind: Any, device: torch.device) -> torch.dtype | None:
    """The dtype that ``torch.FloatTensor`` and its kind, or their names, stand for. None for
    anything else, and for those of other devices and layouts."""
    kind = _TYPES_BY_NAME.get(kind) if isinstance(kind, str) else kind
    if not isinstance(kind, _TYPE_OF_OLD) or kind.layout is not torch.strided:
        return None
    place = "cuda" if kind.is_cuda else "cpu"
    dtype: torch.dtype = kind.dtype
    return dtype if device.type == place else None
