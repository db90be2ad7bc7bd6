"""Smallest counterexamples: found, minimal, the same every time, and computable once more."""

from pathlib import Path

import pytest

from specverify.certification.certificate import (
    CaseRecord,
    CellRecord,
    CounterexampleRecord,
    ExactRecord,
    SequenceRecord,
    TestRecord,
)
from specverify.certification.counterexamples.argument import contradiction
from specverify.certification.counterexamples.attach import roots, with_counterexamples
from specverify.certification.counterexamples.decoders import fitted, smallest_world
from specverify.certification.counterexamples.rules import smallest_round
from specverify.certification.counterexamples.stored import compute_stored, stored_round
from specverify.certification.counterexamples.words import number, rows, tokens
from specverify.errors import UsageError
from specverify.fixtures.mutants import MUTANTS
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN as REFERENCE

RULES = {mutant.id: mutant.subject for mutant in RULE_MUTANTS}
PLAIN = [SamplingSettings()]


class TestWords:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0.0, "0"),
            (1.0, "1"),
            (0.5, "1/2"),
            (1 / 3, "1/3"),
            (0.123456789, "0.123457"),
            (1e-12, "1e-12"),
        ],
    )
    def test_fractions_where_they_are_short(self, value: float, text: str) -> None:
        assert number(value) == text

    def test_equal_rows_are_written_once(self) -> None:
        assert rows([(0.5, 0.5), (0.5, 0.5)], [(0,), (1,)]) == "(1/2, 1/2)"
        assert rows([(0.5, 0.5), (1.0, 0.0)], [(0,), (1,)]) == "(1/2, 1/2) after 0, (1, 0) after 1"

    def test_rows_of_a_batch_are_kept_apart(self) -> None:
        assert tokens((0, 1, -1, 1)) == "0 1 | 1"
        assert tokens(()) == "nothing"


class TestContradiction:
    def test_at_the_first_token_that_is_off(self) -> None:
        observed = {(0, 0): 0.75, (1, 0): 0.25}
        expected = {(0, 0): 0.5, (1, 0): 0.5}
        assert contradiction(observed, expected, 1e-12) == (
            "Then the target emits 0 first with probability 1/2. However, the subject does so with "
            "probability 3/4."
        )

    def test_later_where_the_first_is_right(self) -> None:
        observed = {(0, 0): 0.5, (1, 1): 0.5}
        expected = {(0, 0): 0.5, (1, 0): 0.5}
        assert "emits 1 0 with probability 1/2" in contradiction(observed, expected, 1e-12)

    def test_where_only_the_end_is_off(self) -> None:
        said = contradiction({(0,): 0.5, (0, 1): 0.5}, {(0,): 0.25, (0, 1): 0.75}, 1e-12)
        assert "the target ends after 0 with probability 1/4" in said
        assert "the subject does so with probability 1/2" in said

    def test_tokens_after_the_longest_run_there_is(self) -> None:
        said = contradiction({(0, 1): 0.5, (0, 1, 1): 0.5}, {(0, 1): 1.0}, 1e-12)
        assert "the target ends after 0 1 with probability 1." in said


class TestRules:
    def test_four_numbers_are_enough_for_a_wrong_residual(self) -> None:
        found = smallest_round(RULES["residual-not-subtracted"], "joint.round", 0, 60.0, 60.0)
        assert found is not None
        assert found.inputs["target"] == [[[0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]
        assert found.inputs["draft"] == [[[0.75, 0.25]]]
        assert found.total_variation == pytest.approx(1 / 8)
        assert found.text == (
            "Let p = (1/2, 1/2), q = (3/4, 1/4), K = 1, all other rows (1/2, 1/2). Then the target "
            "emits 0 first with probability 1/2. However, the subject does so with probability 5/8."
        )
        assert [outcome.expected for outcome in found.outcomes] == [0.25] * 4

    def test_a_wrong_bonus_token_shows_at_the_second(self) -> None:
        found = smallest_round(RULES["bonus-from-draft"], "joint.round", 0, 60.0, 60.0)
        assert found is not None
        assert "emits 0 0 with probability 3/8" in found.text

    def test_the_same_every_time_and_computed_once_more(self) -> None:
        subject = RULES["always-accept"]
        first, second = (smallest_round(subject, "joint.round", 0, 60.0, 60.0) for _ in range(2))
        assert first is not None
        assert first == second
        again = compute_stored(first, subject, 0, 60.0)
        assert again.wrong
        assert again.comparison.total_variation == first.total_variation

    def test_time_that_runs_out_is_said(self) -> None:
        found = smallest_round(RULES["always-accept"], "joint.round", 0, 60.0, 0.0)
        assert found is None

    def test_nothing_is_left_in_the_users_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        smallest_round(RULES["greedy-test"], "joint.round", 0, 60.0, 60.0)
        assert list(tmp_path.iterdir()) == []


class TestDecoders:
    def test_a_wrong_residual(self) -> None:
        subject = MUTANTS["residual-not-subtracted"].subject
        found = smallest_world(subject, "joint.run", PLAIN, 0, 60.0, 60.0)
        assert found is not None
        assert found.kind == "world"
        assert found.inputs["num_draft_tokens"] == 1
        assert len(found.inputs["target"][0]) == 2  # type: ignore[index,arg-type]
        assert "However" in found.text
        again = compute_stored(found, subject, 0, 60.0)
        assert again.comparison.total_variation == found.total_variation

    def test_settings_are_cut_to_the_tokens_there_are(self) -> None:
        cut = fitted(SamplingSettings(top_k=20, stop_token_ids=(5,), stop_sequences=((3, 4),)), 2)
        assert cut.top_k == 1
        assert cut.stop_token_ids == (1,)
        assert cut.stop_sequences == ((1, 0),)


def violated(property: str, **fields: object) -> TestRecord:
    return TestRecord(
        property=property,
        claim="",
        evidence="exact",
        decision="violated",
        **fields,  # type: ignore[arg-type]
    )


def exact(distance: float) -> ExactRecord:
    worst = (SequenceRecord(tokens=(0, 1), observed=0.5, expected=0.25),)
    return ExactRecord(
        total_variation=distance,
        tolerance=1e-12,
        largest_ratio=2.0,
        outside_support=0.0,
        crashing=0.0,
        method="forcing",
        runs=3,
        worst=worst,
    )


class TestAttach:
    def test_computed_cases_come_first_and_each_property_once(self) -> None:
        cases = [
            CaseRecord(id="plain", verdict="violated", tests=(violated("joint.every_token"),)),
            CaseRecord(id="probe/a/b", verdict="violated", tests=(violated("a.b"),)),
            CaseRecord(id="exact/plain", verdict="violated", tests=(violated("joint.run"),)),
            CaseRecord(id="exact/greedy", verdict="violated", tests=(violated("joint.run"),)),
        ]
        assert [index for index, _ in roots(cases)] == [2, 1, 0]

    def test_properties_broken_by_one_mistake_share_one(self) -> None:
        found = with_counterexamples(
            [
                CaseRecord(
                    id="exact/random-V3-K1-float64",
                    verdict="violated",
                    tests=(violated("joint.round", exact=exact(0.1)),),
                ),
                CaseRecord(
                    id="exact/ties-float64",
                    verdict="violated",
                    tests=(violated("correction.of_round", exact=exact(0.1)),),
                ),
            ],
            RULES["always-accept"],
            0,
            60.0,
        )
        assert found[0].counterexample is not None
        assert found[0].counterexample.kind == "round"
        assert found[1].counterexample is None

    def test_what_cannot_be_steered_shows_its_worst_cell(self) -> None:
        cell = CellRecord(cell=3, observed=900, expected=500.0, label="token 3 after 1")
        test = violated("joint.first_token", test="e-process", n=10_000, worst_cells=(cell,))
        case = CaseRecord(id="plain", verdict="violated", tests=(test,))
        subject = Subject("mine", "decoder", REFERENCE.call, Capabilities())
        (found,) = with_counterexamples([case], subject, 0, 60.0)
        assert found.counterexample is not None
        assert found.counterexample.kind == "cell"
        assert found.counterexample.text == (
            "Of 10,000 samples under plain, 500.0 are expected at token 3 after 1. However, there "
            "were 900."
        )

    def test_a_right_rule_has_nothing_to_show(self) -> None:
        test = TestRecord(property="joint.round", claim="", evidence="exact", decision="pass")
        case = CaseRecord(id="exact/x", verdict="preserved", tests=(test,))
        assert with_counterexamples([case], RULES["always-accept"], 0, 60.0) == [case]


def test_a_counterexample_that_was_tampered_with() -> None:
    record = CounterexampleRecord(
        kind="round", property="joint.round", inputs={"target": 3}, outcomes=(), text=""
    )
    with pytest.raises(UsageError, match="cannot be read"):
        stored_round(record)
    with pytest.raises(UsageError, match="is the case itself"):
        compute_stored(record.model_copy(update={"kind": "case"}), REFERENCE, 0, 60.0)
