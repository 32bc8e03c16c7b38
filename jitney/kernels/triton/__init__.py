"""From a `LoopProgram` to Triton kernels for a GPU, and the launches of a call.

`build_program` is the entry point. Where to begin reading:

- Before fusion: `choose_templates` (our kernel or the library's), `pair_products`.
- A loop nest: `schedule_nest`, `emit_nest`, `emit_tile`, `expressions`.
- Products and attention: `gemm_tile`, `gemm_persistent`, `stream_rows`; `decode_attention`,
  `short_attention`.
- Building: `compile_kernels`, `forked_workers`.
- Measuring: `tune`, `tune_program`, `tune_templates`.
- Run time: `launch_plan` (data), `gpu_program`, `launch`, `record_graph` (CUDA graphs).
"""
