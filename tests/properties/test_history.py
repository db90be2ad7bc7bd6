"""Chapter history against decoders that ignore settings or see the wrong prefix."""

import pytest

from specverify.certification.certificate import CaseRecord
from specverify.certification.probes.certain import only_run, ranked, wrong_at_times
from specverify.certification.probes.world import World
from specverify.errors import UsageError
from specverify.exact.joint import total_variation
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.fixtures.mutants import MUTANTS
from specverify.fixtures.mutants.probed_histories import MUTANTS as PROBED
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.properties.history import CERTAIN, RANDOM, random_world
from specverify.subjects.registry import load_subject

CATCHING = {
    "ignores-min-p": "settings min_p",
    "ignores-typical-p": "settings typical_p",
    "ignores-epsilon-cutoff": "settings epsilon_cutoff",
    "ignores-eta-cutoff": "settings eta_cutoff",
    "ignores-top-n-sigma": "settings top_n_sigma",
    "ignores-xtc-probability": "settings xtc",
    "ignores-logit-bias": "settings logit_bias",
    "ignores-presence-penalty": "settings presence_penalty",
    "ignores-bad-words": "own_prefix bad_words",
    "ignores-allowed-tokens": "own_prefix allowed_tokens",
    "ignores-forced-tokens": "own_prefix forced_tokens",
    "min-p-before-temperature": "settings temperature_then_min_p",
    "temperature-capped": "settings temperature",
    "padding-in-history": "rows repetition_penalty",
    "history-of-neighbour": "rows presence_penalty",
    "prompt-length-of-first-row": "rows frequency_penalty",
    "prompt-counted": "own_prefix presence_penalty",
    "prompt-forgotten": "own_prefix no_repeat_ngram_size",
    "history-of-64-tokens": "own_prefix repetition_penalty",
    "last-of-round-counted": "own_prefix frequency_penalty",
    "bonus-unconstrained": "own_prefix allowed_tokens",
}
"""An input at which each of them is caught."""

SAMPLED_TOO = {
    "history-frozen": ("own_prefix presence_penalty", "own_prefix allowed_tokens"),
    "history-of-whole-block": ("own_prefix frequency_penalty", "own_prefix no_repeat_ngram_size"),
    "rejected-tokens-counted": (
        "rejected_tokens frequency_penalty",
        "rejected_tokens allowed_tokens",
    ),
    "one-transform-coin-per-block": ("settings xtc",),
    "bonus-untransformed": ("settings top_k", "settings min_p"),
    "block-untransformed": ("settings top_p", "settings typical_p"),
}
"""Mutants that are judged by samples on a pair as well."""


def verdict(record: CaseRecord | str) -> str:
    assert isinstance(record, CaseRecord), record
    return record.verdict


@pytest.mark.parametrize("name", ["reference", "reference-block", "reference-match"])
@pytest.mark.parametrize("property", ["own_prefix", "rejected_tokens", "rows"])
def test_references_pass(name, property, probe):
    for input in CERTAIN:
        if property == "own_prefix" or input != "logit_bias":
            record = probe(load_subject(name), f"history.{property}", input)
            assert verdict(record) == "preserved", input


@pytest.mark.parametrize("input", RANDOM)
def test_the_reference_honours_each_setting(input, probe):
    assert verdict(probe(load_subject("reference"), "history.settings", input)) == "preserved"


@pytest.mark.parametrize("name", ["reference-block", "reference-match"])
@pytest.mark.parametrize("input", ["min_p", "typical_p"])
def test_references_with_another_rule_honour_settings(name, input, probe):
    assert verdict(probe(load_subject(name), "history.settings", input)) == "preserved"


def test_a_greedy_decoder_is_asked_what_temperature_0_can_tell(probe):
    subject = load_subject("reference-greedy")
    for input in CERTAIN:
        assert verdict(probe(subject, "history.own_prefix", input)) == "preserved"
    said = probe(subject, "history.settings", "min_p")
    assert said == "the subject decodes greedily only"


@pytest.mark.parametrize("property", ["own_prefix", "rejected_tokens", "settings"])
def test_transformers_pass_where_it_honours_the_setting(property, probe):
    subject = load_subject("transformers")
    honoured = subject.capabilities.settings or frozenset()
    for input in ("repetition_penalty", "no_repeat_ngram_size", "bad_words", "allowed_tokens"):
        if property != "settings":
            assert verdict(probe(subject, f"history.{property}", input)) == "preserved", input
    for input in RANDOM if property == "settings" else ():
        record = probe(subject, "history.settings", input)
        unknown = sorted({*RANDOM[input]} - honoured - {"temperature", "xtc_threshold"})
        if unknown:
            assert isinstance(record, str)
            assert record.startswith(f"the subject does not honour {unknown[0]}")
        else:
            assert verdict(record) == "preserved", input


def test_what_a_subject_does_not_do_is_said(probe):
    subject = load_subject("transformers")
    said = probe(subject, "history.own_prefix", "forced_tokens")
    assert said == "the subject does not honour forced_tokens"
    said = probe(subject, "history.rows", "repetition_penalty")
    assert said == "the subject takes one row a call"


@pytest.mark.parametrize("mutant", PROBED, ids=lambda mutant: mutant.id)
def test_mutants_are_caught(mutant, probe):
    property, input = CATCHING[mutant.id].split()
    assert f"history.{property}" in mutant.caught_by
    assert verdict(probe(mutant.subject, f"history.{property}", input)) == "violated"


@pytest.mark.parametrize("name", SAMPLED_TOO)
def test_mutants_that_are_sampled_are_caught_here_too(name, probe):
    for place in SAMPLED_TOO[name]:
        property, input = place.split()
        record = probe(MUTANTS[name].subject, f"history.{property}", input)
        assert verdict(record) == "violated", place


def test_rejected_tokens_are_one_thing_and_the_prefix_another(probe):
    subject = MUTANTS["rejected-tokens-counted"].subject
    for input in CERTAIN:
        assert verdict(probe(subject, "history.own_prefix", input)) == "preserved", input


@pytest.mark.parametrize(
    "name", ["padding-in-history", "history-of-neighbour", "prompt-length-of-first-row"]
)
def test_a_batch_of_one_row_shows_no_mistake_between_rows(name, probe):
    (mutant,) = [mutant for mutant in PROBED if mutant.id == name]
    for input in ("repetition_penalty", "presence_penalty", "allowed_tokens"):
        assert verdict(probe(mutant.subject, "history.own_prefix", input)) == "preserved"


@pytest.mark.parametrize(
    "name", ["target-only-transforms", "draft-ignores-constraints", "draft-cooler", "common-cut"]
)
def test_lookalikes_pass(name, probe):
    subject = LOOKALIKES[name].subject
    for property in ("own_prefix", "rejected_tokens", "rows"):
        for input in ("frequency_penalty", "no_repeat_ngram_size", "allowed_tokens"):
            assert verdict(probe(subject, f"history.{property}", input)) == "preserved", input
    assert verdict(probe(subject, "history.settings", "min_p")) == "preserved"


@pytest.mark.parametrize("name", RANDOM)
def test_the_values_bite(name):
    """A decoder that ignored one of the fields would emit something else."""
    world = random_world(name)
    fields = RANDOM[name] | {"max_new_tokens": world.settings.max_new_tokens}
    for field in {*RANDOM[name]} - {"xtc_threshold"}:
        rest = world.under(**{key: value for key, value in fields.items() if key != field})
        assert total_variation(world.expected(), rest.expected()) > 0.05, field


@pytest.mark.parametrize("name", RANDOM)
def test_something_random_is_left(name):
    assert max(random_world(name).expected().values()) < 0.9


def test_a_violation_shows_both_runs(probe):
    subject = MUTANTS["history-frozen"].subject
    record = probe(subject, "history.own_prefix", "presence_penalty")
    (test,) = record.tests
    assert test.detail.startswith("under presence_penalty=1.5, K=3, temperature 0: [")
    assert "follows the prompt [0, 1], and only [" in test.detail


def test_a_world_that_is_not_certain_is_refused():
    with pytest.raises(UsageError, match="needs logits further apart"):
        only_run(World(target=decidedly_flat()))


def decidedly_flat():
    table = ranked(3, 2, seed=0)
    table.logits.zero_()
    return table


def test_a_draft_that_is_wrong_at_times_is_right_at_others():
    table = ranked(5, 2, seed=3)
    agreeing = (wrong_at_times(table, 2).logits.argmax(1) == table.logits.argmax(1)).double()
    assert 0.5 < float(agreeing.mean()) < 0.7


def test_the_reference_itself_is_what_mutants_differ_from(probe):
    subject = decoder_subject("same")
    assert verdict(probe(subject, "history.rows", "frequency_penalty")) == "preserved"
