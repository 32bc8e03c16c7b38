"""The command line of random programs that are compared with eager, one for each seed."""

from __future__ import annotations

import argparse
import faulthandler
import math
import sys
import time
from collections.abc import Callable


def has_lost_its_gpu(error: Exception) -> bool:
    """Whether nothing can run there in this process any more."""
    return "CUDA error" in str(error)


def run_seeds(check: Callable[..., int], description: str | None, **numbers: int) -> None:
    """Calls ``check(seed, **numbers)`` for each seed asked for, ``numbers`` being options of the
    command line with their defaults, and prints what it raised. ``check`` gives whether its program
    was compiled. The process ends with 1 where one differed or none was compiled."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=200)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no program after these")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in numbers}
    faulthandler.enable()  # where a process ends of itself
    bad = count = compiled = 0
    end = time.monotonic() + options.seconds
    for seed in range(options.seed, options.seed + options.count):
        if time.monotonic() > end:
            break
        count += 1
        try:
            compiled += check(seed, **given) > 0
        except Exception as error:  # noqa: BLE001 - reported
            bad += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error).strip()[:2000]}")
            print("", *getattr(error, "__notes__", ()), sep="  ", flush=True)
            if has_lost_its_gpu(error):
                break
    print(f"{bad} of {count} programs differ, {compiled} of the others were compiled")
    sys.exit(bool(bad) or not compiled)
