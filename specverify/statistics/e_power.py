"""What an e-process can see: evidence against p grows by KL(a || p) a token, turned both ways.

The test rejects once ln E >= L'. For one of many tests, and one of many bets inside a mixture,
L' = ln(tests / alpha) + ln(1 / weight), see `log_threshold`: by Ville's inequality (1939) a correct
sampler ever gets there with probability at most alpha / tests, and a mixture is at least weight
times each of its components.

All figures are predictions: normal approximations of ln E at the end of n tokens. They assume that
the bet is the true law a, or lies as close to it as the weight allows. They are on the safe side in
one respect: a process that is watched all along may get there earlier and fall back, which adds
some 0.0006 to a power of 0.999.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import fminbound, root_scalar
from scipy.special import ndtri, xlog1py
from scipy.stats import ncx2

from specverify.errors import UsageError
from specverify.statistics.dirichlet import CONCENTRATIONS

_MOST = 2**62
"""Observations beyond which nothing is predicted."""


def log_threshold(alpha: float, tests: int = 1, weight: float = 1.0) -> float:
    """L' = ln(tests / alpha) + ln(1 / weight): where one component of a mixture rejects alone.

    13.8 at alpha 1e-6; 18.0 for one of 64 equal components; 19.8 for one of 400 tests.

    Source: Ville (1939) for 1/alpha, the union bound for the tests; elementary for the weight: a
    mixture is at least weight times each component. Valid for e-processes, looked at as often as
    one likes, whatever their dependence, if `tests` and `weight` are fixed beforehand. Error rates:
    under the null any of the tests ever gets there with probability at most alpha.

    Args:
        alpha: false-alarm probability of the whole run.
        tests: tests that share it equally.
        weight: of the component inside its mixture.

    Raises:
        UsageError: alpha outside (0, 1), tests < 1 or weight outside (0, 1].
    """
    if not (0 < alpha < 1 and tests >= 1 and 0 < weight <= 1):
        raise UsageError(
            "a threshold needs 0 < alpha < 1, tests >= 1 and 0 < weight <= 1, got "
            f"alpha={alpha}, tests={tests}, weight={weight}"
        )
    return math.log(tests / alpha) - math.log(weight)


def samples_needed_e(
    kl: float, threshold: float, power: float = 0.999, *, spread: float | None = None
) -> int:
    """Tokens after which ln E has passed `threshold` with probability `power`.

    ln E is a sum of n terms ln(a/p) of mean KL and standard deviation s under a, hence about
    normal; n KL - z s sqrt(n) = L' gives n = x^2 / KL with
    x = (z r + sqrt(z^2 r^2 + 4 L')) / 2, r = s / sqrt(KL). Small deviations have s^2 = 2 KL, so
    r = sqrt 2: n = 42.2 / KL at L' = 13.8 and 51 / KL at 19.8 (statistics.md section 2). The mean
    time to stop is L' / KL (Wald 1945), about a third of it.

    Accuracy: within 5 % of simulation for leaks of 1 to 20 % and vocabularies of 2 to 1024, with
    and without `spread`; stronger deviations need it. A law that puts mass on tokens of very small
    probability has a skewed log ratio, for which this is a guide only. Valid for a bet on a itself,
    whose terms are about independent over the tokens. A prediction, not a guarantee.

    Error rates: the alarm under the null has the probability that `log_threshold` was asked for, at
    every look; at n the deviation is missed with probability about 1 - power.

    Args:
        kl: KL(a || p) in nats, per token, averaged over the prefixes.
        threshold: L', see `log_threshold`.
        power: probability of an alarm by then.
        spread: standard deviation of ln(a/p) under a; sqrt(2 KL) when omitted.

    Raises:
        UsageError: kl not positive and finite (infinite: the support test sees it), threshold <= 0,
            power outside (0, 1), a negative spread, or more than 2^62 tokens needed.
    """
    if not 0 < kl < math.inf:
        raise UsageError(
            f"kl must be positive and finite, got {kl}: at 0 there is nothing to detect, and an "
            "infinite one is a matter of impossible tokens, see `samples_needed_support`"
        )
    if spread is not None and not 0 <= spread < math.inf:
        raise UsageError(f"spread is a standard deviation, got {spread}")
    ratio = math.sqrt(2) if spread is None else spread / math.sqrt(kl)
    return _whole(_evidence(threshold, power, ratio) / kl)


def detectable_kl(n: int, threshold: float, power: float = 0.999) -> float:
    """Smallest KL(a || p), in nats per token, that n tokens reveal with probability `power`.

    KL = x^2 / n, x = (z sqrt 2 + sqrt(2 z^2 + 4 L')) / 2: `samples_needed_e` solved for KL, where
    the standard deviation of ln(a/p) is sqrt(2 KL), as for a small deviation (elementary: ln(a/p)
    to second order).

    Valid where `samples_needed_e` is: ln E about normal, a bet on a itself. A prediction,
    not a guarantee. Error rates: the alarm under the null has the probability that `log_threshold`
    was asked for, at every look; at n a deviation of this KL is missed with probability about
    1 - power.

    Args:
        n: tokens.
        threshold: L', see `log_threshold`.
        power: probability of an alarm by then.

    Raises:
        UsageError: n < 1, threshold <= 0 or power outside (0, 1).
    """
    _check_n(n)
    return _evidence(threshold, power, math.sqrt(2)) / n


def detectable_leak(n: int, chi2: float, threshold: float, power: float = 0.999) -> float | None:
    """Smallest e that n tokens of (1 - e) p + e q reveal with probability `power`.

    KL ~ e^2 chi2(q || p) / 2, so e = sqrt(2 x^2 / (n chi2)): sqrt(114 / (n chi2)) for one of 64
    components at alpha 1e-6 and power 0.999 (statistics.md section 2; 112 without rounding z).

    Accuracy: second order in e. The next term, -e^3 E_p(q/p - 1)^3 / 6, lowers the KL: check
    `leak_kl` at the answer if q/p is large on tokens that matter. Else valid where `detectable_kl`
    is, with its error rates: a prediction, not a guarantee. Source: elementary, a Taylor expansion.

    Args:
        n: tokens.
        chi2: chi2(q || p) = sum (q - p)^2 / p, averaged over the prefixes.
        threshold: L', see `log_threshold`.
        power: probability of an alarm.

    Returns:
        The leak, or None if even e = 1 would go unseen.

    Raises:
        UsageError: n < 1, chi2 <= 0, threshold <= 0 or power outside (0, 1).
    """
    if not chi2 > 0:
        raise UsageError(f"chi2 must be positive, got {chi2}: a leak towards p itself is none")
    leak = math.sqrt(2 * detectable_kl(n, threshold, power) / chi2)
    return leak if leak <= 1 else None


def leak_kl(leak: float, p: ArrayLike, q: ArrayLike) -> float:
    """KL((1 - e) p + e q || p) in nats, exactly; infinite if q leaks onto a token with p = 0.

    sum_x a ln(a/p) for a = (1 - e) p + e q (Kullback and Leibler 1951). Summed as
    p ((1 + y) ln(1 + y) - y), y = a/p - 1, whose terms are nonnegative, so that small leaks keep
    their digits. Valid for two laws on the same tokens; that they are laws is not checked.

    Args:
        leak: e, between 0 and 1.
        p: probabilities of the target [k].
        q: probabilities of the draft [k].

    Raises:
        UsageError: e outside [0, 1], or shapes that differ.
    """
    law, moved = _moved(leak, p, q)
    return _moments(law, moved)[0]


def leak_spread(leak: float, p: ArrayLike, q: ArrayLike) -> float:
    """Standard deviation of ln(a/p) under a = (1 - e) p + e q, for `samples_needed_e`.

    s^2 = sum_x a ln(a/p)^2 - KL(a || p)^2 (elementary: the variance of one term of ln E); about
    2 KL for small e. Valid for laws of one prefix that are laws, which is not checked. Over many
    prefixes the variance of KL between them comes on top.

    Args:
        leak: e, between 0 and 1.
        p: probabilities of the target [k].
        q: probabilities of the draft [k].

    Raises:
        UsageError: e outside [0, 1], shapes that differ, or an infinite `leak_kl`.
    """
    spread = _moments(*_moved(leak, p, q))[1]
    if math.isinf(spread):
        raise UsageError("the draft leaks onto tokens with p = 0: the log ratio has no spread")
    return spread


def hardest_leak(tv: float, overlap: float) -> tuple[float, float, float]:
    """The leak of this total variation that is hardest to see, over all models of this overlap.

    Let A be the tokens with q > p, so TV(p, q) = q(A) - p(A) = 1 - overlap, which leaves
    p(A) <= overlap. A leak a = (1 - e) p + e q of total variation X moves p(A) to p(A) + X. Merging
    tokens only lowers KL (data processing), hence KL(a || p) >= min over P <= overlap of
    kl(P + X || P), kl being the divergence of two coins. That is at least 2 X^2 (Pinsker 1964), and
    much more where the overlap is small: then the draft's tokens are rare under the target.

    It is attained by models of two tokens. Where p and q spread over more, the KL at the same X is
    larger: 1.5 times for the pair of 8 tokens in statistics.md section 3, 2.5 to 2.7 times for
    those of 64 to 50,000.

    Args:
        tv: X, total variation of the leak, at most 1 - overlap: e (1 - overlap).
        overlap: sum of min(p, q), in (0, 1).

    Returns:
        P = p(A) of the minimum, the KL there, and the standard deviation of ln(a/p).

    Raises:
        UsageError: overlap outside (0, 1), or tv outside (0, 1 - overlap].
    """
    if not 0 < overlap < 1 or not 0 < tv <= 1 - overlap:
        raise UsageError(
            "a leak towards a draft of this overlap has 0 < overlap < 1 and a total variation "
            f"between 0 and 1 - overlap, got tv={tv}, overlap={overlap}"
        )

    def two_tokens(rate: float) -> tuple[float, float]:
        return _moments(np.array([rate, 1 - rate]), np.array([tv, -tv]))

    # Convex in P, as KL is in both arguments together.
    inner = fminbound(lambda rate: two_tokens(rate)[0], 0.0, overlap, xtol=1e-9 * overlap)
    rate = min((np.asarray(inner).item(), overlap), key=lambda rate: two_tokens(rate)[0])
    return rate, *two_tokens(rate)


def samples_needed_leak(
    tv: float, overlap: float, threshold: float, power: float = 0.999
) -> int | None:
    """Tokens that reveal any leak towards the draft of this total variation.

    `samples_needed_e` at `hardest_leak`, with the spread it has; where the draft's tokens are so
    rare that a few hits decide, at least ln(1/(1 - power)) / X, or none would have been seen. With
    overlap 0 only the latter is left: every leaked token is an impossible one.

    Valid where `samples_needed_e` is, for the hardest pair of models of this overlap. A prediction,
    not a guarantee. Error rates: those of `detectable_kl`.

    Args:
        tv: X = e (1 - overlap), the total variation between what is emitted and the target.
        overlap: sum of min(p, q), in [0, 1).
        threshold: L', see `log_threshold`.
        power: probability of an alarm.

    Returns:
        Tokens, or None if X > 1 - overlap: no leak goes that far.

    Raises:
        UsageError: tv outside (0, 1), overlap outside [0, 1), threshold <= 0 or power outside
            (0, 1).
    """
    if not 0 < tv < 1 or not 0 <= overlap < 1:
        raise UsageError(f"needs 0 < tv < 1 and 0 <= overlap < 1, got tv={tv}, overlap={overlap}")
    _evidence(threshold, power, 1.0)
    if tv > 1 - overlap:
        return None
    once = _whole(math.log1p(-power) / math.log1p(-tv))
    if overlap == 0:
        return once
    _, kl, spread = hardest_leak(tv, overlap)
    return max(once, samples_needed_e(kl, threshold, power, spread=spread))


def dirichlet_evidence(
    statistic: float, n: int, cells: int, concentrations: Sequence[float] = CONCENTRATIONS
) -> float:
    """Predict ln E of `dirichlet.log_dirichlet` from Pearson's statistic X2 of n observations.

    Laplace approximation: a Dirichlet of concentration c around p is about normal in
    (a - p) / sqrt p with variance 1/c, the empirical law about normal with variance 1/n, so the
    bet has ln E = -(k-1)/2 ln(1 + n/c) + n/(n + c) X2 / 2. The first term is the price of not
    knowing the direction; the best concentration, n (k-1) / (X2 - (k-1)), is in the mixture up to
    its spacing. Equal weights.

    Validity: c p_i >= 1 and n p_i >= 5 or so on the cells that matter, for the c that matters.

    Args:
        statistic: X2 = sum (N - n p)^2 / (n p).
        n: observations.
        cells: k.
        concentrations: that are mixed.
    """
    c = np.asarray(concentrations, np.float64)
    price = (cells - 1) / 2 * np.log1p(n / c)
    terms = n / (n + c) * statistic / 2 - price
    return float(np.logaddexp.reduce(terms)) - math.log(len(c))


def samples_needed_dirichlet(
    divergence: float,
    cells: int,
    threshold: float,
    power: float = 0.999,
    *,
    concentrations: Sequence[float] = CONCENTRATIONS,
) -> int:
    """Observations after which a Dirichlet e-process on k cells has seen any such deviation.

    X2 is noncentral chi-squared with k - 1 degrees of freedom and noncentrality n chi2(a || p);
    its 1 - power quantile goes into `dirichlet_evidence`, which has to reach the threshold. For a
    total variation take chi2 = 4 TV^2, which it is at least (Cauchy-Schwarz).

    Accuracy: within 5 % of simulation for 8 to 1024 cells and relative deviations of 2 to 15 %; the
    validity is that of `dirichlet_evidence`.

    Args:
        divergence: chi2(a || p) = sum (a - p)^2 / p over the cells.
        cells: k, at least 2.
        threshold: L', see `log_threshold`.
        power: probability of an alarm by then.
        concentrations: of the Dirichlet bets that are mixed.

    Raises:
        UsageError: divergence not positive and finite, cells < 2, threshold <= 0, power outside
            (0, 1), or more than 2^62 observations needed.
    """
    if not 0 < divergence < math.inf or cells < 2:
        raise UsageError(
            "needs a positive, finite divergence and at least 2 cells, got "
            f"divergence={divergence}, cells={cells}"
        )
    _evidence(threshold, power, 1.0)

    def reached(n: int) -> bool:
        return _seen(n * divergence, n, cells, power, concentrations) >= threshold

    low, high = 0, 1
    while not reached(high):
        low, high = high, 2 * high
        if high > _MOST:
            raise UsageError(_TOO_MANY)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def detectable_dirichlet(
    n: int,
    cells: int,
    threshold: float,
    power: float = 0.999,
    *,
    concentrations: Sequence[float] = CONCENTRATIONS,
) -> float:
    """Smallest chi2(a || p) that n observations of k cells reveal with probability `power`.

    chi2 = lambda / n, lambda the root of evidence(Q(lambda)) = L', where Q is the 1 - power
    quantile of a noncentral chi-squared law with k - 1 degrees of freedom (Patnaik 1949) and
    evidence is `dirichlet_evidence` (Laplace's approximation of the mixture of Good 1967). The
    other direction of `samples_needed_dirichlet`. Any deviation of total variation sqrt(chi2) / 2
    or more has at least that divergence (elementary: Cauchy-Schwarz).

    Valid where `dirichlet_evidence` is. A prediction, not a guarantee. Error rates: the alarm under
    the null has the probability that `log_threshold` was asked for, at every look; at n such a
    deviation is missed with probability about 1 - power.

    Args:
        n: observations.
        cells: k, at least 2.
        threshold: L', see `log_threshold`.
        power: probability of an alarm by then.
        concentrations: of the Dirichlet bets that are mixed.

    Raises:
        UsageError: n < 1, cells < 2, threshold <= 0 or power outside (0, 1).
    """
    _check_n(n)
    if cells < 2:
        raise UsageError(f"one cell cannot deviate, got cells={cells}")
    _evidence(threshold, power, 1.0)

    def excess(noncentrality: float) -> float:
        return _seen(noncentrality, n, cells, power, concentrations) - threshold

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(root_scalar(excess, bracket=(0.0, high), method="brentq").root) / n


def _seen(
    noncentrality: float, n: int, cells: int, power: float, concentrations: Sequence[float]
) -> float:
    """Evidence that is exceeded with probability `power`."""
    quantile = np.asarray(ncx2.ppf(1 - power, cells - 1, max(noncentrality, 1e-9)))
    return dirichlet_evidence(quantile.item(), n, cells, concentrations)


_TOO_MANY = "more than 2^62 observations would be needed; ask for a larger deviation"


def _evidence(threshold: float, power: float, ratio: float) -> float:
    """x^2: the n KL at which ln E passes the threshold with probability `power`."""
    if not 0 < threshold < math.inf or not 0 < power < 1:
        raise UsageError(
            f"needs a positive threshold and 0 < power < 1, got threshold={threshold}, "
            f"power={power}"
        )
    scatter = float(ndtri(power)) * ratio
    return ((scatter + math.sqrt(scatter**2 + 4 * threshold)) / 2) ** 2


def _whole(n: float) -> int:
    if n > _MOST:
        raise UsageError(_TOO_MANY)
    return max(1, math.ceil(n))


def _check_n(n: int) -> None:
    if n < 1:
        raise UsageError(f"nothing is detectable without observations, got n={n}")


def _moved(
    leak: float, p: ArrayLike, q: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The target's law, and what the leak adds to it."""
    law, draft = np.asarray(p, np.float64), np.asarray(q, np.float64)
    if not 0 <= leak <= 1 or law.shape != draft.shape:
        raise UsageError(
            f"a leak lies in [0, 1] and needs p and q of one shape, got e={leak}, shapes "
            f"{law.shape} and {draft.shape}"
        )
    return law, leak * (draft - law)


def _moments(law: NDArray[np.float64], moved: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation of ln(a/p) under a = p + moved."""
    possible = law > 0
    if (moved[~possible] > 0).any():
        return math.inf, math.inf
    p, x = law[possible], np.maximum(moved[possible] / law[possible], -1.0)
    # KL = sum p ((1 + x) ln(1 + x) - x) has no negative term, so small leaks keep their digits.
    exact = xlog1py(1 + x, x) - x
    series = x**2 * (1 / 2 - x * (1 / 6 - x * (1 / 12 - x / 20)))
    kl = float((p * np.where(np.abs(x) < 1e-3, series, exact)).sum())
    log_ratio = np.log1p(np.where(x > -1, x, 0.0))
    second = float((p * (1 + x) * log_ratio**2).sum())
    return kl, math.sqrt(max(0.0, second - kl**2))
