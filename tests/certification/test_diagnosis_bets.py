"""Which kind of mistake the bets on sampled tokens speak for."""

import math

import pytest

from specverify.certification.certificate import CaseRecord, TestRecord
from specverify.certification.diagnosis import with_diagnosis
from specverify.certification.diagnosis_bets import UNKNOWN, by_bets, kinds_of, law_of, weighed
from specverify.fixtures.mutants.families import FAMILIES
from specverify.statistics.bet_components import components
from specverify.statistics.mixture import ORDERS
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN as REFERENCE

NAMES = sorted(
    {component.name for raw in (False, True) for component in components(raw=raw)}
    | {f"bins in {order} order" for order in ORDERS}
)
FILTERED = {"temperature": 0.7, "top_k": 5}
HISTORY = {"presence_penalty": 0.5, "max_new_tokens": 6}


def rejecting(
    parts: dict[str, float], decision: str = "violated", property: str = "joint.every_token"
) -> TestRecord:
    return TestRecord(
        property=property,
        claim="",
        evidence="sampled",
        decision=decision,
        components=parts,
    )


def case(
    *tests: TestRecord, id: str = "plain", settings: dict[str, object] | None = None
) -> CaseRecord:
    return CaseRecord(
        id=id, verdict="violated", tests=tests, settings=settings or {}, num_draft_tokens=4
    )


def guessed(parts: dict[str, float], **settings: object) -> tuple[str, float]:
    _, found = by_bets([case(rejecting(parts), settings=settings)])
    assert found is not None
    assert found.basis == "bets"
    return found.kind, found.confidence


@pytest.mark.parametrize("name", NAMES)
def test_every_bet_has_a_law_and_weights_of_known_kinds(name: str) -> None:
    assert law_of(name) is not None
    for settings in ({}, FILTERED, HISTORY):
        for bet in (name, f"stratum 0: {name}", f"stratum 9: {name}"):
            kinds = kinds_of(bet, settings, 4)
            assert set(kinds) <= {UNKNOWN, *FAMILIES.values()}
            assert math.fsum(kinds.values()) == pytest.approx(1)
            assert min(kinds.values()) >= -1e-12


def test_a_bet_that_is_not_known_says_nothing() -> None:
    assert law_of("leak to the moon, 1") is None
    assert kinds_of("leak to the moon, 1") == {UNKNOWN: 1.0}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("residual = p", "residual"),
        ("ratio with raw q, residual = (p-q)+", "proposal"),
        ("draft and ratio with raw q, residual = |p-q|, diluted 0.32", "proposal"),
        ("leak to q, 1", "ratio"),
        ("tilt ln(q/p), -1", "ratio"),
        ("tilt q > p, 0.25", "ratio"),
        ("leak to raw p, 1", "transforms"),
        ("leak to uniform, 0.32", "cache"),
        ("leak to uniform, 1", "batch"),
        ("temperature 2", "cache"),
        ("temperature 0.667", "proposal"),
        ("tilt ln(q/p), 0.25, temperature 0.889", "proposal"),
        ("bins in index order", "coins"),
        ("stratum 9: bins in index order", "coins"),
        ("stratum 3: residual = p", "residual"),
        ("stratum 8: leak to q, 1", "bonus"),
        ("stratum 10: temperature 2", "bonus"),
        ("bins in p order", UNKNOWN),
        ("tilt ln(q/p), 0.25, temperature 1.03", UNKNOWN),
    ],
)
def test_one_bet_that_gained_names_its_kind(name: str, kind: str) -> None:
    assert guessed({name: 40.0, "leak to q, 0.0001": 2.0})[0] == kind


def test_settings_say_what_there_is_to_get_wrong() -> None:
    assert guessed({"leak to raw p, 0.32": 40.0}, **FILTERED)[0] == "transforms"
    assert guessed({"leak to raw p, 0.32": 40.0}, **HISTORY)[0] == "history"
    assert guessed({"temperature 2": 40.0}, **FILTERED)[0] == "transforms"
    # A length limit is no transform.
    assert guessed({"temperature 2": 40.0}, max_new_tokens=6)[0] == "cache"


def test_bets_count_by_what_they_gained() -> None:
    sure = guessed({"residual = p": 40.0, "leak to q, 0.3": 36.0, "tilt q > p, 1": 20.0})
    assert sure[0] == "residual"
    assert sure[1] > 0.9
    kinds = weighed(case(), {"residual = p": 40.0, "bins in index order": 40.0})
    assert kinds["residual"] == pytest.approx(0.95 / 2)
    assert kinds["coins"] == pytest.approx(0.85 / 2)


def test_it_is_unknown_where_bets_of_different_kinds_gained_alike() -> None:
    kind, confidence = guessed({"residual = p": 40.0, "bins in index order": 40.0})
    assert kind == UNKNOWN
    assert confidence == pytest.approx(1 - 0.95 / 2)


def test_a_late_place_is_known_only_with_the_length_of_a_block() -> None:
    assert kinds_of("stratum 8: leak to q, 1", {}, 4)["bonus"] == pytest.approx(0.9)
    assert kinds_of("stratum 7: leak to q, 1", {}, 4) == kinds_of("leak to q, 1")
    assert kinds_of("stratum 8: leak to q, 1", {}, None) == kinds_of("leak to q, 1")


class TestCases:
    def test_what_is_blocked_rejects_as_well(self) -> None:
        blocked = rejecting({"residual = p": 40.0}, "blocked")
        index, found = by_bets([case(), case(blocked)])
        assert found is not None
        assert (index, found.kind) == (1, "residual")

    @pytest.mark.parametrize("decision", ["pass", "undecided", "suspect", "reported"])
    def test_what_does_not_reject_says_nothing(self, decision: str) -> None:
        assert by_bets([case(rejecting({"residual = p": 40.0}, decision))]) == (0, None)

    def test_the_plainest_case_that_rejects_counts(self) -> None:
        history = case(rejecting({"leak to raw p, 1": 90.0}), id="history", settings=HISTORY)
        right = case(rejecting({"residual = p": 1.0}, "pass"))
        assert by_bets([right, history])[1].kind == "history"  # type: ignore[union-attr]
        plain = case(rejecting({"residual = p": 30.0}))
        index, found = by_bets([history, plain])
        assert found is not None
        assert (index, found.kind) == (1, "residual")

    def test_bets_on_tokens_come_before_everything_else(self) -> None:
        coupled = rejecting({"ratio.lag1.close": 90.0}, property="randomness.independence")
        recorded = rejecting({"leak to q, 1": 80.0}, property="joint.own_distributions")
        tokens = rejecting({"residual = p": 30.0})
        kinds = [
            found.kind
            for tests in ((coupled, recorded, tokens), (coupled, recorded), (coupled,))
            if (found := by_bets([case(*tests)])[1]) is not None
        ]
        assert kinds == ["residual", "ratio", "coins"]

    def test_other_mixtures_are_of_the_kind_of_their_chapter(self) -> None:
        for property, kind in {"state.many_calls": "cache", "batch.row_law": "batch"}.items():
            _, found = by_bets([case(rejecting({"quarters": 30.0}, property=property))])
            assert found is not None
            assert found.kind == kind
            assert found.description == f"{property} alone rejects; what gained most: quarters"

    def test_a_run_is_told_of_an_unknown_kind(self) -> None:
        cases = [case(rejecting({"bins in p order": 30.0}))]
        (found,) = with_diagnosis(cases, Subject("mine", "decoder", REFERENCE.call, Capabilities()))
        assert found.diagnosis is not None
        assert (found.diagnosis.kind, found.diagnosis.mutant) == (UNKNOWN, "")
        assert "bins in p order" in found.diagnosis.description
