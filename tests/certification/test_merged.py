"""Parts of a run that were certified apart, put together again."""

from datetime import UTC, datetime
from itertools import permutations

import pytest

from specverify.certification.case_records import CaseRecord, ExpectationRecord
from specverify.certification.certificate import Certificate, NotApplicable, SubjectRecord
from specverify.certification.merged import merged
from specverify.certification.verdict import NOT_ASKED
from tests.plain_certificate import START, plain_case, plain_certificate

BASE, DEPENDENT = "transforms.equals_reference", "transforms.sizes"
END = datetime(2026, 1, 2, tzinfo=UTC)


def part(*cases: CaseRecord, **more: object) -> Certificate:
    subject = SubjectRecord(name="mine", kind="transform")
    return plain_certificate(*cases, **{"subject": subject, "pair": "", **more})


SAMPLED = plain_case("top_k[1]", BASE)
COMPUTED = plain_case("exact/top_k[1]", "transforms.round")
PROBED = (
    plain_case("probe/transforms.batch/alone", "transforms.batch"),
    plain_case(f"probe/{DEPENDENT}/V2", DEPENDENT),
)


def test_the_order_of_parts_does_not_matter() -> None:
    parts = [part(SAMPLED), part(COMPUTED), *(part(probe) for probe in PROBED)]
    whole = {merged(order).digest() for order in permutations(parts)}
    assert len(whole) == 1
    ids = [case.id for case in merged(parts[::-1]).cases]
    assert ids == [SAMPLED.id, COMPUTED.id, *(probe.id for probe in PROBED)]


def test_a_case_of_several_workers_is_taken_once() -> None:
    assert len(merged([part(SAMPLED), part(SAMPLED, COMPUTED)]).cases) == 2


def test_the_verdict_is_formed_anew() -> None:
    violated = plain_case("top_k[1]", BASE, "violated")
    made = merged([part(COMPUTED), part(violated, verdict="violated")])
    assert made.verdict == "violated"
    assert merged([part(COMPUTED), part(SAMPLED)]).verdict == "preserved"


def test_a_violation_of_one_part_blocks_those_of_another() -> None:
    base, dependent = (
        plain_case("top_k[1]", BASE, "violated"),
        plain_case(f"probe/{DEPENDENT}/V2", DEPENDENT, "violated"),
    )
    made = merged([part(dependent), part(base)])
    assert {c.id: c.tests[0].decision for c in made.cases} == {
        base.id: "violated",
        dependent.id: "blocked",
    }


def test_known_failures_are_judged_over_all_parts() -> None:
    entry = ExpectationRecord(property=BASE, reason="known", state="not checked")
    parts = [
        part(PROBED[0], expectations=(entry,)),
        part(plain_case("top_k[1]", BASE, "violated"), expectations=(entry,)),
    ]
    made = merged(parts)
    assert made.verdict == "preserved"
    assert [e.state for e in made.expectations] == ["failed as expected"]


def test_what_nobody_asked_for_is_listed() -> None:
    skipped = NotApplicable(property="transforms.shift", reason="no")
    made = merged([part(SAMPLED, not_applicable=(skipped,)), part(COMPUTED)])
    reasons = {entry.property: entry.reason for entry in made.not_applicable}
    assert reasons["transforms.shift"] == "no"
    assert reasons["transforms.batch"] == NOT_ASKED
    assert BASE not in reasons


def test_times_add_up() -> None:
    made = merged([part(SAMPLED, finished=END), part(COMPUTED)])
    assert (made.started, made.finished, made.seconds) == (START, END, 2.0)


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_interrupted_part_leaves_the_whole_inconclusive(interrupted: bool) -> None:
    made = merged([part(SAMPLED), part(COMPUTED, interrupted=interrupted)])
    assert made.verdict == ("inconclusive" if interrupted else "preserved")
