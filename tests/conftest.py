"""Settings of every test, made before anything is imported that reads them."""

import os

os.environ.setdefault("JITNEY_VERIFY", "1")  # compiled programs are checked after each pass
os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton kernels run in Triton's interpreter
os.environ.setdefault("JITNEY_EAGER_ON_BUG", "0")  # a bug is an error
