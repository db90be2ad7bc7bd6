import pytest

from specverify.errors import SettingsError
from specverify.transforms import TokenAutomaton

# (01)* then stop token 2
PAIRS = TokenAutomaton("even", {("even", 0): "odd", ("odd", 1): "even", ("even", 2): "end"})


@pytest.mark.parametrize(
    ("emitted", "allowed"),
    [
        ((), (0, 2)),
        ((0,), (1,)),
        ((0, 1), (0, 2)),
        ((0, 1, 2), ()),
        ((1,), ()),
        ((1, 0), ()),
        ((0, 0, 1), ()),
    ],
)
def test_allowed_tokens_follow_the_prefix(emitted, allowed):
    assert PAIRS(emitted) == allowed


def test_rejected_tokens_leave_no_trace():
    before = PAIRS((0,))
    PAIRS((0, 1, 0, 1, 2))
    PAIRS((1, 1, 1))
    assert PAIRS((0,)) == before


def test_transitions_are_copied():
    table = {("s", 0): "s"}
    automaton = TokenAutomaton("s", table)
    table.clear()
    assert automaton((0, 0)) == (0,)


def test_a_start_without_transitions_is_refused():
    with pytest.raises(SettingsError, match="'odd'"):
        TokenAutomaton("odd", {("even", 0): "odd"})


def test_negative_tokens_are_refused():
    with pytest.raises(SettingsError, match="-1"):
        TokenAutomaton("s", {("s", -1): "s"})
