"""Recomputing what a certificate says of the whole run: budget, evidence together, verdict."""

from collections import Counter

from specverify import __version__
from specverify.certification.certificate import Certificate
from specverify.certification.limits import LARGEST_ALPHA, SMALLEST_ALPHA
from specverify.certification.overall import overall
from specverify.certification.rechecked.decisions import REJECTED
from specverify.certification.rechecked.ledger import Ledger
from specverify.certification.registry import all_properties
from specverify.certification.together import with_adjusted
from specverify.certification.verdict import FUZZ

_BUDGET = "the budget"


def share_of(certificate: Certificate) -> float:
    """The share of the budget that each test has."""
    # A transform samples nothing on the pair, so nothing of its budget is set aside.
    whole = certificate.subject.kind == "transform"
    return certificate.alpha / (1 if whole else 2) / max(1, certificate.tests)


def recheck_run(certificate: Certificate, ledger: Ledger) -> None:
    """Recompute budget, evidence together, Holm's adjustment and verdict."""
    _budget(certificate, ledger)
    _identities(certificate, ledger)
    _adjusted(certificate, ledger)
    _verdict(certificate, ledger)
    _blocked(certificate, ledger)
    _kill_table(certificate, ledger)


def _budget(certificate: Certificate, ledger: Ledger) -> None:
    alpha, tests = certificate.alpha, certificate.tests
    shared = [case for case in certificate.cases if not case.id.startswith(FUZZ)]
    deciding = sum(test.alpha is not None for case in shared for test in case.tests)
    ledger.within(_BUDGET, "alpha", alpha, SMALLEST_ALPHA, LARGEST_ALPHA)
    ledger.within(_BUDGET, "tests", tests, max(1, deciding))
    if not deciding:
        ledger.cannot("alpha and its number of tests", "no test that shares them was made")


def _identities(certificate: Certificate, ledger: Ledger) -> None:
    repeated = [id for id, n in Counter(c.id for c in certificate.cases).items() if n > 1]
    ledger.holds(
        "names of cases", "cases", ", ".join(repeated), right=not repeated, because="each once"
    )
    ledger.holds(
        "level against dtype",
        "level",
        certificate.level,
        right=certificate.level == "numerical" or certificate.environment.dtype == "float64",
        because=f"numerical, since the models are {certificate.environment.dtype}",
    )
    ledger.holds(
        "times",
        "finished",
        str(certificate.finished),
        right=certificate.finished >= certificate.started,
        because="after it was started",
    )


def _adjusted(certificate: Certificate, ledger: Ledger) -> None:
    again = with_adjusted(certificate.cases)
    for case, recomputed in zip(certificate.cases, again, strict=True):
        for test, adjusted in zip(case.tests, recomputed.tests, strict=True):
            if test.p_adjusted is not None or adjusted.p_adjusted is not None:
                with ledger.at(f"cases[{case.id}].{test.property}[{test.test}]"):
                    ledger.same(
                        "p-values adjusted by Holm",
                        "p_adjusted",
                        test.p_adjusted,
                        adjusted.p_adjusted,
                    )


def _verdict(certificate: Certificate, ledger: Ledger) -> None:
    again = overall(
        certificate.cases,
        [p for p in all_properties() if certificate.subject.kind in p.kinds],
        tests=certificate.tests,
        alpha=certificate.alpha,
        expectations=certificate.expectations,
        findings=certificate.findings,
        strict=certificate.strict,
        interrupted=certificate.interrupted,
    )
    ledger.same("ln E of all cases together", "log_e", certificate.log_e, again.log_e)
    ledger.same("verdict of the run from its cases", "verdict", certificate.verdict, again.verdict)
    if certificate.suite.version == __version__:
        ledger.same("reason of the run from its cases", "reason", certificate.reason, again.reason)
    for stated, found in zip(certificate.expectations, again.expectations, strict=True):
        with ledger.at(f"expectations[{stated.property}]"):
            kind = "what became of expected failures"
            ledger.same(kind, "state", stated.state, found.state)
            ledger.same(kind, "cases", ", ".join(stated.cases), ", ".join(found.cases))


def _blocked(certificate: Certificate, ledger: Ledger) -> None:
    """What a property is blocked by is violated itself."""
    violated = {
        name
        for case in certificate.cases
        for test in case.tests
        if test.decision in REJECTED - {"suspect"}
        for name in (test.property, f"{test.property} in {case.id}")
    }
    for case in certificate.cases:
        for test in case.tests:
            if test.decision == "blocked":
                cause = test.detail.removeprefix("blocked by ")
                with ledger.at(f"cases[{case.id}].{test.property}"):
                    ledger.holds(
                        "causes of blocked properties",
                        "detail",
                        test.detail,
                        right=cause in violated,
                        because="a property that is violated",
                    )


def _kill_table(certificate: Certificate, ledger: Ledger) -> None:
    table = certificate.kill_table
    if table is None:
        return
    both = table.mutants.keys() & set(table.lookalikes)
    known = {*table.mutants, *table.lookalikes}
    kind, name = "names of the kill table", "kill_table"
    ledger.holds(kind, name, ", ".join(sorted(both)), right=not both, because="wrong or right")
    lost = sorted(set(table.wrong) - known)
    ledger.holds(kind, f"{name}.wrong", ", ".join(lost), right=not lost, because="one of its rows")
    ledger.cannot("what the suite catches", "`specverify selftest` tries it again")
