"""A rule for allowed tokens: the sets by turns, other names for tokens, and back from a record."""

import json

import pytest

from specverify.certification.allowed_in_turn import AllowedInTurn
from specverify.transforms import AllowedTokens

RULE = AllowedInTurn(((0, 3), (1, 2), (4,)), (2, 3))


@pytest.mark.parametrize(
    ("emitted", "allowed"),
    [
        ((), (0, 3)),
        ((0, 1, 4), (0, 3)),
        ((2,), (1, 2)),
        ((0, 3, 0), (1, 2)),
        ((2, 2), (4,)),
        ((2, 3, 2), (0, 3)),
    ],
)
def test_each_turning_token_brings_up_the_next_set(
    emitted: tuple[int, ...], allowed: tuple[int, ...]
) -> None:
    assert RULE(emitted) == allowed
    assert AllowedTokens(RULE).allowed(emitted) == allowed


def test_renaming_renames_what_goes_in_and_what_comes_out() -> None:
    names = [4, 2, 0, 1, 3]
    renamed = RULE.renamed(names)
    for emitted in [(), (2,), (0, 3, 1), (3, 3, 2)]:
        called = tuple(names[token] for token in emitted)
        assert renamed(called) == tuple(names[token] for token in RULE(emitted))
    assert renamed != RULE


def test_it_comes_back_from_json() -> None:
    assert AllowedInTurn.loaded(json.loads(json.dumps(RULE.record))) == RULE


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"sets": [[0]]}, KeyError),
        ({"sets": [], "turning": []}, ValueError),
        ({"sets": [["x"]], "turning": []}, ValueError),
        ({"sets": 3, "turning": []}, TypeError),
    ],
)
def test_a_malformed_record(record: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        AllowedInTurn.loaded(record)


def test_its_name_is_short_and_all_tokens_are_told() -> None:
    assert repr(RULE) == "(0 3 | 1 2 | 4 by 2 3)"
    assert repr(AllowedInTurn(((1,),), ())) == "(1 by none)"
    assert RULE.tokens == {0, 1, 2, 3, 4}
