import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specverify import categorical
from specverify.categorical import draw

BELOW_ONE = 1 - 2.0**-53


@pytest.fixture
def coin(monkeypatch):
    def fix(u):
        monkeypatch.setattr(
            torch,
            "rand",
            lambda shape, **_: torch.as_tensor(u, dtype=torch.float64).expand(shape),
        )

    return fix


@pytest.fixture(params=["counting", "binary search"])
def method(request, monkeypatch):
    """Both ways of inverting the cumulative sum, on the same small rows."""
    limit = 64 if request.param == "counting" else 0
    monkeypatch.setattr(categorical, "_COUNTING_LIMIT", limit)


@pytest.mark.usefixtures("method")
@pytest.mark.parametrize(
    ("u", "index"), [(0.0, 1), (0.25 - 2.0**-55, 1), (0.25, 3), (BELOW_ONE, 3)]
)
def test_inverts_the_cumulative_sum(coin, u, index):
    coin(u)
    assert draw(torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64)).item() == index


@pytest.mark.usefixtures("method")
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8).filter(any), st.data())
def test_never_returns_an_impossible_index(weights, data):
    scale = data.draw(st.sampled_from([1.0, 0.1, 5e-324, 1e-310, 1e300]))
    probs = torch.tensor(weights, dtype=torch.float64) * scale
    u = data.draw(st.sampled_from([0.0, 0.3, 0.5, BELOW_ONE]) | st.floats(0, BELOW_ONE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, u, dtype=torch.float64))
        index = draw(probs).item()
    assert probs[index] > 0


def test_zeros_of_a_large_row_are_steps_of_height_zero(coin):
    """The coin is put exactly on, and an ulp beside, values of the cumulative sum."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(20_000, dtype=torch.float64, generator=generator)
    probs[torch.rand(20_000, generator=generator) < 0.5] = 0.0
    cumulative = probs.cumsum(0)
    levels = cumulative[::97] / cumulative[-1]
    coins = torch.cat([levels, torch.nextafter(levels, levels * 0)]).clamp(max=BELOW_ONE)
    coin(coins[:, None])
    index = draw(probs.expand(len(coins), -1))
    assert bool((probs[index] > 0).all())


@pytest.mark.usefixtures("method")
def test_frequencies_follow_the_probabilities():
    probs = torch.tensor([0.5, 0.0, 0.2, 0.05, 0.25], dtype=torch.float64)
    drawn = draw(probs.expand(200_000, -1), torch.Generator().manual_seed(1))
    observed = np.bincount(drawn, minlength=5)
    assert observed[1] == 0
    keep = [0, 2, 3, 4]
    assert stats.chisquare(observed[keep], 200_000 * probs.numpy()[keep]).pvalue > 1e-4
    wrong = np.array([0.5, 0.2, 0.06, 0.24])
    assert stats.chisquare(observed[keep], 200_000 * wrong).pvalue < 1e-9


def test_rows_are_independent_and_shaped_like_the_batch():
    probs = torch.full((3, 50_000, 2), 0.5, dtype=torch.float64)
    drawn = draw(probs, torch.Generator().manual_seed(2))
    assert drawn.shape == (3, 50_000)
    assert drawn.dtype == torch.long
    agreement = (drawn[0] == drawn[1]).double().mean()
    assert 0.49 < agreement < 0.51


def test_rows_need_not_be_normalised(coin):
    coin(0.5)
    assert draw(torch.tensor([3.0, 4.0, 5.0])).item() == 1
    assert draw(torch.tensor([1e-30, 1e-30]).half().float() + 1e-30).item() == 1


def test_one_category_and_no_rows():
    assert draw(torch.ones(4, 1)).tolist() == [0] * 4
    assert draw(torch.ones(0, 3)).shape == (0,)


def test_uses_the_generator_it_is_given_and_no_other():
    before = torch.get_rng_state()
    probs = torch.full((100, 8), 1 / 8)
    first, second = (draw(probs, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("row", "total"),
    [
        ([0.0, 0.0], "sums to 0.0"),
        ([torch.nan, 1.0], "sums to nan"),
        ([torch.inf, 1.0], "sums to inf"),
        ([], "no category"),
    ],
)
def test_rows_without_a_distribution_are_refused(row, total):
    with pytest.raises(ValueError, match=total):
        draw(torch.tensor([row]))


def test_devices_that_sum_in_parallel_are_corrected():
    """An index that a rounded scan put on a zero goes back to the last possible one."""
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.0, 0.5, 0.0]] * 4)
    index = torch.tensor([1, 3, 4, 5])
    assert categorical._possible(probs, index).tolist() == [1, 1, 4, 4]
