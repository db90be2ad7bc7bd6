"""Whole runs of decoders on tiny models."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from specverify.certification.exact_runs import (
    LONGER,
    PROMPT,
    SMALL,
    RunCase,
    exact_runs,
    steer_decoder,
)
from specverify.certification.presets import presets
from specverify.decoding.scoring import TeacherForced
from specverify.errors import CannotSteer
from specverify.fixtures.mutants import MUTANTS
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.settings import SamplingSettings
from specverify.subjects.reference import BLOCK, GREEDY, MATCH, TOKEN
from specverify.subjects.transformers_assisted import ASSISTED
from specverify.verification import TOKEN as RULE

SHORT = RunCase("exact/short", SamplingSettings(max_new_tokens=2))
"""Two tokens, whose second is a bonus token where one draft token is accepted of K = 1."""
NAMES = ("plain", "filtered", "history", "stopping", "greedy")


def test_every_preset_has_its_small_form() -> None:
    assert set(SMALL) == set(presets(8, 7, (1, 2)))


def test_cases_are_cut_to_what_a_subject_honours() -> None:
    ids = [case.id for case in exact_runs(TOKEN, NAMES)]
    assert ids == ["exact/plain", LONGER, *(f"exact/{name}" for name in NAMES[1:])]
    assert [case.id for case in exact_runs(TOKEN, ("own", "greedy"))] == ["exact/greedy"]
    assert [case.id for case in exact_runs(GREEDY, NAMES)] == ["exact/greedy"]
    plain = replace(TOKEN, capabilities=replace(TOKEN.capabilities, settings=frozenset()))
    kept = exact_runs(plain, NAMES)
    assert [case.id for case in kept] == ["exact/plain", LONGER, "exact/filtered", "exact/greedy"]
    assert kept[2].settings.top_k is None
    assert kept[2].settings.temperature == 0.7


@pytest.mark.parametrize("name", NAMES)
def test_what_is_expected_is_the_stopped_distribution_of_the_target(name: str) -> None:
    case, *_ = exact_runs(TOKEN, (name,))
    joint = case.expected()
    assert math.fsum(joint.values()) == pytest.approx(1, abs=1e-12)
    forced = TeacherForced(case.tables[0], PROMPT, case.settings, 4)
    for run, mass in joint.items():
        steps = [
            forced(np.array([run[:t]], np.int64).reshape(1, -1))[0][x] for t, x in enumerate(run)
        ]
        assert mass == pytest.approx(math.prod(steps), rel=1e-12)
        stopped = case.settings.stop_token_ids and run[-1] in case.settings.stop_token_ids
        assert len(run) == 3 or stopped


@pytest.mark.parametrize("subject", [TOKEN, BLOCK, MATCH], ids=lambda subject: subject.name)
def test_references_are_exact(subject) -> None:
    evidence = steer_decoder(subject, SHORT, 0, 60.0)
    assert evidence.comparison.total_variation < evidence.tolerance == 1e-12
    assert (evidence.findings, evidence.draws_elsewhere, evidence.joint.findings) == ((), (), ())


def test_a_longer_run_has_room_for_two_rejections() -> None:
    _, case = exact_runs(TOKEN, ("plain",))
    assert (case.id, case.size) == (LONGER, "V=2, K=2, 4 tokens")
    assert math.fsum(case.expected().values()) == pytest.approx(1, abs=1e-12)
    assert {len(run) for run in case.expected()} == {4}


class WrongAfterTwoRejections:
    """Token verification that draws from the draft once two draft tokens have been rejected."""

    name = "token"

    def __init__(self) -> None:
        self.rejected = 0

    def __call__(self, tokens, q, p, generator=None, counts=None):
        if self.rejected == 2 and q is not None:
            p = torch.cat([q, p[:, -1:]], 1)
        verified = RULE(tokens, q, p, generator, counts)
        self.rejected += int(verified.accepted[0] < tokens.shape[1])
        return verified


def test_a_mistake_after_two_rejections_shows_in_the_longer_run_alone() -> None:
    def call(*arguments):
        return decoder_subject("fresh", verification=WrongAfterTwoRejections()).call(*arguments)

    wrong = replace(TOKEN, name="late", call=call)
    short, longer = exact_runs(wrong, ("plain",))
    assert steer_decoder(wrong, short, 0, 60.0).comparison.total_variation < 1e-12
    assert steer_decoder(wrong, longer, 0, 60.0).comparison.total_variation > 1e-5


def test_greedy_decoding_has_one_path() -> None:
    (case,) = exact_runs(GREEDY, ("greedy",))
    evidence = steer_decoder(GREEDY, case, 0, 60.0)
    assert evidence.comparison.total_variation == 0
    assert set(evidence.joint.probabilities.values()) == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("subject", [TOKEN, ASSISTED], ids=lambda subject: subject.name)
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_of_right_decoders(subject, name: str) -> None:
    for case in exact_runs(subject, (name,)):
        evidence = steer_decoder(subject, case, 0, 60.0)
        assert evidence.comparison.total_variation < evidence.tolerance
        assert evidence.draws_elsewhere == ()
        assert evidence.joint.findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("id", ["residual-not-subtracted", "bonus-from-draft", "history-frozen"])
def test_wrong_decoders_are_off(id: str) -> None:
    preset = MUTANTS[id].settings
    case, *_ = exact_runs(MUTANTS[id].subject, (preset if isinstance(preset, str) else "history",))
    evidence = steer_decoder(MUTANTS[id].subject, case, 0, 60.0)
    assert evidence.comparison.total_variation > 1e-3


def test_a_decoder_that_draws_elsewhere_is_refused() -> None:
    def numpy_coins(target, draft, ids, mask, settings, k, generator):
        generator.manual_seed(int(np.random.default_rng().integers(1 << 40)))
        return TOKEN.call(target, draft, ids, mask, settings, k, generator)

    def numpy_tokens(target, draft, ids, mask, settings, k, generator):
        tokens = np.random.default_rng().integers(3, size=(1, settings.max_new_tokens))
        return torch.from_numpy(tokens)

    with pytest.raises(CannotSteer, match="outside torch's randomness"):
        steer_decoder(replace(TOKEN, call=numpy_tokens), SHORT, 0, 60.0)
    # A seed from anywhere is no decision: what is drawn from it is followed.
    assert steer_decoder(replace(TOKEN, call=numpy_coins), SHORT, 0, 60.0).joint.total > 0.99


def test_own_parts_are_right_before_they_are_changed() -> None:
    evidence = steer_decoder(decoder_subject("right"), SHORT, 0, 60.0)
    assert evidence.comparison.total_variation < 1e-12
