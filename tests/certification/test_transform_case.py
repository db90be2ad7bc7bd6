"""The corpus a transform is tried on."""

import json

import pytest
import torch

from specverify.certification.transform_case import (
    HISTORY,
    PARAMETERS,
    RANDOM_PARAMETERS,
    SPARED,
    TransformCase,
    corpus,
    loaded_parameters,
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


def test_every_reference_has_cases():
    known = PARAMETERS | RANDOM_PARAMETERS
    assert set(known) == set(REFERENCE)
    assert not set(PARAMETERS) & set(RANDOM_PARAMETERS)
    for reference in known:
        cases = transform_cases(reference)
        assert len({case.id for case in cases}) == len(cases)
        assert {case.random for case in cases} == {reference in RANDOM_PARAMETERS}


@pytest.mark.parametrize("reference", [*PARAMETERS, *RANDOM_PARAMETERS])
def test_cases_come_back_from_json(reference):
    for case in transform_cases(reference):
        record = json.loads(json.dumps(case.record))
        assert record.pop("reference") == reference
        assert loaded_parameters(record) == case.parameters


def test_constraints_are_tried_on_both_sides_of_the_length():
    """Reached exactly, passed, and not reached; forced here, and elsewhere."""
    ahead = {
        case.parameters["min_new_tokens"] + case.parameters["prompt_length"] - HISTORY
        for case in transform_cases("min_length")
    }
    assert {0, 1} < ahead
    assert min(ahead) < 0
    here = [
        HISTORY - case.parameters["prompt_length"] in case.parameters["forced"]
        for case in transform_cases("forced_tokens")
    ]
    assert set(here) == {True, False}


def test_no_masked_token_comes_back():
    """So that `transforms.support` can be asked of all."""
    for rows in corpus(0).values():
        for reference in ("allowed_tokens", "min_length", "forced_tokens"):
            for case in transform_cases(reference):
                result = case.build_reference()(rows.histories, rows.logits)
                assert not ((result > -torch.inf) & (rows.logits == -torch.inf)).any()


def test_scaling_moves_real_parameters_within_their_range():
    case = TransformCase("", "min_p", {"min_p": 1.0})
    assert case.thresholds == {"min_p": 1.0}
    assert case.build_reference(scaled=1.5).min_p == 1.0  # type: ignore[attr-defined]
    assert case.build_reference(scaled=0.5).min_p == 0.5  # type: ignore[attr-defined]
    assert not TransformCase("", "top_k", {"top_k": 3}).thresholds
    always = transform_cases("xtc")[0]
    assert always.thresholds == {"threshold": 0.25}
    assert always.build_reference(scaled=0.5).probability == 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (None, "none is named"),
        ("topk", r"'topk' is none \(did you mean 'top_k'\?\)"),
        ("mirostat", "'mirostat' is none"),
    ],
)
def test_no_reference_to_compare_with(reference, said):
    with pytest.raises(UsageError, match=rf"{said}; name one with --reference-transform: temp"):
        transform_cases(reference)
