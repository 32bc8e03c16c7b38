"""Every float32 sample of torch's op_db through jitney.compile: nothing wrong, nothing crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitney.events import log
from tests.conformance import coverage_table, op_db
from tests.conformance.variants import VARIANTS, jitney_compile


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_sample_equals_eager() -> None:
    op_db.warm_up()
    outcomes = op_db.run_all(list(op_db.all_ops()), jitney_compile)
    Path("docs/op_coverage.md").write_text(coverage_table.table(outcomes))
    bad = [o for o in outcomes.values() if o.kind in ("wrong", "crash")]
    assert not bad, "\n".join(f"{o.name}: {coverage_table.reason(o)}" for o in bad)
    assert sum(o.kind == "lowered" for o in outcomes.values()) >= 350


def test_the_harness_sees_a_wrong_result() -> None:
    def wrong(fn):  # type: ignore[no-untyped-def]
        def compiled(value, args, kwargs):  # type: ignore[no-untyped-def]
            return fn(value, args, kwargs) * 1.001

        return compiled

    assert op_db.check_share(op_db.Share("exp", 0, 2), wrong).kind == "wrong"


def test_an_interpreted_kernel_is_an_error() -> None:
    def interpreted(fn):  # type: ignore[no-untyped-def]
        log.emit("interpreted_node", name="nest", reason="no code")
        return fn

    assert op_db.check_share(op_db.Share("exp", 0, 1), interpreted).kind == "crash"


def test_the_harness_survives_a_crash(tmp_path: Path) -> None:
    def crash(fn):  # type: ignore[no-untyped-def]
        import os

        os._exit(3)

    outcomes = op_db.run_all(["exp"], crash, 1, tmp_path / "results.jsonl")
    assert outcomes["exp"].kind == "crash"
    assert "exit status 3" in coverage_table.table(outcomes)


def test_finished_ops_are_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    op_db.run_all(["exp"], lambda fn: fn, 1, file)
    before = file.read_text()
    op_db.run_all(["exp"], lambda fn: fn, 1, file)
    assert file.read_text() == before


def test_shares_of_an_op_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_db, "SAMPLES_PER_SHARE", 2)
    outcomes = op_db.run_all(["add"], lambda fn: fn, 5, tmp_path / "results.jsonl")
    rows = coverage_table.load(tmp_path / "results.jsonl")
    assert sorted(first for _, first in rows) == [0, 2, 4]
    assert outcomes["add"].samples == 5


def test_noise_is_what_eager_does_nearby() -> None:
    assert op_db.check_share(op_db.Share("native_batch_norm"), jitney_compile).kind == "lowered"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "float32"])
def test_samples_in_another_way_equal_eager(variant: str) -> None:
    op_db.warm_up()
    compile_ = VARIANTS[variant].compile_
    outcomes = op_db.run_all(list(op_db.all_ops()), compile_, limit=5, variant=variant)
    bad = [o for o in outcomes.values() if o.kind in ("wrong", "crash")]
    assert not bad, "\n".join(f"{o.name}: {coverage_table.reason(o)}" for o in bad)


@pytest.mark.parametrize("variant", ["bfloat16", "frozen", "noncontiguous", "in_turn"])
def test_the_harness_sees_a_wrong_result_in_each_way(variant: str) -> None:
    right = VARIANTS[variant].compile_

    def wrong(fn):  # type: ignore[no-untyped-def]
        compiled = right(fn)
        return lambda *inputs: compiled(*inputs) * 1.1

    share = op_db.Share("addmm", 0, 1, variant=variant)
    assert op_db.check_share(share, right).kind == "lowered"
    assert op_db.check_share(share, wrong).kind == "wrong"
