"""The algebra of transforms (algorithms.md section 2), as properties of generated rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from specverify.transforms import (
    XTC,
    AllowedTokens,
    BadWords,
    EpsilonCutoff,
    EtaCutoff,
    ForcedTokens,
    FrequencyPenalty,
    Greedy,
    LogitBias,
    MinLength,
    MinP,
    NoRepeatNGram,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopNSigma,
    TopP,
    TypicalP,
)

INF = math.inf
NO_HISTORY = torch.zeros(1, 0, dtype=torch.long)

# Logits are eighths and thresholds multiples of 1/97, so that no probability meets a threshold by
# accident: rounding then decides nothing. Exact ties and boundaries have tests of their own.
LOGIT = st.integers(-64, 64).map(lambda eighths: eighths / 8)
FRACTION = st.integers(1, 96).map(lambda share: share / 97)
TEMPERATURE = st.integers(1, 24).map(lambda eighths: eighths / 8)
SIGMAS = FRACTION.map(lambda f: 3 * f)

TRUNCATIONS = {
    "top_k": (TopK, st.integers(1, 9)),
    "top_p": (TopP, FRACTION),
    "min_p": (MinP, FRACTION),
    "typical_p": (TypicalP, FRACTION),
    "epsilon": (EpsilonCutoff, FRACTION),
    "eta": (EtaCutoff, FRACTION),
    "top_n_sigma": (TopNSigma, SIGMAS),
}
some_examples = settings(max_examples=40)
few_examples = settings(max_examples=20)
each_truncation = pytest.mark.parametrize("name", list(TRUNCATIONS))


@st.composite
def rows(draw, masked: bool = True, unique: bool = False, least: int = 1) -> Tensor:
    """One row of logits, float64 [1, V], with at least one possible token."""
    token = LOGIT | st.just(-INF) if masked else LOGIT
    values = draw(
        st.lists(token, min_size=least, max_size=8, unique=unique).filter(
            lambda row: max(row) > -INF
        )
    )
    return torch.tensor([values], dtype=torch.float64)


def draw_truncation(data, name):
    build, parameter = TRUNCATIONS[name]
    return build(data.draw(parameter))


def support(logits: Tensor) -> set[int]:
    return set((logits[0] > -INF).nonzero().squeeze(-1).tolist())


def composed(*transforms):
    """Apply the transforms from left to right."""

    def apply(logits: Tensor) -> Tensor:
        for transform in transforms:
            logits = transform(NO_HISTORY, logits)
        return logits

    return apply


def row(*probs: float) -> Tensor:
    return torch.tensor([probs], dtype=torch.float64).log()


# --- every truncation ------------------------------------------------------------------------


@each_truncation
@some_examples
@given(logits=rows(), data=st.data())
def test_truncations_keep_some_tokens_with_their_logits(name, logits, data):
    result = draw_truncation(data, name)(NO_HISTORY, logits)
    kept = result > -INF
    assert support(result)
    assert support(result) <= support(logits)
    # Unchanged logits keep the order and all probability ratios of the survivors.
    assert torch.equal(result[kept], logits[kept])


@each_truncation
@some_examples
@given(logits=rows(), data=st.data())
def test_truncations_are_monotone_in_their_parameter(name, logits, data):
    build, parameter = TRUNCATIONS[name]
    small, large = sorted((data.draw(parameter), data.draw(parameter)))
    tight, loose = (small, large) if name in _LOOSEN else (large, small)
    assert support(build(tight)(NO_HISTORY, logits)) <= support(build(loose)(NO_HISTORY, logits))


_LOOSEN = ("top_k", "top_p", "typical_p", "top_n_sigma")


@each_truncation
@some_examples
@given(logits=rows(), shift=LOGIT, data=st.data())
def test_truncations_ignore_a_shift(name, logits, shift, data):
    transform = draw_truncation(data, name)
    shifted = transform(NO_HISTORY, logits + shift)
    assert torch.equal(shifted, transform(NO_HISTORY, logits) + shift)


@each_truncation
@some_examples
@given(logits=rows(unique=True), data=st.data())
def test_truncations_follow_a_permutation_where_nothing_ties(name, logits, data):
    transform = draw_truncation(data, name)
    order = data.draw(st.permutations(range(logits.shape[1])))
    permuted = transform(NO_HISTORY, logits[:, order])
    assert torch.equal(permuted, transform(NO_HISTORY, logits)[:, order])


@some_examples
@given(logits=rows(), cold=TEMPERATURE, hot=TEMPERATURE, top_p=FRACTION)
def test_a_nucleus_shrinks_as_the_temperature_falls(logits, cold, hot, top_p):
    cold, hot = sorted((cold, hot))
    nuclei = [support(composed(Temperature(t), TopP(top_p))(logits)) for t in (cold, hot)]
    assert nuclei[0] <= nuclei[1]


# --- idempotence -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["top_k", "min_p", "epsilon"])
@some_examples
@given(logits=rows(), data=st.data())
def test_idempotent(name, logits, data):
    transform = draw_truncation(data, name)
    assert torch.equal(composed(transform, transform)(logits), transform(NO_HISTORY, logits))


@pytest.mark.parametrize(
    ("transform", "logits", "once", "twice"),
    [
        (TopP(0.8), row(0.5, 0.25, 0.15, 0.1), {0, 1, 2}, {0, 1}),
        (TypicalP(0.5), row(0.5, 0.25, 0.15, 0.1), {0, 1}, {0}),
        (EtaCutoff(0.4), row(0.45, 0.25, 0.2, 0.1), {0, 1, 2}, {0, 1}),
        (TopNSigma(1.0), torch.tensor([[3.0, 2.0, 0.0, -1.0]]), {0, 1}, {0}),
    ],
    ids=["top_p", "typical_p", "eta", "top_n_sigma"],
)
def test_not_idempotent(transform, logits, once, twice):
    assert support(transform(NO_HISTORY, logits)) == once
    assert support(composed(transform, transform)(logits)) == twice


def test_temperature_and_repetition_penalty_compound():
    logits = torch.tensor([[3.0, -2.0]])
    assert composed(Temperature(2.0), Temperature(2.0))(logits).tolist() == [[0.75, -0.5]]
    penalty, history = RepetitionPenalty(2.0), torch.tensor([[0, 1]])
    assert penalty(history, penalty(history, logits)).tolist() == [[0.75, -8.0]]


# --- commutation -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["top_k", "top_n_sigma"])
@some_examples
@given(logits=rows(), temperature=TEMPERATURE, data=st.data())
def test_commute_with_temperature(name, logits, temperature, data):
    transform, scale = draw_truncation(data, name), Temperature(temperature)
    assert torch.equal(composed(transform, scale)(logits), composed(scale, transform)(logits))


@some_examples
@given(logits=rows(), temperature=TEMPERATURE, penalty=FRACTION, data=st.data())
def test_repetition_penalty_commutes_with_temperature(logits, temperature, penalty, data):
    ids = data.draw(st.lists(st.integers(0, logits.shape[1] - 1), max_size=5))
    history = torch.tensor([ids], dtype=torch.long)
    penalise, scale = RepetitionPenalty(4 * penalty), Temperature(temperature)
    left = scale(history, penalise(history, logits))
    assert_close(left, penalise(history, scale(history, logits)), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("transform", "logits"),
    [
        (TopP(0.6), row(0.5, 0.3, 0.2)),
        (MinP(0.5), row(0.5, 0.3, 0.2)),
        (TypicalP(0.5), row(0.5, 0.3, 0.15, 0.05)),
        (EpsilonCutoff(0.25), row(0.5, 0.3, 0.2)),
        (EtaCutoff(0.25), row(0.4, 0.3, 0.2, 0.1)),
        (FrequencyPenalty(0.5), row(0.5, 0.3, 0.2)),
    ],
    ids=["top_p", "min_p", "typical_p", "epsilon", "eta", "frequency"],
)
def test_do_not_commute_with_temperature(transform, logits):
    history, scale = torch.tensor([[0]]), Temperature(0.4)
    scaled_last = scale(history, transform(history, logits)).softmax(-1)
    scaled_first = transform(history, scale(history, logits)).softmax(-1)
    assert (scaled_last - scaled_first).abs().sum() > 0.01


@some_examples
@given(logits=rows(), k=st.integers(1, 9), min_p=FRACTION)
def test_min_p_commutes_with_top_k(logits, k, min_p):
    top_k, min_p = TopK(k), MinP(min_p)
    assert torch.equal(composed(top_k, min_p)(logits), composed(min_p, top_k)(logits))


@pytest.mark.parametrize(
    ("transform", "logits", "k"),
    [
        (TopP(0.6), row(0.4, 0.25, 0.2, 0.15), 2),
        (TypicalP(0.5), row(0.5, 0.3, 0.15, 0.05), 2),
        (EpsilonCutoff(0.3), row(0.4, 0.25, 0.2, 0.15), 2),
        (EtaCutoff(0.4), row(0.5, 0.25, 0.15, 0.1), 2),
        (TopNSigma(0.9), torch.tensor([[3.0, 2.0, 0.0, -5.0]]), 2),
    ],
    ids=["top_p", "typical_p", "epsilon", "eta", "top_n_sigma"],
)
def test_do_not_commute_with_top_k(transform, logits, k):
    first, last = (
        support(composed(*order)(logits)) for order in ((TopK(k), transform), (transform, TopK(k)))
    )
    assert first != last


# --- identities ------------------------------------------------------------------------------


@some_examples
@given(logits=rows(), temperature=TEMPERATURE, min_p=FRACTION)
def test_min_p_after_temperature_is_a_power_of_min_p_before_it(logits, temperature, min_p):
    scale = Temperature(temperature)
    after = composed(scale, MinP(min_p))(logits)
    assert torch.equal(after, composed(MinP(min_p**temperature), scale)(logits))


@some_examples
@given(logits=rows(), first=TEMPERATURE, second=TEMPERATURE)
def test_temperatures_multiply(logits, first, second):
    twice = composed(Temperature(first), Temperature(second))(logits)
    assert_close(twice, Temperature(first * second)(NO_HISTORY, logits), rtol=1e-14, atol=0)


@some_examples
@given(logits=rows(), first=st.integers(1, 9), second=st.integers(1, 9))
def test_the_smaller_of_two_top_k_wins(logits, first, second):
    both = composed(TopK(first), TopK(second))(logits)
    assert torch.equal(both, TopK(min(first, second))(NO_HISTORY, logits))


@some_examples
@given(logits=rows(), temperature=TEMPERATURE, n=SIGMAS)
def test_top_n_sigma_keeps_the_same_tokens_at_any_temperature(logits, temperature, n):
    scaled = composed(Temperature(temperature), TopNSigma(n))(logits)
    assert support(scaled) == support(TopNSigma(n)(NO_HISTORY, logits))


@some_examples
@given(logits=rows(), biases=st.lists(LOGIT, min_size=2, max_size=2))
def test_biases_add_up(logits, biases):
    both = composed(*(LogitBias({0: b}) for b in biases))(logits)
    assert torch.equal(both, LogitBias({0: sum(biases)})(NO_HISTORY, logits))


@some_examples
@given(logits=rows(masked=False, least=4), history=st.lists(st.integers(0, 3), max_size=8))
def test_masks_commute_and_intersect(logits, history):
    ids = torch.tensor([history], dtype=torch.long)
    masks = (
        BadWords([[0], [1, 2]]),
        NoRepeatNGram(2),
        MinLength(4, [3]),
        AllowedTokens(lambda _: (0, 1, 2), revive=False),
    )
    for first in masks:
        for second in masks:
            there = second.apply(ids, first.apply(ids, logits))
            assert torch.equal(there, first.apply(ids, second.apply(ids, logits)))
            expected = support(first.apply(ids, logits)) & support(second.apply(ids, logits))
            assert support(there) == expected


@some_examples
@given(logits=rows(), threshold=FRACTION, probability=FRACTION)
def test_xtc_is_a_mixture_of_the_row_and_one_truncation(logits, threshold, probability):
    (stay, untouched), (leave, excluded) = XTC(probability, threshold).outcomes(NO_HISTORY, logits)
    assert stay + leave == 1
    assert torch.equal(untouched, logits)
    probs = logits.softmax(-1)[0]
    likely = (probs >= threshold).nonzero().squeeze(-1).tolist()
    removed = support(logits) - support(excluded)
    assert len(removed) == max(len(likely) - 1, 0)
    assert removed <= set(likely)
    assert all(probs[token] >= probs[i] for token in removed for i in set(likely) - removed)


# --- every transform -------------------------------------------------------------------------

ALL = {
    "temperature": Temperature(0.7),
    "greedy": Greedy(),
    "top_k": TopK(3),
    "top_k cut": TopK(3, keep_ties=False),
    "top_p": TopP(0.7),
    "min_p": MinP(0.2),
    "typical_p": TypicalP(0.6),
    "epsilon": EpsilonCutoff(0.2),
    "eta": EtaCutoff(0.3),
    "top_n_sigma": TopNSigma(0.8),
    "xtc": XTC(0.5, 0.2, torch.Generator().manual_seed(0)),
    "xtc always": XTC(1.0, 0.2, torch.Generator().manual_seed(0)),
    "repetition_penalty": RepetitionPenalty(1.3),
    "frequency_penalty": FrequencyPenalty(0.4, 1),
    "presence_penalty": PresencePenalty(-0.4, 1),
    "no_repeat_ngram": NoRepeatNGram(2),
    "bad_words": BadWords([[1], [0, 2]]),
    "logit_bias": LogitBias({0: 1.0, 1: -INF}),
    "allowed_tokens": AllowedTokens(lambda emitted: (len(emitted) % 4, 0), 1),
    "min_length": MinLength(3, [2], 1),
    "forced_tokens": ForcedTokens({2: 1}, 1),
}
FORCING = ("allowed_tokens", "forced_tokens")
"""What can bring a masked token back."""


@st.composite
def batches(draw) -> tuple[Tensor, Tensor]:
    """Histories [B, T] and logits [B, 4] whose token 3 is never masked."""
    size, length = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    ids = [draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)) for _ in range(size)]
    token = LOGIT | st.just(-INF)
    logits = [[*draw(st.lists(token, min_size=3, max_size=3)), draw(LOGIT)] for _ in range(size)]
    return torch.tensor(ids), torch.tensor(logits)


def call(name, ids, logits):
    """A constraint's result before the check that its row has a token left."""
    transform = ALL[name]
    return getattr(transform, "apply", transform)(ids, logits)


@pytest.mark.parametrize("name", list(ALL))
@few_examples
@given(batch=batches())
def test_every_transform_returns_new_float64_logits_and_keeps_masked_tokens_masked(name, batch):
    ids, logits = batch
    copies = ids.clone(), logits.clone()
    result = call(name, ids, logits)
    assert result.dtype == torch.float64
    assert not bool(result.isnan().any())
    assert torch.equal(ids, copies[0])
    assert torch.equal(logits, copies[1])
    if name not in FORCING:
        assert bool(result[logits.isneginf()].isneginf().all())
    if name not in ("no_repeat_ngram",):
        assert bool((result.amax(-1) > -INF).all())


@pytest.mark.parametrize("name", [name for name in ALL if name != "xtc"])
@few_examples
@given(batch=batches())
def test_batch_equals_loop(name, batch):
    ids, logits = batch
    loop = [call(name, ids[b : b + 1], logits[b : b + 1]) for b in range(len(ids))]
    assert torch.equal(call(name, ids, logits), torch.cat(loop))


@pytest.mark.parametrize("name", [name for name in ALL if name != "xtc"])
@few_examples
@given(batch=batches())
def test_logits_are_upcast_first(name, batch):
    ids, logits = batch
    assert torch.equal(call(name, ids, logits.float()), call(name, ids, logits.double()))


NEUTRAL = {
    "temperature": Temperature(1.0),
    "top_k": TopK(8),
    "top_k cut": TopK(8, keep_ties=False),
    "top_p": TopP(1.0),
    "min_p": MinP(0.0),
    "typical_p": TypicalP(1.0),
    "xtc": XTC(0.0, 0.1, torch.Generator().manual_seed(0)),
    "repetition_penalty": RepetitionPenalty(1.0),
    "frequency_penalty": FrequencyPenalty(0.0),
    "presence_penalty": PresencePenalty(0.0),
    "no_repeat_ngram": NoRepeatNGram(10),
    "bad_words": BadWords([]),
    "logit_bias": LogitBias({}),
    "allowed_tokens": AllowedTokens(lambda _: range(4)),
    "min_length": MinLength(0, [0]),
    "forced_tokens": ForcedTokens({}),
}


@pytest.mark.parametrize("name", list(NEUTRAL))
@few_examples
@given(batch=batches())
def test_neutral_parameters_are_the_identity(name, batch):
    ids, logits = batch
    assert torch.equal(NEUTRAL[name](ids, logits), logits.double())
