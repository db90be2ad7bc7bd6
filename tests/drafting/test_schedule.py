import pytest
import torch

from specverify.drafting.schedule import Fixed, Heuristic, HeuristicTransient
from specverify.errors import UsageError


def play(schedule, state, *rounds):
    """Feed rounds of (accepted, drafted) per row; the limits after each of them."""
    limits = []
    for accepted, drafted in rounds:
        schedule.update(state, torch.tensor(accepted), torch.tensor(drafted))
        limits.append(schedule.limits(state).tolist())
    return limits


def test_fixed_never_changes():
    schedule = Fixed(3)
    state = schedule.start(2)
    assert schedule.limits(state).tolist() == [3, 3]
    assert play(schedule, state, ([3, 0], [3, 3])) == [[3, 3]]


def test_fixed_zero_offers_nothing():
    assert Fixed(0).limits(Fixed(0).start(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("schedule", [Heuristic, HeuristicTransient])
def test_heuristic_adds_two_or_takes_one(schedule):
    policy = schedule(2)
    state = policy.start(2)
    assert policy.limits(state).tolist() == [2, 2]
    rounds = ([2, 1], [2, 2]), ([3, 0], [4, 1]), ([3, 0], [3, 1]), ([4, 1], [5, 1])
    assert play(policy, state, *rounds) == [[4, 1], [3, 1], [5, 1], [4, 3]]


@pytest.mark.parametrize("schedule", [Heuristic, HeuristicTransient])
def test_a_row_that_drafted_nothing_learns_nothing(schedule):
    policy = schedule(4)
    state = policy.start(3)
    assert play(policy, state, ([0, 0, 1], [0, 1, 1])) == [[4, 3, 6]]


@pytest.mark.parametrize("schedule", [Heuristic, HeuristicTransient])
def test_a_block_cut_short_counts_as_full_when_all_of_it_stood(schedule):
    policy = schedule(4)
    assert play(policy, policy.start(1), ([2], [2])) == [[6]]


def test_limits_are_not_the_state():
    policy = HeuristicTransient(4)
    state = policy.start(1)
    policy.limits(state).zero_()
    assert policy.limits(state).tolist() == [4]


def test_heuristic_persists_and_transient_does_not():
    for policy, second_run in ((Heuristic(4), [8, 8]), (HeuristicTransient(4), [4, 4])):
        play(policy, policy.start(1), ([4], [4]), ([6], [6]))
        assert policy.limits(policy.start(2)).tolist() == second_run


def test_heuristic_carries_the_mean_over_rows():
    policy = Heuristic(4)
    play(policy, policy.start(3), ([4, 0, 0], [4, 4, 4]))
    assert policy.limits(policy.start(2)).tolist() == [4, 4]
    play(policy, policy.start(3), ([0, 0, 0], [4, 4, 4]))
    assert policy.limits(policy.start(1)).tolist() == [3]


@pytest.mark.parametrize(
    ("schedule", "number"), [(Fixed, -1), (Heuristic, 0), (HeuristicTransient, 0)]
)
def test_impossible_lengths_are_refused(schedule, number):
    with pytest.raises(UsageError, match=f"num_draft_tokens={number}"):
        schedule(number)
