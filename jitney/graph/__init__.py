"""From a torch-level graph to ATen graphs, forward and backward, that keep eager's meaning.

`trace_region` is the entry point; it gives a `region.Region`. Where to begin reading:

- Tracing: `recorder`, `functionalize`, `decompositions`, `differentiate`; `describe_outputs` and
  `join_region` find out how results relate to inputs and to each other.
- Passes: `simplify` lists them in order; `partition` splits forward from backward.
- What eager refuses: `ask_eager`, `number_ranges`, `check_numbers`, `check_values`.
- Run time: `stitch` (the callable of a region), `autograd_node`, `tangent_variants`; and where a
  compiled graph is not enough, `rerun_eagerly`, `put_back`, `eager_gradients`.
- On disk: `fingerprint`.
"""
