"""Is a compiled result equal to eager's? The definition that tests and `jitney bench` share.

Same structure, types, dtypes, shapes, strides, gradients asked for and aliasing; integers and
booleans bitwise; floats: the error against a float64 run is at most twice eager's own error plus
1e-5 (float32), 1e-10 (float64) or 1e-2 (half types) of the tensor's scale. A tensor that is zero in
exact arithmetic (a key bias's gradient) has rounding for a scale: there the whole result's counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from jitney import torch_api

TOLERANCE = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 1e-2,
}


ZERO = 1e-14  # below this share of the whole result's scale a float64 value is rounding


@dataclass(frozen=True)
class Difference:
    """One way in which two results differ; ``path`` says where, as in ``[0].logits``."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path or 'result'}: {self.what}"


def differences(actual: Any, expected: Any, reference: Any = None) -> list[Difference]:
    """Every difference between ``actual`` and eager's ``expected``; empty when equal.

    ``reference`` is the same structure from a float64 run, or None: then the error is taken
    against ``expected`` itself.
    """
    whole = max((scale_of(t.detach()) for _, t in tensors(reference) if is_float(t)), default=0.0)
    floor = ZERO * whole
    return [*compare(actual, expected, reference, "", floor), *aliasing(actual, expected)]


def largest_error(actual: Any, expected: Any) -> float:
    """The largest relative error over all float tensors: max |a - e| / max |e|."""
    pairs = zip(tensors(actual), tensors(expected), strict=False)
    errors = [
        distance(a.detach(), e.detach()) / scale_of(e.detach())
        for (_, a), (_, e) in pairs
        if e.is_floating_point() and e.numel() and a.shape == e.shape
    ]
    return max(errors, default=0.0)


def compare(
    actual: Any, expected: Any, reference: Any, path: str, floor: float = 0.0
) -> Iterator[Difference]:
    """Differences of structure and values, depth first; ``floor``: scales below it are rounding."""
    if isinstance(expected, torch.Tensor):
        yield from compare_tensors(actual, expected, reference, path, floor)
        return
    if type(actual) is not type(expected):
        yield Difference(path, f"is a {type(actual).__name__}, not a {type(expected).__name__}")
        return
    children = parts(expected)
    if children is None:
        if not same_value(actual, expected):
            yield Difference(path, f"is {actual!r}, not {expected!r}")
        return
    ours, theirs = parts(actual) or {}, parts(reference) or {}
    if list(ours) != list(children):
        yield Difference(path, f"has {list(ours)}, not {list(children)}")
        return
    for key, child in children.items():
        yield from compare(ours[key], child, theirs.get(key), f"{path}{key}", floor)


def parts(value: Any) -> dict[str, Any] | None:
    """The children of a container by path step, None for a leaf."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": child for key, child in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{i}]": child for i, child in enumerate(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f".{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
    if type(value).__module__.startswith("transformers.cache_utils"):
        return {f".{name}": child for name, child in vars(value).items()}
    return None


def same_value(actual: Any, expected: Any) -> bool:
    """Equality of leaves; NaN equals NaN."""
    try:
        return bool(actual == expected) or bool(actual != actual and expected != expected)
    except (TypeError, ValueError, RuntimeError):
        return actual is expected


def compare_tensors(
    actual: Any, expected: torch.Tensor, reference: Any, path: str, floor: float
) -> Iterator[Difference]:
    """Differences of one tensor."""
    if type(actual) is not type(expected):
        yield Difference(path, f"is a {type(actual).__name__}, not a {type(expected).__name__}")
        return
    for name in ("dtype", "shape", "device", "layout", "requires_grad"):
        ours, theirs = getattr(actual, name), getattr(expected, name)
        if ours != theirs:
            yield Difference(path, f"{name} is {ours}, not {theirs}")
            return
    if expected.layout is not torch.strided:
        actual, expected, reference = actual.to_dense(), expected.to_dense(), None
    elif visible_strides(actual) != visible_strides(expected):
        yield Difference(path, f"strides are {actual.stride()}, not {expected.stride()}")
    yield from compare_values(actual.detach(), expected.detach(), reference, path, floor)


def visible_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the axes longer than one; nothing for an empty tensor."""
    if tensor.numel() == 0:
        return ()
    return tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)


def compare_values(
    actual: torch.Tensor, expected: torch.Tensor, reference: Any, path: str, floor: float
) -> Iterator[Difference]:
    """Values: bitwise for integers and booleans, by error for floats."""
    tolerance = TOLERANCE.get(expected.dtype)
    if tolerance is None:
        wrong = (
            int((actual != expected).sum())
            if expected.dtype != torch.bool
            else int((actual ^ expected).sum())
        )
        if wrong:
            yield Difference(path, f"{wrong} of {expected.numel()} elements differ")
        return
    if expected.is_complex():
        actual, expected = (torch.view_as_real(t.resolve_conj()) for t in (actual, expected))
        reference = None
    special = ~torch.isfinite(expected)
    if not torch.equal(special, ~torch.isfinite(actual)) or not torch.equal(
        actual[special].nan_to_num(nan=0.5), expected[special].nan_to_num(nan=0.5)
    ):
        yield Difference(path, "NaN or infinity in other places")
        return
    truth = float64_of(reference, expected)
    finite = ~special & torch.isfinite(truth)
    ours, theirs = actual, expected
    if not finite.all():
        truth, ours, theirs = truth[finite], actual[finite], expected[finite]
    scale = scale_of(truth)
    if scale < floor:
        scale = floor / ZERO
    error, own = distance(ours, truth), distance(theirs, truth)
    if error > 2 * own + tolerance * scale:
        yield Difference(path, f"error {error:.3g}, eager's own {own:.3g}, scale {scale:.3g}")


def float64_of(reference: Any, expected: torch.Tensor) -> torch.Tensor:
    """The reference if it is a float64 tensor of the same shape, else eager's own result."""
    if (
        isinstance(reference, torch.Tensor)
        and reference.dtype == torch.float64
        and reference.shape == expected.shape
    ):
        return reference.detach()
    return expected.double()


def is_float(tensor: torch.Tensor) -> bool:
    """Floating point, and not complex."""
    return tensor.is_floating_point()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest absolute difference, 0 for nothing."""
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


def scale_of(tensor: torch.Tensor) -> float:
    """Largest finite magnitude, at least a tiny positive number."""
    magnitude = tensor.double().abs().nan_to_num(0.0, 0.0, 0.0)
    return max(float(magnitude.max()) if tensor.numel() else 0.0, 1e-30)


def tensors(value: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    """Every strided tensor in a structure, with its path."""
    if isinstance(value, torch.Tensor):
        return [(path, value)] if value.layout is torch.strided else []
    return [
        found
        for key, child in (parts(value) or {}).items()
        for found in tensors(child, f"{path}{key}")
    ]


def aliasing(actual: Any, expected: Any) -> Iterator[Difference]:
    """Pairs of tensors that share memory on one side only."""
    ours, theirs = tensors(actual), tensors(expected)
    if [p for p, _ in ours] != [p for p, _ in theirs]:
        return
    every = range(len(ours))
    sharing, wanted = (
        torch_api.overlaps([span(t) for _, t in side], every) for side in (ours, theirs)
    )
    for i, j in sorted(sharing ^ wanted):
        verb = "shares" if (i, j) in sharing else "does not share"
        yield Difference(ours[i][0], f"{verb} memory with {ours[j][0]}")


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and the byte after the last, empty for no elements."""
    return (0, 0) if tensor.device.type == "meta" else torch_api.span(tensor)
