"""Kernels that take their uniforms as arguments: torch and numpy, right and wrong."""

import random
from itertools import product

import numpy as np
import pytest
import torch

from specverify.errors import CannotSteer, SubjectError, UsageError
from specverify.exact.coins import Coins, fed_distribution
from specverify.exact.joint import complete, total_variation
from specverify.exact.prefix_tree import PrefixTree
from specverify.exact.round import Round

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}
SHAPES = {"accept": "[B,K]", "final": "[B]"}


def random_round(vocab_size, width, dtype="float64", seed=0):
    return Round.random(vocab_size, width, seed, dtype=getattr(torch, dtype))


def gap(distribution, round):
    """TV between what was computed, completed, and the target."""
    length = round.num_draft_tokens + 1
    tree = PrefixTree.grow(round.completed_target, round.vocab_size, length)
    completed = complete(distribution.probabilities, round.completed_target, length)
    return total_variation(completed, tree.sequences())


def ratios(x, q, p):
    width = x.shape[1]
    of_target = p[:, :width].gather(2, x.unsqueeze(2)).squeeze(2)
    if q is None:
        return of_target
    return of_target / q.gather(2, x.unsqueeze(2)).squeeze(2)


def residuals(x, q, p):
    """(p - q)+ at every position, the target's row after the last."""
    if q is None:
        q = torch.nn.functional.one_hot(x, p.shape[2]).to(p.dtype)
    return torch.cat([(p[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)


def emit(x, accepted, weights, final):
    """`accepted` draft tokens of every row, then one drawn from `weights` [B, V] by inversion."""
    cumulative = weights.cumsum(1)
    level = final.unsqueeze(1) * cumulative[:, -1:]
    token = (cumulative <= level).sum(1, keepdim=True).clamp(max=weights.shape[1] - 1)
    positions = torch.arange(x.shape[1] + 1)
    padded = torch.nn.functional.pad(x, (0, 1))
    out = torch.where(positions == accepted.unsqueeze(1), token, padded)
    return out.masked_fill(positions > accepted.unsqueeze(1), -1)


def at(rows, accepted):
    return rows[torch.arange(len(rows)), accepted]


def leading(successes):
    return successes.long().cumprod(1).sum(1)


def token_rule(x, q, p, accept, final):
    accepted = leading(accept < ratios(x, q, p))
    return emit(x, accepted, at(residuals(x, q, p), accepted), final)


def block_rule(x, q, p, accept, final):
    """Sun et al. 2403.10444: every coin is compared, the last success counts."""
    batch, width = x.shape
    ratio = ratios(x, q, p)
    w = [torch.ones(batch, dtype=p.dtype)]
    for i in range(width):
        w.append((w[-1] * ratio[:, i]).clamp(max=1))
    w = torch.stack(w, 1)
    left = torch.cat([(w[:, :width, None] * p[:, :width] - q).clamp(min=0), p[:, width:]], 1)
    s = left.sum(2)
    h = [s[:, i] / (s[:, i] + 1 - w[:, i]) for i in range(1, width)] + [w[:, width]]
    successes = (accept < torch.stack(h, 1)).long() * torch.arange(1, width + 1)
    accepted = successes.amax(1)
    return emit(x, accepted, at(left, accepted), final)


def numpy_rule(x, q, p, accept, final):
    """The token rule row by row, on arrays."""
    out = np.full((len(x), x.shape[1] + 1), -1, np.int32)
    for row in range(len(x)):
        weights = p[row, -1]
        for i, token in enumerate(x[row]):
            if accept[row, i] * q[row, i, token] >= p[row, i, token]:
                weights = np.maximum(p[row, i] - q[row, i], 0)
                break
            out[row, i] = token
        cumulative = np.cumsum(weights.astype(np.float64))
        emitted = int((out[row] >= 0).sum())
        level = np.float64(final[row]) * cumulative[-1]
        out[row, emitted] = np.searchsorted(cumulative, level, side="right")
    return out


def tables(round, block):
    """p and q rows along a draft block, float64."""
    powers = [0]
    for token in block:
        powers.append(powers[-1] * round.vocab_size + token)
    p = [round.p(i)[code] for i, code in enumerate(powers)]
    return p, [round.q(i)[code] for i, code in enumerate(powers[:-1])]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("vocab_size", "width"), [(2, 1), (4, 1), (3, 2), (2, 3)])
@pytest.mark.parametrize("kernel", [token_rule, block_rule])
def test_right_torch_kernels(kernel, vocab_size, width, dtype):
    round = random_round(vocab_size, width, dtype)
    found = fed_distribution(kernel, round, Coins(SHAPES, dtype))
    assert gap(found, round) < TOLERANCE[dtype]
    assert found.method == "coins"
    assert not found.crashes


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("vocab_size", "width"), [(4, 1), (3, 2)])
def test_right_numpy_kernel(vocab_size, width, dtype):
    round = random_round(vocab_size, width, dtype)
    found = fed_distribution(numpy_rule, round, Coins(SHAPES, dtype, arrays="numpy"))
    assert gap(found, round) < TOLERANCE[dtype]


@pytest.mark.parametrize("kernel", [token_rule, block_rule])
def test_tiny_and_zero_probabilities(kernel):
    """Ratios from 1e-20 to 1e20 and tokens that only one of the two can emit."""
    base = Round.random(4, 2, seed=5, scale=10)

    def without(conditional, salt):
        def rows(prefixes):
            probs = np.array(conditional(prefixes))
            probs[np.arange(len(probs)), (prefixes.sum(1) + salt) % 4] = 0
            return probs / probs.sum(1, keepdims=True)

        return rows

    round = Round(without(base.target, 1), without(base.draft, 3), 4, 2)
    assert gap(fed_distribution(kernel, round, Coins(SHAPES)), round) < 1e-12


def test_emitted_tuples_have_the_token_rules_probabilities():
    """Uncompleted: rejecting at the first position is told apart from accepting a block."""
    round = random_round(3, 1)
    expected = {}
    for x, y in product(range(3), repeat=2):
        p, q = tables(round, (x,))
        kept = min(p[0][x], q[0][x])
        expected[x, y] = kept * p[1][y]
    p, q = round.p(0)[0], round.q(0)[0]
    expected |= {(y,): float(p[y] - q[y]) for y in range(3) if p[y] > q[y]}
    found = fed_distribution(token_rule, round, Coins(SHAPES))
    assert total_variation(found.probabilities, expected) < 1e-14


def reversed_coins(x, q, p, accept, final):
    return token_rule(x, q, p, accept.flip(1), final)


def complement(x, q, p, accept, final):
    accepted = leading(1 - accept <= ratios(x, q, p))
    return emit(x, accepted, at(residuals(x, q, p), accepted), 1 - final - 2**-53)


def logarithm(x, q, p, accept, final):
    accepted = leading(accept.log() < ratios(x, q, p).log())
    return emit(x, accepted, at(residuals(x, q, p), accepted), final)


def without_bonus(x, q, p, accept, final):
    out = token_rule(x, q, p, accept, final)
    out[:, -1] = -1
    return out


@pytest.mark.parametrize("kernel", [reversed_coins, complement, logarithm, without_bonus])
def test_look_alikes_pass(kernel):
    round = random_round(3, 2)
    found = fed_distribution(kernel, round, Coins(SHAPES))
    assert gap(found, round) < 1e-12


@pytest.mark.parametrize(
    ("shapes", "kernel"),
    [
        ({"final": "[B]", "accept": "[B,K]"}, token_rule),
        ({"u": "[B, K+1]"}, lambda x, q, p, u: token_rule(x, q, p, u[:, :-1], u[:, -1])),
        (
            {"final": "[B,1]", "accept": "[B,K,1]"},
            lambda x, q, p, final, accept: token_rule(x, q, p, accept[..., 0], final[:, 0]),
        ),
    ],
)
def test_shapes_of_coins(shapes, kernel):
    round = random_round(3, 2)
    assert gap(fed_distribution(kernel, round, Coins(shapes)), round) < 1e-12


def test_deterministic_draft_is_handed_as_none():
    base = random_round(3, 2)

    def draft(prefixes):
        return np.eye(3)[(prefixes.sum(1) + 1) % 3]

    round = Round(base.target, draft, 3, 2, one_hot=True)
    given = []

    def kernel(x, q, p, accept, final):
        given.append(q)
        return token_rule(x, q, p, accept, final)

    assert gap(fed_distribution(kernel, round, Coins(SHAPES)), round) < 1e-12
    assert all(q is None for q in given)


def test_no_draft_tokens_and_no_coins():
    round = random_round(3, 0)
    found = fed_distribution(token_rule, round, Coins(SHAPES))
    assert gap(found, round) < 1e-15

    def greedy(x, q, p):
        return p[:, -1].argmax(1, keepdim=True)

    best = int(round.p(0)[0].argmax())
    assert fed_distribution(greedy, round, Coins({})).probabilities == {(best,): 1.0}


def residual_is_target(x, q, p, accept, final):
    accepted = leading(accept < ratios(x, q, p))
    return emit(x, accepted, at(p, accepted), final)


def test_residual_that_is_the_target():
    round = random_round(4, 1)
    p, q = round.p(0)[0], round.q(0)[0]
    kept = np.minimum(p, q)
    first = kept + (1 - kept.sum()) * p
    found = fed_distribution(residual_is_target, round, Coins(SHAPES))
    marginal = np.zeros(4)
    for emitted, mass in found.probabilities.items():
        marginal[emitted[0]] += mass
    assert np.abs(marginal - first).max() < 1e-14
    assert gap(found, round) == pytest.approx(np.abs(first - p).sum() / 2, abs=1e-12)


def test_one_coin_for_two_positions():
    """The first token is exact; both are accepted if the coin is below both ratios."""
    round = random_round(3, 2)

    def kernel(x, q, p, accept, final):
        return token_rule(x, q, p, accept[:, :1].expand(-1, 2), final)

    found = fed_distribution(kernel, round, Coins(SHAPES)).probabilities
    for x in product(range(3), repeat=2):
        p, q = tables(round, x)
        drafted = q[0][x[0]] * q[1][x[1]]
        both = min(1, p[0][x[0]] / q[0][x[0]], p[1][x[1]] / q[1][x[1]])
        mass = sum(found.get((*x, y), 0) for y in range(3))
        assert mass == pytest.approx(drafted * both, abs=1e-14)
    first = [sum(mass for key, mass in found.items() if key[0] == token) for token in range(3)]
    assert first == pytest.approx(round.p(0)[0], abs=1e-14)


def test_accept_coin_reused_for_the_final_draw():
    """After a rejection the coin is uniform above the ratio: overlaps of intervals."""
    round = random_round(4, 1)

    def kernel(x, q, p, accept):
        return token_rule(x, q, p, accept, accept[:, 0])

    p, q = round.p(0)[0], round.q(0)[0]
    edges = np.concatenate([[0], np.cumsum(np.maximum(p - q, 0))])
    edges = edges / edges[-1]
    expected = np.zeros(4)
    for x in range(4):
        ratio = p[x] / q[x]
        expected += q[x] * np.maximum(edges[1:] - np.maximum(edges[:-1], ratio), 0)
    found = fed_distribution(kernel, round, Coins({"accept": "[B,K]"}))
    emitted = [found.probabilities.get((y,), 0.0) for y in range(4)]
    assert emitted == pytest.approx(expected, abs=1e-14)
    assert gap(found, round) > 0.01


@pytest.mark.parametrize(("dtype", "grid"), [("float32", 2.0**-24), ("float64", 2.0**-53)])
def test_coin_of_exactly_zero_accepts_an_impossible_token(dtype, grid):
    p, q = np.array([0.0, 0.5, 0.5]), np.array([0.25, 0.5, 0.25])
    round = Round(
        lambda prefixes: np.tile(p, (len(prefixes), 1)),
        lambda prefixes: np.tile(q, (len(prefixes), 1)),
        3,
        1,
    )

    def closed(x, q, p, accept, final):
        accepted = leading(accept <= ratios(x, q, p))
        return emit(x, accepted, at(residuals(x, q, p), accepted), final)

    def impossible(kernel):
        found = fed_distribution(kernel, round, Coins(SHAPES, dtype)).probabilities
        return sum(mass for key, mass in found.items() if key[0] == 0)

    assert impossible(closed) == 0.25 * grid
    assert impossible(token_rule) == 0


def lenient(x, q, p, accept, final):
    """Rejects a tenth of what it should always accept, and then may have nothing to draw from."""
    accepted = leading(accept < 0.9 * ratios(x, q, p))
    weights = at(residuals(x, q, p), accepted)
    empty = (weights.sum(1) == 0).nonzero().flatten()
    if len(empty):
        raise ZeroDivisionError(f"row {int(empty[0])}: residual 0 at coin {float(accept[0, 0])}")
    return emit(x, accepted, weights, final)


def test_crashes_have_their_exact_mass():
    base = random_round(2, 1)
    round = Round(base.target, base.target, 2, 1)  # p = q: every rejection finds residual 0
    found = fed_distribution(lenient, round, Coins(SHAPES))
    assert list(found.crashes) == [key for key in found.crashes if key.startswith("ZeroDivision")]
    assert list(found.crashes.values()) == pytest.approx([0.1], abs=1e-15)
    accepted = {(x, y): 0.9 * base.p(0)[0, x] * base.p(1)[x, y] for x in range(2) for y in range(2)}
    assert total_variation(found.probabilities, accepted) == pytest.approx(0, abs=1e-15)
    assert found.total == pytest.approx(1, abs=1e-12)


def test_a_kernel_that_always_crashes():
    def broken(x, q, p, accept, final):
        raise RuntimeError

    found = fed_distribution(broken, random_round(2, 1), Coins(SHAPES), maximum_calls=100_000)
    assert found.crashes == {"RuntimeError": 1.0}
    assert not found.probabilities


def hidden_numpy(x, q, p, accept, final):
    return token_rule(x, q, p, accept, torch.from_numpy(np.random.random(len(x))))


def unused_draw(x, q, p, accept, final):
    """Draws that a path not taken by any probe might use."""
    torch.rand(1)
    return token_rule(x, q, p, accept, final)


def unused_python_draw(x, q, p, accept, final):
    random.random()
    return token_rule(x, q, p, accept, final)


@pytest.mark.parametrize(
    ("kernel", "named"),
    [(hidden_numpy, "numpy"), (unused_draw, "torch"), (unused_python_draw, "Python")],
)
def test_global_generators_are_refused_by_name(kernel, named):
    states = np.random.get_state(), torch.get_rng_state(), random.getstate()
    try:
        with pytest.raises(CannotSteer, match=f"{named}'s global generator"):
            fed_distribution(kernel, random_round(2, 1), Coins(SHAPES))
    finally:
        np.random.set_state(states[0])
        torch.set_rng_state(states[1])
        random.setstate(states[2])


def test_a_generator_of_its_own_is_refused():
    generator = np.random.default_rng(0)

    def kernel(x, q, p, accept, final):
        return token_rule(x, q, p, accept, torch.from_numpy(generator.random(len(x))))

    with pytest.raises(CannotSteer, match="called again"):
        fed_distribution(kernel, random_round(2, 1), Coins(SHAPES))


def first_rows_coin(x, q, p, accept, final):
    return token_rule(x, q, p, accept[:1].expand_as(accept), final)


def previous_rows_coin(x, q, p, accept, final):
    return token_rule(x, q, p, accept, final.roll(1))


def stops_together(x, q, p, accept, final):
    out = token_rule(x, q, p, accept, final)
    return out.masked_fill(torch.arange(out.shape[1]) > (out >= 0).sum(1).min(), -1)


@pytest.mark.parametrize("kernel", [first_rows_coin, previous_rows_coin, stops_together])
def test_rows_that_depend_on_each_other_are_refused(kernel):
    with pytest.raises(CannotSteer, match="rows depend on each other"):
        fed_distribution(kernel, random_round(3, 2), Coins(SHAPES))


def test_a_crash_of_the_batch_alone_is_refused():
    def small_batches(x, q, p, accept, final):
        if len(x) > 100:
            raise MemoryError("too many rows")
        return token_rule(x, q, p, accept, final)

    round = random_round(2, 1)
    with pytest.raises(CannotSteer, match="batch they are in"):
        fed_distribution(small_batches, round, Coins(SHAPES))
    found = fed_distribution(small_batches, round, Coins(SHAPES), rows_per_call=100)
    assert gap(found, round) < 1e-14


def test_a_race_is_refused():
    def race(x, q, p, noise):
        weights = p[:, 0]
        return torch.stack([(noise.log() / weights).argmax(1), torch.full((len(x),), -1)], 1)

    with pytest.raises(CannotSteer, match="boxes"):
        fed_distribution(race, random_round(2, 1), Coins({"noise": "[B,2]"}, "float32"))


def test_calls_are_counted_and_limited():
    round, calls = random_round(2, 1), []

    def kernel(*arguments, **coins):
        calls.append(len(arguments[0]))
        return token_rule(*arguments, **coins)

    found = fed_distribution(kernel, round, Coins(SHAPES), rows_per_call=50)
    assert found.runs == len(calls)
    assert max(calls) == 50
    with pytest.raises(CannotSteer, match="maximum_calls=70"):
        fed_distribution(token_rule, round, Coins(SHAPES), maximum_calls=70)


def test_a_kernel_may_spoil_its_arguments():
    def spoiling(x, q, p, accept, final):
        out = token_rule(x, q, p, accept, final)
        for argument in (x, q, p, accept, final):
            argument.zero_()
        return out

    round = random_round(3, 2)
    assert gap(fed_distribution(spoiling, round, Coins(SHAPES)), round) < 1e-12


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda out: out.tolist(), "returned a list"),
        (lambda out: out.double(), "float64 of shape"),
        (lambda out: out[:, :1], "integers"),
        (lambda out: out + 1, "run from 0 to 1"),
        (lambda out: out.flip(1), "only to the right"),
        (lambda out: torch.full_like(out, -1), "at least one token"),
    ],
)
def test_answers_of_another_form_are_errors_of_the_subject(answer, message):
    def kernel(*arguments, **coins):
        return answer(token_rule(*arguments, **coins))

    with pytest.raises(SubjectError, match=message):
        fed_distribution(kernel, random_round(2, 1), Coins(SHAPES))


def test_limits_and_dtypes_that_teach():
    round = random_round(2, 1)
    for limit in ({"maximum_calls": 0}, {"rows_per_call": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            fed_distribution(token_rule, round, Coins(SHAPES), **limit)
    with pytest.raises(UsageError, match="bfloat16"):
        fed_distribution(numpy_rule, random_round(2, 1, "bfloat16"), Coins(SHAPES, arrays="numpy"))
