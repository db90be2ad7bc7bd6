"""A transform from the call to the record."""

import pytest
import torch

from specverify.certification.registry import properties_of
from specverify.certification.transform_case import corpus, transform_cases
from specverify.certification.transform_evidence import run_transform
from specverify.certification.transform_run import run_transform_case
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Capabilities, Subject
from specverify.transforms import REFERENCE

PROPERTIES = [p for p in properties_of("transform") if p.evidence == "sampled"]


def subject(factory, reference="top_k", **capabilities):
    return Subject("mine", "transform", factory, Capabilities(**capabilities), reference=reference)


def judged(made, case=None):
    case = case or transform_cases(made.reference)[1]
    return run_transform_case(made, case, PROPERTIES, Budget(), seed=0, time_limit=60.0)


def test_a_right_transform():
    record = judged(subject(REFERENCE["top_k"]))
    assert (record.verdict, record.findings) == ("preserved", ())
    assert record.settings == {"reference": "top_k", "top_k": 3}
    assert record.id == "top_k[3]"


def test_parameters_become_json():
    record = judged(
        subject(REFERENCE["logit_bias"], "logit_bias"), transform_cases("logit_bias")[0]
    )
    assert record.verdict == "preserved"
    assert record.settings["bias"] == {"0": 1.5, "3": -2.0}


def test_a_rule_becomes_json():
    made = subject(REFERENCE["allowed_tokens"], "allowed_tokens")
    record = judged(made, transform_cases("allowed_tokens")[0])
    assert record.verdict == "preserved"
    assert record.id == "allowed_tokens[(0 3 5 | 1 2 4 5 by 0 2 3), 0]"
    assert record.settings["allowed"] == {"sets": [[0, 3, 5], [1, 2, 4, 5]], "turning": [0, 2, 3]}


def test_it_sees_float32_and_what_is_exact_in_float64():
    seen = {}

    def factory(top_k):
        def transform(ids, logits):
            seen[len(seen)] = logits
            return REFERENCE["top_k"](top_k)(ids, logits)

        return transform

    evidence = run_transform(subject(factory), transform_cases("top_k")[1], 0, 60.0)
    for logits, (kind, rows) in zip(seen.values(), corpus(0).items(), strict=True):
        assert logits.dtype == (torch.float64 if rows.exact else torch.float32), kind
        torch.testing.assert_close(logits.double(), rows.logits, atol=1e-5, rtol=1e-6)
    assert list(evidence.results) == list(corpus(0))


def test_one_that_takes_float32_only_gets_float32():
    def factory(top_k):
        def transform(ids, logits):
            if logits.dtype != torch.float32:
                raise TypeError("expected float32")
            return REFERENCE["top_k"](top_k)(ids, logits)

        return transform

    assert judged(subject(factory)).verdict == "preserved"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda top_k: lambda ids, logits: 1 / 0, "raised ZeroDivisionError"),
        (lambda top_k: lambda ids, logits: logits[:, :3], r"has shape \[256, 3\]"),
        (lambda top_k: lambda ids, logits: logits * float("nan"), "is NaN"),
        (lambda k: None, "raised TypeError"),
        (lambda top_k: 3, "which cannot be called"),
    ],
)
def test_one_that_fails_is_an_error(factory, message):
    record = judged(subject(factory))
    assert record.verdict == "error"
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(record.reason)


def test_one_that_changes_its_input_is_reported():
    def factory(temperature):
        return lambda ids, logits: logits.div_(temperature)

    record = judged(subject(factory, "temperature"), transform_cases("temperature")[0])
    assert record.verdict == "preserved"
    assert len(record.findings) == 1
    assert "changes the logits it is handed in place" in record.findings[0]
