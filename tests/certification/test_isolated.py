"""Cases by number, on their way to another process and back, and what is said of lost ones."""

import importlib
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specverify.certification.case_records import CaseRecord
from specverify.certification.explain import ExplainingWork, explained
from specverify.certification.isolated import CaseWork, Phase
from specverify.certification.phases import Run, exact_records, probe_records, transform_records
from specverify.certification.portable import portable_subject
from specverify.certification.probes.run import probes_of
from specverify.certification.registry import Outcome, Property, properties_of, unmet_need
from specverify.errors import CannotSteer, UsageError
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import RULES, Capabilities, Subject
from specverify.subjects.reference import TOKEN
from specverify.transforms import REFERENCE

HERE = Path(__file__).parent
HOW = "was ended"
SAID = "the process that ran subject 'mine' was ended"


class Loses:
    """An engine whose work ends its process at every shard."""

    def run(self, work: Any, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for index in indices:
            yield index, work.lost(index, HOW)


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.syspath_prepend(str(HERE))
    bad: ModuleType = importlib.import_module("bad_subjects")
    return Subject("mine", "rule", bad.right, Capabilities(coin_dtype="float64"))


def top_k() -> Subject:
    return Subject("mine", "transform", REFERENCE["top_k"], reference="top_k")


def asked(kind: str, evidence: str) -> list[Property]:
    """Properties that ask nothing of a subject but its kind."""
    subject = Subject("any", kind, lambda *_: None, reference="top_k")
    return [
        found
        for found in properties_of(kind)
        if found.evidence == evidence and unmet_need(found, subject) is None
    ]


def work(phase: Phase, subject: Subject, properties: Sequence[Property]) -> CaseWork:
    return CaseWork(phase, subject, properties, Budget(), 0, 60.0)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, CaseRecord):
        return left.model_copy(update={"seconds": 0}) == right.model_copy(update={"seconds": 0})
    return str(left) == str(right)


@pytest.mark.parametrize(
    ("phase", "evidence", "number"), [("exact", "exact", 3), ("probed", "probed", 0)]
)
def test_another_process_has_the_same_cases(
    rule: Subject, phase: Phase, evidence: str, number: int
) -> None:
    here = work(phase, rule, asked("rule", evidence))
    there = pickle.loads(pickle.dumps(here))
    assert [case.id for case in there.cases] == [case.id for case in here.cases]
    assert same(there(number), here(number))


def test_a_transform_keeps_its_reference() -> None:
    here = work("transform", top_k(), asked("transform", "sampled"))
    there = pickle.loads(pickle.dumps(here))
    assert there.subject.reference == "top_k"
    assert same(there(1), here(1))
    assert here(1).verdict == "preserved"


def test_what_was_lost_says_which_case_and_how(rule: Subject) -> None:
    lost = work("exact", rule, asked("rule", "exact")).lost(0, HOW)
    assert (lost.verdict, lost.reason, lost.num_draft_tokens) == ("error", SAID, 3)
    lost = work("transform", top_k(), asked("transform", "sampled")).lost(1, HOW)
    assert lost.settings == {"reference": "top_k", "top_k": 3}
    assert lost.id == "top_k[3]"


def test_without_properties_there_are_no_cases(rule: Subject) -> None:
    for phase in ("transform", "exact", "probed"):
        assert work(phase, rule, []).cases == ()


def test_a_property_of_the_running_program_cannot_go_along(rule: Subject) -> None:
    mine = Property("mine.own", "", RULES, 0, lambda *_: Outcome(), lambda _: None, "exact")
    packed = pickle.dumps(work("exact", rule, [mine]))
    with pytest.raises(UsageError, match="is registered in the running program only"):
        pickle.loads(packed)


def test_lost_cases_are_errors_and_the_phase_goes_on(rule: Subject) -> None:
    run = Run(rule, Budget(), 1e-6, 0, 60.0, lambda event: None, Loses())
    computed = [record for record, _ in exact_records(run, (), asked("rule", "exact")[:1])]
    probed = [record for record, _ in probe_records(run, probes_of(asked("rule", "probed")[:2]))]
    run.subject = top_k()
    compared = [record for record, _ in transform_records(run, asked("transform", "sampled"))]
    assert len(computed) > 20
    assert len(probed) >= 2
    assert len(compared) == 4
    assert {record.reason for record in (*computed, *probed, *compared)} == {SAID}
    assert {record.verdict for record in (*computed, *probed, *compared)} == {"error"}
    assert run.refusals == {}


def test_three_refusals_end_what_is_computed(rule: Subject) -> None:
    class Refuses:
        closed = False

        def run(self, work: Any, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
            try:
                for index in indices:
                    yield index, CannotSteer("too winding")
            finally:
                self.closed = True

    engine = Refuses()
    run = Run(rule, Budget(), 1e-6, 0, 60.0, lambda event: None, engine)
    assert list(exact_records(run, (), asked("rule", "exact")[:1])) == []
    assert engine.closed
    assert len(run.refusals) > 20


class TestHangs:
    """Probes that end one after the other in a given way."""

    def records(self, rule: Subject, said: Sequence[str]) -> tuple[Run, int]:
        class Says:
            def run(self, work: Any, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
                for index, text in zip(indices, said, strict=False):
                    yield index, CaseRecord(id=work.cases[index].id, verdict="error", reason=text)

        run = Run(rule, Budget(), 1e-6, 0, 60.0, lambda event: None, Says())
        found = list(probe_records(run, probes_of(asked("rule", "probed"))))
        return run, len(found)

    def test_three_in_a_row_end_the_probing(self, rule: Subject) -> None:
        late = "a call ran past its time limit of 1 s"
        run, tried = self.records(rule, ["raised", late, late, late, late])
        assert tried == 4
        assert len(run.unasked) == len(probes_of(asked("rule", "probed"))) - 4
        assert {reason for _, reason in run.unasked.values()} == {
            "not tried: the subject ran past its time limit in 3 cases in a row"
        }

    def test_others_do_not(self, rule: Subject) -> None:
        late = "a call ran past its time limit of 1 s"
        run, tried = self.records(rule, [late, late, "raised", late, late, "raised"])
        assert (tried, run.unasked) == (6, {})


class TestExplaining:
    CASE = CaseRecord(id="exact/zeros", verdict="violated", reason="joint.round")

    def test_a_search_that_ends_its_process_leaves_the_cases(self, rule: Subject) -> None:
        remarks: list[str] = []
        found = explained([self.CASE], rule, 0, 60.0, Loses(), remarks)
        assert found == [self.CASE]
        assert remarks == [
            f"violations are left without their smallest input: {SAID}",
            f"violations are left without their diagnosis: {SAID}",
        ]

    def test_nothing_is_explained_where_nothing_is_violated(self, rule: Subject) -> None:
        remarks: list[str] = []
        case = self.CASE.model_copy(update={"verdict": "error"})
        assert explained([case], rule, 0, 60.0, Loses(), remarks) == [case]
        assert remarks == []

    def test_it_can_be_sent(self, rule: Subject) -> None:
        here = ExplainingWork("diagnosis", [self.CASE], rule, 0, 60.0)
        there = pickle.loads(pickle.dumps(here))
        assert there.subject == rule
        assert there.cases == [self.CASE]


class TestPortable:
    def test_a_name_that_only_this_program_knows_goes_along_as_it_is(self, rule: Subject) -> None:
        module = sys.modules["bad_subjects"]
        made = pickle.loads(pickle.dumps(portable_subject(rule)))()
        assert made.call is module.right

    def test_an_announced_name_goes_along_as_a_name(self) -> None:
        made = pickle.loads(pickle.dumps(portable_subject(TOKEN)))()
        assert made.call is TOKEN.call  # a closure, which pickle cannot take
