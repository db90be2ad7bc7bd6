"""What every rule owes: support, prefix, ragged rows, edge coins, the caller's randomness."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specverify.verification import VERIFICATIONS

BELOW_ONE = 1 - 2.0**-53
RULES = pytest.mark.parametrize("name", VERIFICATIONS)


@st.composite
def rounds(draw):
    """Rows of small integer weights: dyadic, tied, one-hot, disjoint; any tokens, even q(x) = 0."""
    rows, width, size = (draw(st.integers(low, 3)) for low in (1, 0, 1))
    one_row = st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any)

    def table(positions):
        values = [[[*draw(one_row)] for _ in range(positions)] for _ in range(rows)]
        weights = torch.tensor(values, dtype=torch.float64).reshape(rows, positions, size)
        return weights / weights.sum(-1, keepdim=True)

    counts = torch.tensor([draw(st.integers(0, width)) for _ in range(rows)])
    tokens = torch.full((rows, width), -1)
    for row in range(rows):
        for position in range(int(counts[row])):
            tokens[row, position] = draw(st.integers(0, size - 1))
    q = table(width) if draw(st.booleans()) else None
    return tokens, q, table(width + 1), counts


@RULES
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(round_=rounds(), coin=st.sampled_from([0.0, 0.5, BELOW_ONE, None]), data=st.data())
def test_invariants(name, feed, round_, coin, data):
    tokens, q, p, counts = round_
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    steered = nullcontext() if coin is None else feed(coin, coin)
    with steered:
        verified = VERIFICATIONS[name](tokens, q, p, generator, counts)
    assert torch.equal(torch.get_rng_state(), before)
    assert verified.tokens.shape == (len(tokens), tokens.shape[1] + 1)
    for row, accepted in enumerate(verified.accepted.tolist()):
        assert 0 <= accepted <= counts[row]
        emitted = verified.tokens[row].tolist()
        assert emitted[:accepted] == tokens[row, :accepted].tolist()
        assert all(token == -1 for token in emitted[accepted + 1 :])
        for position, token in enumerate(emitted[: accepted + 1]):
            assert p[row, position, token] > 0


@RULES
@pytest.mark.parametrize("behind", ["padding", "leftovers"])
def test_a_ragged_row_is_decided_as_if_it_were_alone(name, behind, feed):
    """Same coins, same tokens, whatever stands behind a row's own count: -1 and NaN, or tokens
    and distributions as valid as the rest.
    """
    generator = torch.Generator().manual_seed(11)
    rows, width, size = 400, 3, 4
    p = torch.rand((rows, width + 1, size), dtype=torch.float64, generator=generator)
    q = torch.rand((rows, width, size), dtype=torch.float64, generator=generator)
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    tokens = torch.where(torch.arange(rows)[:, None, None] % 8 < 4, q, p[:, :-1]).argmax(-1)
    counts = torch.arange(rows) % (width + 1)
    coins = torch.rand((rows, width + 1), dtype=torch.float64, generator=generator)
    # `match` asks for all its noise at once, the others for coins and then for the last draw.
    fed = [coins[:, :, None]] if name == "match" else [coins[:, :-1], coins[:, -1:]]
    batch = [tokens, q, p]
    if behind == "padding":
        beyond = torch.arange(width + 1) >= counts[:, None]
        batch[0] = tokens.masked_fill(beyond[:, :-1], -1)
        batch[1] = q.masked_fill(beyond[:, :-1, None], torch.nan)
        after = torch.arange(width + 1) > counts[:, None]
        batch[2] = p.masked_fill(after[:, :, None], torch.nan)
    with feed(*fed):
        together = VERIFICATIONS[name](*batch, None, counts)
    assert together.accepted.unique().numel() > 2
    for row, n in enumerate(counts.tolist()):
        alone = (
            [coins[row, : n + 1, None]] if name == "match" else [coins[row, :n], coins[row, -1:]]
        )
        with feed(*alone):
            solo = VERIFICATIONS[name](
                tokens[row : row + 1, :n], q[row : row + 1, :n], p[row : row + 1, : n + 1]
            )
        assert together.tokens[row, : n + 1].tolist() == solo.tokens[0].tolist()
        assert bool((together.tokens[row, n + 1 :] == -1).all())


@RULES
def test_no_draft_is_plain_sampling(name, feed):
    p = torch.tensor([[[0.0, 0.25, 0.75]]] * 3, dtype=torch.float64)
    tokens = torch.empty((3, 0), dtype=torch.long)
    noise = torch.tensor([0.0, 0.25, 0.999]).reshape(3, 1)
    fed = [noise[:, :, None]] if name == "match" else [torch.zeros(3, 0), noise]
    with feed(*fed):
        verified = VERIFICATIONS[name](tokens, None, p)
    expected = [[2], [2], [2]] if name == "greedy" else [[1], [2], [2]]
    assert verified.tokens.tolist() == expected
    assert verified.accepted.tolist() == [0, 0, 0]


@RULES
def test_a_vocabulary_of_one_is_accepted_whole(name):
    ones = torch.ones((4, 3, 1), dtype=torch.float64)
    verified = VERIFICATIONS[name](torch.zeros((4, 2), dtype=torch.long), ones[:, :2], ones)
    assert verified.accepted.tolist() == [2] * 4
    assert verified.tokens.tolist() == [[0, 0, 0]] * 4


@RULES
def test_an_empty_batch_stays_empty(name):
    verified = VERIFICATIONS[name](
        torch.empty((0, 2), dtype=torch.long), None, torch.empty((0, 3, 4), dtype=torch.float64)
    )
    assert verified.tokens.shape == (0, 3)


@RULES
def test_disjoint_drafts_are_never_accepted(name, feed):
    p = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.5, 0.5]]], dtype=torch.float64)
    q = torch.tensor([[[1.0, 0.0, 0.0]]], dtype=torch.float64)
    for coin in (0.0, BELOW_ONE):
        with feed(coin, coin):
            verified = VERIFICATIONS[name](torch.tensor([[0]]), q, p)
        assert verified.accepted.tolist() == [0]
        assert verified.tokens[0, 0] > 0


@pytest.mark.parametrize("name", ["token", "block"])
def test_equal_drafts_are_always_accepted(name):
    generator = torch.Generator().manual_seed(12)
    p = (8 * torch.randn((20_000, 4, 6), dtype=torch.float64, generator=generator)).softmax(-1)
    tokens = p[:, :3].reshape(-1, 6).multinomial(1, generator=generator).reshape(-1, 3)
    verified = VERIFICATIONS[name](tokens, p[:, :3], p, generator)
    assert bool((verified.accepted == 3).all())


@pytest.mark.parametrize("name", ["token", "block", "match"])
def test_same_seed_same_tokens(name):
    p = torch.full((500, 3, 4), 0.25, dtype=torch.float64)
    tokens = torch.zeros((500, 2), dtype=torch.long)
    runs = [
        VERIFICATIONS[name](tokens, None, p, torch.Generator().manual_seed(seed)).tokens
        for seed in (1, 1, 2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@RULES
def test_lower_precision_is_normalised_before_use(name):
    """A bfloat16 row's sum is off by up to 1e-2; the draft sampled it normalised all the same."""
    generator = torch.Generator().manual_seed(13)
    p = torch.randn((2_000, 4, 50), generator=generator).softmax(-1).bfloat16()
    q = torch.randn((2_000, 3, 50), generator=generator).softmax(-1).bfloat16()
    assert (p.double().sum(-1) - 1).abs().max() > 1e-3
    exact = [probs.double() / probs.double().sum(-1, keepdim=True) for probs in (q, p)]
    tokens = p[:, :3].argmax(-1)
    results = [
        VERIFICATIONS[name](tokens, *probs, torch.Generator().manual_seed(1)).tokens
        for probs in ((q, p), exact)
    ]
    assert torch.equal(results[0], results[1])
