"""Random Python programs through `jitney.compile`, call by call, against eager.

    python -m tests.conformance.random_python [--seeds 0:1000] [--backend eager|jitney]
        [--dynamic] [--show] [--whole]

A program that differs, crashes or gives no answer is shrunk and printed; the exit status is 1.
``--show`` prints programs as they are generated, ``--whole`` leaves them as long as they are.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

from tests.conformance.processes import answers
from tests.conformance.random_python.generate import WORLD
from tests.conformance.random_python.judge import Setting, judge, program
from tests.conformance.random_python.shrink import shrink

PATIENCE = 120.0


@dataclass(frozen=True)
class Judge:
    """A question to another process: what a seed's program came to, and the smallest such."""

    setting: Setting
    whole: bool = False

    def __call__(self, seed: int) -> tuple[str, str]:
        text = program(seed)
        found = judge(text, self.setting)
        if found and not self.whole:
            kind = kind_of(found)
            own = text.removeprefix(WORLD)
            own = shrink(own, lambda own: kind_of(judge(WORLD + own, self.setting)) == kind)
            return judge(WORLD + own, self.setting), own
        return found, text


def kind_of(found: str) -> str:
    """What must stay the same while a program shrinks: an error of ours, or a wrong fact."""
    return "error" if "error: ours" in found else found[:4]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:last+1")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--dynamic", action="store_true", default=None)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    seeds, start, failed = list(range(first, last)), time.perf_counter(), []
    question = Judge(Setting(given.backend, given.dynamic), given.whole)
    for seed, answer in answers(question, seeds, 1, "cpu", PATIENCE):
        found, text = answer.result or (answer.failure, "")
        if found or given.show:
            print(f"\n# seed {seed}: {found}\n{text}", flush=True)
        failed += [seed] * bool(found)
    seconds, python = time.perf_counter() - start, ".".join(map(str, sys.version_info[:2]))
    print(f"Python {python}: {len(seeds)} programs, {seconds:.0f} s, {len(failed)} differ {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
