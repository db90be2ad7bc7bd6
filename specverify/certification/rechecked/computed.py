"""Recomputing what a certificate says of distributions that were computed."""

import math
from collections.abc import Sequence
from typing import Any

from specverify.certification.case_records import (
    CaseRecord,
    CounterexampleRecord,
    ExactRecord,
    TestRecord,
)
from specverify.certification.counterexamples.argument import SHOWN
from specverify.certification.exact_evidence import ALGORITHMIC, NUMERICAL
from specverify.certification.rechecked.ledger import Ledger
from specverify.certification.verdict import EXACT, FUZZ
from specverify.exact.compare_round import WORST

_DISTANCES = "total variations from the sequences listed"
_TOTALS = "probabilities that add up to 1"
_TOLERANCES = (ALGORITHMIC, NUMERICAL)
_WHOLE = "computed cases as a whole"

_ROUNDED = 1e-6
"""Rows, and so their sums, may be float32."""


def recheck_exact(case: CaseRecord, ledger: Ledger, *, lossy: bool) -> None:
    """Recompute distances, decisions and the counterexample of a case.

    Args:
        case: of the certificate.
        ledger: what is compared.
        lossy: whether the subject declares a lossy contract, so that its distance to the target is
            another than the one that is judged.
    """
    found = [test for test in case.tests if test.exact is not None]
    for test in found:
        assert test.exact is not None
        with ledger.at(f"{test.property}[exact]"):
            _distance(test.exact, ledger)
            if not case.id.startswith(FUZZ):
                _decision(case, test, test.exact, ledger)
    records = [test.exact for test in found if test.exact is not None]
    for record in records[1:] if case.id.startswith(EXACT) else ():
        ledger.holds(
            _WHOLE, "exact", "one of its records", right=record == records[0], because="the others"
        )
    if case.small and case.tv_bound is not None:
        _case_distance(case, records, ledger, lossy=lossy and case.id.startswith(EXACT))
    if case.counterexample is not None:
        with ledger.at("counterexample"):
            _counterexample(case, case.counterexample, ledger)


def _decision(case: CaseRecord, test: TestRecord, record: ExactRecord, ledger: Ledger) -> None:
    """A distance above the tolerance is a violation; one may have other causes too."""
    support = test.property.startswith("support.") and case.id.startswith(EXACT)
    distance = record.total_variation - record.crashing
    wrong = (record.outside_support if support else distance) > record.tolerance
    violated = test.decision in {"violated", "blocked"}
    far = support or "in TV from" in test.detail
    allowed = violated == wrong or (violated and not far)
    ledger.holds(
        "decisions against tolerances",
        "decision",
        test.decision,
        right=allowed,
        because="violated" if wrong else "pass",
    )


def _distance(record: ExactRecord, ledger: Ledger) -> None:
    apart = [abs(entry.observed - entry.expected) for entry in record.worst]
    distance = (math.fsum(apart) + record.crashing) / 2
    ledger.holds(
        "tolerances",
        "tolerance",
        record.tolerance,
        right=record.tolerance in _TOLERANCES,
        because=" or ".join(f"{tolerance:g}" for tolerance in _TOLERANCES),
    )
    ledger.holds(
        _DISTANCES,
        "worst",
        f"{len(apart)} sequences",
        right=apart == sorted(apart, reverse=True),
        because="the largest difference first",
    )
    ledger.within("probabilities", "crashing", record.crashing, 0.0, 1.0 + _ROUNDED)
    ledger.within("probabilities", "outside_support", record.outside_support, 0.0, 1.0 + _ROUNDED)
    for index, entry in enumerate(record.worst):
        with ledger.at(f"worst[{index}]"):
            ledger.within("probabilities", "observed", entry.observed, 0.0, 1.0 + _ROUNDED)
            ledger.within("probabilities", "expected", entry.expected, 0.0, 1.0 + _ROUNDED)
    outside = math.fsum(entry.observed for entry in record.worst if entry.expected == 0)
    ratios = [entry.observed / entry.expected for entry in record.worst if entry.expected > 0]
    if len(record.worst) < WORST:
        ledger.within(_DISTANCES, "total_variation", record.total_variation, distance, distance)
        ledger.within(_DISTANCES, "outside_support", record.outside_support, 0.0, outside)
        most = max([1.0, *ratios]) if not record.outside_support else math.inf
    else:
        ledger.within(
            _DISTANCES, "total_variation", record.total_variation, distance, 1.0 + _ROUNDED
        )
        ledger.cannot(
            "total variations over more than the sequences listed",
            f"a certificate keeps the {WORST} worst; the distance is at least theirs",
        )
        most = math.inf
    least = math.inf if record.outside_support else max(ratios, default=0.0)
    ledger.within(_DISTANCES, "largest_ratio", record.largest_ratio, least, most)


def _case_distance(
    case: CaseRecord, records: Sequence[ExactRecord], ledger: Ledger, *, lossy: bool
) -> None:
    ledger.same(_WHOLE, "tv_bound_alpha", case.tv_bound_alpha, 0.0)
    if not lossy and records:
        ledger.same(_WHOLE, "tv_bound", case.tv_bound, records[0].total_variation)
    elif case.verdict == "lossy-as-declared":
        right = f"TV {case.tv_bound:.3g} from the target" in case.reason
        ledger.holds(_WHOLE, "tv_bound", case.tv_bound, right=right, because=case.reason)
    else:
        ledger.cannot(
            "distances to the target that stand beside no distribution",
            "only a case whose distribution is held against the target's lists its numbers",
        )


def _counterexample(case: CaseRecord, record: CounterexampleRecord, ledger: Ledger) -> None:
    if record.kind in {"case", "cell"}:
        _copied(case, record, ledger)
        return
    if record.kind == "row" or record.total_variation is None:
        ledger.cannot(
            "counterexamples that were sampled, that crash, or of transforms",
            "they show frequencies, the share of the calls that raise, or logits",
        )
        return
    observed = math.fsum(entry.observed for entry in record.outcomes)
    expected = math.fsum(entry.expected for entry in record.outcomes)
    listed = math.fsum(abs(entry.observed - entry.expected) for entry in record.outcomes)
    for index, entry in enumerate(record.outcomes):
        with ledger.at(f"outcomes[{index}]"):
            ledger.within(_TOTALS, "observed", entry.observed, 0.0, 1.0 + _ROUNDED)
            ledger.within(_TOTALS, "expected", entry.expected, 0.0, 1.0 + _ROUNDED)
    if record.kind == "round":
        _round(record, ledger)
    if record.tolerance is not None:
        right = record.tolerance in _TOLERANCES
        because = " or ".join(f"{tolerance:g}" for tolerance in _TOLERANCES)
        ledger.holds("tolerances", "tolerance", record.tolerance, right=right, because=because)
    crashing = max(0.0, 1.0 - observed) if len(record.outcomes) < SHOWN else 0.0
    distance = (listed + crashing) / 2
    ledger.within(_TOTALS, "outcomes", observed, 0.0, 1.0 + _ROUNDED)
    if len(record.outcomes) < SHOWN:
        ledger.within(_TOTALS, "outcomes", expected, 1.0 - _ROUNDED, 1.0 + _ROUNDED)
    if record.tolerance is None:
        return
    if len(record.outcomes) < SHOWN:
        least, most = distance - _ROUNDED, distance + _ROUNDED
    else:
        least, most = distance - _ROUNDED, 1.0 + _ROUNDED
    ledger.within(_DISTANCES, "total_variation", record.total_variation, least, most)
    ledger.holds(
        "counterexamples that contradict",
        "total_variation",
        record.total_variation,
        right=record.total_variation - crashing > record.tolerance,
        because=f"more than the tolerance {record.tolerance:g}",
    )


def _round(record: CounterexampleRecord, ledger: Ledger) -> None:
    """What the target emits in a round follows from the rows that the rule is handed."""
    rows: Any = record.inputs["target"]
    for index, entry in enumerate(record.outcomes):
        # Tuples that no round may emit are outcomes too, which the target never has.
        size = len(rows[0][0])
        fits = len(entry.tokens) == len(rows) and all(0 <= t < size for t in entry.tokens)
        expected, prefix = float(fits), 0
        for depth, token in enumerate(entry.tokens if fits else ()):
            expected *= rows[depth][prefix][token]
            prefix = prefix * size + token
        right = math.isclose(entry.expected, expected, rel_tol=_ROUNDED, abs_tol=_ROUNDED)
        with ledger.at(f"outcomes[{index}]"):
            ledger.holds(
                "probabilities of the target from the rows of a counterexample",
                "expected",
                entry.expected,
                right=right,
                because=f"{expected:.12g}",
            )


def _copied(case: CaseRecord, record: CounterexampleRecord, ledger: Ledger) -> None:
    """The worst numbers of a case are those of a test of the property."""
    shown = [(entry.observed, entry.expected) for entry in record.outcomes]
    sources = []
    for test in case.tests:
        if test.property == record.property:
            sources.append([(float(c.observed), c.expected) for c in test.worst_cells])
            if test.exact is not None:
                sources.append([(e.observed, e.expected) for e in test.exact.worst])
                if record.kind == "case":
                    ledger.same(
                        _DISTANCES,
                        "total_variation",
                        record.total_variation,
                        test.exact.total_variation,
                    )
                    ledger.same(_DISTANCES, "tolerance", record.tolerance, test.exact.tolerance)
    ledger.holds(
        "counterexamples against their cases",
        "outcomes",
        f"{len(shown)} outcomes",
        right=shown in sources,
        because="the worst ones of the property's test",
    )
