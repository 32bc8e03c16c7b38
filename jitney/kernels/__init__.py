"""From a `LoopProgram` to code: `llvm/` for CPUs, `triton/` for GPUs, which do not know each other.

The files here serve both: extern calls (`call_extern`) and the custom ops that these make.
"""
