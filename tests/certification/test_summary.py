"""The reason of a run: its roots, and how much follows from them."""

import pytest

from specverify.certification.certificate import CaseRecord, Decision, TestRecord
from specverify.certification.summary import reason_of


def case(id: str, *tests: tuple[str, Decision], error: str = "") -> CaseRecord:
    records = tuple(
        TestRecord(property=name, claim="", evidence="exact", decision=decision)
        for name, decision in tests
    )
    reason = ", ".join(name for name, decision in tests if decision != "pass")
    return CaseRecord(id=id, verdict="violated", reason=reason, tests=records, error=error)


ROOT = case("exact/zeros", ("joint.round", "violated"), ("support.nothing_outside", "blocked"))
FOLLOWS = [case(f"probe/p/{i}", ("invariance.draft_of_rule", "blocked")) for i in range(3)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (0, ""),
        (1, "; what builds on it, in 1 more case"),
        (3, "; what builds on it, in 3 more cases"),
    ],
)
def test_what_is_blocked_is_counted_and_not_listed(more, said):
    found = reason_of([ROOT, *FOLLOWS[:more]], "violated", interrupted=False)
    assert found == "exact/zeros: joint.round, support.nothing_outside" + said


def test_without_a_root_everything_is_listed():
    found = reason_of(FOLLOWS, "violated", interrupted=False)
    assert found == "probe/p/0 and 2 more probes: invariance.draft_of_rule"
