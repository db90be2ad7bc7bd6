"""Whole runs of the reference rules, composed from the closed forms of their rounds."""

import doctest
from importlib import import_module

import numpy as np
import pytest
import torch

from specverify.errors import UsageError
from specverify.exact.closed_forms import accepted_tables, emission_tables
from specverify.exact.enumerate import (
    acceptance_distribution,
    autoregressive,
    expected_joint,
    round_distribution,
    run_distribution,
)
from specverify.exact.joint import complete, total_variation
from specverify.exact.prefix_tree import PrefixTree
from specverify.exact.round import Round

LOSSLESS = ["token", "block", "match"]


def test_the_expected_joint_is_the_targets():
    round = Round.random(3, 2, seed=2, dtype=torch.bfloat16)
    found = expected_joint(round)
    first = {(token,): float(mass) for token, mass in enumerate(round.p(0)[0])}
    assert total_variation(found, complete(first, round.completed_target, 3)) < 1e-15
    rounded_away = autoregressive(round.target, 3, 3)
    assert total_variation(found, rounded_away) > 1e-5


V, L = 3, 4
MODELS = Round.random(V, 6, seed=7)


def stop(prefixes):
    """Stop token 2, stop sequence 0 1."""
    ended = prefixes[:, -1] == 2
    if prefixes.shape[1] >= 2:
        ended |= (prefixes[:, -2] == 0) & (prefixes[:, -1] == 1)
    return ended


@pytest.mark.parametrize("is_end", [None, stop], ids=["endless", "stopping"])
@pytest.mark.parametrize("width", [0, 1, 2])
@pytest.mark.parametrize("algorithm", LOSSLESS)
def test_runs_are_the_targets(algorithm, width, is_end):
    found = run_distribution(algorithm, MODELS.target, MODELS.draft, V, width, L, is_end)
    expected = autoregressive(MODELS.target, V, L, is_end)
    assert total_variation(found, expected) < 1e-12
    assert found.keys() == expected.keys()
    assert expected == PrefixTree.grow(MODELS.target, V, L, is_end).sequences()


@pytest.mark.parametrize("is_end", [None, stop], ids=["endless", "stopping"])
def test_a_greedy_run_is_one_sequence(is_end):
    def greedy(prefixes):
        return np.eye(V)[np.argmax(MODELS.target(prefixes), 1)]

    found = run_distribution("greedy", MODELS.target, MODELS.draft, V, 2, L, is_end)
    ((sequence, mass),) = autoregressive(greedy, V, L, is_end).items()
    assert found == {sequence: pytest.approx(mass, abs=1e-15)}
    sampled = autoregressive(MODELS.target, V, L, is_end)
    assert total_variation(found, sampled) == pytest.approx(1 - sampled[sequence])


@pytest.mark.parametrize(
    "call",
    [
        lambda round: round_distribution("tokens", round),
        lambda round: acceptance_distribution("tokens", round),
        lambda round: emission_tables("tokens", round),
        lambda round: accepted_tables("tokens", round),
        lambda round: run_distribution("tokens", round.target, round.draft, 2, 1, 3),
    ],
)
def test_an_unknown_algorithm_is_named(call):
    with pytest.raises(UsageError, match=r"'tokens' \(did you mean 'token'\?\); known are greedy"):
        call(Round.random(2, 1))


@pytest.mark.parametrize("module", ["enumerate", "compare_round"])
def test_examples_run(module):
    found = doctest.testmod(import_module(f"specverify.exact.{module}"))
    assert found.attempted > 0
    assert found.failed == 0
