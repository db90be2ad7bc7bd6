import pytest
import torch

from specverify.verification import TOKEN

P = torch.tensor([[[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]]], dtype=torch.float64)
Q = torch.tensor([[[0.5, 0.25, 0.25]]], dtype=torch.float64)
BELOW_ONE = 1 - 2.0**-53


@pytest.mark.parametrize(
    ("token", "coin", "accepted"),
    [
        (0, 0.0, 1),
        (0, 0.5 - 2.0**-54, 1),
        (0, 0.5, 0),
        (1, BELOW_ONE, 1),
        (2, 0.0, 0),
    ],
)
def test_coin_lies_strictly_below_the_ratio(token, coin, accepted, feed):
    """p/q is 1/2, 3 and 0; the last is refused even by a coin of exactly 0."""
    with feed(coin, 0.0):
        verified = TOKEN(torch.tensor([[token]]), Q, P)
    assert verified.accepted.tolist() == [accepted]


def test_correction_comes_from_the_residual(feed):
    """(p - q)+ has one atom, token 1, whatever the coin of the draw."""
    for coin in (0.0, 0.5, BELOW_ONE):
        with feed(BELOW_ONE, coin):
            assert TOKEN(torch.tensor([[0]]), Q, P).tokens.tolist() == [[1, -1]]


def test_deterministic_draft_is_accepted_with_its_target_probability(feed):
    tokens = torch.tensor([[0]])
    with feed(0.25 - 2.0**-55, 0.0):
        assert TOKEN(tokens, None, P).tokens.tolist() == [[0, 0]]
    with feed(0.25, 0.0):
        assert TOKEN(tokens, None, P).tokens.tolist() == [[1, -1]]


def test_deterministic_draft_equals_a_one_hot_one():
    generator = torch.Generator().manual_seed(4)
    p = torch.rand((2_000, 4, 5), dtype=torch.float64, generator=generator)
    p = p / p.sum(-1, keepdim=True)
    tokens = p[:, :3].argmax(-1)
    one_hot = torch.nn.functional.one_hot(tokens, 5).double()
    results = [TOKEN(tokens, q, p, torch.Generator().manual_seed(5)) for q in (None, one_hot)]
    assert torch.equal(results[0].tokens, results[1].tokens)
    assert 0 < results[0].accepted.double().mean() < 3


def test_rejection_by_rounding_emits_from_p(feed):
    """The coin falls between p/q < 1 and 1, though (p - q)+ is zero."""
    p = torch.tensor([[[0.75, 0.25, 0.0], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    q = torch.tensor([[[0.75, 0.25, 0.0]]], dtype=torch.float64)
    q[0, 0, 0] = 0.75 + 2.0**-52
    q[0, 0, 1] = 0.25 + 2.0**-53
    for coin, last in ((0.0, 0), (0.9, 1)):
        with feed(BELOW_ONE, coin):
            verified = TOKEN(torch.tensor([[0]]), q, p)
        assert verified.tokens.tolist() == [[last, -1]]
