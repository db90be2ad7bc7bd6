import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.statistics.bets import Bets
from specverify.statistics.dirichlet import log_dirichlet
from specverify.statistics.mixture import BINS, TokenSums, log_mixture
from specverify.statistics.pit import pit_interval

PLAIN = Bets.standard(raw=False)


@dataclass
class Contexts:
    """A small world: contexts with laws p and q, and what each token of each contributes."""

    p: np.ndarray
    q: np.ndarray

    def __post_init__(self):
        n, size = self.p.shape
        tokens = np.tile(np.arange(size), n)
        rows = [np.repeat(law, size, axis=0) for law in (self.p, self.q)]
        self.logs = PLAIN.log_ratios(tokens, *rows)
        self.intervals = [
            pit_interval(rows[0], tokens, "ratio", rows[1]),
            pit_interval(rows[0], tokens, "probability"),
            pit_interval(rows[0], tokens, "index"),
        ]

    @staticmethod
    def random(rng, n=6, size=8):
        return Contexts(*rng.dirichlet(np.full(size, 0.7), size=(2, n)))

    def draw(self, rng, n, law=None, contexts=None):
        """Sums of n tokens drawn from `law` instead of p; the stratum is the context mod 3."""
        law = self.p if law is None else law
        context = rng.integers(0, len(law), n) if contexts is None else contexts
        edges = law.cumsum(1)[context]
        token = (edges <= (rng.random(n) * edges[:, -1])[:, None]).sum(1)
        pick = context * law.shape[1] + token
        numbers = [lower[pick] + rng.random(n) * width[pick] for lower, width in self.intervals]
        possible = self.p.ravel()[pick] > 0
        return TokenSums.of(self.logs[pick], numbers, context % 3, 3, possible)


def leak(world, rate):
    return (1 - rate) * world.p + rate * world.q


def test_equals_the_definition():
    rng = np.random.default_rng(0)
    world = Contexts.random(rng)
    sums = world.draw(rng, 200, leak(world, 0.3))

    def value(logs, bins, n):
        uniform = np.full(BINS, 1 / BINS)
        fixed = (np.exp(PLAIN.log_weights + logs)).sum()
        learned = [math.exp(log_dirichlet(row, uniform)) for row in bins]
        return (0.75 * fixed + 0.25 * np.mean(learned)) * math.exp(-0.01 * n)

    whole = value(sums.logs.sum(0), sums.bins.sum(1), sums.n.sum())
    parts = [value(sums.logs[s], sums.bins[:, s], sums.n[s]) for s in range(3)]
    mixture = log_mixture(sums, PLAIN, slack=0.01)
    assert mixture.log_e == pytest.approx(math.log(whole / 2 + np.mean(parts) / 2), rel=1e-12)
    total = sum(math.exp(part) for part in mixture.components.values())
    assert math.log(total) == pytest.approx(mixture.log_e, rel=1e-12)


def test_sums_of_parts_add_up():
    rng = np.random.default_rng(1)
    world = Contexts.random(rng)
    first, second = world.draw(rng, 50), world.draw(rng, 80)
    both = TokenSums.zeros(3, len(PLAIN.names)) + first + second
    assert both.n.sum() == 130
    assert both.bins.sum() == 3 * 130
    np.testing.assert_allclose(both.logs, first.logs + second.logs)


def test_no_tokens_are_no_evidence():
    mixture = log_mixture(TokenSums.zeros(4, len(PLAIN.names)), PLAIN)
    assert mixture.log_e == pytest.approx(0, abs=1e-12)


def test_an_empty_stratum_contributes_one():
    rng = np.random.default_rng(2)
    world = Contexts.random(rng)
    sums = world.draw(rng, 300, contexts=np.zeros(300, np.int64))
    components = log_mixture(sums, PLAIN).components
    empty = [math.exp(v) for name, v in components.items() if name.startswith("stratum 2: ")]
    assert sum(empty) == pytest.approx(0.5 / 3, rel=1e-12)


def share_that_crosses(worlds, runs, levels, rate=0.0):
    """Of runs that stop at the first end of a shard where E reaches 1/alpha, by alpha."""
    rng = np.random.default_rng(3)
    highest = np.full(runs, -np.inf)
    for run in range(runs):
        world = worlds[run % len(worlds)]
        sums = TokenSums.zeros(3, len(PLAIN.names))
        for _ in range(6):
            sums += world.draw(rng, 150, leak(world, rate))
            highest[run] = max(highest[run], log_mixture(sums, PLAIN).log_e)
            if highest[run] >= -math.log(min(levels)):
                break
    return [(highest >= -math.log(alpha)).mean() for alpha in levels]


@pytest.mark.parametrize("runs", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_crosses_no_more_often_than_promised_wherever_one_looks(runs):
    worlds = [Contexts.random(np.random.default_rng(seed)) for seed in range(20)]
    levels = (0.1, 0.01)
    for alpha, share in zip(levels, share_that_crosses(worlds, runs, levels), strict=True):
        assert share <= alpha + 3 * math.sqrt(alpha / runs)
    assert min(share_that_crosses(worlds, 50, levels, rate=0.5)) > 0.9


def test_has_mean_one_under_the_null():
    """Exact over the tokens of one step; `test_dirichlet` has the same for the bins."""
    world = Contexts.random(np.random.default_rng(4), n=3)
    factors = np.exp(PLAIN.log_weights + world.logs).sum(1).reshape(world.p.shape)
    np.testing.assert_allclose((world.p * factors).sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize(
    ("law", "n", "name"),
    [
        (lambda w: leak(w, 0.1), 12_000, "leak to q"),
        (
            lambda w: np.minimum(w.p, w.q) + (1 - np.minimum(w.p, w.q).sum(1))[:, None] * w.p,
            2_000,
            "residual = p",
        ),
        (lambda w: w.p**1.125 / (w.p**1.125).sum(1, keepdims=True), 20_000, "temperature 0.889"),
    ],
    ids=["leak", "residual", "temperature"],
)
def test_wrong_laws_are_rejected_and_named(law, n, name):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        world = Contexts.random(rng)
        mixture = log_mixture(world.draw(rng, n, law(world)), PLAIN)
        assert mixture.log_e > math.log(1e6)
        best, share = mixture.best()
        assert best.startswith(name)
        assert 0 < share <= 1
        assert log_mixture(world.draw(rng, n), PLAIN).log_e < math.log(10)


def test_a_law_that_no_bet_foresees_is_learned_from_the_bins():
    rng = np.random.default_rng(5)
    p = np.tile(rng.dirichlet(np.full(16, 5.0)), (3, 1))
    world = Contexts(p, np.roll(p, 5, axis=1))
    odd = p * (1 + 0.3 * (-1.0) ** np.argsort(np.argsort(-p[0])))
    odd /= odd.sum(1, keepdims=True)
    sums = world.draw(rng, 8_000, odd)
    silent = replace(PLAIN, log_weights=np.full(len(PLAIN.names), -np.inf))
    mixture = log_mixture(sums, silent)
    assert mixture.log_e > math.log(1e6)
    assert "bins in" in mixture.best()[0]


def test_a_deviation_in_one_stratum_is_found_there():
    """Opposite faults in two strata cancel out in the whole."""
    rng = np.random.default_rng(6)
    p = rng.dirichlet(np.full(8, 5.0))
    q = np.roll(p, 3)
    world = Contexts(np.tile(p, (3, 1)), np.tile(q, (3, 1)))
    shift = 0.08 * (q - p)
    wrong = np.stack([p - shift, p + shift, p])
    assert (wrong > 0).all()
    sums = world.draw(rng, 60_000, wrong)
    mixture = log_mixture(sums, PLAIN)
    assert mixture.log_e > math.log(1e6)
    assert mixture.best()[0].startswith(("stratum 0: ", "stratum 1: "))
    whole = [v for name, v in mixture.components.items() if not name.startswith("stratum")]
    assert max(whole) < math.log(10)


def test_slack_covers_what_it_says_and_no_more():
    rng = np.random.default_rng(7)
    world = Contexts(*rng.dirichlet(np.full(8, 3.0), size=(2, 6)))
    within = world.p * (1 + 0.05 * np.sign(world.q - world.p))
    within /= within.sum(1, keepdims=True)
    worst = (within / world.p).max() - 1
    sums = world.draw(rng, 100_000, within)
    assert log_mixture(sums, PLAIN).log_e > math.log(1e6)  # without slack it is a deviation
    assert log_mixture(sums, PLAIN, slack=math.log1p(worst)).log_e < 0
    drift = np.einsum("cv,cvj->cj", within, np.exp(world.logs.reshape(6, 8, -1)))
    assert drift.max() <= 1 + worst + 1e-12
    assert log_mixture(world.draw(rng, 40_000, leak(world, 0.9)), PLAIN, slack=0.05).log_e > 100


def test_impossible_tokens_leave_everything_but_their_number():
    rng = np.random.default_rng(8)
    p = np.array([[0.5, 0.5, 0.0]])
    world = Contexts(p, np.array([[0.2, 0.3, 0.5]]))
    sums = world.draw(rng, 500, np.array([[0.0, 0.0, 1.0]]))
    assert sums.n.sum() == 500
    assert not sums.bins.any()
    assert not sums.logs.any()
    assert log_mixture(sums, PLAIN).log_e == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: log_mixture(TokenSums.zeros(2, 5), PLAIN), "need logs"),
        (lambda: log_mixture(TokenSums.zeros(0, len(PLAIN.names)), PLAIN), "0 strata"),
        (
            lambda: log_mixture(TokenSums.zeros(1, len(PLAIN.names)), PLAIN, slack=-1.0),
            "slack is",
        ),
        (lambda: TokenSums.of(np.zeros((1, 2)), [np.zeros(1)] * 2, [3], 3), "of 3"),
        (lambda: TokenSums.of(np.zeros((1, 2)), [np.zeros(1)], [0], 3), "orders"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()
