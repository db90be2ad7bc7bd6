"""Recomputing what a certificate says of whole cases: verdict, counts, bounds and looks."""

import itertools
import math
from collections.abc import Sequence

from specverify.certification.case_records import BoundRecord, CaseRecord, LooksRecord, TestRecord
from specverify.certification.judge import case_verdict
from specverify.certification.rechecked.decisions import REJECTED, ends_well
from specverify.certification.rechecked.ledger import Ledger
from specverify.sampling.token_scores import RATIOS

_COUNTS = "counts of cases"
_BOUNDS = "bounds against their limits and shares"
_LOOKS = "looks against the case they end in"
_FIRST_TOKEN = "total variation of the first token"
_IMPOSSIBLE = "runs with an impossible token"
_HALF_SPACE = "mass moved to"
_BOUND_OF = {"joint.first_token": _FIRST_TOKEN, "joint.every_token": _HALF_SPACE}
"""How the names of the bounds begin that a property asks for."""


def recheck_case(
    case: CaseRecord, alpha: float, ledger: Ledger, *, cut_short: bool, expecting: bool
) -> None:
    """Recompute a case from its tests.

    Args:
        case: of the certificate.
        alpha: of the run.
        ledger: what is compared.
        cut_short: whether the user interrupted the run during this case.
        expecting: whether failures are expected, at which sampling does not end.
    """
    _verdict(case, ledger, cut_short=cut_short)
    if case.planned_runs:
        _counts(case, ledger, cut_short=cut_short, expecting=expecting)
    else:
        for name, count in (("runs", case.runs), ("tokens", case.tokens), ("shards", case.shards)):
            ledger.same(_COUNTS, name, count, 0)
    for bound in case.bounds:
        with ledger.at(f"bounds[{bound.name}]"):
            _bound(case, bound, alpha, ledger)
    if not case.small and case.tv_bound is not None:
        found = [bound.value for bound in case.bounds if bound.name == _FIRST_TOKEN]
        ledger.same(_BOUNDS, "tv_bound", case.tv_bound, found[0] if found else None)
        ledger.same(_BOUNDS, "tv_bound_alpha", case.tv_bound_alpha, alpha)
    _undecided(case, ledger)
    if case.looks is not None:
        with ledger.at("looks"):
            _looks(case, case.looks, ledger)
    if case.diagnosis is not None:
        with ledger.at("diagnosis"):
            _diagnosis(case, ledger)


def _verdict(case: CaseRecord, ledger: Ledger, *, cut_short: bool) -> None:
    judged, _ = case_verdict(
        [
            test.model_copy(update={"decision": "violated"}) if test.decision == "blocked" else test
            for test in case.tests
        ]
    )
    allowed = [judged]
    if judged != "violated" and case.reason:
        allowed.append("error")
        if cut_short:
            allowed.append("inconclusive")
    if judged == "preserved":
        allowed.append("lossy-as-declared")
    if not case.tests and case.verdict == "error":
        allowed = ["error"]
    ledger.holds(
        "verdicts of cases from their tests",
        "verdict",
        case.verdict,
        right=case.verdict in allowed,
        because=f"{judged}, by the decisions of its tests",
    )


def _counts(case: CaseRecord, ledger: Ledger, *, cut_short: bool, expecting: bool) -> None:
    ledger.within(_COUNTS, "runs", case.runs, 0, case.planned_runs)
    failed = case.verdict == "error" or case.error
    if case.stopped == "" and not failed and not cut_short and case.tests:
        ledger.same(_COUNTS, "runs", case.runs, case.planned_runs)
    longest = case.settings.get("max_new_tokens")
    most = math.inf
    if isinstance(longest, int) and ends_well(case):
        most = case.runs * longest
    ledger.within(_COUNTS, "tokens", case.tokens, case.runs, most)
    ledger.within(_COUNTS, "shards", case.shards, min(1, case.runs), max(1, case.planned_runs))
    if case.stopped == "violated":
        ledger.same(_COUNTS, "verdict", case.verdict, "violated")
    if case.stopped == "bounds reached":
        if not expecting:
            ledger.same(_COUNTS, "verdict", case.verdict, "preserved")
        ledger.within(_COUNTS, "runs", case.runs, 0, case.planned_runs - 1)
    _accepted(case, ledger)


def _accepted(case: CaseRecord, ledger: Ledger) -> None:
    accepted = case.counters.get("first_round_accepted")
    if not isinstance(accepted, dict):
        return
    total = 0
    for count, runs in accepted.items():
        assert isinstance(runs, int)
        with ledger.at("counters.first_round_accepted"):
            ledger.within(_COUNTS, count, runs, 0, case.runs)
            ledger.within(_COUNTS, count, int(count), 0)
        total += runs
    ended = {"correction.given_rejection", "bonus.given_full_acceptance"}
    shown = {t.property: t.n for t in case.tests if t.property in ended and t.alpha is not None}
    rejected = any(test.decision in REJECTED for test in case.tests)
    least = 0 if rejected else sum(shown.values())
    ledger.within(_COUNTS, "counters.first_round_accepted", total, least, case.runs)
    ledger.cannot("acceptance counts", "only that they are no more than the runs")


def _bound(case: CaseRecord, bound: BoundRecord, alpha: float, ledger: Ledger) -> None:
    halves = bound.name.startswith(_HALF_SPACE)
    ledger.same(_BOUNDS, "alpha", bound.alpha, alpha / len(RATIOS) if halves else alpha)
    of_runs = bound.name in (_FIRST_TOKEN, _IMPOSSIBLE)
    total = case.runs if of_runs else case.tokens
    least = total if of_runs or ends_well(case) else 0
    ledger.within(_BOUNDS, "n", bound.n, least, total)
    least = 0.0
    if bound.name == _FIRST_TOKEN and bound.n:
        # The distance seen is at least 0; the width is that of one look or of several.
        least = min(1.0, math.sqrt(-math.log(alpha) / (2 * bound.n)))
    ledger.within(_BOUNDS, "value", bound.value, least, 1.0)
    followed = case.looks is not None and bound.name in case.looks.bounds
    if not followed:
        ledger.cannot("bounds beyond their limits", "they are sums over all tokens or counts")
    over = bound.limit is not None and bound.value > bound.limit
    if case.verdict in {"preserved", "lossy-as-declared"}:
        limit = math.inf if bound.limit is None else bound.limit
        ledger.within(_BOUNDS, "value", bound.value, 0.0, limit)
    elif over:
        undecided = any(test.decision in {"undecided", *REJECTED} for test in case.tests)
        ledger.holds(_BOUNDS, "value", bound.value, right=undecided, because="an undecided test")


def _undecided(case: CaseRecord, ledger: Ledger) -> None:
    """A test is undecided where the bound that its property asks for is above its limit."""
    for test in case.tests:
        prefix = _BOUND_OF.get(test.property)
        if prefix is None or test.alpha is None or test.decision in REJECTED:
            continue
        asked = [b for b in case.bounds if b.name.startswith(prefix) and b.limit is not None]
        over = any(b.value > b.limit for b in asked if b.limit is not None)
        if asked:
            with ledger.at(f"{test.property}[{test.test}]"):
                ledger.same(_BOUNDS, "decision", test.decision, "undecided" if over else "pass")


def _looks(case: CaseRecord, looks: LooksRecord, ledger: Ledger) -> None:
    for name, values, last in (
        ("shards", looks.shards, case.shards),
        ("runs", looks.runs, case.runs),
        ("tokens", looks.tokens, case.tokens),
    ):
        rising = all(a < b for a, b in itertools.pairwise(values))
        ledger.holds(_LOOKS, name, str(values[-1]), right=rising, because="a rising sequence")
        ledger.same(_LOOKS, f"{name}[-1]", values[-1], last)
    lengths = {len(looks.runs), len(looks.tokens)}
    paths = [*looks.log_e.items(), *looks.bounds.items()]
    lengths |= {len(path) for _, path in paths}
    ledger.holds(
        _LOOKS,
        "shards",
        len(looks.shards),
        right=lengths == {len(looks.shards)},
        because="as many entries in every path",
    )
    for property, path in looks.log_e.items():
        _path(case.tests, property, path, ledger)
    for bound in case.bounds:
        if bound.name in looks.bounds:
            ledger.same(_LOOKS, f"{bound.name}[-1]", looks.bounds[bound.name][-1], bound.value)
    ledger.cannot("looks before the last one", "each is a sum over the tokens up to it")


def _path(
    tests: Sequence[TestRecord], property: str, path: Sequence[float | None], ledger: Ledger
) -> None:
    """A path ends in the statistic of its test, and stays where it crossed the threshold."""
    deciding = [t for t in tests if t.property == property and t.alpha is not None]
    values = [test.statistic for test in deciding if test.statistic is not None]
    ledger.same(_LOOKS, f"{property}[-1]", path[-1], max(values) if values else None)
    for test in deciding:
        assert test.alpha is not None
        crossed = [v for v in path if v is not None and v >= -math.log(test.alpha)]
        moved = [value for value in crossed if value != path[-1]]
        ledger.holds(
            _LOOKS,
            property,
            moved[0] if moved else path[-1],
            right=not moved,
            because="below the threshold before it rejects",
        )


def _diagnosis(case: CaseRecord, ledger: Ledger) -> None:
    kind = "probabilities of diagnoses"
    diagnosis = case.diagnosis
    assert diagnosis is not None
    ledger.within(kind, "confidence", diagnosis.confidence, 0.0, 1.0)
    for index, suspect in enumerate(diagnosis.suspects):
        with ledger.at(f"suspects[{index}]"):
            ledger.within(kind, "probability", suspect.probability, 0.0, 1.0)
            if suspect.mutant == diagnosis.mutant:
                ledger.same(kind, "probability", suspect.probability, diagnosis.confidence)
    ledger.cannot("diagnoses", "they compare distributions that the subject has to emit again")
