"""A certificate in short: one row a property, and what is to be read of the rest.

The pages, summaries and test reports are made of these; they say the same in their own form.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specverify.certification.case_records import CaseRecord, Decision, NotApplicable, TestRecord
from specverify.certification.certificate import Certificate
from specverify.certification.verdict import Verdict, listed

NO_PROOF = "No violation found is not a proof beyond what is stated here."

_WORST_FIRST: tuple[Decision, ...] = ("violated", "blocked", "suspect", "undecided", "pass")

VERDICTS_SAID: dict[Verdict, str] = {
    "preserved": "nothing was rejected, and every bound asked for is within its limit",
    "lossy-as-declared": "it deviates exactly as its contract says",
    "inconclusive": "nothing was rejected, but too little was seen to say more",
    "violated": "what it emits is not what its contract says",
    "error": "the implementation failed: it crashed, hung or returned nonsense",
}


@dataclass(frozen=True)
class PropertyRow:
    """What all cases together say of a property."""

    property: str
    claim: str
    evidence: str
    """Kinds, such as `exact, sampled`."""
    cases: tuple[str, ...]
    """Ids of those that asked for it."""
    decision: Decision
    """The worst one."""
    where: tuple[str, ...]
    """Cases in which that was decided."""
    detail: str
    """What was found, in words or numbers."""


def property_rows(certificate: Certificate) -> list[PropertyRow]:
    """One row for each property that was checked, by id."""
    found: dict[str, list[tuple[CaseRecord, TestRecord]]] = {}
    for case in certificate.cases:
        for test in case.tests:
            if test.decision != "reported":
                found.setdefault(test.property, []).append((case, test))
    return [_row(property, found[property]) for property in sorted(found)]


def _row(property: str, found: Sequence[tuple[CaseRecord, TestRecord]]) -> PropertyRow:
    tests = [test for _, test in found]
    decisions = {test.decision for test in tests}
    decision: Decision = next(worst for worst in _WORST_FIRST if worst in decisions)
    deciding = [test for test in tests if test.decision == decision]
    return PropertyRow(
        property=property,
        claim=tests[0].claim,
        evidence=", ".join(sorted({test.evidence for test in tests})),
        cases=tuple(dict.fromkeys(case.id for case, _ in found)),
        decision=decision,
        where=tuple(dict.fromkeys(case.id for case, test in found if test.decision == decision)),
        detail=_detail(deciding),
    )


def _detail(tests: Sequence[TestRecord]) -> str:
    """The largest number of each kind; the words where a single observation decided."""
    said = []
    distances = [test.exact.total_variation for test in tests if test.exact is not None]
    log_es = [(t.statistic, t) for t in tests if t.alpha is not None and t.statistic is not None]
    if distances:
        said.append(f"TV at most {max(distances):.2g}")
    if log_es:
        log_e, test = max(log_es, key=lambda entry: entry[0])
        said.append(f"ln E at most {log_e:.1f}, rejects from {threshold(test):.1f}")
    if words := next((test.detail for test in tests if test.detail), ""):
        said.append(words)
    return "; ".join(said)


def threshold(test: TestRecord) -> float:
    """Ln E from which a deciding test rejects."""
    return math.inf if test.alpha is None else -math.log(test.alpha)


def not_applicable(certificate: Certificate) -> list[NotApplicable]:
    """What was not checked, each property and reason once."""
    entries = list(certificate.not_applicable)
    for case in certificate.cases:
        entries += case.not_applicable
    return list(dict.fromkeys(entries))


def errors(certificate: Certificate) -> list[tuple[str, str]]:
    """What the subject failed with, and in which cases, each failure once."""
    found: dict[str, list[str]] = {}
    for case in certificate.cases:
        if case.verdict == "error":
            found.setdefault(case.reason, []).append(case.id)
        elif case.error:
            found.setdefault(case.error, []).append(case.id)
    return [(reason, listed(ids)) for reason, ids in found.items()]


def findings(certificate: Certificate) -> list[tuple[str, str]]:
    """Oddities that are no failure, and in which cases; those of the run have none."""
    found: dict[str, list[str]] = {}
    for case in certificate.cases:
        for finding in case.findings:
            found.setdefault(finding, []).append(case.id)
    whole = [(text, "") for text in (*certificate.findings, *certificate.remarks)]
    return whole + [(text, listed(ids)) for text, ids in found.items()]


def counterexamples(certificate: Certificate) -> Iterator[CaseRecord]:
    """Cases with a counterexample or a diagnosis."""
    for case in certificate.cases:
        if case.counterexample is not None or case.diagnosis is not None:
            yield case


def budget_said(certificate: Certificate) -> str:
    """How false alarms are shared, in words."""
    alpha, tests = certificate.alpha, certificate.tests
    deciding = [t for case in certificate.cases for t in case.tests if t.alpha is not None]
    if not deciding:
        return f"alpha {alpha:g}; no test of this run spends any of it"
    noun = "test" if tests == 1 else "tests"
    share = deciding[0].alpha or alpha
    return (
        f"alpha {alpha:g}: {share * tests / alpha:.0%} of it over {tests:,} {noun}, each "
        f"rejecting from ln E {-math.log(share):.1f}, the rest for all cases together"
    )


def acceptance_rates(case: CaseRecord) -> list[float]:
    """Share of first rounds in which the draft token of each position was accepted.

    Empty where the subject does not report it. A round that a stop cut short counts as one that
    accepted what it shows.
    """
    accepted = case.counters.get("first_round_accepted")
    if not isinstance(accepted, dict) or not accepted:
        return []
    counts = {int(count): runs for count, runs in accepted.items() if isinstance(runs, int)}
    rounds = sum(counts.values())
    last = max(case.num_draft_tokens or 0, *counts)
    return [
        sum(runs for count, runs in counts.items() if count >= position) / rounds
        for position in range(1, last + 1)
    ]
