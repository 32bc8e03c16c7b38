"""What the recorder knows of torch functions: queries, writes, refusals, FX targets."""

from __future__ import annotations

import ast
import enum
import functools
import operator
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np
import torch

from jitney import torch_api
from jitney.capture.frame import BreakCapture
from jitney.capture.program_lines import call_from
from jitney.torch_api.written_ops import overloads_of, written_by

getitem = operator.getitem

# Asking for these would bake a value of a tensor, or hand out its memory.
REFUSED = {
    "item": "keep the value in a tensor",
    "tolist": "keep the values in a tensor",
    "numpy": "use torch operations instead of NumPy's",
    "__array__": "use torch operations instead of NumPy's",
    "__bool__": "use torch.where instead of Python's if",
    "__int__": "keep the value in a tensor",
    "__float__": "keep the value in a tensor",
    "__index__": "keep the value in a tensor",
    "__complex__": "keep the value in a tensor",
    "__contains__": "use (tensor == value).any() and torch.where",
    "__nonzero__": "use torch.where instead of Python's if",
    "data_ptr": "",
    "const_data_ptr": "",
    "storage": "",
    "untyped_storage": "",
    "_typed_storage": "",
    "__dlpack__": "",
    "__repr__": "print shapes, or print outside of the compiled function",
    "__format__": "print shapes, or print outside of the compiled function",
    "__str__": "print shapes, or print outside of the compiled function",
    "__reduce_ex__": "",
    "__deepcopy__": "use clone()",
    "backward": "call backward outside of the compiled function",
    "register_hook": "",
    "register_post_accumulate_grad_hook": "",
    "retain_grad": "",
    "requires_grad_": "",
    "set_": "",
    "resize_": "",
    "resize_as_": "",
    "share_memory_": "",
    "pin_memory": "",
    "is_pinned": "",
    "is_set_to": "",
    "map_": "",
    "apply_": "",
    "map2_": "",
    "__setstate__": "",
    "module_load": "",
    "_make_subclass": "",
    "from_numpy": "",
    "frombuffer": "",
    "from_file": "",
    "from_dlpack": "",
    "as_tensor": "",
}
_MAYBE_CONSTANT = {"as_tensor"}
_TYPED_BY_VALUES = frozenset("tensor as_tensor asarray new_tensor".split())
# C attributes of tensors whose answer is a fact about the fake, not a tensor.
QUERIES = frozenset(
    """shape dtype device layout ndim requires_grad is_leaf names is_cuda is_cpu is_meta is_mps
    is_xpu is_sparse is_sparse_csr is_quantized is_nested is_mkldnn itemsize nbytes
    output_nr is_xla is_vulkan is_ipu is_maia is_mtia volatile retains_grad""".split()
)
# C attributes that are tensors.
VIEWS = frozenset("T mT H mH real imag".split())
METHOD_QUERIES = frozenset(
    """size dim ndimension numel nelement stride storage_offset is_contiguous is_floating_point
    is_complex is_signed element_size get_device is_conj is_neg is_inference is_same_size type
    is_shared has_names dim_order is_coalesced sparse_dim dense_dim __len__ __hash__ dtype
    _is_view is_distributed""".split()
)


def name_of(func: Any) -> str:
    """A torch function's name as users write it."""
    return getattr(func, "__name__", None) or str(func)


def method_name(func: Any) -> str:
    """The name of the method that a torch function is, also as an op of ATen's: torch tells a few
    methods (`set_`) by their ops alone."""
    name = name_of(func)
    return name.split(".")[0] if isinstance(func, torch_api.OP_TYPES) else name


def hint_of(func: Any) -> str:
    """What to write instead of a function that is refused."""
    name = name_of(func)
    if name in ("nonzero", "masked_select", "unique", "argwhere"):
        return "use torch.where with three arguments, or masks, so that sizes do not depend on data"
    return REFUSED.get(name, "")


_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
Query = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


def query(func: Any) -> Query | None:
    """How to answer a call that is no node: property reads, size queries; refusals raise."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return _property
    if name in ("__set__", "__delete__"):
        return _refuse_attribute
    if name in METHOD_QUERIES or name == "_set_grad_enabled":  # the latter from finalisers
        return _ask
    if name == "__iter__":
        return _iterate
    method = method_name(func)
    if method in REFUSED and method not in _MAYBE_CONSTANT:
        raise BreakCapture("tensor-value", f"{method}() on a tensor", REFUSED[method])
    return None


#: Of which a tensor inside a functorch transform tells what the one around it has, or what the
#: transform's level has of it: fakes know no levels.
_OF_LEVELS = frozenset(
    """stride is_contiguous storage_offset dim_order _is_view is_inference requires_grad is_leaf
    output_nr retains_grad""".split()
)


def _refuse_levels(recorder: Any, name: str) -> None:
    if recorder.in_transform and name in _OF_LEVELS:
        reason = f"{name} is asked of a tensor in a function that a transform calls"
        raise BreakCapture("functorch", reason)


def _ask(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is torch.Tensor.type and (len(args) > 1 or kwargs):
        return _converted(recorder, *args, **kwargs)
    _refuse_levels(recorder, name_of(func))
    if name_of(func) in ("_is_view", "is_shared") and recorder.is_input(args[0]):
        raise BreakCapture("tensor-attribute", f"{name_of(func)}() of an input is asked")
    if name_of(func) in ("stride", "dim_order"):
        recorder.strides_asked = True
    if name_of(func) == "storage_offset":
        recorder.places_asked = True
    if func is torch.Tensor.is_contiguous:
        return torch_api.is_contiguous(*args, **kwargs)
    return func(*args, **kwargs)


_MAKING_CONTIGUOUS = (torch.Tensor.contiguous, torch.Tensor.ravel, torch.ravel)


def contiguous_already(recorder: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What a call to make a tensor of symbolic sizes contiguous gives where it is so already: by
    guards, since torch copies one that is not sure to be. None for any other call."""
    if func not in _MAKING_CONTIGUOUS or not args or not torch_api.is_symbolic(args[0]):
        return None
    if not torch_api.is_contiguous(*args, **kwargs):
        return None
    if func is torch.Tensor.contiguous:
        return args[0]
    return recorder.call(torch.Tensor.view, (args[0], -1), {})


def _converted(
    recorder: Any, tensor: Any, dtype: Any = None, non_blocking: bool = False
) -> torch.Tensor:
    """``tensor.type(dtype)``; the names and classes of old also say where."""
    if not isinstance(dtype, torch.dtype):
        dtype = torch_api.dtype_of_old(dtype, tensor.device)
    if dtype is None:
        raise BreakCapture("tensor-type", "Tensor.type(name)", "use Tensor.to(dtype)")
    return recorder.call(torch.Tensor.to, (tensor, dtype, non_blocking), {})


def _iterate(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return iter(recorder.call(torch.Tensor.unbind, (args[0], 0), {}))


def _refuse_attribute(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    name = getattr(getattr(func, "__self__", None), "__name__", "?")
    raise BreakCapture("tensor-attribute", f"the attribute {name} of a tensor is set")


def _property(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func.__self__, "__name__", None)
    if name is None:  # a Python property of torch.Tensor
        name = getattr(getattr(func.__self__, "fget", None), "__name__", "?")
    if name in QUERIES:
        _refuse_levels(recorder, name)
        return func(*args, **kwargs)
    fake = args[0]
    if name in VIEWS:
        with recorder.fake_mode:
            value = call_from(recorder.frames, func, args, {})
        if value is not fake:
            node = recorder.node(
                "call_function", getattr, (recorder.argument(fake), name), {}, value
            )
            recorder.bind(value, node)
        return value
    if name == "data":
        recorder.uncounted.add(torch_api.memory_of(fake))
        return recorder.call(torch_api.data_of, (fake,), {})
    raise BreakCapture("tensor-attribute", f"the attribute {name} of a tensor is read")


#: Methods that bear another one's name (``__pow__``): FX would look for them by that name.
_RENAMED = {
    value: name
    for name, value in vars(torch.Tensor).items()
    if isinstance(value, FunctionType) and value.__name__ != name
}


def target_of(func: Any) -> tuple[str, Any, bool]:
    """(FX op, target, whether it writes to an argument) of a torch function."""
    name = _RENAMED.get(func) or name_of(func)
    write = _writes(func, name)
    inner = getattr(func, "__wrapped__", func)  # Tensor.__pow__ is Tensor.pow in a wrapper
    if name != "" and getattr(torch.Tensor, name, None) in (func, inner):
        return "call_method", name, write
    return "call_function", func, write


def _writes(func: Any, name: str) -> bool:
    if isinstance(func, torch_api.OP_TYPES):
        return any(torch_api.schema_of(o).is_mutable for o in overloads_of(func))
    if name == "__setitem__" or name.startswith("__i") and name not in ("__invert__", "__index__"):
        return True
    return name.endswith("_") and not name.endswith("__")


def writes_unseen(func: Any) -> bool:
    """Whether it is an author's own op that writes to operands (`written_ops`)."""
    return is_authors(func) and isinstance(func, torch_api.OP_TYPES) and _writes(func, "")


def is_authors(func: Any) -> bool:
    """Whether it runs code that is not torch's: an author's own op, or what ``allow_in_graph``
    made a call of a graph."""
    if isinstance(func, torch_api.OP_TYPES):
        return str(func).split(".")[0] not in ("aten", "prims", "jitney")
    return torch_api.is_allowed_in_graph(func)


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors a writing call may change: all it is given, of its first argument for
    methods, and what the schema says of an author's op."""
    if writes_unseen(func):
        found = written_by(func, args, kwargs)
    elif isinstance(func, torch_api.OP_TYPES):
        found = [*args, *kwargs.values()]
    else:
        found = [args[0]] if args else list(kwargs.values())
    flat: list[Any] = []
    for item in found:
        flat.extend(item if isinstance(item, list | tuple) else [item])
    return [x for x in flat if isinstance(x, torch.Tensor)]


def refuse_overlap(func: Any, tensors: Iterable[torch.Tensor]) -> None:
    """Breaks before a write to a tensor whose elements share memory: eager refuses it if it is an
    expanded one, else writes to one element after the other."""
    for tensor in tensors:
        if overlaps_itself(tensor):
            expanded = any(type(step) is int and step == 0 for step, _ in _extents(tensor))
            what = "an expanded tensor" if expanded else "a tensor whose elements share memory"
            raise BreakCapture("overlap", f"{name_of(func)} of {what}", "clone() it before")


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may be one place in memory. Asks symbols, which guards them."""
    return steps_meet(_extents(tensor))


def steps_meet(extents: Iterable[tuple[Any, Any]]) -> bool:
    """Whether a step in one dimension does not go past all that those of smaller steps reach.
    ``extents``: (stride, size) of dimensions of more than one element, small strides first."""
    reach: Any = 1
    for stride, size in extents:
        if stride < reach:
            return True
        reach = reach + stride * (size - 1)
    return False


def _extents(tensor: torch.Tensor) -> list[tuple[Any, Any]]:
    """(stride, size) of the dimensions that are not known to be of size 1, small strides first."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    extents = [(stride, size) for stride, size in pairs if type(size) is not int or size > 1]
    return sorted(extents, key=lambda extent: torch_api.hint_of(extent[0]))


def reach_of(tensor: torch.Tensor) -> Any:
    """How many places there are from a tensor's first element to its last."""
    if tensor.numel() == 0:
        return 0
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return sum((stride * (size - 1) for stride, size in pairs), 1)


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether the places from a tensor's first element to its last are not one for each."""
    step: Any = 1
    for stride, size in _extents(tensor):
        if stride != step:
            return True
        step = step * size
    return False


def refuse_results(func: Any, given: Iterable[Any], value: Any) -> None:
    """Breaks before results that no graph can hold, or that eager refuses here."""
    refuse_layouts(func, given, value)
    refuse_missing_devices(func, value)


def refuse_missing_devices(func: Any, value: Any) -> None:
    """Breaks before a result on a device that this machine lacks, for which eager raises."""
    results = value if isinstance(value, tuple | list) else (value,)
    for device in {r.device.type for r in results if isinstance(r, torch.Tensor)}:
        if device not in _ALWAYS_THERE and not _is_there(device):
            raise BreakCapture("device", f"{name_of(func)} of a device that is not there: {device}")


_ALWAYS_THERE = frozenset(["cpu", "meta"])


@functools.cache
def _is_there(device: str) -> bool:
    try:
        return bool(torch.get_device_module(device).is_available())
    except RuntimeError:  # no part of torch is for it
        return False


def refuse_layouts(func: Any, given: Iterable[Any], value: Any) -> None:
    """Breaks before a result that no graph holds: a sparse tensor, of whose fake the values are
    none, or a quantized one, for which torch foresees plain numbers."""
    results = value if isinstance(value, tuple | list) else (value,)
    strided = all(r.layout is torch.strided for r in results if isinstance(r, torch.Tensor))
    if not strided or any(type(x) is torch.dtype and x in _QUANTIZED for x in given):
        raise BreakCapture("tensor-layout", f"{name_of(func)} makes no dense strided tensor")


def refuse_masked_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Breaks before values with a gradient are put where a mask is true: their gradient, taken out
    by the mask, has as many rows as the mask's values say, and the whole graph would be eager's."""
    if name_of(func) not in _PUTTING or not torch.is_grad_enabled():
        return
    given = dict(zip(("self", "indices", "values"), args, strict=False)) | kwargs
    index, values = given.get("indices"), given.get("values")
    parts = index if isinstance(index, list | tuple) else (index,)
    masked = any(isinstance(i, torch.Tensor) and i.dtype in _MASKS for i in parts)
    if masked and isinstance(values, torch.Tensor) and values.requires_grad:
        reason = "values with a gradient are put where a mask is true"
        raise BreakCapture("data-dependent", reason, "use torch.where or masked_scatter")


_PUTTING = ("setitem", "__setitem__", "index_put", "index_put_")
_MASKS = (torch.bool, torch.uint8)


def kept_whole(func: Any, args: tuple[Any, ...], in_transform: bool = False) -> Any:
    """What is called for ``func``: for a recurrent network an op of our own, on a GPU and where a
    CPU's would be taken apart into many cells. Breaks before one with state that only the library
    knows. ``in_transform``: in a function that a transform of functorch calls, which knows no ops
    of ours."""
    name = name_of(func)
    if name not in torch_api.RECURRENT or not (args and isinstance(args[0], torch.Tensor)):
        return func
    if not args[0].is_cuda and (in_transform or not torch_api.has_many_cells(name, args)):
        return func
    if in_transform:
        raise _library_state(func, "the transform")
    _, states, weights, has_biases, _, dropout, train, *_ = args
    if not isinstance(has_biases, bool):
        raise _library_state(func, "a packed sequence")
    states = states if isinstance(states, list | tuple) else [states]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (args[0], *states, *weights)):
        raise _library_state(func, "the gradient")
    if train and dropout:
        raise _library_state(func, "the dropout")
    if torch.is_autocast_enabled(args[0].device.type):
        raise _library_state(func, "the cast of the weights")
    return torch_api.recurrent_op(name)


def _library_state(func: Any, what: str) -> BreakCapture:
    return BreakCapture("library-state", f"{what} of {name_of(func)} is the library's")


def holds_tensor(value: Any) -> bool:
    """Whether a result is or contains a tensor."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, tuple | list):
        return any(holds_tensor(item) for item in value)
    if isinstance(value, dict):
        return any(holds_tensor(item) for item in value.values())
    return False


def long_argument(value: int) -> int:
    """An int that a tensor can hold: with others eager raises where a graph cannot be made."""
    if value.bit_length() > 64:
        raise BreakCapture("torch-argument", "an int of more than 64 bits meets a tensor")
    return value


def is_code(value: complex) -> bool:
    """Whether a complex number's text, which is FX's code, says the same number: infinities and NaN
    have none, and signs of zeros are lost in sums."""
    try:
        said = ast.literal_eval(repr(value))
    except ValueError:
        return False
    return (str(said.real), str(said.imag)) == (str(value.real), str(value.imag))


#: To the number or text a subclass's instance is, whatever the subclass overrides.
_CONVERT: dict[type, Callable[[Any], Any]] = {
    float: float.__float__, int: int.__int__, str: str.__str__,
}  # fmt: skip


def refuse_numpy_types(func: Any, *given: Any) -> None:
    """A tensor made of NumPy's numbers takes its dtype from them, which a graph does not hold."""
    if name_of(func) in _TYPED_BY_VALUES and any(map(_from_numpy, given)):
        reason = f"{name_of(func)} is given NumPy's numbers"
        raise BreakCapture("numpy-number", reason, "use Python's numbers")


def refuse_booleans(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Fakes take a boolean ``alpha`` or exponent for a number, eager's kernels do not."""
    exponent = args[1:2] if name_of(func).strip("_") in ("pow", "ipow") else ()
    if any(type(x) is bool for x in (*exponent, kwargs.get("alpha"), kwargs.get("exponent"))):
        raise BreakCapture("boolean-number", f"{name_of(func)} is given a boolean for a number")


def refuse_new_leaves(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Breaks before a tensor that begins a graph of autograd's: what a graph of ours gives is the
    end of one, or has no gradient. (``asarray`` ends the one it is given, before torch 2.13.) And
    before one in pinned memory, which a graph's results are not in."""
    cut = func is torch.asarray and any(getattr(a, "requires_grad", False) for a in args)
    if cut or kwargs.get("requires_grad"):
        reason = f"{name_of(func)} makes a tensor that requires a gradient"
        raise BreakCapture("tensor-constructor", reason, "make it outside")
    if kwargs.get("pin_memory"):
        raise BreakCapture("pinned", f"{name_of(func)} makes a tensor in pinned memory")


def _from_numpy(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_from_numpy, value))
    return type(value).__module__ == "numpy"


#: What torch takes Python's number types for; FX cannot print them.
_DTYPES = {
    int: torch.int64, float: torch.float64, bool: torch.bool, complex: torch.complex128,
}  # fmt: skip


def other_argument(value: Any) -> Any:
    """An argument that is no tensor, plain number or container: enumerations of torch's pass, and
    Python's number types as dtypes. Subclasses and NumPy's numbers become what torch sees; not
    those that it takes for others (complex ones for their real part, booleans for floats)."""
    if isinstance(value, enum.Enum) and isinstance(value, int | str | float):
        return value
    for plain, convert in _CONVERT.items():
        if isinstance(value, plain):
            return convert(value)
    if isinstance(value, np.floating | np.integer):
        number = value.item()
        if type(number) is float or (type(number) is int and number.bit_length() < 64):
            return number
    dtype = _DTYPES.get(value) if type(value) is type else None
    if dtype is not None:
        return dtype
    raise BreakCapture("torch-argument", f"a {type(value).__name__} is given to a torch function")
