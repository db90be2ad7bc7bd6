"""Chapter acceptance, sampled: mistakes that cost time alone, and odd schedules that do not."""

from dataclasses import replace

import numpy as np
import pytest

from specverify.certification.probes.world import World
from specverify.certification.registry import UNREPORTED, properties_of
from specverify.decoding.output import DecoderOutput
from specverify.decoding.scoring import TeacherForced
from specverify.exact.enumerate import acceptance_distribution
from specverify.exact.round import Round
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.fixtures.lookalikes import reported_drafts as odd_drafts
from specverify.fixtures.mutants import MUTANTS as SAMPLED_MUTANTS
from specverify.fixtures.mutants.acceptance import DECODERS, ROUNDS
from specverify.properties.acceptance_rounds import SETTINGS, UNOFFERED, _Laws
from specverify.settings import SamplingSettings
from specverify.subjects.reference import BLOCK, GREEDY, MATCH, TOKEN
from specverify.subjects.registry import load_subject

INPUTS = tuple(SETTINGS)
SHOWN_BY = {"draft-ignores-temperature": "cooler"}
RIGHT = {
    **{s.name: s for s in (TOKEN, BLOCK, MATCH)},
    **{name: LOOKALIKES[name].subject for name in ("permuted-draft", "random-block-lengths")},
    **{x.id: x.subject for x in odd_drafts.LOOKALIKES if x.subject.capabilities.algorithm},
}


def decided(record):
    (test,) = [test for test in record.tests if test.alpha is not None]
    return test


@pytest.mark.parametrize("mutant", DECODERS, ids=lambda mutant: mutant.id)
def test_mutants_are_caught(mutant, probe):
    assert mutant.caught_by == {ROUNDS}
    record = probe(mutant.subject, ROUNDS, SHOWN_BY.get(mutant.id, "plain"))
    assert record.verdict == "inconclusive", "the report may be wrong instead"
    assert decided(record).decision == "suspect"
    assert decided(record).boundaries


@pytest.mark.parametrize("input", INPUTS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_pass(name, input, probe):
    record = probe(RIGHT[name], ROUNDS, input)
    assert record.verdict == "preserved", record
    assert decided(record).p_value > 1e-2


def test_greedy_decoding_is_held_against_the_argmax(probe):
    record = probe(GREEDY, ROUNDS, "greedy")
    assert record.verdict == "preserved"
    assert "greedily" in probe(GREEDY, ROUNDS, "plain")
    liar = replace(GREEDY, call=lambda *a: _one_accepted(TOKEN.call(*a)))
    assert probe(liar, ROUNDS, "greedy").verdict == "inconclusive"


def _one_accepted(output):
    """Every token a round of its own."""
    accepted = (output.tokens >= 0).long() - 1
    return replace(
        output, accepted=accepted, drafted=accepted.clamp(max=0) * 2 + 2 * (accepted >= 0)
    )


@pytest.mark.parametrize("name", ["rounds-reported-short", "rounds-reported-long"])
def test_wrong_reports_are_suspect(name, probe):
    record = probe(LOOKALIKES[name].subject, ROUNDS, "plain")
    assert record.verdict == "inconclusive"


@pytest.mark.parametrize("id", ["always-accept", "ratio-inverted", "one-coin-per-block"])
def test_wrong_rules_are_seen_too_and_blocked(id, probe):
    assert decided(probe(SAMPLED_MUTANTS[id].subject, ROUNDS, "plain")).decision == "suspect"
    (property,) = [p for p in properties_of("decoder") if p.id == ROUNDS]
    assert property.after == ("joint.run in exact/plain",)


class TestNotAsked:
    def needs(self, **declared):
        (property,) = [p for p in properties_of("decoder") if p.id == ROUNDS]
        subject = replace(TOKEN, capabilities=replace(TOKEN.capabilities, **declared))
        return property.needs(subject)

    def test_without_what_the_closed_form_supposes(self):
        assert self.needs() is None
        assert "no algorithm" in self.needs(algorithm=None)
        assert "no algorithm" in self.needs(algorithm="typical")
        assert "standard_draft" in self.needs(standard_draft=False)
        assert "tiny_models" in self.needs(tiny_models=False)

    def test_without_a_report(self, probe):
        bare = replace(TOKEN, call=lambda *a: TOKEN.call(*a).tokens)
        assert probe(bare, ROUNDS, "plain") == UNREPORTED
        silent = replace(TOKEN, call=lambda *a: replace(TOKEN.call(*a), drafted=None))
        assert probe(silent, ROUNDS, "plain") == UNOFFERED

    def test_transformers_says_nothing_of_its_drafts(self):
        (property,) = [p for p in properties_of("decoder") if p.id == ROUNDS]
        assert "standard_draft" in property.needs(load_subject("transformers"))

    def test_where_nothing_is_drafted(self, probe):
        def call(target, draft, ids, mask, settings, k, generator):
            return TOKEN.call(target, draft, ids, mask, settings, 0, generator)

        assert "offered a draft token" in probe(replace(TOKEN, call=call), ROUNDS, "plain")


def test_a_run_that_ends_too_early_is_judged_by_what_it_shows(probe):
    def cut(*arguments):
        output = TOKEN.call(*arguments)
        assert output.accepted is not None
        assert output.drafted is not None
        first = (output.accepted[:, :1], output.drafted[:, :1])
        return DecoderOutput(output.tokens[:, :1], *first)

    record = probe(replace(TOKEN, call=cut), ROUNDS, "plain")
    assert record.verdict == "preserved"
    assert decided(record).n == 20_480, "one draft token a run"


@pytest.mark.parametrize("algorithm", ["token", "block", "match"])
def test_the_laws_make_up_the_closed_form(algorithm):
    """Summed over paths, they give the acceptance that `exact` computes for a whole round."""
    world = World(settings=SamplingSettings(max_new_tokens=3))
    laws = _Laws(world, algorithm)
    target, draft = (
        TeacherForced(model, world.prompts[0], world.settings)
        for model in (world.target, world.draft)
    )
    round = Round(target, draft, 3, 2)
    masses, weights, expected = np.ones(1), np.ones(1), [1.0]
    for place in range(2):
        paths = np.pad(round.prefixes(place), ((0, 0), (0, 3 - place)))
        at = np.full(len(paths), place)
        kept = laws.of(paths, at, weights)[:, :3]
        own = np.tile(np.arange(3), len(paths))
        rows = np.repeat(np.arange(len(paths)), 3)
        weights = laws.weights(paths[rows], at[rows], weights[rows], own)
        masses = (masses[:, None] * kept).reshape(-1)
        expected.append(float(masses.sum()))
    assert np.allclose(expected, acceptance_distribution(algorithm, round), atol=1e-12)
