"""The false-alarm budget of a run, shared over its tests; p-values and e-values taken together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specverify.errors import UsageError


@dataclass(frozen=True)
class Budget:
    """Bonferroni: each of m tests rejects at alpha / m, an e-process when E >= m / alpha.

    P(any false alarm) <= alpha, whatever the dependence between the tests (union bound), provided
    each p-value is valid and `tests` counts every test that could have rejected, not those run
    until the first alarm.
    """

    alpha: float = 1e-6
    """Probability that a run of a correct implementation raises any alarm."""

    tests: int = 1
    """Tests that share it."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise UsageError(f"alpha must lie strictly between 0 and 1, got {self.alpha}")
        if self.tests < 1:
            raise UsageError(f"a budget is shared by at least one test, got tests={self.tests}")

    @property
    def share(self) -> float:
        """Level of each test: alpha / m, m = `tests`.

        Source: Bonferroni's inequality (elementary: the union bound). Valid under every dependence,
        if m is fixed beforehand: m tests at this level raise any alarm with probability at most
        alpha under the null.
        """
        return self.alpha / self.tests

    @property
    def log_threshold(self) -> float:
        """Level of ln E at which an e-process alone exhausts its share: ln(tests / alpha).

        Valid at every look: under the null it is ever reached with probability at most
        alpha / tests (Ville 1939).
        """
        return math.log(self.tests) - math.log(self.alpha)

    def rejects(self, p_value: float) -> bool:
        """Whether this p-value alone exhausts its share: p <= alpha / m.

        Source: Bonferroni, see `share`. Error rates: a false alarm with probability at most
        alpha / m, so at most alpha over the m tests, if the p-value is valid: at a sample size
        fixed beforehand, or min(1, 1/E) of an e-process at any look.

        Args:
            p_value: of one of the `tests`.
        """
        return p_value <= self.share

    def split(self, tests: int) -> "Budget":
        """Divide one test's share further, among `tests` tests of its own: alpha / (m tests) each.

        Source: the union bound, twice (elementary). Valid under every dependence if both numbers
        are fixed beforehand: all m shares together still alarm with probability at most alpha under
        the null.

        Args:
            tests: that share it equally, at least 1.

        Raises:
            UsageError: tests < 1.
        """
        return Budget(self.share, tests)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of Holm (1979): reject test i at level alpha where the i-th is <= alpha.

    The k-th smallest of m is multiplied by m - k + 1, then raised to the largest before it, at
    most 1. P(any false alarm) <= alpha under every dependence, and it rejects whatever Bonferroni
    does. Validity: each p-value is valid by itself, and all planned tests are in, those not run
    with p = 1.

    Args:
        p_values: one a test.

    Returns:
        Adjusted p-values in the order given.

    Raises:
        UsageError: a p-value outside [0, 1].
    """
    values = np.asarray(p_values, np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise UsageError(f"p-values lie in [0, 1], got {list(p_values)}")
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return adjusted.tolist()


def mean_log_e(log_es: Sequence[float], planned: int) -> float:
    """Ln of the mean e-value of `planned` tests, those not run counted as E = 1.

    E >= 1/alpha rejects that all the tests' hypotheses hold, at level alpha, under every
    dependence: expectations add (Vovk and Wang 2021, who show that no other symmetric rule is as
    good). Validity: weights fixed before the data, hence `planned`. A test that was not started is
    an e-process stopped at its start, where it is 1, whatever decided that; a test that was started
    counts with its value. As a mean of e-processes of one filtration it is valid at every look.

    Args:
        log_es: ln E of the tests started; -inf for E = 0.
        planned: tests that could have been started, these included.

    Raises:
        UsageError: no test planned, more values than tests planned, or a value that is NaN.
    """
    values = _checked_logs(log_es)
    if planned < max(1, len(values)):
        raise UsageError(f"{len(values)} e-values of planned={planned} tests; count every test")
    idle = planned - len(values)
    terms = np.append(values, math.log(idle)) if idle else values
    return float(np.logaddexp.reduce(terms)) - math.log(planned)


def product_log_e(log_es: Sequence[float]) -> float:
    """Ln of the product of e-values of independent streams: the sum of their logs.

    E >= 1/alpha rejects that all hypotheses hold, at level alpha (elementary: the expectation of a
    product of independent e-values is at most 1, then Markov). Validity: independent data, such as
    cases with seeds of their own, or an e-value each that holds given the streams before it. Two
    tests of the same tokens do not multiply; take their mean first. Evidence adds up over streams,
    but each without deviation costs what its process has lost.

    Args:
        log_es: ln E, one a stream; none gives 0.

    Raises:
        UsageError: a value that is NaN, or +inf beside -inf.
    """
    values = _checked_logs(log_es)
    if np.isposinf(values).any() and np.isneginf(values).any():
        raise UsageError(f"E = 0 and E = inf have no product, got logs {list(log_es)}")
    return float(values.sum())


def combined(
    log_es_by_test: Sequence[float], log_es_by_case: Sequence[float], planned: int
) -> float:
    """Ln of one e-value for a whole run: half the mean over tests, half the product over cases.

    The mean finds one test that is far off, the product what every case shows a little of; half the
    weight costs ln 2. Valid where `mean_log_e` and `product_log_e` are, since a mean of two
    e-values is one under every dependence. Rejects, at E >= 1/alpha, that the run has no deviation
    at all. The two spend one alpha; with Bonferroni beside it, the budget must count this test too.

    Args:
        log_es_by_test: ln E of every test started.
        log_es_by_case: ln E of every independent case, one a case: such as the mean of its tests.
        planned: tests that could have been started.

    Raises:
        UsageError: see `mean_log_e` and `product_log_e`.
    """
    mean, product = mean_log_e(log_es_by_test, planned), product_log_e(log_es_by_case)
    return float(np.logaddexp(mean, product)) - math.log(2)


def _checked_logs(log_es: Sequence[float]) -> np.ndarray:
    values = np.asarray(log_es, np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise UsageError(f"e-values come as a list of their logs, none NaN, got {log_es}")
    return values
