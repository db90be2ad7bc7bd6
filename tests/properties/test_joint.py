"""Chapter joint against decoders that get the first token, or only the first token, right."""

import pytest
import torch

from specverify.properties.joint import TV_LIMIT, each_position, first_token, stopped_run
from specverify.statistics.bounds import tv_upper_bound
from specverify.subjects.protocols import Capabilities, Subject

ALPHA = 1e-6
TOKENS = 60_000
FIRST_TOKEN_IS_RIGHT = ["bonus-from-draft", "one-coin-per-block", "cache-not-cropped"]


@pytest.mark.parametrize("mutant", ["residual-not-subtracted", "always-accept", "rows-swapped"])
def test_both_catch_a_wrong_acceptance_residual_or_row(mutant, evidence, rejects):
    made = evidence(mutant)
    assert rejects(first_token(made, ALPHA))
    assert rejects(stopped_run(made, ALPHA))


@pytest.mark.parametrize("mutant", FIRST_TOKEN_IS_RIGHT)
def test_the_whole_run_catches_what_the_first_token_cannot(mutant, evidence, rejects, calm):
    made = evidence(mutant, tokens=600_000 if mutant.startswith("bonus") else TOKENS)
    assert calm(first_token(made, ALPHA))
    assert rejects(stopped_run(made, ALPHA))


@pytest.mark.slow
def test_single_positions_show_what_whole_runs_spread_too_thin(evidence, rejects):
    made = evidence("bonus-cooler", tokens=600_000)
    assert rejects(each_position(made, ALPHA))
    assert not rejects(stopped_run(made, ALPHA))


@pytest.mark.parametrize("name", ["reference", "reference-block", "reference-match", "common-cut"])
@pytest.mark.parametrize("settings", ["plain", "stopping"])
def test_right_ones_pass(name, settings, evidence, calm):
    made = evidence(name, settings)
    assert calm(each_position(made, ALPHA))
    assert calm(first_token(made, ALPHA))
    assert calm(stopped_run(made, ALPHA))


@pytest.mark.parametrize("name", ["no-bonus-token", "permuted-draft", "stop-after-low-confidence"])
def test_lookalikes_pass(name, evidence, calm):
    made = evidence(name)
    assert calm(each_position(made, ALPHA))
    assert calm(first_token(made, ALPHA))
    assert calm(stopped_run(made, ALPHA))


def test_a_decoder_that_stops_early_where_it_may_not_is_not_hidden_by_right_prefixes(
    evidence, rejects
):
    """Settings with a stop: one that ignores the stop token has other whole runs."""

    def deaf(target, draft, ids, mask, settings, k, generator):
        from specverify.subjects.reference import TOKEN

        other = settings.model_copy(update={"logit_bias": {settings.stop_token_ids[0]: -1.0}})
        return TOKEN.call(target, draft, ids, mask, other, k, generator).tokens

    subject = Subject("deaf", "decoder", deaf, Capabilities(models=frozenset({"language_model"})))
    assert rejects(stopped_run(evidence(subject, "stopping"), ALPHA))


def test_the_bound_and_what_is_missing(evidence):
    thin, thick = evidence("reference"), evidence("reference", tokens=480_000)
    few, many = first_token(thin, ALPHA), first_token(thick, ALPHA)
    strata = thin.first_tokens()
    assert few.tv_bound == tv_upper_bound(strata.counts, strata.laws, ALPHA).bound
    assert few.tv_bound > TV_LIMIT
    assert few.missing is not None
    assert "tokens per setting would reach it" in few.missing
    assert many.tv_bound is not None
    assert many.tv_bound < TV_LIMIT
    assert many.missing is None


def test_tests_and_worst_cells_are_those_of_the_counts(evidence):
    made = evidence("reference")
    outcome = stopped_run(made, ALPHA)
    assert [test.name for test in outcome.tests] == ["chi-squared", "G"]
    assert outcome.tests[0].n == made.runs
    assert len(outcome.details["worst"]) == 5


def test_an_empty_run_is_nothing_to_judge(evidence):
    """All runs ended wrongly: stopping says so, the joint distribution has nothing to compare."""

    def silent_end(target, draft, ids, mask, settings, k, generator):
        return torch.zeros(len(ids), 1, dtype=torch.long)

    subject = Subject(
        "short", "decoder", silent_end, Capabilities(models=frozenset({"language_model"}))
    )
    assert stopped_run(evidence(subject, tokens=600), ALPHA).not_applicable


def test_a_random_transform_is_judged_by_its_mixture(evidence, calm):
    """One coin a position: what is emitted has neither of the two distributions, but their mean."""
    made = evidence("reference", '{"xtc_probability": 0.5, "presence_penalty": 0.5}')
    for check in (each_position, first_token, stopped_run):
        assert calm(check(made, ALPHA))
