import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specverify.errors import UsageError
from specverify.exact.compare_round import WORST, Deviation, compare_round, completed
from specverify.exact.enumerate import expected_joint, round_distribution
from specverify.exact.joint import complete, largest_ratio, total_variation
from specverify.exact.round import Round


def fixed(rows) -> Round:
    """A round with one target row a position, whatever the prefix, and a uniform draft."""
    size = len(rows[0])
    return Round(
        lambda prefixes: np.tile(rows[prefixes.shape[1]], (len(prefixes), 1)),
        lambda prefixes: np.full((len(prefixes), size), 1 / size),
        size,
        len(rows) - 1,
    )


def some_tuples(rng, round: Round) -> dict:
    """Random masses on tuples of 1 to K+1 tokens."""
    size, length = round.vocab_size, round.num_draft_tokens + 1
    keys = {tuple(rng.integers(size, size=rng.integers(1, length + 1)).tolist()) for _ in range(12)}
    masses = rng.random(len(keys))
    return dict(zip(sorted(keys), (masses / masses.sum()).tolist(), strict=True))


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 4), width=st.integers(0, 3))
def test_tables_agree_with_the_dicts_of_joint(seed, size, width):
    round = Round.random(size, width, seed)
    emitted = some_tuples(np.random.default_rng(seed), round)
    whole = complete(emitted, round.completed_target, width + 1)
    expected = expected_joint(round)
    found = compare_round(round, emitted)
    assert completed(round, emitted) == pytest.approx(whole, abs=1e-15)
    assert found.total_variation == pytest.approx(total_variation(whole, expected), abs=1e-14)
    assert found.largest_ratio == pytest.approx(largest_ratio(whole, expected))
    first = {(token,): float(mass) for token, mass in enumerate(round.p(0)[0])}
    marginal = {key: sum(m for k, m in whole.items() if k[:1] == key) for key in first}
    assert found.first_token_total_variation == pytest.approx(total_variation(marginal, first))
    assert found.missing == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("algorithm", ["token", "block", "match"])
def test_tuples_cut_short_by_the_past_alone_pass(algorithm):
    """Look-alikes: no bonus token; only the first token of what was decided."""
    round = Round.random(3, 2, seed=3)
    for keep in (2, 1):
        cut: dict = {}
        for tokens, mass in round_distribution(algorithm, round).items():
            cut[tokens[:keep]] = cut.get(tokens[:keep], 0.0) + mass
        found = compare_round(round, cut)
        assert found.total_variation < 1e-15
        assert found.largest_ratio == pytest.approx(1)


def test_tuples_cut_short_by_what_is_withheld_do_not():
    """Only (0, 0) is cut, and drawn anew: half of its mass moves to (0, 1)."""
    round = fixed([[0.5, 0.5], [0.5, 0.5]])
    found = compare_round(round, {(0,): 0.25, (0, 1): 0.25, (1, 0): 0.25, (1, 1): 0.25})
    assert found.total_variation == 0.125
    assert found.first_token_total_variation == 0
    assert found.largest_ratio == 1.5
    assert found.worst == (Deviation((0, 0), 0.125, 0.25), Deviation((0, 1), 0.375, 0.25))


def one_token(p, q, correction) -> dict:
    """The token rule at K = 1 with another correction, bonus drawn from p again."""
    kept = np.minimum(p, q)
    emitted = {(y,): float((1 - kept.sum()) * correction[y]) for y in range(len(p))}
    return emitted | {(x, y): float(kept[x] * p[y]) for x in range(len(p)) for y in range(len(p))}


P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
OVERLAP = np.minimum(P, Q)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (np.maximum(P - Q, 0) / np.maximum(P - Q, 0).sum(), 0.0),
        (P, np.abs(OVERLAP - OVERLAP.sum() * P).sum() / 2),
        (np.abs(P - Q) / np.abs(P - Q).sum(), np.abs(P - Q).sum() / 4),
        (np.maximum(Q - P, 0) / np.maximum(Q - P, 0).sum(), np.abs(P - Q).sum() / 2),
    ],
    ids=["residual", "target", "absolute", "reversed"],
)
def test_wrong_corrections_are_off_by_what_algebra_says(correction, expected):
    """algorithms.md section 5, R1 to R3, beside the right rule."""
    found = compare_round(fixed([P, P]), one_token(P, Q, correction))
    assert found.total_variation == pytest.approx(expected, abs=1e-15)
    assert found.first_token_total_variation == pytest.approx(expected, abs=1e-15)


def test_a_bonus_token_from_the_draft_shows_in_the_last_token_only():
    """algorithms.md section 5, R16: off by P(all accepted) TV(p, q)."""
    emitted = one_token(P, Q, np.maximum(P - Q, 0) / np.maximum(P - Q, 0).sum())
    emitted |= {(x, y): float(OVERLAP[x] * Q[y]) for x in range(3) for y in range(3)}
    found = compare_round(fixed([P, P]), emitted)
    expected = OVERLAP.sum() * np.abs(P - Q).sum() / 2
    assert found.total_variation == pytest.approx(expected, abs=1e-15)
    assert found.first_token_total_variation < 1e-15


def test_impossible_tokens_are_named_by_the_shortest_prefix():
    round = fixed([[0.5, 0.5, 0], [0.5, 0, 0.5], [1, 0, 0]])
    emitted = {(0,): 0.5, (1, 0, 0): 0.2, (1, 1): 0.125, (1, 0, 2): 0.125, (2, 1): 0.05}
    found = compare_round(round, emitted)
    assert found.outside_support == {(1, 0, 2): 0.125, (1, 1): 0.125, (2,): 0.05}
    assert list(found.outside_support) == [(1, 0, 2), (1, 1), (2,)]
    assert found.largest_ratio == math.inf


def test_a_zero_that_is_only_underflow_is_no_impossible_sequence():
    round = fixed([[1 - 1e-200, 1e-200]] * 2)
    found = compare_round(round, {(1, 1): 1e-300, (0,): 1.0})
    assert found.outside_support == {}
    assert found.largest_ratio < math.inf


def test_what_no_round_may_emit_counts_as_impossible():
    round = fixed([[0.5, 0.5], [0.5, 0.5]])
    emitted = {(0,): 0.5, (): 0.25, (0, 0, 0): 0.125, (1, 2): 0.0625, (-1,): 0.0625}
    found = compare_round(round, emitted)
    assert found.outside_support == {(): 0.25, (0, 0, 0): 0.125, (-1,): 0.0625, (1, 2): 0.0625}
    assert found.total_variation == 0.5
    assert found.first_token_total_variation == 0.5
    assert Deviation((), 0.25, 0.0) in found.worst
    assert len(found.worst) == WORST
    with pytest.raises(UsageError, match=r"emitted \(\); it must emit 1 to 2 tokens from 0 to 1"):
        completed(round, emitted)


def test_missing_mass_is_an_outcome_of_its_own():
    round = fixed([[0.5, 0.5]])
    found = compare_round(round, {(0,): 0.5, (1,): 0.25})
    assert (found.total_variation, found.missing, found.largest_ratio) == (0.25, 0.25, 1.0)
    assert compare_round(round, {}).total_variation == 1.0
    with pytest.raises(UsageError, match=r"sums to 0\.75"):
        completed(round, {(0,): 0.5, (1,): 0.25})


def test_another_target_is_the_reference_and_completes():
    """A rule that transforms its rows: here it never emits token 2."""
    round = fixed([[0.25, 0.25, 0.5]] * 2)

    def without_two(prefixes):
        assert not (prefixes == 2).any(), "asked after a prefix it never produces"
        return np.tile([0.5, 0.5, 0], (len(prefixes), 1))

    right = {(0,): 0.5, (1, 0): 0.25, (1, 1): 0.25}
    assert compare_round(round, right, target=without_two).total_variation == 0
    assert compare_round(round, right).total_variation == 0.625
    wrong = {(0,): 0.5, (1, 0): 0.25, (2, 1): 0.25}
    found = compare_round(round, wrong, target=without_two)
    assert found.outside_support == {(2,): 0.25}
    assert found.total_variation == 0.25


@pytest.mark.parametrize("masses", [{(0,): 1.5}, {(0,): 1.5, (1,): -0.5}, {(0,): math.nan}])
def test_what_is_no_distribution_is_refused(masses):
    round = fixed([[0.5, 0.5]])
    for function in (compare_round, completed):
        with pytest.raises(UsageError, match="sums to"):
            function(round, masses)


def test_ratios_to_subnormal_probabilities_overflow_silently(recwarn):
    tiny = 1e-310
    round = fixed([[1.0, tiny], [0.5, 0.5]])
    found = compare_round(round, {(1,): 0.5, (0,): 0.5})
    assert found.largest_ratio == math.inf
    assert found.outside_support == {}
    assert not recwarn.list
