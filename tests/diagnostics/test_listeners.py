"""What the environment asks for when `jitney` is imported."""

from __future__ import annotations

import sys

import pytest

from jitney.diagnostics import listeners


class _Tee:
    """A stream that only writes, as loggers put in place of stderr."""

    def write(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize("stream", [None, _Tee()], ids=["none", "without isatty"])
def test_a_program_without_a_real_stderr_may_import_jitney(
    stream: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    listeners.install({})
    listeners.install({"JITNEY_DEBUG": "much", "JITNEY_LOGS": "no_such_log"})
    assert capsys.readouterr().out == ""
