"""The self-test: what it says of mutants, of look-alikes, and of a suite that is blind."""

from dataclasses import replace

import pytest

from specverify.certification import selftest
from specverify.certification.certificate import Evidence
from specverify.certification.kill_table import (
    ControlRecord,
    KillRecord,
    KillTable,
    differences,
    kill_table,
)
from specverify.certification.registry import all_properties
from specverify.certification.selftest import controls, run_selftest, try_control
from specverify.fixtures.controls import KnownControl
from specverify.sampling.engines import InProcess
from specverify.subjects.reference import TOKEN

BY_ID = {control.id: index for index, control in enumerate(controls())}


def test_ids_are_unique_and_every_control_says_what_must_become_of_it() -> None:
    assert len(BY_ID) == len(controls())
    for control in controls():
        assert control.description
        assert (control.effect == "preserved") <= (not control.caught_by)
        assert control.tokens > 0 or control.effect != "preserved" or not control.caught_by


@pytest.mark.parametrize("id", ["test-closed-rule", "zero-is-missing", "residual-reversed-rule"])
def test_mutants_are_caught_as_they_should_be(id: str) -> None:
    record = try_control(BY_ID[id], seed=0)
    assert record.reason == ""
    assert record.kind == controls()[BY_ID[id]].subject.kind
    assert bool(record.killed_by) == (record.effect == "violated")
    costs = {kill.property: kill.cost for kill in record.killed_by}
    assert costs.get("joint.round", 1) > 0


@pytest.fixture
def one_control(monkeypatch: pytest.MonkeyPatch):
    def use(**changes) -> ControlRecord:
        known = controls()[BY_ID["zero-is-missing"]]
        assert isinstance(known, KnownControl)
        monkeypatch.setattr(selftest, "controls", lambda: (replace(known, **changes),))
        return try_control(0, seed=0)

    return use


def test_a_mutant_that_survives_is_wrong(one_control) -> None:
    right = controls()[BY_ID["zero-is-missing"]].subject
    from specverify.transforms import REFERENCE

    called = replace(right, call=REFERENCE[right.reference or ""])
    record = one_control(subject=called)
    assert record.reason.startswith("a mutant came out preserved")
    assert record.killed_by == ()


def test_one_that_another_property_catches_is_wrong_too(one_control) -> None:
    record = one_control(caught_by=frozenset({"transforms.batch"}))
    assert record.reason == "not caught by transforms.batch"


def test_a_lookalike_that_is_accused_is_wrong(one_control) -> None:
    record = one_control(effect="preserved", caught_by=frozenset())
    assert record.reason.startswith("a look-alike came out violated")


def table(*records: ControlRecord) -> KillTable:
    return KillTable(controls=records, seed=0, suite="")


def record(
    id: str, *properties: str, reason: str = "", evidence: Evidence = "exact"
) -> ControlRecord:
    kills = tuple(KillRecord(property=p, evidence=evidence, cost=3) for p in properties)
    return ControlRecord(
        id=id, kind="rule", description="d", effect="violated", killed_by=kills, reason=reason,
        seconds=0.0,
    )  # fmt: skip


def test_what_a_property_catches_and_what_it_alone_catches() -> None:
    made = table(
        record("a", "joint.round"),
        record("b", "joint.round", "transforms.neutral"),
        record("c", reason="survived"),
    )
    assert made.kills()["joint.round"] == ["a", "b"]
    assert made.kills()["transforms.neutral"] == ["b"]
    assert made.kills()["joint.run"] == []
    assert made.alone() == {"joint.round": ["a"]}
    assert [wrong.id for wrong in made.wrong] == ["c"]
    assert "joint.round" not in made.idle()
    assert "transforms.neutral" in made.idle(), "caught with another, and it gives no reason"
    assert "support.edge_coins" not in made.idle(), "caught nothing, and it says why it is there"


def test_records_come_in_the_order_of_the_catalogue() -> None:
    chosen = {"temperature-raised", "zero-is-missing"}
    seen: list[str] = []
    made = run_selftest(
        InProcess(),
        only=lambda control: control.id in chosen,
        done=lambda record: seen.append(record.id),
    )
    assert {control.id for control in made.controls} == chosen == set(seen)
    order = [BY_ID[control.id] for control in made.controls]
    assert order == sorted(order)
    assert made.suite


def test_a_control_is_tried_closely_on_what_it_is_there_for_and_a_little_on_all() -> None:
    asked = selftest._asked(controls()[BY_ID["ignores-min-p"]], beside=True)
    assert "history.settings" in asked
    assert "history.rows/repetition_penalty" in asked
    assert "joint.run" in asked
    assert len({pattern.partition("/")[0] for pattern in asked}) == len(asked)
    rule = selftest._asked(controls()[BY_ID["four-at-most"]], beside=True)
    assert "invariance.block_length_of_rule" in rule
    assert "batch.rows_of_rule/2" in rule


def test_the_second_that_is_there_for_the_same_is_tried_on_that_alone() -> None:
    first, second = BY_ID["ignores-min-p"], BY_ID["ignores-typical-p"]
    assert selftest._is_first(first)
    assert not selftest._is_first(second)
    assert selftest._is_first(BY_ID["sampler-match"])
    asked = selftest._asked(controls()[second], beside=False)
    assert "history.settings" in asked
    assert {"joint.run", "joint.every_token"} <= set(asked)
    assert not [pattern for pattern in asked if "/" in pattern]
    assert "history.rows" not in asked


def test_in_brief_a_mutant_is_tried_on_what_it_is_there_for_and_a_lookalike_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def certify(subject, *args, **options):
        asked.append(options["only"])
        raise InterruptedError

    monkeypatch.setattr(selftest, "certify", certify)
    for id in ("ignores-min-p", "sampler-match", "test-closed-rule"):
        with pytest.raises(InterruptedError):
            try_control(BY_ID[id], seed=0, extent="brief")
    mutant, lookalike, finding = asked
    assert set(mutant) == controls()[BY_ID["ignores-min-p"]].caught_by
    assert {"joint.run", "joint.every_token"} <= set(lookalike)
    assert [pattern for pattern in lookalike if "/" in pattern]
    assert "support.edge_coins" in finding, "what must be found is told by other properties"


def test_a_brief_one_may_catch_less_and_no_more() -> None:
    known = table(record("a", "joint.round", "support.nothing_outside"))
    assert differences(table(record("a", "joint.round")), known, fewer=True) == []
    more = table(record("a", "joint.round", "batch.rows"))
    assert differences(more, known, fewer=True) == ["a is caught by batch.rows now"]


def test_only_what_was_tried_on_everything_is_caught_alone() -> None:
    tried = record("a", "joint.round")
    assert table(tried).alone() == {"joint.round": ["a"]}
    assert table(tried.model_copy(update={"beside": False})).alone() == {}


def test_thorough_tries_everything_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def certify(subject, **options):
        asked.append(options["only"])
        raise InterruptedError

    monkeypatch.setattr(selftest, "certify", certify)
    for extent in ("usual", "thorough"):
        with pytest.raises(InterruptedError):
            try_control(BY_ID["zero-is-missing"], seed=0, extent=extent)
    assert "transforms.batch/alone" in asked[0]
    assert asked[1] == ["*"]


def test_wrong_reports_are_mutants_to_what_judges_them() -> None:
    control = controls()[BY_ID["rounds-reported-short"]]
    assert control.effect == "violated"
    assert control.caught_by == {"accounting.known_rounds"}


def test_controls_say_how_large_and_where_seen() -> None:
    frozen = controls()[BY_ID["history-frozen"]]
    assert frozen.size.startswith("none in the first token")
    assert "https://github.com/vllm-project/vllm/pull/46272" in frozen.links
    own = controls()[BY_ID["settings-reported-raw"]]
    assert "SmolLM2" in own.size, "what a mutant says itself comes first"
    coded = [control for control in controls() if control.code]
    assert not [control.id for control in coded if not control.size]


def test_differences_from_a_known_table() -> None:
    known = table(record("a", "joint.round"), record("b", "joint.run", "stopping.law"))
    assert differences(known, known) == []
    made = table(record("b", "joint.run", "history.rows"), record("c", "joint.run"))
    assert differences(made, known) == [
        "b is caught by history.rows now",
        "b is not caught by stopping.law now",
        "c is not in the table",
    ]
    assert differences(made, known.model_copy(update={"thorough": True})) == [
        "b is caught by history.rows now",
        "c is not in the table",
    ]


def test_what_chance_decides_is_no_difference() -> None:
    known = table(record("a", "joint.round"), record("b", "batch.rows", evidence="sampled"))
    made = table(record("a", "joint.round"), record("b", "joint.first_token", evidence="sampled"))
    assert differences(made, known) == []


def test_the_table_that_ships_is_of_this_suite_and_nothing_in_it_is_wrong() -> None:
    shipped = kill_table()
    assert shipped is not None, (
        "the property set has changed: specverify selftest -j 2 --write fixtures/kill_table.json"
    )
    assert [control.id for control in shipped.controls] == [control.id for control in controls()]
    assert [control.id for control in shipped.wrong] == []
    assert shipped.idle() == []
    assert set(shipped.kills()) == {property.id for property in all_properties()}


def test_the_reference_is_no_mutant() -> None:
    assert TOKEN.name not in BY_ID
