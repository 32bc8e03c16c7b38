"""Models with random weights, by name: what `jitney bench` runs and what the tests compare.

Nothing is downloaded. The same name, size and seed give the same weights in every process.
"""

from jitney.cli.workloads.hugging_face import HUGGING_FACE
from jitney.cli.workloads.plain import PLAIN
from jitney.cli.workloads.task import Size, Task, Workload
from jitney.cli.workloads.training import TRAINING

WORKLOADS: dict[str, Workload] = {w.name: w for w in (*HUGGING_FACE, *PLAIN, *TRAINING)}

__all__ = ["WORKLOADS", "Size", "Task", "Workload"]
