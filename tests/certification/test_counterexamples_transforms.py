"""Counterexamples of transforms: small, the same every time, and never of a right one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specverify.certification.certificate import CaseRecord, CounterexampleRecord, TestRecord
from specverify.certification.counterexamples.attach import with_counterexamples
from specverify.certification.counterexamples.stored import compute_stored, stored_transform
from specverify.certification.counterexamples.transform_rows import (
    exact_rows,
    plain_inputs,
    simpler,
    sizes,
)
from specverify.certification.counterexamples.transforms import smallest_row
from specverify.certification.transform_case import PARAMETERS, TransformCase, transform_cases
from specverify.errors import UsageError
from specverify.fixtures.lookalikes.transforms_algebra import LOOKALIKES
from specverify.fixtures.mutants import MUTANTS
from specverify.subjects.protocols import Subject
from specverify.transforms import REFERENCE, NoRepeatNGram

WRONG = {mutant.id: mutant.subject for mutant in MUTANTS.values()}
CLAIM = "transforms.equals_reference"


def found(subject: Subject, case_id: str = "") -> CounterexampleRecord | None:
    return smallest_row(subject, CLAIM, 0, 60.0, 120.0, case_id)


class TestSearch:
    def test_two_tokens_are_enough(self) -> None:
        record = found(WRONG["top-p-crossing-dropped"])
        assert record is not None
        assert record.kind == "transform"
        assert record.property == CLAIM
        assert record.text == (
            "Let top_p = 3/4, logits (0, 0), history 0. Then the reference gives token 0 "
            "probability 1/2. However, the subject gives it 1."
        )
        assert [entry.expected for entry in record.outcomes] == [0.5, 0.5]
        assert [entry.observed for entry in record.outcomes] == [1.0, 0.0]
        assert record.total_variation == 0.5
        assert record.inputs["history"] == [0]

    def test_parameters_of_the_violated_case_come_first(self) -> None:
        subject = WRONG["repetition-penalty-on-log-probabilities"]
        record = found(subject, "repetition_penalty[1.5]")
        assert record is not None
        assert record.inputs["parameters"] == {"penalty": 1.5}

    @pytest.mark.parametrize(
        ("name", "logits"), [("top-p-boundary-kept", 3), ("top-k-ties-cut", 2)]
    )
    def test_another_convention_at_a_boundary(self, name: str, logits: int) -> None:
        record = found(WRONG[name])
        assert record is not None
        assert len(record.outcomes) == logits
        assert record.inputs["dtype"] == "float64"

    def test_history_where_it_takes_some(self) -> None:
        """N-grams of two are never banned; it shows from the second token on."""

        def build(ngram_size: int) -> Any:
            return NoRepeatNGram(3 if ngram_size == 2 else ngram_size)

        record = found(Subject("mine", "transform", build, reference="no_repeat_ngram"))
        assert record is not None
        assert record.inputs["parameters"] == {"ngram_size": 2}
        assert record.inputs["history"] == [0, 0]

    def test_one_that_shows_on_more_than_five_tokens(self) -> None:
        class TopFive:
            def __init__(self, top_p: float) -> None:
                self.right = REFERENCE["top_p"](top_p=top_p)

            def __call__(self, input_ids: Tensor, logits: Tensor) -> Tensor:
                right = self.right(input_ids, logits)
                kept = right.topk(min(5, right.shape[1]), dim=-1).values[..., -1:]
                return right.masked_fill(right < kept, -torch.inf)

        record = found(Subject("mine", "transform", TopFive, reference="top_p"))
        assert record is not None
        assert record.inputs["history"] == [0]
        assert len(record.outcomes) == 6

    def test_the_same_every_time_and_computed_once_more(self) -> None:
        subject = WRONG["top-p-crossing-dropped"]
        first = found(subject)
        assert first is not None
        assert first == found(subject)
        again = compute_stored(first, subject, 0, 60.0)
        assert again.wrong
        assert again.comparison.total_variation == first.total_variation
        mended = Subject("mine", "transform", REFERENCE["top_p"], reference="top_p")
        assert not compute_stored(first, mended, 0, 60.0).wrong

    def test_a_mask_that_leaks_is_wrong_however_little_gets_through(self) -> None:
        def build(**parameters: Any) -> Any:
            right = REFERENCE["temperature"](**parameters)
            return lambda ids, logits: right(ids, logits).clamp(min=-30.0)

        subject = Subject("mine", "transform", build, reference="temperature")
        record = found(subject)
        assert record is not None
        assert record.total_variation is None
        assert "gives token 1 probability 0." in record.text
        assert compute_stored(record, subject, 0, 60.0).wrong

    def test_one_that_shows_on_long_histories_only_is_made_smaller(self) -> None:
        def build(penalty: float) -> Any:
            right = REFERENCE["presence_penalty"](penalty=penalty)
            return lambda ids, logits: right(ids, logits) if ids.shape[1] < 7 else logits.double()

        record = found(Subject("mine", "transform", build, reference="presence_penalty"))
        assert record is not None
        assert len(record.inputs["history"]) == 7  # type: ignore[arg-type]
        assert all(float(logit).is_integer() for logit in record.inputs["logits"])  # type: ignore

    def test_nothing_where_the_subject_raises(self) -> None:
        def build(top_p: float) -> Any:
            raise ValueError(top_p)

        assert found(Subject("mine", "transform", build, reference="top_p")) is None

    def test_time_that_runs_out_is_no_counterexample(self) -> None:
        subject = WRONG["top-p-crossing-dropped"]
        assert smallest_row(subject, CLAIM, 0, 60.0, 0.0) is None


@pytest.mark.parametrize("lookalike", LOOKALIKES, ids=lambda lookalike: lookalike.id)
def test_right_ones_have_none(lookalike: Any) -> None:
    assert smallest_row(lookalike.subject, CLAIM, 0, 60.0, 120.0) is None


@pytest.mark.parametrize("reference", PARAMETERS)
def test_the_reference_has_none(reference: str) -> None:
    subject = Subject("mine", "transform", REFERENCE[reference], reference=reference)
    assert smallest_row(subject, CLAIM, 0, 60.0, 120.0) is None


class TestRows:
    def test_tokens_that_parameters_name_exist(self) -> None:
        for case in transform_cases("bad_words"):
            for size in sizes(case):
                for history, row in plain_inputs(case, size):
                    assert len(row) == size
                    assert max(history) < size
        assert [sizes(case) for case in transform_cases("bad_words")] == [(4, 6, 8), (6, 8)]

    def test_the_first_ones_are_the_plainest(self) -> None:
        (case,) = (case for case in transform_cases("top_p") if case.parameters["top_p"] == 0.5)
        inputs = list(plain_inputs(case, 2))
        assert inputs[0] == ((0,), (0.0, 0.0))
        assert len(inputs) == len(set(inputs))

    def test_typical_sampling_is_not_made_to_decide_by_rounding(self) -> None:
        half = TransformCase("", "typical_p", {"typical_p": 0.5})
        assert 3 not in {len(row) for row in exact_rows(half)}
        assert 3 in {len(row) for row in exact_rows(TransformCase("", "top_p", {"top_p": 0.5}))}

    def test_less_and_less(self) -> None:
        case = TransformCase("", "frequency_penalty", {"penalty": 0.5})
        less = list(simpler(case, (2, 0, 1), (0.3, 1.0, 2.0)))
        assert less[:2] == [((1,), (0.3, 1.0, 2.0)), ((0, 1), (0.3, 1.0, 2.0))]
        assert less[2] == ((2, 0, 1), (0.0, 1.0, 2.0))


def violated(property: str) -> TestRecord:
    return TestRecord(property=property, claim="", evidence="structural", decision="violated")


class TestAttach:
    def test_on_the_case_that_shows_it(self) -> None:
        cases = [
            CaseRecord(id="top_p[0.25]", verdict="preserved"),
            CaseRecord(id="top_p[0.9]", verdict="violated", tests=(violated(CLAIM),)),
            CaseRecord(
                id="probe/transforms.order/a",
                verdict="violated",
                tests=(violated("transforms.arguments"),),
            ),
        ]
        shown = with_counterexamples(cases, WRONG["top-p-crossing-dropped"], 0, 60.0)
        assert shown[1].counterexample is not None
        assert shown[1].counterexample.kind == "transform"
        assert shown[1].counterexample.inputs["parameters"] == {"top_p": 0.9}
        assert shown[0].counterexample is shown[2].counterexample is None

    def test_properties_of_one_mistake_share_one(self) -> None:
        cases = [
            CaseRecord(id=f"probe/{name}/a", verdict="violated", tests=(violated(name),))
            for name in ("transforms.order", "transforms.permutation")
        ]
        shown = with_counterexamples(cases, WRONG["top-p-crossing-dropped"], 0, 60.0)
        assert [case.counterexample is not None for case in shown] == [True, False]

    def test_what_no_row_shows_is_left_as_it_is(self) -> None:
        case = CaseRecord(id="top_k[1]", verdict="violated", tests=(violated(CLAIM),))
        right = Subject("mine", "transform", REFERENCE["top_k"], reference="top_k")
        assert with_counterexamples([case], right, 0, 60.0) == [case]


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "int8"},
        {"logits": ["x"]},
        {"parameters": 3},
        {"parameters": {"top_k": 3}},
        {"parameters": {"top_p": 7.0}},
        {"reference": "top_q"},
    ],
    ids=str,
)
def test_a_counterexample_that_was_tampered_with(change: dict[str, Any]) -> None:
    inputs = {
        "reference": "top_p",
        "parameters": {"top_p": 0.5},
        "history": [0],
        "logits": [0.0, "-Infinity"],
        "dtype": "float32",
    }
    record = CounterexampleRecord(
        kind="transform", property=CLAIM, inputs=inputs, outcomes=(), text=""
    )
    assert stored_transform(record).logits == (0.0, float("-inf"))
    with pytest.raises(UsageError, match="cannot be read"):
        stored_transform(record.model_copy(update={"inputs": inputs | change}))
