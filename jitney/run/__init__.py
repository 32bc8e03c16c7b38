"""What a call of a compiled function does: find the entry that holds, and run it.

Where to begin reading: `session` (what one ``jitney.compile`` owns), `wrapper` (the function the
user calls), `dispatch` (from a call to an entry), `may_compile` (whether a call that no entry
serves makes one), `arms` (native guard checks). `cuda_graphs` and `recording` replay programs of a
GPU.
"""
