"""The corpus a transform is tried on."""

import pytest
import torch

from specverify.certification.transform_case import (
    PARAMETERS,
    SPARED,
    TransformCase,
    corpus,
    transform_cases,
)
from specverify.errors import UsageError
from specverify.transforms import REFERENCE


@pytest.mark.parametrize("seed", range(5))
def test_every_reference_takes_every_row(seed):
    """Whatever a history forbids, a token stays possible."""
    for rows in corpus(seed).values():
        for reference in PARAMETERS:
            for case in transform_cases(reference):
                result = case.build_reference()(rows.histories, rows.logits)
                assert (result > -torch.inf).any(1).all()


def test_rows_are_what_they_are_said_to_be():
    rows = corpus(0)
    for kind in rows.values():
        assert kind.logits.dtype == torch.float64
        assert not (kind.histories == SPARED).any()
        assert (kind.logits[:, SPARED] > -torch.inf).all()
    assert (rows["masked"].logits == -torch.inf).any(1).float().mean() > 0.9
    assert rows["peaked"].logits.softmax(-1).amax(1).median() > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dyadic_rows_are_exact_in_both_precisions(dtype):
    probs = corpus(3)["dyadic"].logits.to(dtype).softmax(-1)
    exponents = probs[probs > 0].double().log2()
    assert torch.equal(exponents, exponents.round())
    ascending = probs.sort(-1).values.cumsum(-1)
    assert torch.equal(ascending[:, -1], torch.ones(len(probs), dtype=dtype))
    for mass in (0.25, 0.5, 0.75):
        assert (ascending == mass).any(1).float().mean() > 0.5


def test_exact_rows_survive_float32():
    for kind, rows in corpus(1).items():
        if kind != "dyadic" and rows.exact:
            assert torch.equal(rows.logits.float().double(), rows.logits)


def test_the_seed_decides():
    first, again, other = (corpus(seed)["random"].logits for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_reference_without_coins_or_callables_has_cases():
    left_out = {"xtc", "allowed_tokens", "min_length", "forced_tokens"}
    assert set(PARAMETERS) == set(REFERENCE) - left_out
    for reference in PARAMETERS:
        cases = transform_cases(reference)
        assert len({case.id for case in cases}) == len(cases)


def test_scaling_moves_real_parameters_within_their_range():
    case = TransformCase("", "min_p", {"min_p": 1.0})
    assert case.thresholds == {"min_p": 1.0}
    assert case.build_reference(scaled=1.5).min_p == 1.0  # type: ignore[attr-defined]
    assert case.build_reference(scaled=0.5).min_p == 0.5  # type: ignore[attr-defined]
    assert not TransformCase("", "top_k", {"top_k": 3}).thresholds


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (None, "none is named"),
        ("topk", r"'topk' is none \(did you mean 'top_k'\?\)"),
        ("xtc", "'xtc' is none"),
    ],
)
def test_no_reference_to_compare_with(reference, said):
    with pytest.raises(UsageError, match=rf"{said}; name one with --reference-transform: temp"):
        transform_cases(reference)
