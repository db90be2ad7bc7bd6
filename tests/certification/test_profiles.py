import pytest

from specverify.certification.profiles import FUZZ, PROFILES, ROWS, profile_named
from specverify.errors import UsageError


def test_what_the_first_certificate_promises():
    """2,000,000 toy tokens and 200,000 of a trained pair, by the quickest profile."""
    assert profile_named("quick").tokens["table"] >= 2_000_000
    assert profile_named("quick").tokens["batch"] >= 200_000


def test_each_profile_asks_for_more_than_the_one_before():
    for speed in ROWS:
        amounts = [found.tokens[speed] for name, found in PROFILES.items() if name != FUZZ]
        assert amounts == sorted(set(amounts))


def test_an_unknown_profile():
    with pytest.raises(UsageError, match=r"unknown profile 'fast'.*quick, standard, thorough"):
        profile_named("fast")


def test_a_search_begins_with_what_the_quickest_samples():
    assert profile_named(FUZZ) == profile_named("quick")
