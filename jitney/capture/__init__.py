"""Capture: the bytecode of a frame is run on the real objects, with fakes in place of tensors.

`capture_frame` is the entry point; it gives a `result.Capture`. Where to begin reading:

- Running bytecode: `interpret`, `frame`, `decode`; the instructions are in `handlers_stack`,
  `handlers_data` and `handlers_flow`.
- Objects that existed before: `world` (their only door) and `world_knowledge`, `source` (the path
  to one), `guard` (a fact that must hold again), `shadows` (copies that the frame may change).
- Calls: `calls`, `policy`, `policy_table`; then `builtin_calls`, `torch_calls`, `function_calls`.
  Python functions that are not simply interpreted: `answer_calls`, `call_natively`,
  `put_off_logging`, `break_at_calls`, `interpret_instead`.
- Attributes and operators: `attributes`, `lookups`, `operators`.
- The graph: `record`, `leaves`, `tensors`, `symbols`.
- Gradients inside a frame: `autograd_functions`, `checkpoints`, `transforms`.
- Going on behind a break: `build_resume`, `edit_code`, `look_ahead`.
- What the frame made or changed: `rebuild`, `changes`, `recipe`, `build_glue`.
- Checking guards on the next call: `walk_guards` and `check_guards` (Python), `arm_guards`,
  `native_program` and `native_check` (native).
"""
