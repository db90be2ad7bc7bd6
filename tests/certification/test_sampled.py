"""Calls with derived seeds, and what stays when one of them fails."""

import numpy as np
import pytest
import torch

from specverify.certification.sampled import DecoderSampler, derived_generator
from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError
from specverify.subjects.guard import Call
from specverify.subjects.reference import TOKEN

PROMPTS = ((0,), (1, 2, 3))


class Recording:
    """Generates constant runs and remembers its calls."""

    def __init__(self, *, fails_at: int | None = None, error: type[BaseException] = SubjectError):
        self.calls = []
        self.fails_at, self.error = fails_at, error

    def __call__(self, prompt_ids, attention_mask, generator):
        if len(self.calls) == self.fails_at:
            raise self.error("no more")
        draws = torch.rand(2, generator=generator).tolist()
        self.calls.append((prompt_ids, attention_mask, draws))
        tokens = torch.ones(len(prompt_ids), 4, dtype=torch.long)
        return Call(DecoderOutput(tokens), 0.0, ("odd",))


def test_rows_take_the_prompts_in_turn_padded_on_the_left(case):
    made = case(runs=10)
    recording = Recording()
    progress = []
    sampler = DecoderSampler(TOKEN, recording, made, 4, seed=0)
    sampler.run(progress.append)
    assert progress == [4, 8, 10]
    ids, mask, _ = recording.calls[0]
    assert ids.tolist() == [[0, 0, 0], [1, 2, 3]] * 2
    assert mask.tolist() == [[0, 0, 1], [1, 1, 1]] * 2
    assert [len(call[0]) for call in recording.calls] == [4, 4, 2]
    assert [tally.runs for tally in sampler.tallies] == [5, 5]
    assert list(sampler.findings) == ["odd"]


def test_one_row_a_call_still_takes_every_prompt_as_often(case):
    sampler = DecoderSampler(TOKEN, Recording(), case(runs=6), 1, seed=0)
    sampler.run(lambda done: None)
    assert [tally.runs for tally in sampler.tallies] == [3, 3]


@pytest.mark.parametrize("error", [SubjectError, KeyboardInterrupt])
def test_what_was_tallied_stays(case, error):
    sampler = DecoderSampler(TOKEN, Recording(fails_at=2, error=error), case(runs=40), 4, seed=0)
    with pytest.raises(error):
        sampler.run(lambda done: None)
    assert sampler.evidence().runs == 8


def test_generators_derive_from_seed_case_and_call():
    def first(*key):
        return torch.rand(1, generator=derived_generator(*key)).item()

    keys = [(0, "plain", 0), (1, "plain", 0), (0, "greedy", 0), (0, "plain", 1)]
    assert len({first(*key) for key in keys}) == len(keys)
    assert first(*keys[0]) == first(*keys[0])


def test_each_call_has_its_own_generator(case):
    recording = Recording()
    DecoderSampler(TOKEN, recording, case(runs=20), 4, seed=0).run(lambda done: None)
    draws = [tuple(call[2]) for call in recording.calls]
    assert len(set(draws)) == len(draws)


class TestFirstRounds:
    """Which accepted counts say that a token is a bonus or a correction."""

    def tallied(self, case, **extra):
        sampler = DecoderSampler(TOKEN, Recording(), case(), 4, seed=0)
        tokens = torch.ones(4, 4, dtype=torch.long)
        sampler._tally(np.array([0, 1, 0, 1]), DecoderOutput(tokens, **extra))
        rounds = sampler.first_rounds
        corrections, bonuses = rounds.judged_corrections, rounds.bonuses.observed.sum()
        return corrections, bonuses, sampler.evidence().reports_acceptance

    def test_as_the_subject_reports_them(self, case):
        accepted = torch.tensor([[2, 0], [1, 1], [0, 2], [1, 1]])
        drafted = torch.tensor([[2, 0], [2, 1], [2, 2], [1, 1]])
        assert self.tallied(case, accepted=accepted, drafted=drafted) == (2, 2, True)

    def test_without_the_number_offered_only_full_acceptance_is_certain(self, case):
        accepted = torch.tensor([[2, 0], [1, 1], [0, 2], [1, 1]])
        assert self.tallied(case, accepted=accepted) == (0, 1, True)

    def test_unreported(self, case):
        assert self.tallied(case) == (0, 0, False)
        none = torch.zeros(4, 0, dtype=torch.long)
        assert self.tallied(case, accepted=none) == (0, 0, False)
