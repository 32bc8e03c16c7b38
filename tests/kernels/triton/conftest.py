"""Triton kernels run in Triton's interpreter here; it must be asked for before Triton is loaded."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
