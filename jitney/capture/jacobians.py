"""``torch.func.jvp``, ``jacrev`` and ``jacfwd``, and so ``hessian``: one node each, as `transforms`
has it; ``vjp``: one more for each call of the function that it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.functions import closure_of
from jitney.capture.transforms import Chosen, Region, plain
from jitney.torch_api.trees import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def _with_aux(
    body: torch.fx.GraphModule, used: tuple[torch.Tensor, ...], outputs: int
) -> Callable[..., Any]:
    """``call(*inputs) -> (results, aux)`` of ``body``, which is given ``used`` before them."""

    def run(*inputs: torch.Tensor) -> Any:
        results = body.forward(*used, *inputs)
        return results[:outputs], results[outputs:]

    return run


@dataclass(frozen=True, eq=False)
class Pushed:
    """``call(*used, *primals, *tangents) -> (results, their tangents, aux)``, each ``outputs``
    long but the last, of ``body``, a graph of ``(*used, *primals)``."""

    body: torch.fx.GraphModule
    used: int
    outputs: int
    strict: bool
    __name__ = "jvp"

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """By `torch.func.jvp`, whose errors it raises."""
        used, given = tensors[: self.used], tensors[self.used :]
        middle = len(given) // 2
        run = _with_aux(self.body, used, self.outputs)
        parts: Any = torch.func.jvp(
            run, given[:middle], given[middle:], strict=self.strict, has_aux=True
        )
        results, tangents, aux = parts
        return (*results, *tangents, *aux)


@dataclass(frozen=True, eq=False)
class Pulled:
    """``call(*used, *primals) -> (a function of ``outputs`` cotangents that returns the gradients
    by the primals, results, aux)`` of ``body``, a graph of the same arguments."""

    body: torch.fx.GraphModule
    used: int
    outputs: int
    __name__ = "vjp"

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """By `torch.func.vjp`, whose errors it raises."""
        used, primals = tensors[: self.used], tensors[self.used :]
        run = _with_aux(self.body, used, self.outputs)
        results, pull, aux = torch.func.vjp(run, *primals, has_aux=True)  # type: ignore[misc]
        return (pull, *results, *aux)


def pull_back(pull: Callable[..., Any], *cotangents: torch.Tensor) -> Any:
    """Calls what `Pulled` returned."""
    return pull(cotangents)


@dataclass(frozen=True)
class Pull:
    """A ``function`` that `torch.func.vjp` returned in step ``step``: how what it is given and
    what it returns are arranged."""

    function: Callable[..., Any]
    step: int
    given: Any
    returned: Any


@dataclass(frozen=True, eq=False)
class Jacobian:
    """``call(*used, *given) -> (each of ``outputs`` results by each of the given that are wanted,
    aux)`` of ``body``, a graph of the same arguments; ``options``: those of ``transform``."""

    transform: Callable[..., Any]
    body: torch.fx.GraphModule
    used: int
    wanted: tuple[bool, ...]
    outputs: int
    options: tuple[tuple[str, Any], ...]
    __name__ = "jacobian"

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Blocks row by row: all of the first result, then of the next."""
        used, given = tensors[: self.used], tensors[self.used :]
        run = _with_aux(self.body, used, self.outputs)
        by = tuple([place for place, want in enumerate(self.wanted) if want])
        rows, aux = self.transform(run, by, has_aux=True, **dict(self.options))(*given)
        return (*[block for row in rows for block in row], *aux)


def _bound(interpreter: Interpreter, function: Any, args: Any, kwargs: Any) -> Iterable[Any]:
    """What the function's parameters are given, in order."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    try:
        bound = inspect.signature(function).bind(*values, **keywords)
    except TypeError as error:
        raise BreakCapture("functorch", f"{function.__name__}: {error}") from error
    bound.apply_defaults()
    return bound.arguments.values()


def call_vjp(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures ``torch.func.vjp(func, *primals, has_aux)``."""
    body, primals, has_aux = _bound(interpreter, function, args, kwargs)
    flat, spec = tree_flatten(plain(interpreter, primals))
    if not flat or not all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in flat):
        raise BreakCapture("functorch", "vjp is called by what is no floating-point tensor")
    with interpreter.recorder.fake_mode, torch_api.without_function_modes():
        given = [x.detach().requires_grad_() for x in flat]
    step = interpreter.resumable(interpreter.frames).step
    region = Region(interpreter, given)
    with torch.enable_grad():
        results = region.record(body, tree_unflatten(given, spec), {})
    outputs, aux = region.parted(results, has_aux)
    leaves, out_spec = tree_flatten(outputs)
    pull, *found = region.call(Pulled(region.body, len(region.used), len(leaves)), flat)
    interpreter.pulls[id(pull)] = Pull(pull, step, out_spec, spec)
    rest = [tree_unflatten(found[len(leaves) :], tree_flatten(aux)[1])] if has_aux else []
    return (tree_unflatten(found[: len(leaves)], out_spec), pull, *rest)


def call_pull(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures a call of what `torch.func.vjp` returned."""
    pull = interpreter.pulls.get(id(function))
    if pull is None or kwargs or len(args) != 1:
        raise BreakCapture("functorch", "a vjp of before is called, or with options")
    flat, spec = tree_flatten(plain(interpreter, args[0]))
    if spec != pull.given or not all(isinstance(x, torch.Tensor) for x in flat):
        raise BreakCapture("functorch", "a vjp is called with other than its results' gradients")
    found = interpreter.recorder.call(pull_back, (function, *flat), {})
    return tree_unflatten(list(found), pull.returned)


def call_jvp(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures ``torch.func.jvp(func, primals, tangents, *, strict, has_aux)``."""
    body, primals, tangents, strict, has_aux = _bound(interpreter, function, args, kwargs)
    primals, tangents = plain(interpreter, primals), plain(interpreter, tangents)
    flat, spec = tree_flatten(primals)
    directions, same = tree_flatten(tangents)
    if type(primals) is not tuple or spec != same or not flat:
        raise BreakCapture("functorch", "jvp is called with other tangents than primals")
    if not all(isinstance(x, torch.Tensor) for x in (*flat, *directions)):
        raise BreakCapture("functorch", "jvp is called by what is no tensor")
    with interpreter.recorder.fake_mode, torch_api.without_function_modes():
        given = [x.detach() for x in flat]
    region = Region(interpreter, given)
    results = region.record(body, tree_unflatten(given, spec), {})
    outputs, aux = region.parted(results, has_aux)
    leaves, out_spec = tree_flatten(outputs)
    transform = Pushed(region.body, len(region.used), len(leaves), bool(strict))
    found = list(region.call(transform, [*flat, *directions]))
    pair = [tree_unflatten(found[i : i + len(leaves)], out_spec) for i in (0, len(leaves))]
    rest = [tree_unflatten(found[2 * len(leaves) :], tree_flatten(aux)[1])] if has_aux else []
    return (*pair, *rest)


def call_jacobian(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures the call of what ``torch.func.jacrev`` or ``jacfwd`` made."""
    if kwargs:
        raise BreakCapture("functorch", "a Jacobian is called with keywords")
    transform: Any = torch_api.jacobian_of(function.__code__)
    free = closure_of(interpreter, function)
    free.update({k: plain(interpreter, v) for k, v in free.items() if k != "func"})
    body, has_aux, argnums = free.pop("func"), free.pop("has_aux"), free.pop("argnums")
    chosen = Chosen(interpreter, "a Jacobian", argnums, forced(interpreter, args), {})
    backward = transform is torch.func.jacrev
    marks = chosen.marks if backward else [False] * len(chosen.marks)
    given, (inputs, keywords) = chosen.inside(interpreter, marks)
    region = Region(interpreter, given)
    with torch.enable_grad() if backward else nullcontext():
        results = region.record(body, inputs, keywords)
    outputs, aux = region.parted(results, has_aux)
    leaves, out_spec = tree_flatten(outputs)
    node = Jacobian(
        transform, region.body, len(region.used), tuple(chosen.marks), len(leaves),
        tuple(sorted(free.items())),
    )  # fmt: skip
    found = list(region.call(node, chosen.tensors))
    blocks = [
        tree_unflatten(found[i * chosen.count : (i + 1) * chosen.count], chosen.spec)
        for i in range(len(leaves))
    ]
    jacobian = tree_unflatten(blocks, out_spec)
    if not has_aux:
        return jacobian
    return jacobian, tree_unflatten(found[len(leaves) * chosen.count :], tree_flatten(aux)[1])
