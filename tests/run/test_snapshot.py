"""Weak sets that other threads add to."""

from __future__ import annotations

import weakref

from jitney.run.snapshot import snapshot


class Member:
    pass


def test_what_is_added_meanwhile_is_no_error() -> None:
    members = [Member() for _ in range(8)]
    first, late = members[:5], iter(members[5:])

    class Set(weakref.WeakSet):
        def __iter__(self):
            for member in super().__iter__():
                if more := next(late, None):
                    self.add(more)  # as another thread may
                yield member

    found = Set(first)
    assert len(snapshot(found)) == len(found) == 8
