"""A certificate as JUnit XML: one test a property and case, and one for the verdict of the run.

Plain, since readers differ: names, verdicts, messages and how to see it again. The numbers are in
the certificate.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from specverify.certification.case_records import CaseRecord, TestRecord
from specverify.certification.certificate import Certificate
from specverify.certification.verdict import EXIT_ERROR
from specverify.reporting.failure import looks_like, replay_command
from specverify.reporting.overview import not_applicable

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold."""


def junit_xml(certificate: Certificate, *, file: str = "CERTIFICATE.json") -> str:
    """The report as text.

    Violated properties are failures, cases in which the subject failed errors; what is blocked,
    undecided, expected to fail or not applicable is skipped, each with its reason.

    Args:
        certificate: what to report.
        file: name of its file, for the commands.
    """
    suite = ET.Element("testsuite", name=_legal(f"specverify {certificate.subject.name}"))
    for case in certificate.cases:
        suite.extend(_case(certificate, case, file))
    for entry in not_applicable(certificate):
        test = _test(entry.property, "not applicable")
        ET.SubElement(test, "skipped", message=_legal(entry.reason))
        suite.append(test)
    suite.append(_run(certificate))
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(suite)))
    for name, tag in kinds.items():
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", f"{certificate.seconds:.3f}")
    suite.set("timestamp", certificate.started.isoformat())
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(certificate: Certificate, case: CaseRecord, file: str) -> Iterator[ET.Element]:
    properties: dict[str, list[TestRecord]] = {}
    for test in case.tests:
        if test.decision != "reported":
            properties.setdefault(test.property, []).append(test)
    for property, tests in properties.items():
        yield _property(certificate, case, property, tests, file)
    if case.verdict == "error" or case.error:
        failed = _test("run", case.id, case.seconds)
        reason = case.error or case.reason
        if _expected(certificate, case.id, error=True):
            ET.SubElement(failed, "skipped", message=_legal(f"expected: {_line(reason)}"))
        else:
            ET.SubElement(failed, "error", message=_legal(_line(reason))).text = _legal(reason)
        yield failed


def _property(
    certificate: Certificate,
    case: CaseRecord,
    property: str,
    tests: list[TestRecord],
    file: str,
) -> ET.Element:
    made = _test(property, case.id, 0.0)
    found = {test.decision: test for test in reversed(tests)}
    expected = _expected(certificate, case.id, property)
    if "violated" in found and expected is None:
        failure = ET.SubElement(made, "failure", message=_legal(_message(found["violated"])))
        failure.text = _legal(_explained(case, found["violated"], file))
    elif "violated" in found:
        ET.SubElement(made, "skipped", message=_legal(f"expected to fail: {expected}"))
    else:
        for decision in ("blocked", "suspect", "undecided"):
            if decision in found:
                said = f"{decision}: {found[decision].detail}"
                ET.SubElement(made, "skipped", message=_legal(_line(said)))
                break
    return made


def _message(test: TestRecord) -> str:
    if test.detail:
        return _line(test.detail)
    if test.p_value is not None and test.statistic is not None:
        return f"{test.test}: ln E {test.statistic:.1f}, p at most {test.p_value:.2g}, n {test.n:,}"
    return test.claim


def _explained(case: CaseRecord, test: TestRecord, file: str) -> str:
    lines = [f"case {case.id}", test.claim, test.detail]
    if case.counterexample is not None and case.counterexample.property == test.property:
        lines.append(case.counterexample.text)
    if case.diagnosis is not None:
        lines.append(f"Looks like: {looks_like(case.diagnosis)}")
    lines.append(f"Reproduce: {replay_command(case, None).replace('CERTIFICATE', file, 1)}")
    return "\n".join(line for line in lines if line)


def _run(certificate: Certificate) -> ET.Element:
    """The verdict, which may rest on all cases together, on findings or on expected failures."""
    made = _test("verdict", "run", certificate.seconds)
    code = certificate.exit_code
    message = _legal(f"{certificate.verdict}: {_line(certificate.reason)}")
    tag = {0: None, 1: "failure", EXIT_ERROR: "error"}.get(code, "skipped")
    if tag is not None:
        ET.SubElement(made, tag, message=message).text = _legal(certificate.reason)
    return made


def _expected(
    certificate: Certificate, case: str, property: str | None = None, *, error: bool = False
) -> str | None:
    """Why a failure is accepted, None if it is not."""
    for entry in certificate.expectations:
        named = error and entry.error if property is None else entry.property == property
        if named and entry.state == "failed as expected" and case in entry.cases:
            return entry.reason
    return None


def _test(name: str, classname: str, seconds: float = 0.0) -> ET.Element:
    return ET.Element(
        "testcase", name=_legal(name), classname=_legal(classname), time=f"{seconds:.3f}"
    )


def _line(text: str) -> str:
    return text.partition("\n")[0]


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)
