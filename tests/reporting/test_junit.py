"""JUnit XML: what a CI server counts agrees with the exit code."""

import xml.etree.ElementTree as ET

import pytest

from specverify.certification.certificate import Certificate, ExpectationRecord
from specverify.reporting.junit import junit_xml
from tests.certified import OUTCOMES, certified


def suite(certificate: Certificate) -> ET.Element:
    root = ET.fromstring(junit_xml(certificate, file="mine.json"))
    assert root.tag == "testsuites"
    (found,) = root
    return found


def named(element: ET.Element, name: str, classname: str) -> ET.Element:
    (found,) = (
        test
        for test in element.iter("testcase")
        if (test.get("name"), test.get("classname")) == (name, classname)
    )
    return found


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_counts_are_those_of_its_elements_and_agree_with_the_exit_code(outcome: str) -> None:
    certificate = certified(outcome)
    found = suite(certificate)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert found.get(name) == str(len(list(found.iter(tag))))
    assert found.get("tests") == str(len(found.findall("testcase")))
    code = certificate.exit_code
    assert (found.get("failures") != "0") == (code == 1)
    assert (found.get("errors") != "0") == (code == 3)
    names = [(test.get("classname"), test.get("name")) for test in found.iter("testcase")]
    assert len(names) == len(set(names))
    assert junit_xml(certificate) == junit_xml(certificate)


def test_a_violation_has_message_argument_and_command() -> None:
    found = suite(certified("violated"))
    (failure,) = named(found, "joint.round", "exact/random-V4-K3-float64")
    assert failure.tag == "failure"
    assert "is 0.476296 in TV from the target" in str(failure.get("message"))
    text = str(failure.text)
    assert "Let p = (1/2, 1/2), q = (3/4, 1/4), K = 1" in text
    assert "Looks like: always-accept" in text
    assert text.endswith(
        "Reproduce: specverify replay mine.json exact/random-V4-K3-float64 --counterexample"
    )
    (sampled,) = named(found, "joint.every_token", "plain")
    assert (sampled.tag, sampled.get("message")) == ("skipped", "blocked: blocked by joint.round")


def test_what_is_no_failure_of_its_own_is_skipped_with_its_reason() -> None:
    found = suite(certified("violated"))
    (blocked,) = named(found, "batch.rows_of_rule", "probe/batch.rows_of_rule/2")
    assert blocked.tag == "skipped"
    assert str(blocked.get("message")).startswith("blocked: blocked by joint.round")
    (undecided,) = named(found, "joint.first_token", "plain")
    assert str(undecided.get("message")).startswith("undecided: the bound on the first token")
    (verdict,) = named(suite(certified("inconclusive")), "verdict", "run")
    assert verdict.tag == "skipped"
    entry = certified("preserved").cases[0].not_applicable[0]
    (skipped,) = named(suite(certified("preserved")), entry.property, "not applicable")
    assert skipped.get("message") == entry.reason


def test_an_error_keeps_its_text_and_what_xml_cannot_hold_is_replaced() -> None:
    certificate = certified("error")
    case = certificate.cases[0].model_copy(update={"reason": "a\x00b\x1b[31m <c>\nd"})
    (error,) = named(suite(certificate.model_copy(update={"cases": (case,)})), "run", "plain")
    assert (error.tag, error.get("message")) == ("error", "a\ufffdb\ufffd[31m <c>")
    assert error.text == "a\ufffdb\ufffd[31m <c>\nd"


def test_an_expected_failure_is_skipped_and_one_that_passes_fails_the_run() -> None:
    certificate = certified("violated")
    places = tuple(
        case.id
        for case in certificate.cases
        for test in case.tests
        if test.property == "joint.round" and test.decision == "violated"
    )
    entry = ExpectationRecord(
        property="joint.round", reason="issue 7", state="failed as expected", cases=places
    )
    found = suite(certificate.model_copy(update={"expectations": (entry,)}))
    (skipped,) = named(found, "joint.round", places[0])
    assert (skipped.tag, skipped.get("message")) == ("skipped", "expected to fail: issue 7")
    stale = entry.model_copy(update={"state": "passes", "cases": ()})
    found = suite(certified("preserved").model_copy(update={"expectations": (stale,)}))
    (verdict,) = named(found, "verdict", "run")
    assert verdict.tag == "failure"
