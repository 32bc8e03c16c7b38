"""Every call of ``calls.txt`` in several forms, compiled and eager.

``python -m tests.conformance.call_forms [--find TEXT] [--forms inside,given]``
"""

from __future__ import annotations

import argparse

from tests.conformance.call_forms.judge import FORMS, judge, rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--find", default="")
    parser.add_argument("--forms", default=",".join(FORMS))
    given = parser.parse_args()
    count = wrong = 0
    for row in rows():
        for form in given.forms.split(","):
            if given.find not in row.call:
                continue
            count += 1
            found = judge(row, form)
            if found:
                wrong += 1
                print(f"{form}: o = {row.made}; {row.call}: {found}", flush=True)
    print(f"{count} programs, {wrong} of them not as in eager")


main()
