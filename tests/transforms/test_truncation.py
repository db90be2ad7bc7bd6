import math

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from specverify.errors import SettingsError
from specverify.transforms import (
    EpsilonCutoff,
    EtaCutoff,
    MinP,
    TopK,
    TopNSigma,
    TopP,
    TypicalP,
)

NO_HISTORY = torch.zeros(1, 0, dtype=torch.long)
DYADIC = (0.03125, 0.0625, 0.125, 0.25, 0.5, 0.75, 0.875)
PAIRS = [
    *[(TopK(top_k=k), hf.TopKLogitsWarper(k)) for k in (1, 2, 3, 7, 50)],
    *[(TopP(top_p=p), hf.TopPLogitsWarper(p)) for p in (*DYADIC, 0.01, 0.4, 0.9, 0.99)],
    *[(MinP(min_p=m), hf.MinPLogitsWarper(m)) for m in (*DYADIC, 0.0, 0.1, 1.0)],
    *[(TypicalP(typical_p=p), hf.TypicalLogitsWarper(p)) for p in (*DYADIC, 0.19, 0.9, 0.99)],
    *[(EpsilonCutoff(epsilon=e), hf.EpsilonLogitsWarper(e)) for e in (*DYADIC, 3e-4, 0.9)],
    *[(EtaCutoff(epsilon=e), hf.EtaLogitsWarper(e)) for e in (*DYADIC, 3e-4, 0.1, 0.9)],
]


def log(*probs: float) -> Tensor:
    """Logits below a maximum of 0, so that float64 softmax returns dyadic probabilities exactly."""
    logits = (torch.tensor([probs], dtype=torch.float64) / max(probs)).log2() * math.log(2)
    if set(probs) <= set(DYADIC):
        assert logits.softmax(-1).tolist() == [list(probs)]
    return logits


def kept(transform, logits: Tensor) -> list[int]:
    return (transform(NO_HISTORY, logits)[0] > -math.inf).nonzero().squeeze(-1).tolist()


def named(pair) -> str:
    ours, _ = pair
    return f"{type(ours).__name__}-{next(iter(vars(ours).values()))}"


@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_equals_transformers(pair, rows):
    ours, theirs = pair
    assert torch.equal(ours(NO_HISTORY, rows), theirs(NO_HISTORY, rows.clone()))


@pytest.mark.parametrize("top_p", DYADIC)
def test_top_p_on_dyadic_float32_rows_keeps_what_transformers_keeps_in_float32(top_p):
    probs = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.25] * 4, [0.125, 0.125, 0.25, 0.5]])
    theirs = hf.TopPLogitsWarper(top_p)(NO_HISTORY, probs.log())
    ours = TopP(top_p)(NO_HISTORY, probs.log())
    assert torch.equal(ours.isneginf(), theirs.isneginf())


@pytest.mark.parametrize(
    ("top_p", "drop", "keep"),
    [(0.5, [0], [0, 1]), (0.75, [0, 1], [0, 1, 3]), (0.4, [0], [0]), (0.6, [0, 1], [0, 1])],
)
def test_top_p_boundary_matters_only_at_equality(top_p, drop, keep):
    logits = log(0.5, 0.25, 0.125, 0.125)
    assert kept(TopP(top_p), logits) == drop
    assert kept(TopP(top_p, boundary="keep"), logits) == keep


def test_top_k_ties():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    assert kept(TopK(1), logits) == [1, 2, 3]
    assert kept(TopK(1, keep_ties=False), logits) == [1]
    assert kept(TopK(4, keep_ties=False), logits) == [0, 1, 2, 3]
    assert kept(TopK(9, keep_ties=False), logits) == [0, 1, 2, 3, 4]


def test_top_p_too_small_for_float64_still_keeps_the_maximum():
    # 1 - p rounds to 1, so by the sum alone every token would go.
    logits = log(0.5, 0.25, 0.125, 0.125)
    assert kept(TopP(1e-17), logits) == [0]
    assert kept(hf.TopPLogitsWarper(1e-17), logits) == [0]


def test_min_p_keeps_equality():
    assert kept(MinP(0.5), log(0.5, 0.25, 0.125, 0.125)) == [0, 1]


def test_typical_p_may_drop_the_most_likely_token():
    assert kept(TypicalP(0.19), log(0.6, 0.2, 0.1, 0.05, 0.05)) == [1]


@pytest.mark.parametrize("cutoff", [EpsilonCutoff(0.9), EtaCutoff(0.9)])
def test_cutoffs_keep_the_maximum_and_its_ties(cutoff):
    assert kept(cutoff, log(0.375, 0.25, 0.375)) == [0, 2]


def test_cutoff_is_exclusive():
    assert kept(EpsilonCutoff(0.25), log(0.5, 0.25, 0.125, 0.125)) == [0, 1]


@pytest.mark.parametrize("n", [0.3, 1.0, 2.5])
def test_top_n_sigma_equals_the_definition_on_possible_tokens(rows, n):
    result = TopNSigma(n=n)(NO_HISTORY, rows)
    for row, out in zip(rows, result, strict=True):
        possible = row[row > -math.inf]
        threshold = possible.max() - n * possible.std(correction=0)
        near = (row - threshold).abs() < 1e-9
        assert torch.equal((out > -math.inf)[~near], (row >= threshold)[~near])


def test_top_n_sigma_keeps_equality_and_counts_only_possible_tokens():
    # Mean 2 and deviation 2 among the possible ones: the threshold is exactly 4 - 2n.
    logits = torch.tensor([[4.0, 0.0, 4.0, 0.0, -math.inf]])
    assert kept(TopNSigma(2.0), logits) == [0, 1, 2, 3]
    assert kept(TopNSigma(1.9), logits) == [0, 2]


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: TopK(0), "top_k"),
        (lambda: TopK(2.5), "top_k"),
        (lambda: TopK(True), "top_k"),
        (lambda: TopP(0.0), "top_p"),
        (lambda: TopP(1.1), "top_p"),
        (lambda: TopP(math.nan), "top_p"),
        (lambda: TopP(0.5, boundary="both"), "boundary"),
        (lambda: MinP(-0.1), "min_p"),
        (lambda: TypicalP(0.0), "typical_p"),
        (lambda: EpsilonCutoff(1.0), "epsilon"),
        (lambda: EtaCutoff(0.0), "epsilon"),
        (lambda: TopNSigma(0.0), "n="),
        (lambda: TopNSigma("1"), "n='1'"),
    ],
)
def test_bad_parameters_are_refused_by_name(build, name):
    with pytest.raises(SettingsError, match=name):
        build()
