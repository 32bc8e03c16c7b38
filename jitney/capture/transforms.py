"""``torch.vmap`` and ``torch.func.grad``: their function is interpreted aside, on what one call of
it is given, and the transform of its graph is one node. `jacobians` has others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import state
from jitney.capture.forced import forced
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.record import has_convolution
from jitney.capture.symbols import SYMBOLS
from jitney.torch_api.trees import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_CONSTANTS = (int, float, bool, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, eq=False)
class Vmapped:
    """``call(*used, *given) -> results``: ``body``, a graph of the same arguments, is called by
    `torch.vmap` over ``dims`` of the given."""

    body: torch.fx.GraphModule
    used: int
    dims: tuple[int, ...]
    out_dims: tuple[Any, ...]
    randomness: str
    __name__ = "vmap"

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """By `torch.vmap`, whose errors it raises."""
        in_dims = (*[None] * self.used, *self.dims)
        batched = torch.func.vmap(
            self.body.forward, in_dims, self.out_dims, randomness=self.randomness
        )
        return batched(*tensors)


@dataclass(frozen=True, eq=False)
class Differentiated:
    """``call(*used, *given) -> (gradients by those of the given that are wanted, results)`` of
    ``body``, a graph of the same arguments, whose first result is differentiated."""

    body: torch.fx.GraphModule
    used: int
    wanted: tuple[bool, ...]
    __name__ = "grad"

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """By `torch.func.grad_and_value`, whose errors it raises."""
        used, given = tensors[: self.used], tensors[self.used :]

        def run(by: list[torch.Tensor], others: list[torch.Tensor]) -> Any:
            each, rest = iter(by), iter(others)
            inputs = [next(each) if want else next(rest) for want in self.wanted]
            value, *more = self.body.forward(*used, *inputs)
            return value, tuple(more)

        pairs = list(zip(given, self.wanted, strict=True))
        differentiate = torch.func.grad_and_value(run, has_aux=True)
        gradients, (value, more) = differentiate(
            [x for x, want in pairs if want], [x for x, want in pairs if not want]
        )
        return (*gradients, value, *more)


def call_vmap(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures functorch's ``vmap_impl``: of a function, its dimensions, its randomness, the size
    of chunks, then what it is given."""
    body, in_dims, out_dims, randomness, chunk_size, *values = forced(interpreter, args)
    in_dims, out_dims = plain(interpreter, in_dims), plain(interpreter, out_dims)
    if chunk_size is not None:
        raise BreakCapture("functorch", "vmap is called with a chunk size")
    inputs = plain(interpreter, tuple(values))
    dims, flat, spec = interpreter.native(torch_api.batched_inputs, body, in_dims, inputs)
    batched = [(x, dim) for x, dim in zip(flat, dims, strict=True) if dim is not None]
    with interpreter.recorder.fake_mode, torch_api.without_function_modes():
        if any(x.shape[dim] == 0 for x, dim in batched):
            raise BreakCapture("functorch", "vmap is called with nothing to map over")
        given = [x.select(dim, 0) for x, dim in batched]
    slices = iter(given)
    inside = [x if dim is None else next(slices) for x, dim in zip(flat, dims, strict=True)]
    region = Region(interpreter, given)
    results = region.record(body, tree_unflatten(inside, spec), kwargs)
    places = torch_api.flat_out_dims(out_dims, results)
    if places is None:
        raise region.refusal("vmap is given out_dims that do not fit")
    transform = Vmapped(
        region.body, len(region.used), tuple([dim for _, dim in batched]), places, randomness
    )
    found = region.call(transform, [x for x, _ in batched])
    return tree_unflatten(list(found), tree_flatten(results)[1])


def call_grad(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures functorch's ``grad_and_value_impl(function, argnums, has_aux, args, kwargs)``."""
    body, argnums, has_aux, values, keywords = forced(interpreter, args)
    chosen = Chosen(interpreter, "grad", argnums, values, keywords)
    given, (inputs, keywords) = chosen.inside(interpreter, chosen.marks)
    region = Region(interpreter, given)
    with torch.enable_grad():
        results = region.record(body, inputs, keywords)
    pair = isinstance(results, tuple) and len(results) == 2
    if not isinstance(results[0] if has_aux and pair else results, torch.Tensor):
        raise region.refusal("grad is called of what returns no tensor")
    transform = Differentiated(region.body, len(region.used), tuple(chosen.marks))
    found = list(region.call(transform, chosen.tensors))
    gradients = tree_unflatten(found[: chosen.count], chosen.spec)
    rest = tree_unflatten(found[chosen.count :], tree_flatten(results)[1])
    return gradients, rest


class Chosen:
    """What a function is called with and differentiated by: ``tensors``, whether each is wanted
    (``marks``), how many are (``count``), and how their gradients are arranged (``spec``)."""

    def __init__(
        self, interpreter: Interpreter, name: str, argnums: Any, values: Any, keywords: Any
    ) -> None:
        argnums, inputs = plain(interpreter, argnums), plain(interpreter, values)
        keywords = plain(interpreter, keywords)
        by = interpreter.native(torch_api.differentiated_arguments, inputs, argnums)
        numbers = [n % len(inputs) for n in (argnums if isinstance(argnums, tuple) else (argnums,))]
        leaves, self.spec = tree_flatten(by)
        if len(set(numbers)) < len(numbers) or numbers != sorted(numbers):
            raise BreakCapture("functorch", f"{name} is called with arguments out of order")
        self._flat, self._whole = tree_flatten((inputs, keywords))
        sizes = [len(tree_flatten(x)[0]) for x in inputs]
        marks = [n in numbers for n, size in enumerate(sizes) for _ in range(size)]
        marks += [False] * (len(self._flat) - len(marks))
        tensors = [
            (x, m) for x, m in zip(self._flat, marks, strict=True) if isinstance(x, torch.Tensor)
        ]
        self.tensors, self.marks = [x for x, _ in tensors], [m for _, m in tensors]
        self.count = len(leaves)
        if sum(self.marks) != self.count or not all(x.is_floating_point() for x in leaves):
            raise BreakCapture("functorch", f"{name} is called by what is no floating-point tensor")

    def inside(self, interpreter: Interpreter, marks: list[bool]) -> tuple[list[Any], Any]:
        """(fakes of the tensors that the function is given, the arguments made of them); those
        with a mark require a gradient."""
        with interpreter.recorder.fake_mode, torch_api.without_function_modes():
            pairs = zip(self.tensors, marks, strict=True)
            given = [x.detach().requires_grad_(m) for x, m in pairs]
        each = iter(given)
        inside = [next(each) if isinstance(x, torch.Tensor) else x for x in self._flat]
        return given, tree_unflatten(inside, self._whole)


class Region:
    """A function's graph aside of the frame's; ``given``: fakes of what one call is given."""

    def __init__(self, interpreter: Interpreter, given: list[torch.Tensor]) -> None:
        self._interpreter, self._given = interpreter, given
        self.used: list[Any] = []

    def record(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Interprets a call; its results, of which ``body`` returns the leaves."""
        interpreter, recorder = self._interpreter, self._interpreter.recorder
        versions, modes = recorder.versions(), state.snapshot()
        checkpoints, written = len(interpreter.checkpoints), set(recorder.mutated)
        try:
            with recorder.aside(self._given, transform=True) as graph:
                results = interpreter.call(function, args, kwargs, None)
                results = plain(interpreter, interpreter.world.force(results))
                leaves = tree_flatten(results)[0]
                graph.output(tuple([recorder.argument(x) for x in leaves]))
                self.used = [value for value, _ in recorder.lifted.values()]
        except BreakCapture:
            interpreter.native_broke = True  # its body has been recorded: break before it
            raise
        known = {id(x) for x, _ in recorder.nodes.values()} | set(map(id, self._given))
        if recorder.has_written(versions) or (recorder.mutated - written) & known:
            raise self.refusal("what a transform is given is written to")
        if not all(isinstance(x, torch.Tensor) for x in leaves):
            raise self.refusal("a transformed function returns other than tensors")
        if state.snapshot() != modes:
            raise self.refusal("a transformed function changes a mode")
        if len(interpreter.checkpoints) != checkpoints:
            raise self.refusal("a transformed function checkpoints")
        # Strides of images matter to convolutions, which the frame's graph does not show.
        recorder.strides_asked |= has_convolution(graph)
        self.body = torch.fx.GraphModule(torch.nn.Module(), graph)
        return results

    def call(self, transform: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
        """Records the node."""
        try:
            return self._interpreter.recorder.call(transform, (*self.used, *inputs), {})
        except BreakCapture:
            self._interpreter.native_broke = True
            raise

    def parted(self, results: Any, has_aux: bool) -> tuple[Any, Any]:
        """(what is differentiated, what is only returned); there must be some of the former."""
        if has_aux and not (isinstance(results, tuple) and len(results) == 2):
            raise self.refusal("a function with has_aux returns no pair")
        outputs, aux = results if has_aux else (results, None)
        if not tree_flatten(outputs)[0]:
            raise self.refusal("a transformed function returns nothing")
        return outputs, aux

    def refusal(self, reason: str) -> BreakCapture:
        """A break before the call."""
        self._interpreter.native_broke = True
        return BreakCapture("functorch", reason)


def plain(interpreter: Interpreter, value: Any) -> Any:
    """Tuples, lists and dicts of tensors and constants, looked at; breaks for others."""
    value = interpreter.world.force(value)
    kind = type(value)
    if kind in (tuple, list):
        return kind([plain(interpreter, item) for item in value])
    if kind is dict and all(type(key) in _CONSTANTS for key in value):
        return {key: plain(interpreter, item) for key, item in value.items()}
    if isinstance(value, torch.Tensor) or (kind in _CONSTANTS and kind not in SYMBOLS):
        return value
    raise BreakCapture("functorch", f"a transform is given a {kind.__name__}")
