"""Chapter stopping against decoders that look for stops too late or too far."""

from dataclasses import replace

import pytest
import torch

from specverify.certification.certificate import CaseRecord
from specverify.certification.probes import stops
from specverify.certification.probes.certain import only_run
from specverify.decoding.output import DecoderOutput
from specverify.exact.joint import total_variation
from specverify.fixtures.lookalikes.stops import LOOKALIKES
from specverify.fixtures.mutants import MUTANTS
from specverify.fixtures.mutants.probed_stops import MUTANTS as PROBED
from specverify.properties.stopping import LAWS, law_world, run_length
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN
from specverify.subjects.registry import load_subject

ALPHA = 1e-6


def decoder(call):
    return Subject("mine", "decoder", call, Capabilities(models=frozenset({"language_model"})))


@pytest.mark.parametrize(
    ("mutant", "settings"), [("stops-at-block-end", "stopping"), ("last-block-dropped", "plain")]
)
def test_mutants_are_caught(mutant, settings, evidence, rejects):
    outcome = run_length(evidence(mutant, settings), ALPHA)
    assert rejects(outcome)
    assert "end in the wrong place, e.g. [" in outcome.violations[0]


@pytest.mark.parametrize(
    "name", ["reference", "reference-block", "no-bonus-token", "common-cut", "random-block-lengths"]
)
@pytest.mark.parametrize("settings", ["plain", "stopping"])
def test_right_ones_pass(name, settings, evidence, calm):
    assert calm(run_length(evidence(name, settings), ALPHA))


def test_one_run_in_many_is_enough(evidence):
    def careless(*arguments):
        tokens = TOKEN.call(*arguments).tokens
        tokens[0, -1] = -1
        return tokens

    outcome = run_length(evidence(decoder(careless)), ALPHA)
    (violation,) = outcome.violations
    assert "from prompt [3] end in the wrong place" in violation
    assert "max_new_tokens=6" in violation


def test_every_prompt_with_wrong_ends_is_named(evidence):
    def short(target, draft, ids, mask, settings, k, generator):
        return torch.zeros(len(ids), 2, dtype=torch.long)

    assert len(run_length(evidence(decoder(short), tokens=600), ALPHA).violations) == 4


INPUTS = {
    "stop_tokens": tuple(stops.TOKENS),
    "stop_sequences": tuple(stops.SEQUENCES),
    "min_new_tokens": tuple(stops.MINIMUM),
    "length_limit": tuple(stops.LIMITS),
    "rows": tuple(stops.ROWS),
    "law": (*LAWS, "rows"),
    "finish_reasons": tuple(stops.REASONS),
}

CATCHING = {
    "first-stop-token-only": "stop_tokens several",
    "stop-token-0-missed": "stop_tokens in_block",
    "first-stop-sequence-only": "stop_sequences several",
    "stop-missed-in-bonus": "stop_tokens in_block",
    "stop-missed-in-correction": "stop_tokens correction",
    "drafted-stop-ends": "stop_tokens drafted_early",
    "limit-looked-at-first": "stop_tokens before_limit",
    "stop-token-left-out": "stop_tokens in_block",
    "sequence-within-round": "stop_sequences anywhere",
    "sequence-matched-from-scratch": "stop_sequences overlapping",
    "minimum-capped": "min_new_tokens accepted",
    "minimum-one-off": "min_new_tokens rejected",
    "sequences-before-minimum": "min_new_tokens sequences",
    "limit-capped": "length_limit long",
    "limit-capped-at-100": "length_limit long",
    "limit-in-rounds": "length_limit accepted",
    "batch-ends-with-first-row": "rows accepted",
    "rows-renumbered": "rows rejected",
    "limit-reported": "finish_reasons before_limit",
    "reason-of-first-row": "finish_reasons rows",
}
"""An input at which each of them is caught."""

SAMPLED_TOO = {
    "stops-at-block-end": ("stop_tokens in_block", "stop_sequences anywhere"),
    "stop-sequence-across-prompt": ("stop_sequences across_prompt",),
    "last-block-dropped": ("length_limit accepted",),
    "minimum-length-at-block-start": ("law min_new_tokens",),
}
"""Mutants that are judged by samples on a pair as well."""


def verdict(record: CaseRecord | str) -> str:
    assert isinstance(record, CaseRecord), record
    return record.verdict


@pytest.mark.parametrize("name", ["reference", "reference-block", "reference-match"])
@pytest.mark.parametrize("property", INPUTS)
def test_references_pass_all_probes(name, property, probe):
    for input in INPUTS[property]:
        # Laws take most of the time, and the rule has little part in where a run stops.
        if property != "law" or name == "reference" or input == "min_new_tokens":
            record = probe(load_subject(name), f"stopping.{property}", input)
            assert verdict(record) == "preserved", input


def test_a_greedy_decoder_is_asked_what_temperature_0_can_tell(probe):
    subject = load_subject("reference-greedy")
    for property, inputs in INPUTS.items():
        for input in inputs:
            record = probe(subject, f"stopping.{property}", input)
            if property == "law":
                assert record == "the subject decodes greedily only"
            else:
                assert verdict(record) == "preserved", input


@pytest.mark.parametrize("property", ["stop_tokens", "min_new_tokens", "length_limit"])
def test_transformers_pass(property, probe):
    subject = load_subject("transformers")
    for input in INPUTS[property]:
        record = probe(subject, f"stopping.{property}", input)
        if input == "sequences":
            assert record == "the subject does not honour stop_sequences"
        else:
            assert verdict(record) == "preserved", input


def test_what_transformers_does_not_do_is_said(probe):
    subject = load_subject("transformers")
    said = probe(subject, "stopping.stop_sequences", "anywhere")
    assert said == "the subject does not honour stop_sequences"
    said = probe(subject, "stopping.finish_reasons", "stop_token")
    assert said == "the subject reports no finish reasons"
    assert probe(subject, "stopping.rows", "accepted") == "the subject takes one row a call"
    assert verdict(probe(subject, "stopping.law", "min_new_tokens")) == "preserved"


@pytest.mark.parametrize("mutant", PROBED, ids=lambda mutant: mutant.id)
def test_probed_mutants_are_caught(mutant, probe):
    property, input = CATCHING[mutant.id].split()
    assert f"stopping.{property}" in mutant.caught_by
    assert verdict(probe(mutant.subject, f"stopping.{property}", input)) == "violated"


@pytest.mark.parametrize("name", SAMPLED_TOO)
def test_mutants_that_are_sampled_are_caught_by_probes_too(name, probe):
    for place in SAMPLED_TOO[name]:
        property, input = place.split()
        record = probe(MUTANTS[name].subject, f"stopping.{property}", input)
        assert verdict(record) == "violated", place


@pytest.mark.parametrize("lookalike", LOOKALIKES, ids=lambda lookalike: lookalike.id)
def test_lookalikes_pass_all_probes(lookalike, probe):
    for property, inputs in INPUTS.items():
        for input in inputs if property != "law" else ("min_new_tokens",):
            record = probe(lookalike.subject, f"stopping.{property}", input)
            if isinstance(record, str):
                assert (property, record) == (
                    "finish_reasons",
                    "the subject reports no finish reasons",
                )
            else:
                assert record.verdict == "preserved", (property, input)


@pytest.mark.parametrize("name", LAWS)
def test_the_values_of_the_laws_bite(name):
    world = law_world(name)
    fields = LAWS[name] | {"max_new_tokens": world.settings.max_new_tokens}
    for field in {*LAWS[name]} - {"max_new_tokens"}:
        rest = world.under(**{key: value for key, value in fields.items() if key != field})
        assert total_variation(world.expected(), rest.expected()) > 0.05


def test_stops_fall_on_every_place_of_a_block():
    """With the draft right, blocks of three and a bonus token end after 4 and 8 tokens."""
    lengths = [len(only_run(world)) for _, world in stops.TOKENS["in_block"]()]
    assert lengths == [*range(1, 9), 3]


def test_every_world_of_the_chapter_is_certain_and_most_of_them_stop_early():
    for worlds in (stops.TOKENS, stops.SEQUENCES, stops.MINIMUM, stops.ROWS):
        for name, runs in worlds.items():
            early = 0
            for _, world in runs():
                runs_of_rows = [only_run(world, row) for row in range(len(world.prompts))]
                early += any(len(run) < world.settings.max_new_tokens for run in runs_of_rows)
            assert early or name in {"in_prompt", "rejected"}, name


class TestReasons:
    SETTINGS = SamplingSettings(
        stop_token_ids=(4,), stop_sequences=((3, 4), (1, 2)), max_new_tokens=4
    )

    @pytest.mark.parametrize(
        ("emitted", "true"),
        [
            ([0, 4], ["stop_token"]),
            ([3, 4], ["stop_token", "stop_sequence"]),
            ([1, 2], ["stop_sequence"]),
            ([0, 1, 1, 2], ["stop_sequence", "length"]),
            ([0, 0, 3, 4], ["stop_token", "stop_sequence", "length"]),
            ([0, 0, 0, 0], ["length"]),
            ([0, 1], []),
        ],
    )
    def test_all_that_are_true_are_found(self, emitted, true):
        assert stops.reasons(emitted, self.SETTINGS) == true


def test_a_reason_that_is_no_reason_is_told(probe):
    def careless(*arguments):
        output = TOKEN.call(*arguments)
        return DecoderOutput(output.tokens, finish_reasons=["eos"] * len(output.tokens))

    subject = replace(TOKEN, call=careless)
    record = probe(subject, "stopping.finish_reasons", "length")
    (test,) = record.tests
    assert record.verdict == "violated"
    assert "'eos' is reported for [1], and length is true" in test.detail
