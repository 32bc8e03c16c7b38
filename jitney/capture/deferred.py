"""Functions that captured frames call after their graph has run."""

from __future__ import annotations

import sys
import warnings


def warn_at(message: str, category: type[Warning], file: str, line: int, module: str) -> None:
    """Issues a warning as if from the user's own line."""
    namespace = getattr(sys.modules.get(module), "__dict__", {})
    registry = namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, file, line, module, registry)
