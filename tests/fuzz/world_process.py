"""What programs may change of the process, put back."""

from __future__ import annotations

import builtins
import contextlib
import math
import os
import sys
import types
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def process_as_it_was(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    """A block with ``modules`` among the process's, behind which all that programs change of it is
    as it was. NumPy, which cannot be told from outside, gets no new names."""
    owners = [vars(builtins), vars(math), vars(torch), vars(np)]
    kept = [dict(names) for names in owners]
    environment = dict(os.environ)
    sys.modules.update(modules)
    sys.modules["world_x"] = types.SimpleNamespace(v=1)  # type: ignore[assignment]
    with torch.backends.__allow_nonbracketed_mutation():  # torch's testing library forbids it
        try:
            with torch.autocast("cpu", enabled=False):
                torch.set_autocast_enabled("cpu", False)
                yield
        finally:
            for names, before in zip(owners, kept):
                for name in [name for name in names if name not in before]:
                    del names[name]
                names.update(before)
            for name in (*modules, "world_x"):
                sys.modules.pop(name, None)
            os.environ.clear()
            os.environ.update(environment)
            if "extra" in vars(torch.nn.Module):
                del torch.nn.Module.extra
            torch.set_grad_enabled(True)
            torch.set_autocast_enabled("cpu", False)
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.benchmark = False
