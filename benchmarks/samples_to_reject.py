"""Tokens until a wrong sampler is rejected, over the fewest any test could need.

Four deviations of a Zipf law p with a draft q: i, 1 % of the tokens are draft tokens that nobody
verified; ii, corrections are drawn from p; iii, target and draft have temperature 0.7 and the ratio
is taken with the raw q; iv, an impossible token at a rate of 1e-4. Every figure is the number of
tokens at which the test rejects at alpha 1e-6 with probability 0.999, divided by that of the
likelihood-ratio test of Neyman and Pearson, which knows the deviation and the number of tokens in
advance. For iv that is the number that shows one impossible token, which decides by itself where
coins have the resolution of float64. With those of float32, the default, the coins may emit a few,
and any test needs three of them, 1.63 times the number; the figure is over the same one.

The decision looks at ten strata as well, drawn at random, so that they cost and do not help.
"outside" is the same decision with the weight of the library, leaks towards q among it, taken away
and given to nobody: what a fault costs that nobody foresaw.

    python benchmarks/samples_to_reject.py [--quick]
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from common import goal, parse_quick
from numpy.typing import NDArray
from scipy.stats import binom, chi2, norm

from specverify.statistics.bets import Bets
from specverify.statistics.goodness import chi_squared, g_test
from specverify.statistics.mixture import BINS, TokenSums, log_mixture
from specverify.statistics.pit import ratio_order
from specverify.statistics.support import support_e_value

ALPHA, MISSED = 1e-6, 1e-3
THRESHOLD = -math.log(ALPHA)
Z_ALPHA, Z_MISSED = float(norm.isf(ALPHA)), float(norm.isf(MISSED))
VOCABULARIES = (8, 64, 1024, 50_000)
STRATA = 10
IMPOSSIBLE = 1e-4
GOAL, GOAL_OUTSIDE = 1.9, 3.5
FIRST, STEP, LARGEST = 0.8, 1.25, 60.0
"""Multiples of the number of Neyman and Pearson at which tests are tried."""
SEED = 1
UNDEFINED = ("chi-squared", "G")
"""Tests that have no expected count of an impossible token, and leave such tokens out."""
IMPOSSIBLE_SIZE = 64
"""Possible tokens of the law at which DKW is tried on impossible ones; it hardly matters."""

Law = NDArray[np.float64]


@dataclass(frozen=True)
class Deviation:
    """What is emitted, and what it is held against."""

    name: str
    emitted: Law
    p: Law
    q: Law
    raw: tuple[Law, Law] | None = None


def tempered(law: Law, temperature: float) -> Law:
    """The law at another temperature."""
    powers = law ** (1 / temperature)
    return powers / powers.sum()


def deviations(size: int) -> list[Deviation]:
    """Deviations i to iii at a vocabulary."""
    rng = np.random.default_rng(SEED)
    p = 1 / np.arange(1, size + 1)
    p /= p.sum()
    q = p**0.9 * np.exp(0.7 * rng.standard_normal(size))
    q /= q.sum()
    leak = 0.99 * p + 0.01 * q
    kept = np.minimum(p, q)
    cold_p, cold_q = tempered(p, 0.7), tempered(q, 0.7)
    mixed = cold_q * np.minimum(1, cold_p / q)
    residual = np.maximum(cold_p - q, 0)
    mixed += (1 - mixed.sum()) * residual / residual.sum()
    return [
        Deviation("i   leak 1 %", leak, p, q),
        Deviation("ii  residual = p", kept + (1 - kept.sum()) * p, p, q),
        Deviation("iii temperature 0.7, raw q", mixed, cold_p, cold_q, (p, q)),
    ]


def impossible() -> Deviation:
    """Deviation iv: one token more than there are, which only the draft allows."""
    leak = deviations(IMPOSSIBLE_SIZE)[0]
    p, q = np.append(leak.p, 0.0), np.append(leak.q, IMPOSSIBLE)
    emitted = np.append((1 - IMPOSSIBLE) * leak.p, IMPOSSIBLE)
    return Deviation("iv  impossible", emitted, p, q / q.sum())


def neyman_pearson(deviation: Deviation) -> float:
    """Tokens the likelihood-ratio test needs, by the normal approximation of its statistic."""
    a, p = deviation.emitted, deviation.p
    log_ratio = np.log(a / p)
    under_a, under_p = float(a @ log_ratio), float(p @ log_ratio)
    spread_a = math.sqrt(float(a @ log_ratio**2) - under_a**2)
    spread_p = math.sqrt(float(p @ log_ratio**2) - under_p**2)
    return ((Z_ALPHA * spread_p + Z_MISSED * spread_a) / (under_a - under_p)) ** 2


def spread_over_bins(p: Law, order: NDArray[np.intp]) -> Law:
    """[V, bins]: the part of each token's interval that lies in each bin."""
    upper = np.minimum(p[order].cumsum(), 1.0)
    lower = np.concatenate([[0.0], upper[:-1]])
    edges = np.arange(BINS + 1) / BINS
    low = np.maximum(lower[:, None], edges[:-1])
    high = np.minimum(upper[:, None], edges[1:])
    parts = np.empty((len(p), BINS))
    parts[order] = np.maximum(high - low, 0)
    return parts / parts.sum(-1, keepdims=True)


class Decision:
    """The margins of the decision, and of the decision without its library, for one law."""

    def __init__(self, deviation: Deviation, rng: np.random.Generator) -> None:
        self.emitted, self.rng, self.best = deviation.emitted, rng, ""
        self.bets = Bets.standard(raw=deviation.raw is not None)
        kept = np.array([family != "library" for family in self.bets.families])
        without = np.where(kept, self.bets.log_weights, -np.inf)
        self.outside = replace(self.bets, log_weights=without)
        self.table = self.bets.table(deviation.p, deviation.q, *(deviation.raw or ()))
        orders = (
            ratio_order(deviation.p, deviation.q),
            np.argsort(-deviation.p, kind="stable"),
            np.arange(len(deviation.p)),
        )
        self.parts = [spread_over_bins(deviation.p, order) for order in orders]
        self.cut = [np.flatnonzero(parts.max(-1) < 1) for parts in self.parts]
        self.place = [parts.argmax(-1) for parts in self.parts]

    def margins(self, n: int) -> list[float]:
        """Of n new tokens."""
        sizes = self.rng.multinomial(n, np.full(STRATA, 1 / STRATA))
        counts = self.rng.multinomial(sizes, self.emitted)
        bins = np.zeros((len(self.parts), STRATA, BINS), np.int64)
        for row, (parts, cut) in enumerate(zip(self.parts, self.cut, strict=True)):
            # Tokens whose interval an edge cuts are few; the coins of the others do not matter.
            whole = counts.copy()
            whole[:, cut] = 0
            for stratum, tokens in enumerate(whole):
                bins[row, stratum] = np.bincount(self.place[row], tokens, BINS).astype(np.int64)
            bins[row] += self.rng.multinomial(counts[:, cut], parts[cut]).sum(1)
        sums = TokenSums(sizes, counts.astype(np.float64) @ self.table, bins)
        mixture = log_mixture(sums, self.bets)
        self.best = mixture.best()[0]
        return [mixture.log_e - THRESHOLD, log_mixture(sums, self.outside).log_e - THRESHOLD]


class FixedTests:
    """The margins of three tests of a fixed number of tokens, for one law."""

    def __init__(self, deviation: Deviation, rng: np.random.Generator) -> None:
        self.deviation, self.rng = deviation, rng
        self.order = ratio_order(deviation.p, deviation.q)
        self.expected = deviation.p[self.order].cumsum()

    def margins(self, n: int) -> list[float]:
        """Of n new tokens: chi-squared, G, and the largest gap of distribution functions."""
        counts = self.rng.multinomial(n, self.deviation.emitted)
        results = [test(counts, self.deviation.p) for test in (chi_squared, g_test)]
        margins = [r.statistic - float(chi2.isf(ALPHA, r.df)) if r.df else -1.0 for r in results]
        gap = float(np.abs(counts[self.order].cumsum() / n - self.expected).max())
        return [*margins, gap * math.sqrt(n) - math.sqrt(math.log(2 / ALPHA) / 2)]


def multiples(
    names: tuple[str, ...], sample: Callable[[int], list[float]], best: float, repeats: int
) -> dict[str, float]:
    """Multiples of `best` at which tests have their power; tests that never do are left out.

    The margin of a test is normal enough for its mean less 3.09 standard deviations to be its
    0.001 quantile; the root of that is interpolated in the logarithm of n.
    """
    found: dict[str, float] = {}
    before: dict[str, tuple[float, float]] = {}
    multiple = FIRST
    while len(found) < len(names) and multiple <= LARGEST:
        values = np.array([sample(max(STRATA, round(multiple * best))) for _ in range(repeats)])
        quantiles = values.mean(0) - Z_MISSED * values.std(0, ddof=1)
        for name, quantile in zip(names, quantiles.tolist(), strict=True):
            if name not in found and quantile >= 0:
                last, below = before.get(name, (multiple, -1.0))
                found[name] = last * (multiple / last) ** (below / (below - quantile))
            before[name] = (multiple, quantile)
        multiple *= STEP
    return found


def impossible_multiple(dtype: str) -> float:
    """The same multiple for impossible tokens: binomial hits, no simulation."""
    best = math.log(MISSED) / math.log1p(-IMPOSSIBLE)
    n = math.ceil(best)
    while True:
        hits = 1
        while support_e_value(hits, n, dtype=dtype).statistic < THRESHOLD:
            hits += 1
        if binom.sf(hits - 1, n, IMPOSSIBLE) >= 1 - MISSED:
            return n / best
        n = math.ceil(n * 1.002)


def main() -> None:
    """Search and print."""
    quick = parse_quick("Tokens until a wrong sampler is rejected")
    started = time.perf_counter()
    decisions, fixed = ("decision", "outside"), ("chi-squared", "G", "DKW")
    columns, never = (*decisions, *fixed), f"{f'>{LARGEST:.0f}':>12}"
    print(f"{'V':>7} {'deviation':<28}{'NP':>11}" + "".join(f"{c:>12}" for c in columns))
    worst = dict.fromkeys(decisions, 0.0)
    for size in VOCABULARIES:
        repeats = (16 if size > 1024 else 24) if quick else (50 if size > 1024 else 120)
        for deviation in deviations(size):
            best = neyman_pearson(deviation)
            rng = np.random.default_rng(SEED + 1)
            decision, others = Decision(deviation, rng), FixedTests(deviation, rng)
            found = multiples(decisions, decision.margins, best, repeats)
            found |= multiples(fixed, others.margins, best, repeats // 2)
            cells = [f"{found[c]:>12.2f}" if c in found else never for c in columns]
            print(
                f"{size:>7} {deviation.name:<28}{best:>11.4g}"
                + "".join(cells)
                + f"  {decision.best}"
            )
            for test in worst:
                worst[test] = max(worst[test], found.get(test, math.inf))
    best = math.log(MISSED) / math.log1p(-IMPOSSIBLE)
    others = FixedTests(impossible(), np.random.default_rng(SEED + 1))
    fixed_found = multiples(fixed, others.margins, best, 12 if quick else 60)
    for dtype in ("float64", "float32"):
        multiple = impossible_multiple(dtype)
        found = fixed_found | dict.fromkeys(decisions, multiple)
        cells = [
            f"{'-':>12}" if c in UNDEFINED else f"{found[c]:>12.2f}" if c in found else never
            for c in columns
        ]
        label = f"iv  impossible, {dtype} coins"
        print(f"{'any':>7} {label:<28}{best:>11.4g}" + "".join(cells))
        worst = {test: max(value, multiple) for test, value in worst.items()}
    print()
    print(f"- leaves impossible tokens out, and is undefined; {never.strip()} no power up to there")
    print(goal("decision, worst cell", worst["decision"], GOAL, at_least=False))
    print(goal("outside the library", worst["outside"], GOAL_OUTSIDE, at_least=False))
    noise = 20 if quick else 10
    print(f"{time.perf_counter() - started:.0f} s; figures may be {noise} % off, by chance")


if __name__ == "__main__":
    main()
