"""The kinds of attention kernels that a program allows for a scope."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import attention


@contextmanager
def attention_kinds(backends: Any, set_priority: bool = False) -> Iterator[dict[Any, Any]]:
    """What `torch.nn.attention.sdpa_kernel` does with torch's settings; newer versions also keep
    for torch's own compiler, in a context variable, whether an order was asked for."""
    if not isinstance(backends, list):
        backends = [backends]
    kinds = list(dict.fromkeys(backends))
    before = attention._cur_sdpa_kernel_backends(with_priority=set_priority)
    try:
        attention._sdpa_kernel(kinds, set_priority)
        yield {}
    finally:
        attention._sdpa_kernel(before, set_priority)


def is_enum_of_c(cls: type) -> bool:
    """Whether it is an enumeration that pybind11 made, as `SDPBackend` is: its members never
    change."""
    return type(cls).__name__ == "pybind11_type" and "__members__" in cls.__dict__
