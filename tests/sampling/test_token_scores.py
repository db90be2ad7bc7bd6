"""Scores of tokens: what is kept does not grow with the vocabulary."""

import numpy as np
import pytest

from specverify.sampling.token_scores import ScoredTokens, TokenScores
from specverify.statistics.bets import Bets

BETS = Bets.standard(raw=True)
LARGE = 150_000


def scored(vocab: int, n: int = 12) -> ScoredTokens:
    rng = np.random.default_rng(0)
    p, q, p_raw, q_raw = rng.dirichlet(np.full(vocab, 0.3), size=(4, 3))
    rows = rng.integers(0, 3, n)
    tokens = np.array([rng.choice(vocab, p=p[row]) for row in rows])
    return ScoredTokens(tokens, rows % 2, np.ones(n, np.int64), rows, p, q, p_raw, q_raw)


@pytest.mark.parametrize("vocab", [50, LARGE])
def test_sums_are_those_of_the_laws_at_any_vocabulary(vocab: int) -> None:
    found, given = TokenScores(strata=2, bets=BETS, lags=1), scored(vocab)
    found.bet(given)
    at = given.rows, given.tokens
    # A leak is a mixture, whatever else there is.
    for column, rate in zip(BETS.leak_index, BETS.leak_grid, strict=True):
        expected = np.log(1 - rate + rate * given.q[at] / given.p[at])
        for stratum in (0, 1):
            of_stratum = expected[given.strata == stratum].sum()
            assert found.logs[stratum, column] == pytest.approx(of_stratum, abs=1e-9)
    assert found.n.sum() == len(given.tokens)
    assert found.hits[0] == 0


def test_what_is_kept_has_one_size() -> None:
    sizes = []
    for vocab in (50, LARGE):
        found = TokenScores(strata=2, bets=BETS, lags=1)
        found.bet(scored(vocab))
        sizes.append(sum(np.asarray(value).nbytes for value in found.state().values()))
    assert sizes[0] == sizes[1] < 100_000
