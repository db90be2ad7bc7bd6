"""Bets learned from counts: mixtures of Dirichlet-multinomial laws against a known law."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from specverify.errors import UsageError
from specverify.statistics.strata import OneOrMore, as_strata

CONCENTRATIONS = (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
"""Concentrations k that are mixed with equal weights.

A Dirichlet law with concentration k around P expects relative deviations of about 1/sqrt(k P_b):
from gross ones to those of a thousandth.
"""

_SERIES_FROM = 16.0
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)


def log_dirichlet(
    counts: OneOrMore,
    probabilities: OneOrMore,
    concentrations: Sequence[float] = CONCENTRATIONS,
) -> float:
    """Logarithm of an e-value that counts have the given law, against laws learned on the way.

    E = mean over k of the product over strata of
    Gamma(k) / Gamma(n + k) prod_b Gamma(N_b + k P_b) / (Gamma(k P_b) P_b^N_b),
    the likelihood ratio of a Dirichlet(k P) mixture of multinomial laws to the law P. Every
    stratum learns its own law; k is shared. Sources: Good (1967); Lindon and Malek (2022), "Anytime
    valid inference for multinomial count data", NeurIPS.

    Validity: an e-process, so it may be looked at after every observation: the ratio of one
    observation to the next is a pmf over P's, chosen by the counts before it. Each observation
    must have law P given the past, and its stratum must be known before it. Error rates: with no
    approximation, P(sup E >= 1/alpha) <= alpha.

    Cells of probability 0 are left out, their counts with them; `support` judges them. ln E is
    accurate to about 1e-9 for counts up to 1e9: differences of ln Gamma are taken in Stirling's
    form, whose leading terms together are (n + k) KL(smoothed || P).

    Args:
        counts: int [B], or one such array a stratum.
        probabilities: the law P, same shapes.
        concentrations: positive numbers k.

    Returns:
        ln E; 0 without observations.

    Raises:
        UsageError: invalid counts or probabilities, or a concentration that is not positive.
    """
    ks = np.asarray(concentrations, np.float64)
    if ks.ndim != 1 or not len(ks) or not (np.isfinite(ks) & (ks > 0)).all():
        raise UsageError(f"concentrations must be positive numbers, got {concentrations!r}")
    total = np.zeros(len(ks))
    for stratum in as_strata(counts, probabilities):
        total += dirichlet_terms(stratum.counts, stratum.probabilities, ks)
    return float(np.logaddexp.reduce(total)) - math.log(len(ks))


def dirichlet_terms(
    counts: ArrayLike, probabilities: ArrayLike, concentrations: ArrayLike = CONCENTRATIONS
) -> NDArray[np.float64]:
    """Terms of `log_dirichlet` for many rows of counts of one law, unmixed and unchecked.

    ln E_k = ln Gamma(k) - ln Gamma(n + k) + sum_b (ln Gamma(N_b + k P_b) - ln Gamma(k P_b)
    - N_b ln P_b), the Dirichlet(k P) mixture of multinomial laws against P (Good 1967), evaluated
    as (n + k) KL(smoothed || P), smoothed = (N + k P)/(n + k), and what Stirling's form leaves.

    Valid for each row and k as `log_dirichlet` is: an e-process where observations have law P given
    the past, so P(sup E_k >= 1/alpha) <= alpha (Ville 1939). Terms of strata add for one k, and
    only the mean of their exponentials over k is an e-process again. Cells of probability 0 are
    left out with their counts. Nothing is checked.

    Args:
        counts: [..., B].
        probabilities: [B], summing to 1 up to rounding.
        concentrations: [K].

    Returns:
        float64 [..., K], one ln e-value a row and concentration.
    """
    law = np.asarray(probabilities, np.float64)
    possible = law > 0
    if not possible.all():
        law = law[possible]
    law = law / law.sum()
    observed = np.asarray(counts, np.float64)[..., None, possible]
    k = np.asarray(concentrations, np.float64)
    n = observed.sum(-1)
    prior = k[:, None] * law
    # (n + k) KL(smoothed || P): its parts are nonnegative, so nothing of size n ln n cancels.
    surplus = (observed - n[..., None] * law) / ((n + k)[..., None] * law)
    bregman = (1 + surplus) * np.log1p(surplus) - surplus
    leading = (n + k) * (bregman * law).sum(-1)
    return leading + _remainder(observed, prior).sum(-1) - _remainder(n, k)


def log_kt(ones: int, n: int, rate: float = 0.5) -> float:
    """Logarithm of an e-value that a bit is 1 with probability `rate`, for any other rate.

    E = Gamma(n1 + 1/2) Gamma(n0 + 1/2) / (pi Gamma(n + 1) rate^n1 (1 - rate)^n0), the
    Dirichlet(1/2, 1/2) mixture of Krichevsky and Trofimov (1981) against the known rate; it costs
    about (1/2) ln n.

    Valid where every bit is 1 with probability `rate` given the past: an e-process, looked at as
    often as one likes. Error rates: P(sup E >= 1/alpha) <= alpha (Ville 1939), no approximation.

    Args:
        ones: bits that were 1.
        n: bits.
        rate: probability of a 1 under the null.

    Raises:
        UsageError: not 0 <= ones <= n, or rate outside (0, 1).
    """
    if not 0 <= ones <= n:
        raise UsageError(f"ones must lie between 0 and n, got ones={ones}, n={n}")
    if not 0 < rate < 1:
        raise UsageError(f"rate must lie strictly between 0 and 1, got {rate}")
    zeros = n - ones
    fair = float(dirichlet_terms([ones, zeros], [0.5, 0.5], [1.0])[0])
    if rate == 0.5:
        return fair
    return fair - ones * math.log(2 * rate) - zeros * (math.log(2) + math.log1p(-rate))


def _remainder(n: NDArray, start: NDArray) -> NDArray[np.float64]:
    """What the leading terms leave of ln Gamma(start + n) - ln Gamma(start)."""
    return _stirling_error(start + n) - _stirling_error(start) - np.log1p(n / start) / 2


def _stirling_error(z: NDArray) -> NDArray[np.float64]:
    """Take ln Gamma(z) less Stirling's (z - 1/2) ln z - z + ln(2 pi)/2."""
    large = np.maximum(z, _SERIES_FROM)
    inverse = 1 / (large * large)
    series = np.zeros_like(large)
    for coefficient in reversed(_STIRLING):
        series = series * inverse + coefficient
    series /= large
    if (z >= _SERIES_FROM).all():
        return series
    small = np.minimum(z, _SERIES_FROM)
    direct = gammaln(small) - (small - 0.5) * np.log(small) + small - math.log(2 * math.pi) / 2
    return np.where(z >= _SERIES_FROM, series, direct)
