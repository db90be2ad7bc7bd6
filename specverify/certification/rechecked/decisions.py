"""Recomputing what a certificate says of single tests."""

import math
from collections import defaultdict
from collections.abc import Sequence

from scipy.stats import chi2

from specverify.certification.case_records import CaseRecord, TestRecord
from specverify.certification.decoder_case import COARSE_TOLERANCE, LOGIT_TOLERANCE, SLACK
from specverify.certification.rechecked.ledger import RELATIVE, Ledger
from specverify.certification.verdict import FUZZ
from specverify.statistics.e_power import detectable_dirichlet
from specverify.statistics.support import ZERO_COIN, detectable_rate, support_e_value
from specverify.statistics.triples import FILLED

E_VALUES = {"e-process", "support"}
"""Tests whose statistic is ln E."""
REJECTED = {"violated", "blocked", "suspect"}

_NUMBERS = "numbers of observations and cells"
_POOLED = {"chi-squared", "G"}
_MIXTURES = {"joint.every_token", "joint.own_distributions"}
_ETAS = (*SLACK.values(), COARSE_TOLERANCE)
_EXCUSED = (0.0, *LOGIT_TOLERANCE.values(), COARSE_TOLERANCE)
_WHOLE_CASE = {
    "joint.every_token": "tokens",
    "support.impossible_tokens": "tokens",
    "joint.first_token": "runs",
}
"""Properties that look at every token, or at one of every run."""


def recheck_tests(case: CaseRecord, share: float, ledger: Ledger) -> None:
    """Recompute p-values, decisions and counts of all tests of a case.

    Args:
        case: of the certificate.
        share: each test's of the false-alarm budget.
        ledger: what is compared.
    """
    by_property: dict[str, list[TestRecord]] = defaultdict(list)
    for test in case.tests:
        by_property[test.property].append(test)
        with ledger.at(f"{test.property}[{test.test or test.evidence}]"):
            _p_value(test, ledger)
            _counts(case, test, ledger)
            if test.boundaries:
                ledger.cannot(
                    "negative ln E of tests that rest on where rounds end",
                    "they give p = 1 whatever they are, and ln E together leaves them out",
                )
            if test.alpha is not None:
                _share(case, test, share, ledger)
                _decision(case, test, ledger)
                _detectable(case, test, ledger)
            _components(test, ledger)
    for tests in by_property.values():
        _alike(tests, ledger)


def _share(case: CaseRecord, test: TestRecord, share: float, ledger: Ledger) -> None:
    """A search has a budget of its own, shared by all its confirmations."""
    assert test.alpha is not None
    kind = "shares of the budget"
    if not case.id.startswith(FUZZ):
        ledger.same(kind, "alpha", test.alpha, share)
    elif case.search is not None:
        ledger.within(kind, "alpha", test.alpha, 0.0, case.search.alpha)


def _p_value(test: TestRecord, ledger: Ledger) -> None:
    if test.p_value is None or test.statistic is None:
        return
    name, found = test.test or "", None
    kind = "p-values from statistic and df"
    if name in E_VALUES:
        kind, found = "p-values from ln E", math.exp(min(0.0, -test.statistic))
    elif name in _POOLED:
        found = float(chi2.sf(test.statistic, test.df)) if test.df else 1.0
    elif _is_band(test):
        kind = "p-values of bands"
        found = min(1.0, 2 * math.exp(-2 * test.n * test.statistic**2))
    if found is not None:
        ledger.same(kind, "p_value", test.p_value, found)
    else:
        ledger.within("p-values that are probabilities", "p_value", test.p_value, 0.0, 1.0)
        ledger.cannot(f"p-values of {name}", "they are enumerated or simulated from all counts")


def _decision(case: CaseRecord, test: TestRecord, ledger: Ledger) -> None:
    assert test.alpha is not None
    assert test.p_value is not None
    rejects = test.p_value <= test.alpha
    allowed = {"pass", "undecided"}
    if rejects:
        suspect = test.boundaries and not _certain(case)
        allowed = {"suspect"} if suspect else {"violated", "blocked"}
    ledger.holds(
        "decisions against the shares",
        "decision",
        test.decision,
        right=test.decision in allowed,
        because=f"{' or '.join(sorted(allowed))}, since p is {test.p_value:.6g}",
    )


def _certain(case: CaseRecord) -> bool:
    """Whether something is violated that does not rest on where rounds end."""
    return any(
        test.decision in REJECTED and not (test.boundaries and test.alpha is not None)
        for test in case.tests
    )


def _counts(case: CaseRecord, test: TestRecord, ledger: Ledger) -> None:
    searched = case.id.startswith(FUZZ)
    if test.test is None:
        tried = case.search.computed + case.search.sampled if case.search is not None else 0
        ledger.within(_NUMBERS, "n", test.n, 0, tried if searched else 0)
    elif test.test in _POOLED:
        ledger.same(_NUMBERS, "df", test.df, (test.cells or 0) - (test.strata or 0))
    else:
        ledger.same(_NUMBERS, "df", test.df, 0)
    if test.test == "support":
        ledger.same(_NUMBERS, "cells", test.cells, 1)
        ledger.same(_NUMBERS, "strata", test.strata, 1)
        ledger.within(_NUMBERS, "impossible", test.impossible, 0, test.n)
    elif test.test not in _POOLED:
        ledger.within(_NUMBERS, "impossible", test.impossible, 0, test.n if searched else 0)
    if case.runs and test.test is not None:
        whole = _WHOLE_CASE.get(test.property)
        total = case.runs if whole == "runs" else case.tokens
        exact = whole is not None and test.decision not in REJECTED and not _is_band(test)
        # Tokens beyond the length limit are counted, and judged by no other property.
        exact = exact and (test.test == "support" or ends_well(case))
        ledger.within(_NUMBERS, "n", test.n, total if exact else 0, total)
    for index, cell in enumerate(test.worst_cells):
        with ledger.at(f"worst_cells[{index}]"):
            ledger.within(_NUMBERS, "observed", cell.observed, 0)
            ledger.within(_NUMBERS, "expected", cell.expected, 0)
    if test.worst_cells and test.n and test.decision not in REJECTED:
        observed = sum(cell.observed for cell in test.worst_cells)
        ledger.within(_NUMBERS, "worst_cells", observed, 0, test.n)
    if test.worst_cells:
        ledger.cannot(
            "ln E of e-processes, chi-squared and G from counts",
            "a certificate keeps the worst cells, not all of them, and no token; ln E is held "
            "against p, the looks and ln E together",
        )


def ends_well(case: CaseRecord) -> bool:
    """Whether its runs are known to end where they should, so that every token is judged."""
    return any(t.property == "stopping.run_length" and t.decision == "pass" for t in case.tests)


def _is_band(test: TestRecord) -> bool:
    """A band counts the tokens that have a place in the distribution, so not those with p = 0."""
    return (test.test or "").startswith("band")


def _detectable(case: CaseRecord, test: TestRecord, ledger: Ledger) -> None:
    """What a test would have seen; the numbers of one that rejected are of an earlier look."""
    assert test.alpha is not None
    if test.test == "support" and test.statistic is not None:
        _support(test, ledger)
    if test.detectable is None or test.decision in REJECTED:
        return
    kind = "smallest deviations that would have been seen"
    if test.property in ("joint.first_token", "joint.stopped_run"):
        # Each token behind an observation is allowed its rounding; a run counts with K + 2 or less.
        most = 1 if test.property == "joint.first_token" else (case.num_draft_tokens or 0) + 2
        cells = (test.cells or 0) - (test.strata or 1) + 1
        slacks = [depth * math.log1p(eta) for depth in range(1, most + 1) for eta in _ETAS]
        found = [_seen_tv(test.n, cells, test.alpha, slack) for slack in slacks]
        nearest = min(found, key=lambda value: abs(value - (test.detectable or 0.0)))
        ledger.same(kind, "detectable", test.detectable, nearest)
    elif test.test == "support":
        rates = {
            detectable_rate(test.n, test.alpha, dtype=dtype, excused=excused)
            for dtype, excused in _coins(test)
        }
        rates.discard(None)
        nearest = min(rates, key=lambda rate: abs((rate or 0.0) - (test.detectable or 0.0)))
        ledger.same(kind, "detectable", test.detectable, nearest)
    else:
        ledger.cannot("smallest leak that would have been seen", "it depends on every token's bet")


def _seen_tv(n: int, cells: int, alpha: float, slack: float) -> float:
    """Smallest total variation seen in n observations that are allowed `slack` of rounding each."""
    if n < FILLED * cells:
        return math.nan
    divergence = detectable_dirichlet(n, cells, n * slack - math.log(alpha))
    return min(1.0, math.sqrt(divergence) / 2)


def _support(test: TestRecord, ledger: Ledger) -> None:
    """Ln E follows from the hits, and from what their coins and logits excuse."""
    assert test.statistic is not None
    found = [
        support_e_value(test.impossible, test.n, dtype=dtype, excused=excused).statistic
        for dtype in ZERO_COIN
        for excused in _EXCUSED
    ]
    nearest = min(found, key=lambda value: abs(value - (test.statistic or 0.0)))
    ledger.same("ln E of impossible tokens from their number", "statistic", test.statistic, nearest)


def _coins(test: TestRecord) -> list[tuple[str, float]]:
    """Dtypes of coins, and excuses, that explain the statistic; all of them if none does."""
    everything = [(dtype, excused) for dtype in ZERO_COIN for excused in _EXCUSED]
    fitting = [
        (dtype, excused)
        for dtype, excused in everything
        if math.isclose(
            support_e_value(test.impossible, test.n, dtype=dtype, excused=excused).statistic,
            test.statistic or 0.0,
            rel_tol=RELATIVE,
        )
    ]
    return fitting or everything


def _components(test: TestRecord, ledger: Ledger) -> None:
    if not test.components:
        return
    ledger.cannot("the parts of a mixture", "they are sums over all tokens, of which none is kept")
    if test.property in _MIXTURES and test.decision not in REJECTED:
        assert test.statistic is not None
        largest = max(test.components.values())
        total = largest + math.log(
            math.fsum(math.exp(v - largest) for v in test.components.values())
        )
        ledger.within("parts of mixtures within ln E", "components", total, most=test.statistic)


def _alike(tests: Sequence[TestRecord], ledger: Ledger) -> None:
    """Tests of one property look at the same observations; those that rejected, at fewer."""
    first, *others = tests
    pooled = [test for test in tests if test.test in _POOLED]
    for test in pooled[1:]:
        with ledger.at(f"{test.property}[{test.test}]"):
            kind = "chi-squared against G"
            ledger.same(kind, "cells", test.cells, pooled[0].cells)
            ledger.same(kind, "impossible", test.impossible, pooled[0].impossible)
    for test in others:
        with ledger.at(f"{test.property}[{test.test or test.evidence}]"):
            kind = "tests of one property against each other"
            if not {first.decision, test.decision} & REJECTED and not _is_band(test):
                ledger.same(kind, "n", test.n, first.n)
            counted = _POOLED | {"e-process"}
            if {first.test, test.test} <= counted and first.worst_cells:
                ledger.same(kind, "strata", test.strata, first.strata)
            ledger.holds(
                kind,
                "worst_cells",
                f"{len(test.worst_cells)} cells",
                right=test.worst_cells == first.worst_cells,
                because="those of the property's first test",
            )
            ledger.holds(
                kind,
                "exact",
                "a computed distribution",
                right=test.exact == first.exact,
                because="that of the property's first test",
            )
