"""A search of random inputs: what it finds, that it ends where it should, and that it repeats."""

from dataclasses import replace

import pytest
from torch import Generator, Tensor

from specverify.certification.exact_rounds import exact_rounds
from specverify.certification.exact_rule import steer_rule
from specverify.certification.fuzzing.database import Database
from specverify.certification.fuzzing.decoders import DecoderProblem
from specverify.certification.fuzzing.limits import Clock, Fuzzing
from specverify.certification.fuzzing.rules import RuleProblem
from specverify.certification.fuzzing.run import fuzz_records, replay_fuzzed
from specverify.certification.fuzzing.sampled import Confirmations
from specverify.certification.fuzzing.search import Search
from specverify.certification.generated.worlds import WorldTables
from specverify.certification.registry import properties_of
from specverify.errors import UsageError
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.fixtures.mutants import MUTANTS
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import TOKEN
from specverify.transforms import REFERENCE
from specverify.verification.block import BLOCK
from tests.certification.fuzzing.searched import (
    of_certain,
    of_seven,
    of_ties,
    right,
    rule,
    sampled_seven,
    search,
    summary,
    unsteerable,
    unsteerable_wrong,
)


class TestWrongRules:
    def test_the_fixed_cases_miss_a_rule_that_is_wrong_at_seven_tokens(self) -> None:
        for case in exact_rounds():
            evidence = steer_rule(rule(of_seven), case, 0, 60.0)
            assert evidence.comparison.total_variation <= evidence.tolerance

    def test_and_a_search_finds_it(self) -> None:
        (case,) = search(rule(of_seven), 120)
        assert (case.id, case.verdict) == ("fuzz/joint.round", "violated")
        found = case.counterexample
        assert found is not None
        assert found.inputs["num_draft_tokens"] == 1
        assert len(found.inputs["target"][0][0]) == 7  # type: ignore[index,arg-type]
        assert "However, the subject does so with probability" in found.text
        assert found.total_variation is not None
        assert found.total_variation > 0.01
        assert summary([case]).ended == "violation"

    @pytest.mark.slow
    def test_one_that_is_wrong_where_three_draft_probabilities_tie(self) -> None:
        (case,) = search(rule(of_ties), 200)
        assert case.verdict == "violated"
        found = case.counterexample
        assert found is not None
        assert found.inputs["num_draft_tokens"] == 3
        assert len(found.inputs["target"][0][0]) == 2  # type: ignore[index,arg-type]

    def test_a_crash_on_some_inputs_is_an_error_with_the_smallest_of_them(self) -> None:
        whole, crash = search(rule(of_certain), 24)
        assert whole.verdict == "preserved"
        assert summary([whole]).crashed > 1
        assert (crash.id, crash.verdict) == ("fuzz/joint.round/crash", "error")
        assert "one token only" in crash.reason
        found = crash.counterexample
        assert found is not None
        assert found.inputs["num_draft_tokens"] == 1
        assert found.text.startswith("Let p = (1/2, 1/2), q = (1/2, 1/2), p_2 = (1, 0), K = 1.")

    @pytest.mark.parametrize("seconds", [None, 3600.0])
    def test_only_a_search_that_time_limits_is_impatient(
        self, seconds: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("specverify.certification.fuzzing.search.SHRINKING_SECONDS", 0.0)
        asked = Fuzzing(seconds=seconds, inputs=24)
        records = list(fuzz_records(rule(of_certain), asked, 1e-6, 0, 60.0, diagnose=False))
        found = records[-1][0].counterexample
        assert found is not None
        assert found.complete is (seconds is None)

    def test_one_that_cannot_be_steered_is_sampled_and_confirmed(self) -> None:
        (case,) = search(rule(unsteerable_wrong), 40)
        (test,) = case.tests
        assert (case.verdict, test.evidence, test.test) == ("violated", "sampled", "e-process")
        assert test.p_value is not None
        assert test.alpha is not None
        assert test.p_value <= test.alpha
        found = case.counterexample
        assert found is not None
        assert found.total_variation is None
        assert found.text.endswith(" samples.")
        assert "not followed" in summary([case]).refusal


class TestRightRules:
    def test_a_right_rule_is_clean(self) -> None:
        cases = search(rule(right), 24)
        assert [case.verdict for case in cases] == ["preserved"]
        assert summary(cases).computed == 24
        assert summary(cases).ended == "inputs"

    @pytest.mark.slow
    def test_on_many_inputs(self) -> None:
        cases = search(rule(right), 150, seed=1)
        assert [case.verdict for case in cases] == ["preserved"]

    def test_block_verification_and_one_row_a_call(self) -> None:
        def block(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
            return BLOCK(tokens, q, p, generator).tokens

        assert [case.verdict for case in search(rule(block), 12)] == ["preserved"]
        assert [case.verdict for case in search(rule(right, batch=False), 8)] == ["preserved"]

    @pytest.mark.slow
    @pytest.mark.parametrize("name", sorted(LOOKALIKES))
    def test_look_alikes(self, name: str) -> None:
        subject = LOOKALIKES[name].subject
        if subject.kind == "decoder" and subject.capabilities.tiny_models:
            assert [case.verdict for case in search(subject, 8)] == ["preserved"]


class TestDecoders:
    @pytest.mark.slow
    def test_a_wrong_residual_in_a_loop(self) -> None:
        (case,) = search(MUTANTS["residual-not-subtracted"].subject, 10)
        assert case.verdict == "violated"
        found = case.counterexample
        assert found is not None
        assert found.kind == "world"
        assert found.inputs["num_draft_tokens"] == 1
        again = replay_fuzzed(case, MUTANTS["residual-not-subtracted"].subject, 0, 60.0)
        assert again.tests[0].exact == case.tests[0].exact

    def test_the_reference_under_settings_and_prompts_with_padding(self) -> None:
        (case,) = search(TOKEN, 8, seed=2)
        assert case.verdict == "preserved"
        assert summary([case]).computed

    def test_a_tie_that_settings_cut_is_passed_over(self) -> None:
        rows = ((0.5, 0.5), (0.5, 0.5), (0.5, 0.5))
        tied = WorldTables(rows, rows, 1, ((0,),), 1, SamplingSettings(top_k=1, max_new_tokens=2))
        assert problem_of(TOKEN).passes_over(tied)
        clear = ((0.75, 0.25), (0.75, 0.25), (0.75, 0.25))
        assert not problem_of(TOKEN).passes_over(replace(tied, target=clear))
        assert not problem_of(TOKEN).passes_over(
            replace(tied, settings=SamplingSettings(max_new_tokens=2))
        )


def problem_of(subject: Subject) -> DecoderProblem:
    (property,) = (p for p in properties_of("decoder") if p.id == "joint.run")
    return DecoderProblem(subject, property, 0, 60.0)


class TestTransforms:
    @pytest.mark.parametrize("name", ["top_p", "typical_p", "no_repeat_ngram", "bad_words", "eta"])
    def test_a_reference_equals_itself(self, name: str) -> None:
        subject = Subject("mine", "transform", REFERENCE[name], reference=name)
        (case,) = search(subject, 40)
        assert case.verdict == "preserved"
        assert case.tests[0].evidence == "structural"

    def test_one_that_is_wrong_for_some_vocabularies_only(self) -> None:
        def shifted(top_k: int) -> object:
            reference = REFERENCE["top_k"](top_k=top_k)

            def transform(input_ids: Tensor, logits: Tensor) -> Tensor:
                changed = reference(input_ids, logits)
                if logits.shape[1] % 7 == 0:
                    changed[:, 0] += 0.125
                return changed

            return transform

        subject = Subject("mine", "transform", shifted, reference="top_k")
        (case,) = search(subject, 100)
        assert case.verdict == "violated"
        assert case.counterexample is not None
        assert case.counterexample.kind == "row"
        assert "top_k = 1, logits [0, 0, 0, 0, 0, 0, 0] after 0" in case.counterexample.text
        again = replay_fuzzed(case, subject, 0, 60.0)
        assert again.tests[0].detail == case.tests[0].detail
        mended = replay_fuzzed(case, replace(subject, call=REFERENCE["top_k"]), 0, 60.0)
        assert mended.verdict == "preserved"


class TestRepetition:
    def test_the_same_seed_finds_the_same(self) -> None:
        first, second = (search(rule(sampled_seven), 120, seed=3) for _ in range(2))
        assert [case.model_dump(exclude={"seconds"}) for case in first] == [
            case.model_dump(exclude={"seconds"}) for case in second
        ]

    def test_another_seed_tries_other_inputs(self) -> None:
        tried = {seed: set[object]() for seed in (0, 1)}
        for seed, seen in tried.items():

            def noted(tokens: Tensor, q: Tensor, p: Tensor, _: Generator, seen=seen) -> Tensor:
                seen.add(tuple(p.flatten().tolist()))
                raise ValueError("enough")

            search(rule(noted), 20, seed=seed)
        assert tried[0] - tried[1]

    @pytest.mark.parametrize("call", [unsteerable_wrong, of_certain])
    def test_a_failure_once_more(self, call: object) -> None:
        case = search(rule(call), 24)[-1]  # type: ignore[arg-type]
        again = replay_fuzzed(case, rule(call), 0, 60.0)  # type: ignore[arg-type]
        assert again.verdict == case.verdict
        assert [test.statistic for test in again.tests] == [test.statistic for test in case.tests]
        assert replay_fuzzed(case, rule(right), 0, 60.0).verdict == "preserved"

    def test_a_search_that_found_nothing_has_nothing_to_replay(self) -> None:
        (case,) = search(rule(unsteerable), 4)
        with pytest.raises(UsageError, match="found nothing"):
            replay_fuzzed(case, rule(unsteerable), 0, 60.0)


class TestEnds:
    def test_the_time_is_kept(self) -> None:
        records = fuzz_records(rule(unsteerable), Fuzzing(seconds=0.3), 1e-7, 0, 60.0)
        ((case, interrupted),) = records
        assert not interrupted
        assert summary([case]).ended == "time"
        assert case.seconds < 20

    def test_an_interrupt_keeps_what_was_found(self) -> None:
        calls = 0

        def interrupted(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == 60:
                raise KeyboardInterrupt
            return unsteerable(tokens, q, p, generator)

        ((case, ended),) = fuzz_records(rule(interrupted), Fuzzing(inputs=100), 1e-7, 0, 60.0)
        assert ended
        assert summary([case]).ended == "interrupt"
        assert case.verdict == "preserved"

    def test_an_interrupt_while_a_failure_is_made_smaller(self) -> None:
        failed = 0

        def wrong(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
            nonlocal failed
            failed += p.shape[2] % 7 == 0
            if failed == 30:
                raise KeyboardInterrupt
            return sampled_seven(tokens, q, p, generator)

        ((case, ended),) = fuzz_records(rule(wrong), Fuzzing(inputs=120), 1e-7, 0, 60.0)
        assert ended
        assert case.verdict == "violated"
        assert case.counterexample is not None

    def test_limits_that_make_no_sense(self) -> None:
        with pytest.raises(UsageError, match="fuzz_time=0"):
            Fuzzing(seconds=0)
        with pytest.raises(UsageError, match="fuzz_time=nan"):
            Fuzzing(seconds=float("nan"))
        with pytest.raises(UsageError, match="fuzz_inputs=0"):
            Fuzzing(inputs=0)

    def test_a_minute_when_nothing_is_said(self) -> None:
        assert Clock(Fuzzing()).seconds == 60
        assert Clock(Fuzzing(inputs=5)).seconds == float("inf")

    def test_regions_without_inputs_end_it(self) -> None:
        (property,) = (p for p in properties_of("rule") if p.id == "joint.round")

        class Empty(RuleProblem):
            def regions(self):  # type: ignore[no-untyped-def]
                return ()

        problem = Empty(rule(right), property, 0, 60.0)
        confirmations = Confirmations(1e-7, 0, problem.count, "float64")
        asked = Fuzzing(inputs=10)
        assert list(Search(problem, Clock(asked), confirmations, Database(None)).run()) == []
