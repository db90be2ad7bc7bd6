import math

import pytest
import torch
from torch.testing import assert_close

from specverify.errors import SettingsError, UsageError
from specverify.transforms import XTC, RandomTransform

NO_HISTORY = torch.zeros(1, 0, dtype=torch.long)
LOGITS = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("threshold", "survivors"),
    [(0.05, [3]), (0.15, [2, 3]), (0.25, [1, 2, 3]), (0.35, [0, 1, 2, 3]), (0.6, [0, 1, 2, 3])],
)
def test_all_but_the_least_likely_of_the_likely_go(threshold, survivors):
    result = XTC(1.0, threshold, generator())(NO_HISTORY, LOGITS)
    assert (result[0] > -math.inf).nonzero().squeeze(-1).tolist() == survivors
    assert torch.equal(result[0, survivors], LOGITS[0, survivors])


def test_threshold_is_inclusive_and_half_and_half_counts():
    logits = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    assert XTC(1.0, 0.5, generator())(NO_HISTORY, logits).isneginf().tolist() == [[True, False]]


def test_of_tied_tokens_the_highest_id_stays():
    logits = torch.zeros(1, 4)
    removed = XTC(1.0, 0.25, generator())(NO_HISTORY, logits).isneginf()
    assert removed.tolist() == [[True, True, True, False]]


def test_outcomes_are_the_mixture():
    (stay, untouched), (leave, excluded) = XTC(0.3, 0.15).outcomes(NO_HISTORY, LOGITS)
    assert (stay, leave) == (0.7, 0.3)
    law = stay * untouched.softmax(-1) + leave * excluded.softmax(-1)
    by_hand = [0.7 * 0.4, 0.7 * 0.3, 0.7 * 0.2 + 0.3 * 2 / 3, 0.7 * 0.1 + 0.3 / 3]
    assert_close(law, torch.tensor([by_hand], dtype=torch.float64), atol=1e-15, rtol=0)


def test_every_row_and_call_tosses_its_own_coin_at_the_declared_rate():
    xtc = XTC(0.3, 0.15, generator(1))
    excluded = torch.stack(
        [xtc(NO_HISTORY, LOGITS.expand(20_000, 4))[:, 0].isneginf() for _ in range(2)]
    ).double()
    rates = torch.stack([*excluded.mean(1), (excluded[0] * excluded[1]).mean()])
    expected = torch.tensor([0.3, 0.3, 0.09], dtype=torch.float64)
    # Five standard deviations of a mean of 20 000 coins.
    assert ((rates - expected).abs() < 5 * (expected * (1 - expected) / 20_000).sqrt()).all()


@pytest.mark.parametrize(("probability", "excluded"), [(0.0, False), (1.0, True)])
def test_certain_coins(probability, excluded):
    result = XTC(probability, 0.15, generator())(NO_HISTORY, LOGITS.expand(1000, 4))
    assert bool((result[:, 0].isneginf() == excluded).all())


def test_same_seed_same_coins_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    logits = LOGITS.expand(50, 4)
    first, second = (XTC(0.5, 0.15, generator(3))(NO_HISTORY, logits) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_call_without_generator_is_refused():
    with pytest.raises(UsageError, match="generator"):
        XTC(0.5, 0.1)(NO_HISTORY, LOGITS)


def test_is_a_random_transform():
    assert isinstance(XTC(0.5, 0.1), RandomTransform)


@pytest.mark.parametrize(("probability", "threshold"), [(1.5, 0.1), (-0.1, 0.1), (0.5, 0.0)])
def test_bad_parameters_are_refused(probability, threshold):
    with pytest.raises(SettingsError, match=r"probability=|threshold="):
        XTC(probability, threshold)
