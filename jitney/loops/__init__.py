"""From an ATen graph to a `LoopProgram`, and the passes over it that every backend shares.

Where to begin reading:

- The data: `ir` and `index`; `print_program` shows a program as text, `interpret` runs it slowly,
  `verify` says what holds between passes.
- Lowering: `lower_graph`, then `lowerings/`, a file for each family of ops.
- Fusion: `fuse_nests` (the order), `inline_producers`, `fuse_epilogues`, `merge_nests`; `can_fuse`
  says what is legal, `score_fusion` what pays.
- One nest: `simplify_nest`, `share_values`, `fold_values`.
- Memory: `plan_memory`.

`cpu_pipeline` and `gpu_pipeline` have the passes of one device, in their order.
"""
