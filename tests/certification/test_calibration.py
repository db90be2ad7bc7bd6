"""Calibration: rates of false alarms from null runs, and mutants that must be caught."""

import math
import pickle
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from specverify.certification import calibration_library, calibration_null
from specverify.certification.calibration import (
    ALL_CASES,
    ALPHAS,
    ONE_CASE,
    Calibration,
    blocks,
    false_alarms,
    gather,
    upper_limit,
    whole_run,
)
from specverify.certification.calibration_library import Detections, detect
from specverify.certification.calibration_null import BLOCK, SETTINGS, SHARDS, NullRun, NullRuns
from specverify.errors import SubjectError
from specverify.fixtures.mutants import MUTANTS
from specverify.sampling.engines import InProcess
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import TOKEN

NAMES = tuple(SETTINGS)
EVERY, FIRST = "joint.every_token", "joint.first_token"


def made(case=NAMES[0], tests=2, violations=(), reported=None, **log_es):
    """A run with a few numbers of its own."""
    arrays = {name.replace("__", "."): np.array(values) for name, values in log_es.items()}
    return NullRun(case, arrays, reported or {}, tests, violations)


def rows_of(runs):
    return {row.name: row for row in false_alarms(runs)}


def bets(runs, *, shift=0.0, tests=2, looks=4, seed=0):
    """Runs of e-processes that bet on the mean of normal numbers, which is `shift`."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(shift, 1, (runs, tests, looks))
    log_es = np.cumsum(steps - 0.5, axis=2)
    names = (EVERY, FIRST)[:tests]
    return [
        NullRun(NAMES[i % len(NAMES)], dict(zip(names, log_e, strict=True)), {}, tests)
        for i, log_e in enumerate(log_es)
    ]


def test_alarms_are_counted_at_any_look():
    runs = [
        made(a=[0.0, 3.0, -1.0], reported={"a, G": 0.05}),
        made(a=[0.0, 2.2, 2.0], reported={"a, G": 0.5}),
        made(a=[5.0, 0.0, 7.0], reported={"a, G": 0.0}),
        made(a=[-1.0, -2.0, -3.0]),
    ]
    rows = rows_of(runs)
    assert rows["a"].alarms == (2, 1, 1)
    assert rows["a"].decides
    assert (rows["a, G"].alarms, rows["a, G"].runs, rows["a, G"].decides) == ((2, 1, 1), 3, False)


def test_a_whole_run_spends_half_on_each_test_and_half_on_all():
    """One test of two, alone: E = 400 crosses 2 m / alpha at alpha = 4 / 400, and all together at
    a little less."""
    one = made(a=[math.log(400), 0.0], b=[0.0, 0.0])
    together = 1 / (((400 + 1) / 2 + 1) / 2)
    assert whole_run([one]) == pytest.approx(together)
    assert Budget(4 / 400 / 2, 2).log_threshold == pytest.approx(math.log(400))
    assert together < 4 / 400


def test_products_over_settings_count_from_the_look_at_which_they_are_known():
    """E of every token is 20 in both settings, at the end: 400 by product, for half of alpha."""
    log_20 = math.log(20)
    first = made(NAMES[0], joint__every_token=[0.0, log_20], joint__first_token=[0.0, 0.0])
    second = made(NAMES[1], joint__every_token=[0.0, log_20], joint__first_token=[0.0, 0.0])
    mean = (20 + 20 + 1 + 1) / 4
    assert whole_run([first, second]) == pytest.approx(2 / (400 + mean))
    forgotten = made(NAMES[1], joint__every_token=[log_20, -50.0], joint__first_token=[0.0, 0.0])
    assert whole_run([first, forgotten]) == pytest.approx(2 / (400 + mean))
    early = made(NAMES[0], joint__every_token=[log_20, -50.0], joint__first_token=[0.0, 0.0])
    assert whole_run([early, second]) > 0.04


def test_what_needs_no_statistics_is_never_excused():
    runs = [made(a=[0.0]) for _ in range(999)] + [made(a=[0.0], violations=("stopping",))]
    rows = rows_of(runs)
    assert rows["stopping"].too_high
    assert rows["stopping"].limits == (0.0, 0.0, 0.0)
    assert rows[ONE_CASE].alarms == (1, 1, 1)


def test_settings_are_paired_once_each():
    runs = [made(NAMES[i % 2], a=[0.0]) for i in range(7)]
    rows = rows_of(runs)
    assert (rows[ONE_CASE].runs, rows[ALL_CASES].runs) == (7, 3)
    assert ALL_CASES not in rows_of(runs[:1])


def test_valid_e_processes_pass():
    runs = bets(4_000)
    rows = rows_of(runs)
    assert Calibration(0, tuple(rows.values())).ok
    # The limits are not idle: four looks at such bets use up a quarter of alpha.
    assert rows[EVERY].rates[0] > ALPHAS[0] / 5


def test_bets_against_which_the_odds_are_wrong_do_not():
    rows = rows_of(bets(2_000, shift=0.5))
    assert rows[EVERY].too_high
    assert rows[FIRST].too_high
    assert rows[ONE_CASE].too_high
    assert not Calibration(0, tuple(rows.values())).ok


def test_an_e_value_too_large_by_a_factor_shows_in_its_mean():
    """The bets are valid but small; three times as large they raise no alarm at all."""
    rng = np.random.default_rng(2)
    steps = 0.05 * rng.standard_normal((500, 4)) - 0.05**2 / 2
    fair = [made(NAMES[i % 2], a=log_e) for i, log_e in enumerate(steps.cumsum(1))]
    inflated = [replace(run, log_es={"a": run.log_es["a"] + math.log(3)}) for run in fair]
    assert not rows_of(fair)["a"].too_high
    row = rows_of(inflated)["a"]
    assert row.alarms == (0, 0, 0)
    assert row.mean_too_high
    assert row.too_high


def test_the_limit_is_seldom_passed_by_chance():
    rng = np.random.default_rng(0)
    for alpha in ALPHAS:
        for runs in (500, 20_000):
            rates = rng.binomial(runs, alpha, 20_000) / runs
            above = float((rates > upper_limit(alpha, runs)).mean())
            assert above <= 0.03
            assert (rng.binomial(runs, min(1, 4 * alpha), 1000) / runs).mean() > alpha
        assert upper_limit(alpha, 20_000) < 2 * alpha


@pytest.fixture(scope="module")
def block():
    return NullRuns(3, reported=BLOCK // 2, resumed=10**9)(1)


def test_null_runs_do_not_depend_on_where_they_were_resumed(block):
    resumed = NullRuns(3, reported=BLOCK // 2, resumed=1)(1)
    assert len(block) == BLOCK
    for one, other in zip(block, resumed, strict=True):
        assert one.case == other.case
        assert one.reported == other.reported
        assert one.log_es.keys() == other.log_es.keys()
        for name, log_es in one.log_es.items():
            assert len(log_es) == SHARDS
            np.testing.assert_array_equal(log_es, other.log_es[name])


def test_null_runs_differ_from_each_other_and_with_the_seed(block):
    runs = [*block, *NullRuns(4, reported=10**9)(1)]
    assert len({run.log_es[EVERY][-1] for run in runs}) == len(runs)


def test_every_property_with_tests_is_in(block):
    assert {run.case for run in block} == set(SETTINGS)
    for run in block:
        # The reference records no distributions of its own, so one test has nothing to look at.
        assert len(run.log_es) == run.tests - 1
        assert {EVERY, FIRST, "randomness.independence", "correction.given_rejection"} <= set(
            run.log_es
        )
    # One pair in five, each of two runs.
    assert [bool(run.reported) for run in block] == [True] * 2 + [False] * 8
    assert not any(run.violations for run in block)


def test_a_wrong_decoder_raises_the_rates():
    runs = NullRuns(0, MUTANTS["always-accept"].subject, reported=10**9)(0)
    rows = rows_of(runs)
    assert rows[ONE_CASE].rates[0] == 1
    assert rows[ONE_CASE].too_high


def test_a_decoder_that_fails_is_no_null_run():
    def broken(*arguments):
        raise RuntimeError("no")

    with pytest.raises(SubjectError, match="no"):
        NullRuns(0, replace(TOKEN, name="broken", call=broken))(0)


@pytest.mark.slow
def test_the_reference_passes():
    runs, interrupted = gather(InProcess(), NullRuns(11, reported=10), 10, lambda event: None, "")
    assert not interrupted
    assert not any(row.too_high for row in false_alarms(runs))


def test_work_can_be_sent_to_another_process():
    runs = NullRuns(4, reported=3, resumed=2)
    assert pickle.loads(pickle.dumps(runs)) == runs
    library = Detections(4, 2)
    assert library.controls
    assert pickle.loads(pickle.dumps(library)) == library


class Backwards(InProcess):
    """Completes the last first."""

    def run(self, work, indices):
        yield from super().run(work, [*indices][::-1])


def test_results_are_put_in_order():
    events = []
    found, interrupted = gather(Backwards(), lambda i: [i, -i], 3, events.append, "things")
    assert (found, interrupted) == ([0, 0, 1, -1, 2, -2], False)
    assert [(event.done, event.total) for event in events] == [(1, 3), (2, 3), (3, 3)]


def test_an_interrupt_keeps_what_was_computed():
    def work(index):
        if index == 2:
            raise KeyboardInterrupt
        return [index]

    assert gather(InProcess(), work, 5, lambda event: None, "") == ([0, 1], True)


def test_blocks_hold_all_runs():
    assert [blocks(runs) for runs in (1, BLOCK, BLOCK + 1)] == [1, 1, 2]


@dataclass(frozen=True)
class Written:
    """A control of a test."""

    id: str
    subject: Subject
    settings: object = "plain"
    tokens: int = 60_000

    def contract(self, presets):
        return {"plain": presets["plain"]}


def test_a_mutant_is_caught_within_its_tokens():
    found = detect(MUTANTS["residual-not-subtracted"], 0)
    assert found.caught
    assert 0 < found.tokens <= found.budget
    assert set(found.first) <= {
        name for name in found.reason.replace(",", " ").split() if "." in name
    }


def test_a_right_decoder_is_not():
    found = detect(Written("right", TOKEN, tokens=9_600), 0)
    assert not found.caught
    assert not Calibration(0, (), (found,)).ok
    assert found.first == ()
    assert found.tokens == found.budget


def test_a_catalogue_is_gone_through_once_a_seed(monkeypatch):
    catalogue = {
        "right": Written("right", TOKEN, tokens=1_000),
        "transform": Written("transform", TOKEN, settings=None),
        "other": Written("other", TOKEN, tokens=2_000),
    }
    monkeypatch.setitem(sys.modules, "written_here", SimpleNamespace(ALL=catalogue))
    monkeypatch.setattr(calibration_library, "detect", lambda control, seed: (control.id, seed))
    work = Detections(7, 2, "written_here:ALL")
    assert work.count == 4
    assert [work(index)[0] for index in range(work.count)] == [
        ("right", 7),
        ("right", 8),
        ("other", 7),
        ("other", 8),
    ]


def test_nothing_is_known_of_thresholds_while_runs_are_made():
    """A test that rejected would keep the value it had then."""
    assert not calibration_null._NEVER.rejects(1e-200)
