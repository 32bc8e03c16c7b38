"""From a `LoopProgram` to native code of a CPU, by way of LLVM's textual IR.

`build_program` is the entry point. Where to begin reading:

- A program: `segments` cuts it at extern calls; `emit_segment` and `emit_call` write the native
  function of each; `run_steps` runs a program of several.
- A loop nest: `schedule_nest` (lanes, unrolling, threads), `emit_nest`, `emit_body`, `expressions`.
- A matrix product: `gemm_plan` (how it is run), `gemm`, `gemm_panel`, `gemm_tile`.
- Attention: `attention_plan`, `attention`.
- Text and machine code: `text` (a function under construction), `operations` (each opcode),
  `machine_code`, `native_runtime`, `native_threads`.
"""
