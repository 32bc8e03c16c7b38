"""An FX graph of ATen ops becomes a `LoopProgram`, one node per realised value, unfused.

What later passes may rely on (`fuse_nests` does the merging):

- every tensor is a strided view of one buffer; view ops emit nothing. A buffer made here has the
  strides of the node's ``meta["val"]`` (row-major in the common case, but not always), and nest
  axes stand in order of falling output stride;
- a pointwise op is one nest: axes over the output's dimensions (size-1 dimensions have none),
  ``body = (Let…, Store(out, index, expression))``. Lets appear only where an index is data
  dependent (gather). Loads may be masked (pad, cat): inlining into one must keep the mask;
- a reduction is one nest over the kept axes: ``(Reduce, Store…)``. Softmax, layer norm and the
  like are one nest over rows: Reduce statements, then a `Loop` of stores;
- a scatter, and whatever writes in place, is a nest that stores into a buffer with an earlier
  writer; such buffers are the only ones with two writers;
- axis names are local to a nest, names of Lets and Reductions are unique in the program;
- 16-bit floats are computed in f32: loads are cast, stores cast back;
- writes to inputs come where ``aten.copy_`` stands, or earlier where the old value is dead.
"""

from __future__ import annotations
