"""Wrong rules: their exact distributions are those of laws that call no rule."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from specverify.exact.compare_round import compare_round
from specverify.exact.joint import total_variation
from specverify.exact.round import Round
from specverify.exact.steer import joint_distribution
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from tests.fixtures.rule_laws import LAWS, target_rows

ROUND = Round.random(4, 2, seed=1)


def one_hot(prefixes):
    return np.eye(4)[np.asarray(ROUND.draft(prefixes)).argmax(1)]


def rows(*probs):
    return lambda prefixes: np.tile(probs, (len(prefixes), 1))


ONE_HOT = replace(ROUND, draft=one_hot, one_hot=True)
IMPOSSIBLE = Round(rows(0.6, 0.4, 0.0, 0.0), rows(0.2, 0.5, 0.2, 0.1), 4, 2)
"""Two tokens that the target excludes."""
_TIE = 11184811 / 2**25
EMPTIED = Round(
    rows(_TIE + 1e-12, 1 - _TIE - 1e-12), rows(_TIE - 1e-12, 1 - _TIE + 1e-12), 2, 1, torch.float32
)
"""p and q that differ by an ulp of float32 in one token, and by nothing in the other."""

each_mutant = pytest.mark.parametrize("mutant", RULE_MUTANTS, ids=lambda mutant: mutant.id)


@cache
def found_on(number, one_hot):
    """The distribution of a mutant on the fixed round."""
    return joint_distribution(RULE_MUTANTS[number].subject, ONE_HOT if one_hot else ROUND)


def found_by(mutant):
    """The same, by the mutant."""
    return found_on(RULE_MUTANTS.index(mutant), mutant.one_hot)


def gap(mutant, found, round):
    """TV between a mutant's distribution and its law; crashes are what the law lacks."""
    law = LAWS[mutant.id](round)
    missing = 1 - math.fsum(law.values())
    assert abs(math.fsum(found.crashes.values()) - missing) < 1e-9
    return total_variation(found.probabilities, law)


@each_mutant
def test_the_law_of_every_mutant(mutant):
    assert gap(mutant, found_by(mutant), ONE_HOT if mutant.one_hot else ROUND) < 1e-9


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("mutant", [m for m in RULE_MUTANTS if not m.one_hot], ids=lambda m: m.id)
def test_where_the_target_excludes_tokens(mutant):
    assert gap(mutant, joint_distribution(mutant.subject, IMPOSSIBLE), IMPOSSIBLE) < 1e-9


@each_mutant
def test_what_violates_is_seen(mutant):
    """All but those that differ by next to nothing on this round."""
    round = ONE_HOT if mutant.one_hot else ROUND
    comparison = compare_round(
        round, found_by(mutant).probabilities, target=target_rows(round, mutant.id)
    )
    tiny = ("test-closed", "residual-clamped-below-rounding", "residual-unchecked")
    assert (comparison.total_variation > 1e-7) == (mutant.id not in tiny)


def test_a_crash_has_its_exact_mass():
    (mutant,) = [m for m in RULE_MUTANTS if m.id == "residual-unchecked"]
    found = joint_distribution(mutant.subject, EMPTIED)
    law = LAWS[mutant.id](EMPTIED)
    missing = 1 - math.fsum(law.values())
    assert missing > 1e-9
    assert abs(math.fsum(found.crashes.values()) - missing) < 1e-12
    assert total_variation(found.probabilities, law) < 1e-9
