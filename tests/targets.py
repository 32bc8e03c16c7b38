"""Hardware that tests compile for, whatever machine they run on."""

from jitney.loops.target import Target

H200 = Target("cuda", "NVIDIA H200", multiprocessors=132, capability=(9, 0))
