"""The recorded path of a case: the same however it is run, and what the case ends with."""

import pytest
import torch

from specverify.certification.looks import FOLLOWED, path_schedule
from specverify.certification.run import certify
from specverify.settings import SamplingSettings
from specverify.statistics.sequences import look_schedule
from tests.certified import PAIR, certified, decoder

PLAIN = {"plain": SamplingSettings()}
FIRST_TOKEN = "total variation of the first token"


def constant(target, draft, ids, mask, settings, k, generator):
    return torch.zeros(len(ids), settings.max_new_tokens, dtype=torch.long)


@pytest.mark.parametrize("shards", [1, 2, 31, 500, 2**20])
def test_there_are_few_looks_and_all_fixed_ones_are_among_them(shards: int) -> None:
    fixed = look_schedule(shards)
    schedule = path_schedule(shards, fixed)
    assert {1, shards, *fixed} <= schedule
    assert len(schedule) <= 60
    assert max(schedule) == shards


def test_the_path_ends_in_the_numbers_of_the_case() -> None:
    (case,) = certified("preserved").cases
    looks = case.looks
    assert looks is not None
    assert (looks.shards[-1], looks.runs[-1], looks.tokens[-1]) == (
        case.shards,
        case.runs,
        case.tokens,
    )
    statistics = {test.property: test.statistic for test in case.tests if test.alpha is not None}
    assert FOLLOWED in looks.log_e
    assert len(looks.log_e) == 4
    assert {name: path[-1] for name, path in looks.log_e.items()} == {
        name: statistics[name] for name in looks.log_e
    }
    assert looks.bounds[FIRST_TOKEN][-1] == case.tv_bound


def test_a_bound_of_a_fixed_n_is_shown_only_where_it_is_claimed() -> None:
    (case,) = certified("preserved").cases
    looks = case.looks
    assert looks is not None
    claimed = [value is not None for value in looks.bounds[FIRST_TOKEN]]
    assert True in claimed[:-1]
    assert False in claimed
    values = [value for value in looks.bounds[FIRST_TOKEN] if value is not None]
    assert values == sorted(values, reverse=True), "more tokens, tighter bounds"


def test_what_crossed_its_threshold_stays_there() -> None:
    certificate = certify(
        decoder(constant), PAIR, settings=PLAIN, tokens=40_000, exact=False, stop_early=False
    )
    (case,) = certificate.cases
    assert case.looks is not None
    path = case.looks.log_e[FOLLOWED]
    assert len(path) > 5
    assert len(set(path)) == 1, "it crossed at the first look"


def test_a_subject_that_fails_at_once_has_no_path() -> None:
    (case,) = certified("error").cases
    assert case.runs == 0
    assert case.looks is None


def test_the_digest_covers_it() -> None:
    """So test_resume shows that it is the same for any processes and however often resumed."""
    certificate = certified("preserved")
    (case,) = certificate.cases
    without = certificate.model_copy(update={"cases": (case.model_copy(update={"looks": None}),)})
    assert without.digest() != certificate.digest()
