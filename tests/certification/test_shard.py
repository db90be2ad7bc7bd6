"""Shards: calls with derived seeds, and what stays when one of them fails."""

import itertools

import pytest
import torch

from specverify.certification.generation import decoder_generation
from specverify.certification.profiles import PROFILES, ROWS
from specverify.certification.shard import (
    FEWEST_SHARDS,
    SHARDS,
    ShardSampler,
    derived_generator,
    shard_runs,
)
from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError
from specverify.subjects.guard import Call
from specverify.subjects.protocols import Capabilities, Subject
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


@pytest.fixture
def sampler(case):
    """A sampler of constant runs, whose shards all have one size."""

    def make(recording, runs, rows):
        return ShardSampler(TOKEN, recording, case(runs=runs), rows, seed=0)

    return make


def test_rows_take_the_prompts_in_turn_padded_on_the_left(sampler):
    recording = Recording()
    made = sampler(recording, runs=160, rows=4)
    tallies = [made.run(shard) for shard in range(made.shards)]
    ids, mask, _ = recording.calls[0]
    assert ids.tolist() == [[0, 0, 0], [1, 2, 3]] * 2
    assert mask.tolist() == [[0, 0, 1], [1, 1, 1]] * 2
    assert sum(tally.runs for tally in tallies) == 160
    by_prompt = [sum(tally.tallies[i].runs for tally in tallies) for i in range(2)]
    assert by_prompt == [80, 80]
    assert list(tallies[0].findings) == ["odd"]


def test_one_row_a_call_still_takes_every_prompt_as_often(sampler):
    made = sampler(Recording(), runs=6, rows=1)
    tallies = [made.run(shard) for shard in range(made.shards)]
    assert [sum(tally.tallies[i].runs for tally in tallies) for i in range(2)] == [3, 3]


@pytest.mark.parametrize(
    ("runs", "rows", "size"),
    [
        (1, 256, 1),
        (166, 1, 21),
        (840, 1, 105),
        (10_080, 1, 315),
        (8_000, 16_384, 1_000),
        (100_000, 16_384, 3_125),
        (8_333, 256, 512),
        (5_000_000, 16_384, 163_840),
    ],
)
def test_shards_are_whole_calls_and_not_too_many(runs, rows, size):
    assert shard_runs(runs, rows) == size
    assert -(-runs // size) <= SHARDS
    assert size <= rows or size % rows == 0
    assert runs < FEWEST_SHARDS or -(-runs // size) >= FEWEST_SHARDS


@pytest.mark.parametrize(("runs", "rows"), [(10**9, 1), (10**9, 256), (2 * 10**11, 16_384)])
def test_a_shard_of_a_huge_budget_is_a_few_thousand_calls(runs, rows):
    assert shard_runs(runs, rows) == 4096 * rows


def test_a_case_has_no_more_shards_than_a_folder_can_hold():
    assert -(-(10**12) // shard_runs(10**12, 1)) <= 2**20


def test_usual_budgets_are_below_the_most_calls():
    for profile in PROFILES.values():
        for speed, rows in ROWS.items():
            assert -(-(profile.tokens[speed] // 2) // SHARDS) <= 4096 * rows


def test_what_a_failing_shard_tallied_stays(case):
    made = ShardSampler(TOKEN, Recording(fails_at=2), case(runs=400), 4, seed=0)
    tally = made.run(0)
    assert tally.runs == 8
    assert tally.failure == "no more"


class Counting:
    """A decoder that takes one row a call and fails, or returns nonsense, on one of them."""

    def __init__(self, bad: int, output: object = None):
        self.bad, self.output, self.calls = bad, output, 0

    def __call__(self, target, draft, prompt_ids, attention_mask, settings, k, generator):
        self.calls += 1
        if self.calls - 1 == self.bad and self.output is None:
            raise ValueError("no more")
        return self.output if self.calls - 1 == self.bad else torch.ones(1, 4, dtype=torch.long)


@pytest.mark.parametrize("bad", [1, 15, 16, 37])
@pytest.mark.parametrize(
    ("output", "said"),
    [(None, "raised ValueError: no more"), (torch.tensor([[99]]), "is 99, but token ids run")],
)
def test_rows_before_the_one_that_fails_are_tallied(case, bad, output, said):
    made = case(runs=400)
    subject = Subject("mine", "decoder", Counting(bad, output), Capabilities(batch=False))
    generate = decoder_generation(subject, made.target, made.draft, made.settings, 2, 60.0)
    tally = ShardSampler(subject, generate, made, 1, seed=0).run(0)
    assert tally.runs == bad
    assert said in tally.failure


def test_one_malformed_output_among_several_batches_ends_the_shard_there(case):
    good = torch.ones(4, 4, dtype=torch.long)
    outputs = itertools.chain([good] * 3, [torch.full((4, 1), -1)], itertools.repeat(good))
    made = case(runs=400)

    def generate(prompt_ids, attention_mask, generator):
        return Call(DecoderOutput(next(outputs)), 0.0)

    tally = ShardSampler(TOKEN, generate, made, 4, seed=0).run(0)
    assert tally.runs == 12
    assert "holds no token" in tally.failure


def test_an_interrupt_is_not_held_back(case):
    made = ShardSampler(TOKEN, Recording(fails_at=2, error=KeyboardInterrupt), case(), 4, seed=0)
    with pytest.raises(KeyboardInterrupt):
        made.run(0)


def reference(case):
    return decoder_generation(TOKEN, case.target, case.draft, case.settings, 2, 60.0)


def test_a_shard_does_not_depend_on_the_others(case):
    """Run last or first, alone or after others: the same tally, to the last bit."""
    made = ShardSampler(TOKEN, reference(case()), case(), 300, seed=0)
    alone = made.run(1)
    made.run(0)
    again = made.run(1)
    assert str(alone.state()) == str(again.state())


def test_generators_derive_from_seed_case_and_call():
    def first(*key):
        return torch.rand(1, generator=derived_generator(*key)).item()

    keys = [
        (0, "plain", 0, 0),
        (1, "plain", 0, 0),
        (0, "greedy", 0, 0),
        (0, "plain", 1, 0),
        (0, "plain", 0, 1),
    ]
    assert len({first(*key) for key in keys}) == len(keys)
    assert first(*keys[0]) == first(*keys[0])


def test_each_call_has_its_own_generator(case):
    recording = Recording()
    made = ShardSampler(TOKEN, recording, case(runs=20), 4, seed=0)
    for shard in range(made.shards):
        made.run(shard)
    draws = [tuple(call[2]) for call in recording.calls]
    assert len(set(draws)) == len(draws)


class TestFirstRounds:
    """Which accepted counts say that a token is a bonus or a correction."""

    def tallied(self, case, **extra):
        tokens = torch.ones(4, 4, dtype=torch.long)

        def generate(prompt_ids, attention_mask, generator):
            return Call(DecoderOutput(tokens, **extra), 0.0)

        # 32 runs in shards of 4, so that a shard is one call.
        rounds = ShardSampler(TOKEN, generate, case(runs=32), 4, seed=0).run(0).first_rounds
        return rounds.judged_corrections, rounds.bonuses.observed.sum(), bool(rounds.accepted)

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
