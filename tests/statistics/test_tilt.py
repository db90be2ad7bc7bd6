import math

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.tilt import IDLE, KAPPAS, TiltProcess

SHARDS = 16


class Source:
    """Groups of contexts: each context has a law of its own, tokens come from `actual`."""

    def __init__(self, seed, groups, contexts, vocab, concentration=0.5):
        self.rng = np.random.default_rng(seed)
        self.laws = self.rng.dirichlet(np.full(vocab, concentration), size=(groups, contexts))
        self.shares = self.rng.dirichlet(np.ones(contexts), size=groups)
        self.actual = self.laws

    def shard(self, tokens):
        met = self.rng.multinomial(tokens, self.shares)
        observed = self.rng.multinomial(met, self.actual).sum(axis=1)
        return observed, np.einsum("gc,gcv->gv", met, self.laws)


def zipf(size):
    weights = 1 / np.arange(1, size + 1)
    return weights / weights.sum()


@pytest.mark.parametrize(("contexts", "exact"), [(1, True), (5, False)])
def test_each_group_is_an_e_process(contexts, exact):
    """4,000 groups of their own laws, looked at after every shard."""
    source = Source(1, 4_000, contexts, 4)
    process, cheat = TiltProcess(4_000, 4), TiltProcess(4_000, 4)
    highest, cheated = np.zeros(4_000), np.zeros(4_000)
    for _ in range(SHARDS):
        shard = source.shard(40)
        process.update(*shard)
        highest = np.maximum(highest, process.group_log_es)
        cheat.update(*shard)  # a bet on a shard that it has learned from
        cheat.update(*shard)
        cheated = np.maximum(cheated, cheat.group_log_es)
    for alpha in (0.1, 0.01):
        crossed = int((highest >= -math.log(alpha)).sum())
        assert stats.binom.sf(crossed - 1, 4_000, alpha) > 1e-3
    assert (cheated >= math.log(100)).mean() > 0.04
    mean = np.exp(process.group_log_es)
    error = mean.std() / math.sqrt(4_000)
    assert mean.mean() < 1 + 4 * error
    if exact:  # no slack where the laws of a group agree
        assert mean.mean() > 1 - 4 * error


def exceedance(runs, alphas):
    highest = []
    for seed in range(runs):
        source, process = Source(seed, 6, 4, 5), TiltProcess(6, 5)
        values = []
        for _ in range(SHARDS):
            process.update(*source.shard(40))
            values.append(process.log_e)
        assert min(values) >= math.log(IDLE)
        highest.append(max(values))
    return [int((np.array(highest) >= -math.log(alpha)).sum()) for alpha in alphas]


@pytest.mark.parametrize("runs", [150, pytest.param(2_000, marks=pytest.mark.slow)])
def test_the_mixture_keeps_its_level(runs):
    alphas = (0.5, 0.1, 0.01)
    for alpha, crossed in zip(alphas, exceedance(runs, alphas), strict=True):
        assert stats.binom.sf(crossed - 1, runs, alpha) > 1e-3


def token_by_token(source, sizes):
    """Log martingale of one group, per kappa, from single tokens, and the process on their sums."""
    process = TiltProcess(1, source.laws.shape[2])
    logs, counts, expected = np.zeros(len(KAPPAS)), 0.0, 0.0
    for size in sizes:
        contexts = source.rng.choice(len(source.shares[0]), size, p=source.shares[0])
        laws = source.laws[0, contexts]
        tokens = np.array([source.rng.choice(len(law), p=law) for law in laws])
        if np.sum(counts):
            n, pi = np.sum(counts), expected / np.sum(counts)
            for index, kappa in enumerate(KAPPAS):
                tilt = (counts + kappa * pi) / ((n + kappa) * pi)
                logs[index] += (np.log(tilt[tokens]) - np.log(laws @ tilt)).sum()
        observed = np.bincount(tokens, minlength=laws.shape[1])
        process.update(observed[None], laws.sum(axis=0)[None])
        counts, expected = counts + observed, expected + laws.sum(axis=0)
    return np.logaddexp.reduce(logs) - math.log(len(KAPPAS)), process.group_log_es[0]


def test_sums_give_the_martingale_for_equal_laws_and_less_for_others():
    martingale, bound = token_by_token(Source(3, 1, 1, 4), [60, 30, 90])
    assert bound == pytest.approx(martingale, abs=1e-9)
    martingale, bound = token_by_token(Source(4, 1, 6, 4), [60, 30, 90])
    assert bound < martingale - 0.01


def test_a_deviation_in_one_group_of_twenty_costs_less_than_a_chi_squared_test():
    """Power 0.9 at 1e-6 takes chi-squared 6,693 tokens a group; 0.8 of them do here."""
    laws = np.tile(zipf(8), (20, 1))
    actual = laws.copy()
    actual[0] = 0.9 * laws[0] + 0.1 * np.roll(laws[0], 4)
    divergence = float(((actual - laws) ** 2 / laws).sum())
    threshold = stats.chi2.isf(1e-6, 20 * 7)
    assert stats.ncx2.sf(threshold, 20 * 7, 6_693 * divergence) == pytest.approx(0.9, abs=1e-3)
    rng, found = np.random.default_rng(5), 0
    per_shard = int(0.8 * 6_693 / SHARDS)
    for _ in range(40):
        process = TiltProcess(20, 8)
        for _ in range(SHARDS):
            process.update(rng.multinomial(np.full(20, per_shard), actual), per_shard * laws)
        found += process.log_e >= math.log(1e6)
        assert process.group_log_es.argmax() == 0
    assert found >= 36


def test_a_deviation_among_differing_laws_is_found():
    source, process = Source(6, 10, 8, 6), TiltProcess(10, 6)
    source.actual = 0.9 * source.laws + 0.1 * np.roll(source.laws, 1, axis=2)
    for _ in range(SHARDS):
        process.update(*source.shard(2_000))
    assert process.log_e > math.log(1e6)


def test_the_first_shard_is_not_bet_on_and_groups_never_met_cost_nothing():
    observed, expected = np.array([[90, 10], [0, 0]]), np.array([[50.0, 50.0], [0.0, 0.0]])
    process = TiltProcess(2, 2)
    process.update(observed, expected)
    assert process.log_e == pytest.approx(0.0, abs=1e-12)
    process.update(observed, expected)
    assert process.log_e > 10
    assert process.group_log_es[1] == 0


def test_the_order_inside_a_shard_does_not_matter_but_that_of_shards_does():
    source = Source(7, 3, 2, 4)
    shards = [source.shard(n) for n in (50, 200, 100)]

    def value(parts):
        process = TiltProcess(3, 4)
        for part in parts:
            process.update(*part)
        return process.log_e

    assert value(shards) == value(shards)
    assert value(shards) != pytest.approx(value(shards[::-1]), abs=1e-6)


def test_impossible_cells_are_left_out():
    """The look-alike: hits where nothing was expected are the support test's to judge."""
    process = TiltProcess(1, 3)
    for _ in range(5):
        process.update([[50, 47, 3]], [[50.0, 50.0, 0.0]])
    assert process.log_e < 0.5
    process.update([[50, 47, 3]], [[50.0, 47.0, 3.0]])  # possible from now on
    assert math.isfinite(process.log_e)


def test_a_real_vocabulary_is_cut_into_chunks():
    law = zipf(50_000)
    rng, process = np.random.default_rng(8), TiltProcess(60, 50_000)
    for _ in range(2):
        process.update(rng.multinomial(300, law, 60), np.tile(300 * law, (60, 1)))
    assert -1.5 < process.log_e < 5


@pytest.mark.parametrize(
    ("observed", "expected", "message"),
    [
        ([[1, 1]], [[1.0, 1.0]], r"observed \(1, 2\) and expected"),
        ([[3, 0], [0, 0]], [[1.0, 1.0], [0, 0]], "group 0 has 3 tokens"),
        ([[-1, 2], [0, 0]], [[0.5, 0.5], [0, 0]], "finite and nonnegative"),
        ([[1, 0], [0, 0]], [[math.nan, 1.0], [0, 0]], "finite and nonnegative"),
    ],
)
def test_invalid_shards_are_refused(observed, expected, message):
    with pytest.raises(UsageError, match=message):
        TiltProcess(2, 2).update(observed, expected)
