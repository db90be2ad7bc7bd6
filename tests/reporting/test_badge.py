"""The badge: the keys that shields.io reads, and a colour for every verdict."""

import json

import pytest

from specverify.certification.certificate import ExpectationRecord, NotApplicable
from specverify.certification.verdict import NOT_ASKED, VERDICTS
from specverify.reporting.badge import badge_json
from tests.certified import certified

COLOURS = {
    "preserved": "brightgreen",
    "lossy-as-declared": "blue",
    "inconclusive": "yellow",
    "violated": "red",
    "error": "red",
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_shows_the_verdict(verdict: str) -> None:
    certificate = certified("preserved").model_copy(update={"verdict": verdict})
    assert json.loads(badge_json(certificate)) == {
        "schemaVersion": 1,
        "label": "specverify",
        "message": verdict,
        "color": COLOURS[verdict],
    }


def test_a_passing_expected_failure_is_no_green_badge() -> None:
    entry = ExpectationRecord(property="joint.round", reason="issue 7", state="passes")
    badge = json.loads(
        badge_json(certified("preserved").model_copy(update={"expectations": (entry,)}))
    )
    assert badge["message"] == "preserved, an expected failure passes"
    assert badge["color"] == "red"


def test_a_badge_of_some_properties_says_so() -> None:
    entry = NotApplicable(property="joint.run", reason=NOT_ASKED)
    made = certified("preserved").model_copy(update={"not_applicable": (entry,)})
    assert json.loads(badge_json(made))["message"] == "preserved, on some properties"
