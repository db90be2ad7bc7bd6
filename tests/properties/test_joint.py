"""Chapter joint against decoders that get the first token, or only the first token, right."""

from dataclasses import replace

import pytest
import torch

from specverify.certification.decoder_case import COARSE_TOLERANCE
from specverify.models.pairs import Pair, load_pair
from specverify.models.table import TableModel
from specverify.properties.joint import (
    LARGEST_AGNOSTIC,
    TV_LIMIT,
    each_position,
    every_token,
    first_token,
    own_distributions,
    stopped_run,
)
from specverify.statistics.sequences import tv_upper_bound_at_looks
from specverify.subjects.protocols import Capabilities, Subject

ALPHA = 1e-6
FIRST_TOKEN_IS_RIGHT = ["bonus-from-draft", "one-coin-per-block", "cache-not-cropped"]
OF_TOKENS = (every_token, each_position, first_token, stopped_run)


@pytest.mark.parametrize("mutant", ["residual-not-subtracted", "always-accept", "rows-swapped"])
def test_all_catch_a_wrong_acceptance_residual_or_row(mutant, evidence, rejects):
    made = evidence(mutant)
    for check in OF_TOKENS:
        assert rejects(check(made, ALPHA)), check.__name__


@pytest.mark.parametrize("mutant", FIRST_TOKEN_IS_RIGHT)
def test_later_tokens_show_what_the_first_cannot(mutant, evidence, rejects, calm):
    made = evidence(mutant, tokens=150_000) if mutant.startswith("bonus") else evidence(mutant)
    assert calm(first_token(made, ALPHA))
    assert rejects(every_token(made, ALPHA))
    assert rejects(each_position(made, ALPHA))
    # Cells of whole runs are cut by expected counts: so few runs show no bonus position.
    assert mutant.startswith("bonus") or rejects(stopped_run(made, ALPHA))


@pytest.mark.slow
def test_single_positions_show_what_whole_runs_spread_too_thin(evidence, rejects):
    made = evidence("bonus-cooler", tokens=600_000)
    assert rejects(every_token(made, ALPHA))
    assert rejects(each_position(made, ALPHA))
    assert not rejects(stopped_run(made, ALPHA))


@pytest.mark.parametrize("name", ["reference", "reference-block", "reference-match", "common-cut"])
@pytest.mark.parametrize("settings", ["plain", "stopping"])
def test_right_ones_pass(name, settings, evidence, calm):
    made = evidence(name, settings)
    for check in OF_TOKENS:
        assert calm(check(made, ALPHA)), check.__name__


@pytest.mark.parametrize("name", ["no-bonus-token", "permuted-draft", "stop-after-low-confidence"])
def test_lookalikes_pass(name, evidence, calm):
    made = evidence(name)
    for check in OF_TOKENS:
        assert calm(check(made, ALPHA)), check.__name__


class TestEveryToken:
    def test_says_which_bets_won_and_shows_the_bands_beside(self, evidence):
        outcome = every_token(evidence("residual-not-subtracted"), ALPHA)
        (test,) = outcome.tests
        assert test.name == "e-process"
        largest = list(outcome.details["components"].values())
        assert largest == sorted(largest, reverse=True)
        assert largest[0] <= test.statistic
        assert [test.name for test in outcome.reported] == [
            "band q/p",
            "band p",
            "band index",
        ]

    def test_only_what_decides_is_computed_between_shards(self, evidence):
        made = replace(evidence("reference"), full=False)
        outcome = every_token(made, ALPHA)
        assert outcome.reported == ()
        assert outcome.detectable is None
        assert outcome.tests == every_token(evidence("reference"), ALPHA).tests

    def test_says_what_leak_it_would_have_seen(self, evidence):
        found = [
            every_token(evidence("reference", tokens=tokens), ALPHA).detectable
            for tokens in (48_000, 480_000)
        ]
        assert found[0] is not None
        assert found[1] is not None
        assert found[1].value < found[0].value < 0.3
        assert found[0].what == "leak rate towards the draft"

    def test_small_vocabularies_ask_nothing_of_the_directions(self, evidence):
        outcome = every_token(evidence("reference"), ALPHA)
        assert outcome.missing is None
        assert {bound.limit for bound in outcome.bounds} == {None}


class TestOwnDistributions:
    """Against what the decoder recorded of its own passes: the rule alone."""

    def test_a_stale_cache_agrees_with_itself(self, evidence, rejects, calm):
        made = evidence("cache-not-cropped-recorded")
        assert calm(own_distributions(made, ALPHA))
        assert rejects(every_token(made, ALPHA))

    def test_a_wrong_rule_fails_both(self, evidence, rejects):
        made = evidence("residual-not-subtracted-recorded")
        assert rejects(own_distributions(made, ALPHA))
        assert rejects(every_token(made, ALPHA))

    @pytest.mark.parametrize("settings", ["plain", "filtered", "history"])
    def test_a_right_decoder_passes_both(self, settings, evidence, calm):
        made = evidence("recording", settings)
        assert calm(own_distributions(made, ALPHA))
        assert calm(every_token(made, ALPHA))

    def test_a_rule_that_emits_what_its_own_record_excludes(self, evidence, rejects, calm):
        """Coins of exactly 0 explain a hit, and not many."""
        made = evidence("recording")
        assert made.tally.recorded is not None
        assert not made.tally.recorded.hits[0]
        for hits, judged in ((1, calm), (2_000, rejects)):
            made.tally.recorded.hits[:] = hits
            declared = replace(made.subject.capabilities, coin_dtype="float32")
            subject = replace(made.subject, capabilities=declared)
            assert judged(own_distributions(replace(made, subject=subject), ALPHA))

    def test_only_the_rounding_of_the_record_is_allowed_for(self, evidence, rejects, calm):
        """What two passes of half-width models may differ by would hide most mistakes of a rule."""
        made = evidence("residual-not-subtracted-recorded")
        assert rejects(own_distributions(made, ALPHA))
        made.tally.rounding = COARSE_TOLERANCE
        assert calm(own_distributions(made, ALPHA))

    def test_needs_a_recording(self, evidence):
        outcome = own_distributions(evidence("reference"), ALPHA)
        assert "records no target_probs" in (outcome.not_applicable or "")


def wide_tables(_: object) -> tuple[TableModel, TableModel]:
    target = TableModel.random(80, 1, seed=5)
    return target, target.near(seed=6, noise=0.8)


WIDE = Pair(
    name="wide",
    summary="",
    prompts=((3,), (70, 5)),
    load=wide_tables,
    num_draft_tokens=2,
    model_classes=("language_model",),
)
"""More tokens than an agnostic bound is asked for."""
FEW = 12_000
"""Too few for the bounds on directions."""


class TestLargeVocabularies:
    def test_the_directions_are_asked_for_instead_of_total_variation(self, evidence, calm):
        made = evidence("reference", tokens=FEW, pair=WIDE)
        assert made.case.target.vocab_size > LARGEST_AGNOSTIC
        outcome = every_token(made, ALPHA)
        assert calm(outcome)
        *halves, rate = outcome.bounds
        assert [bound.limit for bound in halves] == [made.case.leak_limit] * 3
        assert rate.limit is None
        assert max(bound.value for bound in halves) > made.case.leak_limit
        assert outcome.missing is not None
        assert "tokens per setting would reach it" in outcome.missing
        assert outcome.tv_bound is None
        said = " ".join([outcome.missing, *(bound.name for bound in outcome.bounds)])
        assert "TV" not in said
        assert "total variation" not in said
        assert all("mass moved to where q > " in bound.name for bound in halves)
        assert "within (1 - d) p + d q" in rate.name

    def test_the_number_of_tokens_it_names_is_enough(self, evidence):
        said = every_token(evidence("reference", tokens=FEW, pair=WIDE), ALPHA).missing
        needed = int(said.split("about ")[1].split(" tokens")[0].replace(",", ""))
        assert FEW < needed < 100_000
        made = evidence("reference", pair=WIDE, tokens=int(1.2 * needed))
        assert every_token(made, ALPHA).missing is None

    def test_total_variation_is_bounded_and_not_asked_for(self, evidence):
        outcome = first_token(evidence("reference", pair=WIDE), ALPHA)
        assert outcome.tv_bound is not None
        assert outcome.tv_bound > TV_LIMIT
        assert outcome.missing is None
        (bound,) = outcome.bounds
        assert bound.limit is None

    def test_a_leak_is_above_the_bound_of_a_right_decoder(self, evidence, rejects):
        made = evidence("residual-not-subtracted", pair=WIDE)
        right = every_token(evidence("reference", pair=WIDE), ALPHA)
        outcome = every_token(made, ALPHA)
        assert rejects(outcome)
        for wrong, usual in zip(outcome.bounds, right.bounds, strict=True):
            assert wrong.value > 2 * usual.value, wrong.name


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
    """Runs of one token: the bound is on first tokens, however long the runs are."""
    thin, thick = (evidence("reference", tokens=n, run_length=1) for n in (8_000, 800_000))
    few, many = first_token(thin, ALPHA), first_token(thick, ALPHA)
    strata = thin.first_tokens()
    expected = tv_upper_bound_at_looks(strata.counts, strata.laws, ALPHA, thin.looks)
    assert few.tv_bound == expected.bound
    assert few.tv_bound > TV_LIMIT
    assert few.missing is not None
    assert "tokens per setting would reach it" in few.missing
    needed = int(few.missing.split("about ")[1].split(" tokens")[0].replace(",", ""))
    assert needed < 800_000
    assert many.tv_bound is not None
    assert many.tv_bound < TV_LIMIT
    assert many.missing is None


def test_tests_and_worst_cells_are_those_of_the_counts(evidence):
    made = evidence("reference")
    outcome = stopped_run(made, ALPHA)
    assert [test.name for test in outcome.tests] == ["e-process"]
    assert [test.name for test in outcome.reported] == ["chi-squared", "G"]
    assert {test.n for test in (*outcome.tests, *outcome.reported)} == {made.runs}
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
    for check in OF_TOKENS:
        assert calm(check(made, ALPHA)), check.__name__


def test_the_pair_of_these_tests_is_within_the_agnostic_bound():
    assert load_pair("toy").open("language_model")[0].vocab_size <= LARGEST_AGNOSTIC
