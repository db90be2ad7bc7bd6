import torch
from hypothesis import given
from hypothesis import strategies as st

from specverify.verification import GREEDY

P = torch.tensor([[[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.0, 0.0, 1.0]]], dtype=torch.float64)


def verify(*tokens, **options):
    verified = GREEDY(torch.tensor([tokens]), None, P, **options)
    return verified.tokens[0].tolist(), verified.accepted.item()


def test_accepts_the_argmax_and_adds_the_bonus():
    assert verify(1, 0) == ([1, 0, 2], 2)


def test_ties_go_to_the_first_index():
    """Token 1 is as probable as token 0 and yet not what greedy decoding takes."""
    assert verify(1, 1) == ([1, 0, -1], 1)


def test_stops_at_the_first_difference():
    assert verify(0, 0) == ([1, -1, -1], 0)


def test_a_shorter_row_takes_its_bonus_after_its_own_tokens():
    assert verify(1, -1, num_draft_tokens=torch.tensor([1])) == ([1, 0, -1], 1)


def test_consumes_no_randomness():
    generator = torch.Generator().manual_seed(0)
    before, everyone = generator.get_state(), torch.get_rng_state()
    verify(1, 0, generator=generator)
    verify(1, 0)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), everyone)


@given(st.data())
def test_emits_a_prefix_of_greedy_decoding(data):
    """On tied and dyadic rows, for any draft: what comes out is the argmax, token for token."""
    size, width = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3))
    weight = st.lists(st.integers(0, 3), min_size=size, max_size=size).filter(any)
    rows = [data.draw(weight) for _ in range(width + 1)]
    drafts = [data.draw(st.integers(0, size - 1)) for _ in range(width)]
    p = torch.tensor([[[w / sum(row) for w in row] for row in rows]], dtype=torch.float64)
    best = [row.index(max(row)) for row in rows]
    agree = 0
    while agree < width and drafts[agree] == best[agree]:
        agree += 1
    verified = GREEDY(torch.tensor([drafts], dtype=torch.long), None, p)
    assert verified.accepted.tolist() == [agree]
    assert verified.tokens[0, : agree + 1].tolist() == best[: agree + 1]
    assert bool((verified.tokens[0, agree + 1 :] == -1).all())
