"""What an `inspect.Signature` from outside the frame holds."""

from __future__ import annotations

import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from jitney.capture.guard import Kind
from jitney.capture.source import Attr, Fixed

if TYPE_CHECKING:
    from jitney.capture.world import Known, World


def parameters_of(world: World, known: Known) -> Any:
    """A signature's ``_parameters``: C code sees what is behind a mapping proxy, no guard does. But
    this one's mapping was made by the signature, and nobody else has it: while it is this very
    proxy its parameters are the same."""
    proxy, source = known.original._parameters, Attr(known.source, "_parameters")
    held: Any = proxy.copy() if type(proxy) is types.MappingProxyType else None
    if type(held) not in (dict, OrderedDict) or world.is_known(proxy, source):
        return world.read_lazy(proxy, source)
    world.guard(Kind.IS, source, proxy)
    for name, parameter in proxy.items():
        held[name] = world.read(parameter, Fixed(parameter))
    return world.know(proxy, types.MappingProxyType(held), source).inside
