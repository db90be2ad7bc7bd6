"""p-values of counts too small to pool: by enumeration of every outcome, or by simulation."""

import math
from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from specverify.errors import UsageError
from specverify.statistics.result import TestResult
from specverify.statistics.strata import OneOrMore, Stratum, as_strata

Statistic: TypeAlias = Literal["G", "chi-squared"]

MAXIMUM_OUTCOMES = 200_000
"""Largest number of outcomes that is enumerated, over all strata together."""

_CHUNK = 2**22
_TIE = 1e-9  # statistics this close, relatively, are equal but for rounding


def exact_p_value(counts: OneOrMore, probabilities: OneOrMore, statistic: Statistic = "G") -> float:
    """P(T >= observed T) under the multinomial law, by enumeration of every outcome.

    T is G = 2 sum N ln(N/(n p)) or X2 = sum (N - n p)^2/(n p), on unpooled cells, summed over
    strata. A stratum of n observations on k possible cells has C(n + k - 1, k - 1) outcomes.

    Source: elementary, the definition of a p-value summed outcome by outcome; G is that of Wilks
    (1938), X2 of Pearson (1900).

    Error rates: never above the nominal level, for every n; below it where outcomes are few. Valid
    where numbers of observations are fixed beforehand or conditioned on, as in `goodness.g_test`;
    descriptive where an e-process or a bound chose when to stop.

    Args:
        counts: observed counts [k], or one array a stratum.
        probabilities: expected probabilities, same shapes. Cells of probability 0 are left out
            with their observations; `support.support_e_value` judges those.
        statistic: "G" or "chi-squared".

    Raises:
        UsageError: more than `MAXIMUM_OUTCOMES` outcomes, an unknown statistic, or see
            `strata.as_strata`.
    """
    strata = _comparable(counts, probabilities, statistic)
    outcomes = _outcomes(strata)
    if outcomes > MAXIMUM_OUTCOMES:
        raise UsageError(
            f"these tables have at least {outcomes} outcomes, but only {MAXIMUM_OUTCOMES} are "
            "enumerated; use monte_carlo_p_value"
        )
    values, weights = np.zeros(1), np.ones(1)
    for stratum in strata:
        tables = _compositions(stratum.n, len(stratum.probabilities))
        logs = gammaln(stratum.n + 1) - gammaln(tables + 1).sum(axis=1)
        logs = logs + xlogy(tables, stratum.probabilities).sum(axis=1)
        distances = _distance(tables, stratum, statistic)
        values = np.add.outer(values, distances).ravel()
        weights = np.multiply.outer(weights, np.exp(logs)).ravel()
    return min(1.0, float(weights[_reaches(values, _observed(strata, statistic))].sum()))


def monte_carlo_p_value(
    counts: OneOrMore,
    probabilities: OneOrMore,
    *,
    draws: int,
    seed: int,
    statistic: Statistic = "G",
) -> float:
    """(1 + #{T* >= T}) / (draws + 1), T* the statistics of simulated tables (Barnard 1963).

    Error rates: at most the nominal level, for every n and every number of draws: under the null T
    and the T* are exchangeable. The floor is 1/(draws + 1): alarms at a level alpha need 1/alpha
    draws, so this is a report beside the decision, not a gate at 1e-6. Valid at a sample size fixed
    beforehand, as `exact_p_value` is.

    Args:
        counts: observed counts [k], or one array a stratum.
        probabilities: expected probabilities, same shapes; impossible cells as in `exact_p_value`.
        draws: tables to simulate, at least 1.
        seed: of the simulation; the same one gives the same p-value.
        statistic: "G" or "chi-squared", on unpooled cells, summed over strata.

    Raises:
        UsageError: draws below 1, an unknown statistic, or see `strata.as_strata`.
    """
    if draws < 1:
        raise UsageError(f"a simulated p-value needs draws, got draws={draws}")
    strata = _comparable(counts, probabilities, statistic)
    rng = np.random.default_rng(seed)
    values = np.zeros(draws)
    for stratum in strata:
        done = 0
        for distances in _simulated(stratum, draws, rng, statistic):
            values[done : done + len(distances)] += distances
            done += len(distances)
    reached = int(_reaches(values, _observed(strata, statistic)).sum())
    return (1 + reached) / (draws + 1)


def small_sample_p(
    counts: OneOrMore, probabilities: OneOrMore, seed: int, *, draws: int = 9_999
) -> TestResult | None:
    """G test without pooling: exact where the outcomes can be enumerated, else simulated.

    For what `goodness.g_test` pools into nothing. G = 2 sum N ln(N/(n p)) (Wilks 1938), its p-value
    from `exact_p_value` (elementary: enumeration) up to `MAXIMUM_OUTCOMES` outcomes, beyond them
    from `monte_carlo_p_value` (Barnard 1963), which ends at 1/(draws + 1).

    Error rates: P(p <= alpha) <= alpha for every n, on both ways, since n and p alone choose
    between them. Valid at a sample size fixed beforehand; where an e-process or a bound chose when
    to stop the p-value is descriptive.

    Args:
        counts: observed counts [k], or one array a stratum.
        probabilities: expected probabilities, same shapes.
        seed: of the simulation, where there is one.
        draws: tables to simulate.

    Returns:
        A result named "exact G" or "Monte Carlo G", df 0; None if no stratum has an observation
        and two possible cells.

    Raises:
        UsageError: see `monte_carlo_p_value`.
    """
    given = as_strata(counts, probabilities)
    strata = _comparable(counts, probabilities, "G")
    if not strata:
        return None
    if _outcomes(strata) <= MAXIMUM_OUTCOMES:
        name, p_value = "exact G", exact_p_value(counts, probabilities)
    else:
        name = "Monte Carlo G"
        p_value = monte_carlo_p_value(counts, probabilities, draws=draws, seed=seed)
    cells = sum(len(stratum.probabilities) for stratum in strata)
    n = sum(stratum.n for stratum in given)
    impossible = sum(int(s.counts[s.probabilities == 0].sum()) for s in given)
    statistic = _observed(strata, "G")
    return TestResult(name, statistic, 0, p_value, n, cells, len(strata), impossible)


def _comparable(counts: OneOrMore, probabilities: OneOrMore, statistic: Statistic) -> list[Stratum]:
    """Strata on their possible cells, those left out in which nothing can differ."""
    if statistic not in ("G", "chi-squared"):
        raise UsageError(f"statistic must be 'G' or 'chi-squared', got {statistic!r}")
    strata = []
    for stratum in as_strata(counts, probabilities):
        possible = stratum.probabilities > 0
        kept = stratum.counts[possible]
        if len(kept) > 1 and kept.sum():
            strata.append(Stratum(kept, stratum.probabilities[possible], int(kept.sum())))
    return strata


def _outcomes(strata: list[Stratum]) -> int:
    """Number of outcomes, or a smaller one that is beyond `MAXIMUM_OUTCOMES` by far."""
    total = 1
    for stratum in strata:
        others = len(stratum.probabilities) - 1
        total *= math.comb(stratum.n + others, min(stratum.n, others, 20))
    return total


def _compositions(n: int, cells: int) -> NDArray[np.int64]:
    """Every way to put n observations into the cells, one a row."""
    tables = np.arange(n + 1).reshape(-1, 1)  # observations in the first cells, growing by one
    for _ in range(cells - 2):
        left = n - tables.sum(axis=1)
        rows = np.repeat(np.arange(len(tables)), left + 1)
        starts = np.repeat(np.cumsum(left + 1) - (left + 1), left + 1)
        tables = np.column_stack([tables[rows], np.arange(len(rows)) - starts])
    return np.column_stack([tables, n - tables.sum(axis=1)])


def _simulated(
    stratum: Stratum, draws: int, rng: np.random.Generator, statistic: Statistic
) -> Iterator[NDArray]:
    cells = len(stratum.probabilities)
    step = max(1, _CHUNK // min(cells, stratum.n))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        if stratum.n >= cells:
            tables = rng.multinomial(stratum.n, stratum.probabilities, size)
            yield _distance(tables, stratum, statistic)
            continue
        # Most cells stay empty: only those that were hit are kept, as pairs of row and cell.
        cumulative = np.cumsum(stratum.probabilities)
        coins = rng.random((size, stratum.n)) * cumulative[-1]
        hit = np.searchsorted(cumulative, coins, side="right")
        pairs, numbers = np.unique(hit + cells * np.arange(size)[:, None], return_counts=True)
        terms = _terms(numbers, stratum.n * stratum.probabilities[pairs % cells], statistic)
        yield np.bincount(pairs // cells, terms, size) - _offset(stratum, statistic)


def _distance(tables: NDArray, stratum: Stratum, statistic: Statistic) -> NDArray:
    terms = _terms(tables, stratum.n * stratum.probabilities, statistic)
    return terms.sum(axis=-1) - _offset(stratum, statistic)


def _terms(numbers: NDArray, expected: NDArray, statistic: Statistic) -> NDArray:
    """Summands that are 0 on empty cells: sum (N - E)^2/E = sum N^2/E - n."""
    if statistic == "G":
        return 2 * xlogy(numbers, numbers / expected)
    return numbers**2 / expected


def _offset(stratum: Stratum, statistic: Statistic) -> float:
    return 0.0 if statistic == "G" else float(stratum.n)


def _observed(strata: list[Stratum], statistic: Statistic) -> float:
    return sum(float(_distance(stratum.counts, stratum, statistic)) for stratum in strata)


def _reaches(values: NDArray, observed: float) -> NDArray[np.bool_]:
    return values >= observed - _TIE * max(1.0, abs(observed))
