"""XTC from the call to the record: the law over its coins, on rows that no rounding decides."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.certification.certificate import CaseRecord
from specverify.certification.random_transform import run_random_transform
from specverify.certification.registry import properties_of
from specverify.certification.run import certify
from specverify.certification.transform_case import RANDOM_PARAMETERS, corpus, transform_cases
from specverify.certification.transform_evidence import TransformEvidence
from specverify.certification.transform_run import run_transform_case
from specverify.fixtures.lookalikes.transforms_constraints import NarrowCoins, NoCoin
from specverify.fixtures.mutants.transforms_constraints import (
    MostLikelyKept,
    OneCoin,
    StrictThreshold,
)
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Capabilities, Subject
from specverify.transforms import XTC

PROPERTIES = [p for p in properties_of("transform") if p.evidence == "sampled"]
ALWAYS, OFTEN, _, NEVER = transform_cases("xtc")
KINDS = list(corpus(0))


def subject(factory: Callable[..., Any], **capabilities: Any) -> Subject:
    return Subject("mine", "transform", factory, Capabilities(**capabilities), reference="xtc")


def judged(factory: Callable[..., Any], case: Any = OFTEN, **capabilities: Any) -> CaseRecord:
    made = subject(factory, **capabilities)
    return run_transform_case(made, case, PROPERTIES, Budget(), seed=0, time_limit=60.0)


@pytest.fixture(scope="module")
def often() -> TransformEvidence:
    return run_random_transform(subject(XTC), OFTEN, 0, 60.0)


def test_expected_is_the_mean_over_coins(often: TransformEvidence) -> None:
    rows = corpus(0)["two levels"]
    result = often.results["two levels"]
    assert len(result.logits) == len(rows.logits)
    (_, raw), (_, cut) = XTC(0.5, 0.1).outcomes(rows.histories, rows.logits)
    wanted = (raw.softmax(-1) + cut.softmax(-1)) / 2
    assert result.expected.exp().numpy() == pytest.approx(wanted.numpy(), abs=1e-12)
    assert int((cut == -torch.inf).sum(-1).min()) == 7


def test_what_is_observed_is_computed(often: TransformEvidence) -> None:
    assert set(KINDS) < set(often.results)
    for result in often.results.values():
        assert float((result.expected.exp() - result.observed.exp()).abs().max()) < 1e-6
    (pairs,) = (result for name, result in often.results.items() if name not in KINDS)
    assert pairs.expected.shape == pairs.observed.shape == (4, 16 * 16)
    assert pairs.expected.exp().sum(-1).numpy() == pytest.approx(np.ones(4))


def test_rows_that_rounding_decides_are_left_out_unless_it_is_told() -> None:
    """With a coin that always falls the same way the property sees which rows lie there."""
    always = run_random_transform(subject(NoCoin), ALWAYS, 0, 60.0).results["dyadic"]
    at = ((always.alternatives > -torch.inf) != (always.expected > -torch.inf)).any(-1).any(0)
    assert len(at) == len(corpus(0)["dyadic"].logits)
    assert int(at.sum()) >= 64


@pytest.mark.parametrize("case", transform_cases("xtc"), ids=lambda case: case.id)
@pytest.mark.parametrize("factory", [NarrowCoins, NoCoin])
def test_right_ones_are_preserved(factory: Callable[..., Any], case: Any) -> None:
    record = judged(factory, case)
    assert (record.verdict, record.findings) == ("preserved", ())
    assert record.settings == {"reference": "xtc", **case.parameters}


def test_the_reference_is_preserved() -> None:
    certificate = certify(subject(XTC))
    assert certificate.verdict == "preserved"
    assert certificate.reason.endswith(" in 4 exact cases")
    assert len(certificate.cases) == 2 * len(RANDOM_PARAMETERS["xtc"])
    left_out = {entry.property: entry.reason for entry in certificate.not_applicable}
    assert "'xtc' is none" in left_out["transforms.support"]


@pytest.mark.parametrize(
    ("factory", "case", "said"),
    [
        (MostLikelyKept, OFTEN, "the reference gives tokens"),
        (StrictThreshold, ALWAYS, "another convention at equality"),
        (OneCoin, OFTEN, "4 of 4 random, two of one call as token 16 a + b, rows differ"),
    ],
)
def test_wrong_ones_are_violated(factory: Callable[..., Any], case: Any, said: str) -> None:
    record = judged(factory, case)
    assert record.verdict == "violated"
    assert said in record.tests[0].detail
    assert judged(factory, NEVER).verdict == "preserved"


def test_one_that_takes_one_row_a_call_has_no_pairs() -> None:
    assert judged(OneCoin, batch=False).verdict == "preserved"


def test_coins_that_cannot_be_followed_are_an_error() -> None:
    class Numpy(XTC):
        def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
            return self.outcomes(input_ids, logits)[bool(np.random.random() < 0.5)][1]

    record = judged(Numpy)
    assert record.verdict == "error"
    assert record.reason.startswith("its coins cannot be followed: ")
    assert certify(subject(Numpy)).verdict == "error"


def test_a_factory_without_a_generator_is_told() -> None:
    record = judged(lambda probability, threshold: XTC(probability, threshold))
    assert record.verdict == "error"
    assert "unexpected keyword argument 'generator'" in record.reason


def test_a_search_is_left_out() -> None:
    certificate = certify(subject(NoCoin), exact=False, profile="fuzz", fuzz_inputs=5)
    reasons = [entry.reason for entry in certificate.not_applicable]
    assert any("tell nothing of a transform that tosses coins" in reason for reason in reasons)
    assert certificate.verdict == "preserved"
