import math
import random

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from transformers.generation.utils import _speculative_sampling

from specverify.errors import CannotSteer
from specverify.exact import Round, compare_round, joint_distribution
from specverify.exact.edge_coins import edge_coin_outcomes, impossible_token, summary
from specverify.exact.steering.pinned import PinnedMode, Pins, pinned
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.verification import get_verification

MUTANTS = {mutant.id: mutant.subject.call for mutant in RULE_MUTANTS}


def fixed(target, draft, dtype=torch.float64) -> Round:
    """One target row and one draft row a position, whatever the prefix."""
    target, draft = np.array(target, float), np.array(draft, float)

    def rows(table):
        return lambda prefixes: np.tile(table[prefixes.shape[1]], (len(prefixes), 1))

    return Round(rows(target), rows(draft), target.shape[1], len(draft), dtype)


def without_first(num_draft_tokens, dtype=torch.float64) -> Round:
    """A target that never emits token 0, which the draft does propose."""
    base = Round.random(3, num_draft_tokens, seed=1)

    def target(prefixes):
        rows = np.array(base.target(prefixes))
        rows[:, 0] = 0
        return rows / rows.sum(1, keepdims=True)

    return Round(target, base.draft, 3, num_draft_tokens, dtype)


def reference(algorithm):
    verification = get_verification(algorithm)
    return lambda tokens, q, p, generator: verification(tokens, q, p, generator).tokens


def published(tokens, q, p, generator):
    """The rule of transformers, which takes one row of logits and the global generator."""
    width = tokens.shape[1]
    emitted, _ = _speculative_sampling(tokens, q.log(), width, p.log())
    return torch.nn.functional.pad(emitted, (0, width + 1 - emitted.shape[1]), value=-1)


def multinomial(weights, generator):
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def inverse(weights, generator):
    """A float32 cumulative sum that may end below the largest coin."""
    weights = weights.float()
    ends = (weights / weights.sum(1, keepdim=True)).cumsum(1)
    coins = torch.rand(len(weights), 1, generator=generator)
    return torch.searchsorted(ends, coins, right=True)[:, 0]


def gumbel(weights, generator):
    noise = torch.rand(weights.shape, dtype=weights.dtype, generator=generator)
    return (weights.log() - (-noise.log()).log()).argmax(1)


def no_draft(prefixes):
    raise AssertionError("nothing is drafted")


def rule(*, accepts=lambda u, p, q: u < p / q, last=multinomial, coins=torch.float64):
    """Token verification with the steps replaced."""

    def call(tokens, q, p, generator):
        index, rows = tokens[..., None], torch.arange(len(tokens))
        px, qx = (t[:, : tokens.shape[1]].gather(2, index)[..., 0] for t in (p, q))
        u = torch.rand(tokens.shape, dtype=coins, generator=generator)
        accepted = accepts(u, px, qx).long().cumprod(1).sum(1)
        residual = (p[:, :-1] - q).clamp(min=0)
        residual = torch.where(residual.sum(2, keepdim=True) > 0, residual, p[:, :-1])
        token = last(torch.cat([residual, p[:, -1:]], 1)[rows, accepted], generator)
        out = torch.cat([tokens, torch.full((len(tokens), 1), -1)], 1)
        out[rows, accepted] = token
        return out.masked_fill(torch.arange(out.shape[1]) > accepted[:, None], -1)

    return call


def wrong(outcomes):
    return [row for row in summary(outcomes) if row.kind != "right"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("algorithm", ["token", "block", "match"])
def test_reference_rules_are_right_at_every_edge(algorithm, dtype):
    outcomes = edge_coin_outcomes(reference(algorithm), without_first(1, dtype))
    assert not wrong(outcomes)
    assert {"u = 0", "largest below 1", "threshold", "below threshold", "above threshold"} <= {
        outcome.coin for outcome in outcomes
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_published_rule_accepts_an_impossible_token_at_zero(dtype):
    round = fixed(
        [[0, 0.4, 0.6], [0.5, 0.5, 0], [0.2, 0.2, 0.6]], [[0.5, 0.5, 0], [0, 0.5, 0.5]], dtype
    )
    rows = wrong(edge_coin_outcomes(published, round, batch=False))
    assert {(row.kind, row.coin) for row in rows} == {("finding", "u = 0")}
    assert {row.element for row in rows} == {0, 1}
    assert all("r_i = torch.rand_like" in row.line for row in rows)
    joint = joint_distribution(published, round, batch=False)
    outside = compare_round(round, joint.probabilities).outside_support
    assert sum(row.mass for row in rows) == pytest.approx(math.fsum(outside.values()), rel=1e-12)


def test_the_closed_test_is_a_finding_of_exact_mass():
    round = fixed([[0, 0.25, 0.75], [0.5, 0.25, 0.25]], [[0.5, 0.25, 0.25]])
    (row,) = wrong(edge_coin_outcomes(MUTANTS["test-closed"], round))
    assert (row.kind, row.coin, row.element, row.mass) == ("finding", "u = 0", 0, 0.5 * 2**-24)
    assert row.example.block == (0,)
    assert row.example.emitted[0] == 0
    assert row.example.value == 0.0


def test_a_guarded_closed_test_passes():
    """Look-alike: u <= p / q is right where p > 0."""
    guarded = rule(accepts=lambda u, p, q: (u <= p / q) & (p > 0), coins=torch.float32)
    closed = rule(accepts=lambda u, p, q: u <= p / q, coins=torch.float32)
    assert not wrong(edge_coin_outcomes(guarded, without_first(1)))
    assert wrong(edge_coin_outcomes(closed, without_first(1)))


def test_the_test_in_log_space_meets_the_logarithm_of_zero():
    closed = rule(accepts=lambda u, p, q: u.log() <= p.log() - q.log())
    open_ = rule(accepts=lambda u, p, q: u.log() < p.log() - q.log())
    (row,) = wrong(edge_coin_outcomes(closed, without_first(1)))
    assert row.mass == pytest.approx(without_first(1).q(0)[0, 0] * 2**-53)
    assert not wrong(edge_coin_outcomes(open_, without_first(1)))


@pytest.fixture(scope="module")
def short() -> Round:
    """In float32 the cumulative sum of its rows ends at 1 - 2^-23, two coins below 1."""
    weights = np.arange(1, 8) / 28
    return Round(lambda prefixes: [weights] * len(prefixes), no_draft, 7, 0)


def test_a_search_beyond_the_last_entry_emits_no_token(short):
    rows = wrong(edge_coin_outcomes(rule(last=inverse), short))
    assert {(row.kind, row.coin) for row in rows} == {
        ("finding", "largest below 1"),
        ("finding", "threshold"),
    }
    assert all("emits 7 at position 0" in row.example.detail for row in rows)
    assert [row.mass for row in rows] == pytest.approx([2**-24, 2**-24])
    clamped = rule(last=lambda w, g: inverse(w, g).clamp(max=6))
    assert not wrong(edge_coin_outcomes(clamped, short))


def test_an_index_beyond_the_end_crashes(short):
    names = torch.arange(7)
    rows = wrong(edge_coin_outcomes(rule(last=lambda w, g: names[inverse(w, g)]), short))
    assert {row.kind for row in rows} == {"crash"}
    assert "IndexError" in rows[0].example.detail
    assert sum(row.mass for row in rows) == pytest.approx(2**-23)


def test_a_gumbel_race_whose_only_runner_has_the_coin_zero():
    """Steering takes a race as ideal; run for real, all runners have -inf and the first wins."""
    round = fixed([[0, 1], [0.5, 0.5]], [[0.5, 0.5]])
    (row,) = wrong(edge_coin_outcomes(rule(last=gumbel), round))
    assert (row.kind, row.coin, row.mass) == ("finding", "u = 0", 0.5 * 2**-53)
    assert row.example.emitted == (0,)
    last = fixed([[1, 0], [0.5, 0.5]], [[0.5, 0.5]])
    assert not wrong(edge_coin_outcomes(rule(last=gumbel), last))


def test_an_emptied_residual_crashes_at_the_largest_coins():
    p = np.array([0.25, 0.25, 0.5])
    q = p + np.array([2.0**-53, 0, 0])
    round = fixed([p, p], [q])
    (row,) = wrong(edge_coin_outcomes(MUTANTS["residual-unchecked"], round))
    coins = math.ceil((1 - 0.25 / (0.25 + 2.0**-53)) * 2**53)
    assert row.kind == "crash"
    assert row.mass == pytest.approx(0.25 * coins * 2**-53)
    assert not wrong(edge_coin_outcomes(rule(), round))


def test_a_whole_path_that_is_wrong_is_one_violation():
    round = without_first(1)
    rows = wrong(edge_coin_outcomes(MUTANTS["always-accept"], round))
    assert [(row.kind, row.coin) for row in rows] == [("violation", "inside")]
    assert rows[0].mass == pytest.approx(round.q(0)[0, 0])


@pytest.mark.parametrize(
    ("dtype", "zeros"), [(torch.bfloat16, 1 + 2**15), (torch.float16, 1 + 2**12)]
)
def test_masses_count_every_integer_that_rounds_to_the_value(dtype, zeros):
    round = fixed([[0, 1], [0.5, 0.5]], [[0.5, 0.5]])
    closed = rule(accepts=lambda u, p, q: u <= p / q, coins=dtype)
    (row,) = wrong(edge_coin_outcomes(closed, round))
    assert (row.kind, row.coin, row.mass) == ("finding", "u = 0", 0.5 * zeros * 2**-24)
    even = fixed([[0.5, 0.5], [0.5, 0.5]], [[1, 0]])
    outcomes = edge_coin_outcomes(rule(coins=dtype), even)
    assert [o.mass for o in outcomes if o.coin == "u = 0"] == [zeros * 2**-24]


def test_hidden_coins_go_as_the_path_says():
    """Bernoulli draws, tokens drawn in a race, coins filled in place and one by one."""
    for name in ("coin-reused-for-correction", "one-hot-not-excluded", "accepted-summed"):
        outcomes = edge_coin_outcomes(MUTANTS[name], Round.random(3, 1, seed=2))
        assert not wrong(outcomes), name

    def flipped(u, p, q):
        return torch.bernoulli((p / q).clamp(max=1)).bool()

    outcomes = edge_coin_outcomes(rule(accepts=flipped), without_first(1))
    assert not wrong(outcomes)
    assert {outcome.element for outcome in outcomes} == {None, 0}  # the one that is not used


def test_batches_say_what_rows_alone_say():
    def looping(tokens, q, p, generator):
        """Stops once every row has rejected: a row draws less alone than among others."""
        going, n = torch.ones(len(tokens), dtype=torch.bool), torch.zeros(len(tokens)).long()
        rows = torch.arange(len(tokens))
        for i in range(tokens.shape[1]):
            u = torch.rand(len(tokens), dtype=p.dtype, generator=generator)
            going = going & (u <= p[rows, i, tokens[:, i]] / q[rows, i, tokens[:, i]])
            n = n + going
            if not going.any():
                break
        weights = torch.cat([(p[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)[rows, n]
        # Wrong where the only runner's coin is 0, which another one's being 0 does not show.
        last = gumbel(weights, generator)
        out = torch.cat([tokens, last[:, None]], 1)
        out[rows, n] = last
        return out.masked_fill(torch.arange(out.shape[1]) > n[:, None], -1)

    round = fixed([[0, 1, 0], [0.2, 0.8, 0], [0.1, 0.6, 0.3]], [[0.6, 0.4, 0], [0, 0.5, 0.5]])
    for subject in (looping, rule(accepts=lambda u, p, q: u <= p / q)):
        together = edge_coin_outcomes(subject, round)
        alone = edge_coin_outcomes(subject, round, batch=False)
        assert wrong(alone)

        def key(outcome):
            return outcome.kind, outcome.block, outcome.coin, outcome.element, outcome.mass

        assert list(map(key, together)) == list(map(key, alone))


def test_coins_drawn_twice_from_one_state_are_the_same_coin():
    def rewound(tokens, q, p, generator):
        state = generator.get_state()
        first = torch.rand(1, 1, dtype=p.dtype, generator=generator)
        generator.set_state(state)
        second = torch.rand(1, 1, dtype=p.dtype, generator=generator)
        return torch.cat([(first < 0.25).long(), (second < 0.5).long()], 1)

    outcomes = edge_coin_outcomes(rewound, Round.random(2, 1), batch=False)
    assert not wrong(outcomes)
    assert {outcome.emitted for outcome in outcomes} == {(0, 0), (0, 1), (1, 1)}


def test_what_real_numbers_lead_to_is_held_against_steering():
    """A rule that behaves otherwise once its coins are numbers, inside the target's support."""

    def double(tokens, q, p, generator):
        heads = torch.rand(len(tokens), 1, generator=generator) < 0.25
        if isinstance(_get_current_dispatch_mode(), PinnedMode):
            heads = ~heads
        return torch.cat([heads.long(), torch.full_like(tokens, -1)], 1)

    rows = wrong(edge_coin_outcomes(double, Round.random(2, 1)))
    assert [(row.kind, row.cases) for row in rows] == [("violation", 4)]
    assert rows[0].mass == pytest.approx(1)
    assert "not those of any path" in rows[0].example.detail


def test_chosen_uniforms_reach_their_elements():
    pins = Pins(torch.tensor([[0, (1 << 24) - 1, 5, 0], [1, 2, -1, (1 << 53) - 1]]))
    with pinned(pins):
        first = torch.rand(2, 2)
        second = torch.empty(2, dtype=torch.float32).uniform_(1, 3)
        heads = torch.bernoulli(torch.full((2, 1), 0.5, dtype=torch.float64))
        beyond = torch.rand_like(heads)
    assert (first * 2**24).tolist() == [[0, 2**24 - 1], [1, 2]]
    assert second.tolist() == [1 + 2 * 5 * 2**-24, 2]
    assert heads.tolist() == [[1], [0]]
    assert beyond.tolist() == [[0.5], [0.5]]
    assert [drawn.name for drawn in pins.drawn] == ["rand", "uniform", "bernoulli", "rand_like"]
    assert [drawn.per_row for drawn in pins.drawn] == [2, 1, 1, 1]
    assert all("test_edge_coins" in str(drawn.line) for drawn in pins.drawn)


def test_rows_without_randomness_of_their_own_are_refused():
    pins = Pins(torch.ones(2, 1).long())
    with pytest.raises(CannotSteer, match="randomness of their own"), pinned(pins):
        torch.rand(3)


def test_what_cannot_be_followed_or_afforded_is_refused():
    round = Round.random(3, 1)
    with pytest.raises(CannotSteer, match="more than 10 "):
        edge_coin_outcomes(rule(), round, batch=False, maximum_calls=10)
    with pytest.raises(CannotSteer, match="numpy"):
        edge_coin_outcomes(rule(accepts=lambda u, p, q: u.numpy() < p / q), round)


def test_the_global_generators_are_left_alone():
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    edge_coin_outcomes(published, without_first(1), batch=False)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


def test_impossible_tokens_are_found_at_their_position():
    round = fixed([[0, 0.5, 0.5], [1, 0, 0]], [[1 / 3] * 3])
    assert impossible_token(round, (1, 0)) is None
    assert impossible_token(round, (0, 0)) == 0
    assert impossible_token(round, (1, 1)) == 1
    assert impossible_token(round, (3,)) == 0
    assert impossible_token(round, ()) == 0


def test_masses_of_a_coin_and_of_the_whole():
    round = without_first(1, torch.float32)
    outcomes = edge_coin_outcomes(reference("token"), round)
    inside = [outcome for outcome in outcomes if outcome.coin == "inside"]
    assert math.fsum(outcome.mass for outcome in inside) == pytest.approx(1, abs=2**-22)
