"""Counts of a probe: what coins of exactly 0 explain is no violation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.sampled import sampled_outcome
from specverify.certification.probes.world import World
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.fixtures.parts.opaque import OpaqueTokenRule
from specverify.properties.batch import two_rows
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject

LAW = np.array([0.5, 0.3, 0.2, 0.0])
SHARE = 1e-9
"""Of the budget, about what a test of a run has."""


def outcome(hits: int, dtype: str, n: int = 20_000, tokens: int = 2):
    rest = np.round((n - hits) * LAW[:3]).astype(int)
    return sampled_outcome(
        [np.array([*rest, hits])], [LAW], "a run", tokens=tokens, coin_dtype=dtype
    )


@pytest.mark.parametrize(
    ("dtype", "hits"), [("float64", 0), ("float32", 1), ("float32", 2), ("bfloat16", 120)]
)
def test_a_few_hits_are_a_finding(dtype: str, hits: int) -> None:
    """Of bfloat16 coins 2^-9 are 0: with two comparisons a token 156 of 40,000 tokens."""
    found = outcome(hits, dtype)
    assert found.tests[0].p_value > SHARE
    assert not found.violations
    assert len(found.findings) == (hits > 0)


@pytest.mark.parametrize(
    ("dtype", "hits"), [("float64", 2), ("float32", 8), ("bfloat16", 600), ("float32", 9_000)]
)
def test_more_than_coins_explain_is_rejected(dtype: str, hits: int) -> None:
    assert outcome(hits, dtype).tests[0].p_value < SHARE


def test_what_is_possible_is_judged_too_and_usual_tests_are_beside() -> None:
    shifted = sampled_outcome(
        [np.array([10_600, 5_600, 3_800, 0])], [LAW], "a run", tokens=2, coin_dtype="float32"
    )
    assert shifted.tests[0].p_value < SHARE
    assert [test.name for test in shifted.reported] == ["chi-squared", "G"]


def test_false_alarms_with_coins_that_are_often_zero() -> None:
    """A right rule that accepts where u <= p/q, on half-width coins, at every level."""
    rng = np.random.default_rng(0)
    rate, n, repeats = 2 * (2.0**-9 + 2.0**-24), 2_000, 2_000
    hits = rng.binomial(n, rate, size=repeats)
    p_values = [outcome(int(h), "bfloat16", n, tokens=1).tests[0].p_value for h in hits]
    for alpha in (0.1, 0.01):
        assert np.mean(np.array(p_values) <= alpha) <= alpha


def opaque(cut: float) -> Subject:
    """A right decoder that cannot be steered, and ends a run one token early with some chance."""
    right = decoder_subject("opaque", verification=OpaqueTokenRule())

    def call(target, draft, ids, mask, settings, width, generator):
        tokens = right.call(target, draft, ids, mask, settings, width, generator).tokens
        early = torch.rand(len(tokens), generator=generator) < cut
        return torch.where(early[:, None] & (torch.arange(tokens.shape[1]) > 0), -1, tokens)

    return replace(right, call=call)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_run_that_ends_early_is_excused_by_no_coin(dtype: str) -> None:
    subject = opaque(1e-3)
    subject = replace(subject, capabilities=replace(subject.capabilities, coin_dtype=dtype))
    trial = DecoderTrial(subject, "probe/x", "x", seed=1)
    found = trial.follows(World(settings=SamplingSettings(max_new_tokens=2)), "a run")
    (said,) = found.violations
    assert "of 20,480 runs end in the wrong place, e.g. [" in said


def test_two_rows_of_which_one_ends_early_are_excused_by_no_coin() -> None:
    trial = DecoderTrial(opaque(0.02), "probe/x", "different", seed=1)
    assert "end in the wrong place" in two_rows(trial, 1e-6).violations[0]
    assert not two_rows(DecoderTrial(opaque(0.0), "probe/x", "alike"), 1e-6).violations


def test_right_runs_that_are_sampled_end_where_they_should() -> None:
    world = World(settings=SamplingSettings(max_new_tokens=3, stop_token_ids=(1,)))
    found = DecoderTrial(opaque(0.0), "probe/x", "x").follows(world, "a run")
    assert not found.violations
    assert found.tests[0].p_value > SHARE
