"""The command line (`main`): `jitney bench`, `jitney explain`, `jitney demo`.

A *side* (`sides`) is one way to run a *workload* (`workloads/`): eager, torch.compile, Jitney, …
"""
