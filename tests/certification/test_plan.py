"""Plans: cases, amounts, and requests refused before any call of the subject."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from specverify.certification.plan import Plan, pair_presets, plan_decoder
from specverify.certification.profiles import PROFILES, ROWS
from specverify.errors import SettingsError, SubjectError, UsageError
from specverify.models.pairs import Pair, load_pair
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import GREEDY

PLAIN = {"plain": SamplingSettings()}


def plan(subject: Subject, pair: Pair, settings=None, **options: Any) -> Plan:
    values: dict[str, Any] = {
        "profile": "quick",
        "num_draft_tokens": None,
        "tokens": None,
        "time_limit": 60.0,
    }
    return plan_decoder(subject, pair, settings, **values | options)


def never(*_: Any) -> None:
    pytest.fail("the subject was called")


def test_the_presets_are_the_cases_when_none_are_named(decoder, pair):
    made = plan(decoder(never), pair)
    assert [p.case.id for p in made.cases] == list(
        pair_presets(pair, pair.open("language_model")[0])
    )
    assert made.dtype == "float64"
    assert made.left_out == ()
    for planned in made.cases:
        assert planned.case.length == pair.num_draft_tokens + 2
        assert planned.case.num_draft_tokens == pair.num_draft_tokens
        assert planned.rows == ROWS["table"]


def test_presets_are_told_from_settings_of_the_users_own(decoder, pair, presets):
    assert plan(decoder(never), pair, None).presets == tuple(presets)
    own = {"plain": presets["plain"], "filtered": SamplingSettings(temperature=0.5)}
    assert plan(decoder(never), pair, own).presets == ("plain",)


def test_tokens_are_shared_by_the_cases(decoder, pair):
    made = plan(decoder(never), pair, tokens=10_000)
    planned = [p.case.runs * p.case.length for p in made.cases]
    assert sum(planned) == pytest.approx(10_000, rel=0.01)
    assert len(set(planned)) == 1


@pytest.mark.parametrize(("capabilities", "speed"), [({}, "table"), ({"batch": False}, "single")])
def test_a_profile_asks_for_what_the_subject_can_do(decoder, pair, capabilities, speed):
    made = plan(decoder(never, **capabilities), pair, PLAIN)
    (planned,) = made.cases
    assert planned.rows == ROWS[speed]
    tokens = planned.case.runs * planned.case.length
    assert tokens == pytest.approx(PROFILES["quick"].tokens[speed], rel=0.01)


def test_runs_are_cut_but_not_beyond_the_settings_own_limit(decoder, pair):
    settings = {
        "short": SamplingSettings(max_new_tokens=2),
        "long": SamplingSettings(max_new_tokens=500, min_new_tokens=30, stop_token_ids=(1,)),
    }
    short, long = (p.case.settings for p in plan(decoder(never), pair, settings).cases)
    assert (short.max_new_tokens, short.min_new_tokens) == (2, 0)
    assert (long.max_new_tokens, long.min_new_tokens) == (4, 4)
    assert SamplingSettings(**long.model_dump()) == long


def test_presets_are_cut_down_to_what_the_subject_honours(decoder, pair):
    made = plan(decoder(never, settings=frozenset({"top_k"})), pair)
    planned = {p.case.id: p for p in made.cases}
    assert set(planned) == {"plain", "filtered", "greedy"}
    assert planned["filtered"].dropped == ("top_p",)
    assert planned["filtered"].case.settings.top_p is None
    assert planned["filtered"].case.settings.top_k is not None
    # Without what the subject declines, these would be `plain` under another name.
    assert [name for name, _ in made.left_out] == ["history", "stopping"]
    assert "presence_penalty" in made.left_out[0][1]


def test_settings_of_the_users_own_are_not_cut_down(decoder, pair):
    subject = decoder(never, settings=frozenset({"top_k"}))
    with pytest.raises(UsageError, match=r"'mine' does not honour top_p.*leave them out"):
        plan(subject, pair, {"own": SamplingSettings(top_k=2, top_p=0.5)})


class TestGreedy:
    def test_gets_the_greedy_settings_and_the_others_are_named(self, decoder, pair):
        made = plan(decoder(never, algorithm="greedy"), pair)
        assert [p.case.id for p in made.cases] == ["greedy"]
        assert [name for name, _ in made.left_out] == ["plain", "filtered", "history", "stopping"]

    def test_is_refused_any_other(self, decoder, pair):
        message = r"'mine' declares the greedy algorithm.*\(plain\).*--settings greedy"
        with pytest.raises(UsageError, match=message):
            plan(decoder(never, algorithm="greedy"), pair, PLAIN)

    def test_settings_go_to_all_others(self, decoder, pair):
        made = plan(decoder(never), pair, {"greedy": SamplingSettings(temperature=0.0)})
        assert [p.case.id for p in made.cases] == ["greedy"]

    def test_the_built_in_one(self, pair):
        assert plan(GREEDY, pair).left_out


class TestModels:
    def test_a_subject_of_transformers_models_gets_them(self, decoder):
        toy = load_pair("toy")
        (planned,) = plan(decoder(never, models=frozenset({"transformers"})), toy, PLAIN).cases
        assert planned.rows == ROWS["batch"]

    def test_a_rule_runs_in_the_loop_over_specverifys_own(self, rule, pair):
        (planned,) = plan(rule(never), pair, PLAIN).cases
        assert planned.rows == ROWS["table"]

    def test_a_rule_that_takes_one_row_a_call_gets_fewer(self, rule, pair):
        (planned,) = plan(rule(never, batch=False), pair, PLAIN).cases
        assert planned.rows == ROWS["batch"]

    def test_a_pair_without_such_models_is_refused(self, decoder, pair):
        message = r"'mine' takes transformers models, pair 'small' offers language_model"
        with pytest.raises(UsageError, match=message):
            plan(decoder(never, models=frozenset({"transformers"})), pair)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_draft_tokens": 0}, r"num_draft_tokens=0.*at least 1"),
            ({"num_draft_tokens": -3}, r"num_draft_tokens=-3"),
            ({"num_draft_tokens": 257}, r"num_draft_tokens=257.*at most 256.*--num-draft-tokens"),
            ({"num_draft_tokens": 10**30}, r"at most 256 draft tokens"),
            ({"tokens": 0}, r"tokens=0.*at least 1"),
            ({"tokens": 10**12 + 1}, r"tokens=1000000000001; at most 1,000,000,000,000"),
            ({"run_length": 100_001}, r"run_length=100001; a run has at most 100,000"),
            ({"profile": "fast"}, r"unknown profile 'fast'"),
            ({"profile": "fast", "tokens": 100}, r"unknown profile 'fast'"),
        ],
    )
    def test_options_out_of_range(self, decoder, pair, options, message):
        with pytest.raises(UsageError, match=message):
            plan(decoder(never), pair, PLAIN, **options)

    def test_a_window_too_small(self, decoder, windowed):
        assert plan(decoder(never), windowed, PLAIN).cases
        message = r"has 3 tokens and a run 7, but the target's window holds 9; lower"
        with pytest.raises(UsageError, match=message):
            plan(decoder(never), windowed, PLAIN, num_draft_tokens=5)

    def test_a_token_the_pair_does_not_have(self, decoder, pair):
        settings = {"mine": SamplingSettings(stop_token_ids=(9,))}
        with pytest.raises(SettingsError, match=r"stop_token_ids names token id 9.*4 entries"):
            plan(decoder(never), pair, settings)


class TestPairPresets:
    def test_without_a_vocabulary_the_last_id_ends_a_run(self, pair):
        target, _ = pair.open("language_model")
        stopping = pair_presets(pair, target)["stopping"]
        assert stopping.stop_token_ids == (3,)
        (sequence,) = stopping.stop_sequences
        assert len(sequence) == 2
        assert 3 not in sequence

    def test_a_vocabulary_names_its_own(self, pair):
        trained = load_pair("trained")
        target, _ = trained.open("language_model")
        vocabulary = trained.vocabularies[0]
        assert vocabulary is not None
        (stop,) = pair_presets(trained, target)["stopping"].stop_token_ids
        assert stop == vocabulary.special_tokens["eos_token"]

    def test_of_one_token(self, pair):
        from specverify.models.table import TableModel

        tiny = TableModel.random(1, 1, seed=0)
        single = replace(pair, prompts=((0,),), load=lambda _: (tiny, tiny))
        assert pair_presets(single, tiny)["stopping"].stop_sequences == ((0, 0),)


class TestModelsAreJudgedBeforeTheSubject:
    def test_no_distribution(self, decoder):
        toy = load_pair("toy")

        def broken(model_class):
            target, draft = toy.load(model_class)
            draft.logits[:] = torch.nan
            return target, draft

        pair = replace(toy, load=broken)
        with pytest.raises(UsageError, match=r"the draft of pair 'toy' returns logits.*weights"):
            plan(decoder(never), pair, PLAIN)

    @pytest.mark.parametrize(
        ("window", "remedy"), [(8, "lower num_draft_tokens"), (7, "shorten the prompts")]
    )
    def test_the_drafts_window(self, decoder, window, remedy):
        toy = load_pair("toy")

        def narrow(model_class):
            target, draft = toy.load(model_class)
            draft.window = window
            return target, draft

        pair = replace(toy, load=narrow)
        with pytest.raises(UsageError, match=rf"the draft's window holds {window}; {remedy}"):
            plan(decoder(never), pair, PLAIN)

    def test_the_subject_gets_models_of_its_own(self, decoder, pair):
        handed = []

        def remember(target, draft, *_):
            handed.extend([target, draft])
            raise RuntimeError

        (planned,) = plan(decoder(remember), pair, PLAIN).cases
        with pytest.raises(SubjectError):
            planned.generate(torch.tensor([[0]]), torch.tensor([[1]]), torch.Generator())
        assert not {id(planned.case.target), id(planned.case.draft)} & set(map(id, handed))


def test_long_blocks_show_their_bonus_token_whatever_the_default_limit(decoder, pair):
    (planned,) = plan(decoder(never), pair, PLAIN, num_draft_tokens=80, tokens=1_000).cases
    assert planned.case.length == 82
