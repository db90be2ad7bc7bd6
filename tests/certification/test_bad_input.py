"""Subjects that misbehave: it is contained or named, and other cases keep their results."""

import importlib
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specverify.certification.case_records import CaseRecord
from specverify.certification.certificate import Certificate
from specverify.certification.run import certify
from specverify.errors import UsageError
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject
from specverify.subjects.side_effects import GOES_ON, PRINTS

K3 = "probe/greedy.rule/K3"
HERE = Path(__file__).parent


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of subjects, where workers find it too."""
    monkeypatch.syspath_prepend(str(HERE))
    # Workers import the main module, which here is all of pytest.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    module = importlib.import_module("bad_subjects")
    module.KEPT.clear()
    module.CALLS[0] = 0
    module.STOP.clear()
    yield module
    module.STOP.set()
    assert multiprocessing.active_children() == []


def certified(rule: Any, **options: Any) -> Certificate:
    asked = {
        "settings": {"plain": SamplingSettings()},
        "tokens": 400,
        "only": ("greedy.rule", "joint.every_token", "randomness.global_state"),
        "shrink": False,
    }
    subject = rule if isinstance(rule, Subject) else Subject("mine", "rule", rule)
    return certify(subject, **(asked | options))


def results(certificate: Certificate, *without: str) -> dict[str, Any]:
    """All that was found on each case, but for remarks."""
    return {
        case.id: (case.verdict, case.tests, case.bounds, case.runs)
        for case in certificate.cases
        if case.id not in without
    }


def failed(certificate: Certificate) -> list[CaseRecord]:
    return [case for case in certificate.cases if case.verdict in ("error", "violated")]


def found(certificate: Certificate) -> set[str]:
    return {finding for case in certificate.cases for finding in case.findings}


CONTAINED = {
    "mutates": {
        f"changes {name} in place, which the caller may still need"
        for name in ("draft_tokens", "draft_probs", "target_probs")
    },
    "one_buffer": set(),
    "prints": set(),
    "starts_threads": set(),
    "forks": set(),
    "changes_dtype": {
        "changes torch's default dtype for the whole process; it was put back after the call"
    },
}
REMARKS = {"prints": (PRINTS,), "starts_threads": (GOES_ON,)}


LOOKALIKES = (
    "copies_and_mutates",
    "caches_what_is_pure",
    "restores_dtype",
    "joins_its_thread",
    "forks_the_generators",
    "logs",
)


@pytest.mark.parametrize("name", [*CONTAINED, *LOOKALIKES])
def test_what_leaves_the_tokens_alone_changes_no_result(
    bad: ModuleType, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    certificate = certified(getattr(bad, name))
    assert results(certificate) == results(certified(bad.right))
    assert failed(certificate) == []
    assert found(certificate) == CONTAINED.get(name, set())
    assert certificate.remarks == REMARKS.get(name, ())
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", ["caches_results", "depends_on_order"])
def test_state_between_calls_is_a_violation(bad: ModuleType, name: str) -> None:
    only = ("batch.rows_of_rule", "invariance.draft_of_rule")
    certificate = certified(getattr(bad, name), only=only)
    assert certificate.verdict == "violated"


def test_seeding_the_global_generators_is_a_violation_of_its_own(bad: ModuleType) -> None:
    certificate = certified(bad.seeds)
    assert [case.id for case in failed(certificate)] == ["probe/randomness.global_state/all"]
    assert {finding.split("'s global")[0] for finding in found(certificate)} == {
        f"draws from or seeds {library}" for library in ("torch", "numpy", "python")
    }
    mine = failed(certificate)[0].id
    assert results(certificate, mine) == results(certified(bad.right), mine)


def test_a_crash_on_some_inputs_costs_their_case_only(bad: ModuleType) -> None:
    certificate = certified(bad.crashes_sometimes)
    assert certificate.verdict == "error"
    assert certificate.reason.startswith(f"{K3}: subject 'mine' raised RuntimeError: K is 3")
    assert results(certificate, K3) == results(certified(bad.right), K3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("ends_sometimes", "ended itself with exit code 0, as os._exit(0) does"),
        ("crashes_in_c", "was killed by SIGSEGV (exit code -11), in string_at at ctypes/__init__"),
    ],
)
def test_an_end_of_the_process_costs_its_case_only(bad: ModuleType, name: str, how: str) -> None:
    certificate = certified(getattr(bad, name), isolate=True)
    assert [case.id for case in failed(certificate)] == [K3]
    assert certificate.reason.startswith(f"{K3}: the process that ran subject 'mine' {how}")
    assert results(certificate, K3) == results(certified(bad.right), K3)


@pytest.mark.slow
def test_a_call_that_never_returns_costs_its_case_only(bad: ModuleType) -> None:
    certificate = certified(bad.never_returns, isolate=True, time_limit=2.0)
    assert [case.id for case in failed(certificate)] == [K3]
    assert "a call ran past its time limit of 2 s and could not be interrupted" in (
        certificate.reason
    )
    assert results(certificate, K3) == results(certified(bad.right), K3)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_end_while_sampling_is_an_error_of_that_case(bad: ModuleType, jobs: int) -> None:
    certificate = certified(bad.ends_while_sampled, isolate=True, jobs=jobs)
    assert [case.id for case in failed(certificate)] == ["plain"]
    assert certificate.reason == (
        "plain: the process that ran subject 'mine' ended itself with exit code 5, as os._exit(5) "
        "does, in shard 0"
    )
    assert results(certificate, "plain") == results(certified(bad.right), "plain")


def test_a_right_subject_has_one_certificate(bad: ModuleType) -> None:
    digest = certified(bad.right).digest()
    assert certified(bad.right, isolate=True).digest() == digest
    assert certified(bad.prints, isolate=True).remarks == (PRINTS,)


def test_a_subject_that_no_other_process_can_make_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be sent to worker processes.*without --isolate"):
        certified(lambda tokens, q, p, generator: tokens, isolate=True)


def test_an_engine_and_isolation_exclude_each_other(bad: ModuleType) -> None:
    with pytest.raises(UsageError, match="leave one of them out"):
        certified(bad.right, isolate=True, engine=object())


@pytest.mark.slow
@pytest.mark.parametrize("before", ["plain", "probes"])
def test_an_interrupt_keeps_what_is_done_and_leaves_no_process(
    bad: ModuleType, before: str
) -> None:
    def interrupt(event: Any) -> None:
        if event.case == before:
            raise KeyboardInterrupt

    certificate = certified(bad.right, isolate=True, progress=interrupt)
    assert certificate.interrupted
    assert certificate.verdict == "inconclusive"
    assert [case.id for case in certificate.cases] == ["plain"] + ["probe/greedy.rule/K1"] * (
        before == "probes"
    )
