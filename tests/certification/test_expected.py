"""Failures that are known: how they are read, what they excuse, and what becomes of them."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from specverify.certification.case_records import CaseRecord, ExpectationRecord, TestRecord
from specverify.certification.certificate import Certificate
from specverify.certification.expected import Expectation, Known, expectations_of, read_expected
from specverify.certification.overall import ONLY_EXPECTED, Overall, beside_expected, overall
from specverify.certification.registry import all_properties, properties_of
from specverify.certification.run import certify
from specverify.errors import UsageError
from specverify.fixtures.mutants.transforms import MUTANTS
from specverify.fixtures.parts.rules import TokenRule
from specverify.subjects.protocols import Subject

WRONG = MUTANTS[0].subject
RULE = Subject("rule", "rule", TokenRule)
NEUTRAL, BATCH, EQUAL = "transforms.neutral", "transforms.batch", "transforms.equals_reference"
ROUND, RUN, GREEDY = "joint.round", "joint.run", "greedy.equals_argmax"


class TestReading:
    def read(self, tmp_path: Path, text: str) -> tuple[Expectation, ...]:
        path = tmp_path / "expected.toml"
        path.write_text(text)
        return read_expected(path)

    def test_entries(self, tmp_path: Path) -> None:
        text = (
            '[[expected]]\nproperty = "joint.round"\nreason = " issue 12 "\ncase = "exact/*"\n'
            'subject = "mylib:verify"\nexpires = 2027-01-31\nerror = true\n'
            '[[expected]]\nproperty = "greedy.rule"\nreason = "ties"\n'
        )
        first, second = self.read(tmp_path, text)
        assert first.reason == "issue 12"
        assert first.expires == date(2027, 1, 31)
        assert (second.case, second.subject, second.expires, second.error) == (
            "*",
            None,
            None,
            False,
        )
        assert self.read(tmp_path, "") == ()

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('[[expected]]\nproperty = "joint.round"', "entry 1: reason is missing"),
            (
                '[[expected]]\nproperty = "joint.round"\nreason = " "',
                "entry 1: reason = ' ': it is empty",
            ),
            (
                '[[expected]]\nproperty = "a"\nreason = "b"\nreson = "c"',
                "unknown key 'reson' (did you mean 'reason'?)",
            ),
            ('[[expected]]\nproperty = 3\nreason = "b"', "property = 3: "),
            ('[[expected]]\nproperty = "a"\nreason = "b"\nexpires = "soon"', "expires = 'soon': "),
            (
                '[[expected]]\nproperty = "a"\nreason = "b"\nerror = true',
                "error = true excuses crashes, so case must say",
            ),
            ("[expected]\na = 1", "write [[expected]]"),
            ("[[expcted]]\na = 1", "unknown key 'expcted' (did you mean 'expected'?)"),
            ("[[", "not valid TOML"),
        ],
    )
    def test_mistakes_name_file_entry_key_and_value(
        self, tmp_path: Path, text: str, said: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            self.read(tmp_path, text)
        assert said in str(caught.value)
        assert "expected.toml" in str(caught.value)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"nothing\.toml.* cannot be read"):
            read_expected(tmp_path / "nothing.toml")


class TestNames:
    def test_an_unknown_property(self) -> None:
        with pytest.raises(UsageError, match=r"'joint\.rond', which does not exist.*joint\.round"):
            expectations_of([Expectation(property="joint.rond", reason="x")], RULE)

    def test_a_property_of_another_kind(self) -> None:
        entry = Expectation(property=BATCH, reason="x")
        with pytest.raises(UsageError, match="not asked of a rule"):
            expectations_of([entry], RULE)
        assert expectations_of([entry.model_copy(update={"subject": "other"})], RULE) == ()

    def test_the_last_day_counts(self) -> None:
        entry = Expectation(property=ROUND, reason="x", expires=date(2027, 1, 31))
        states = [
            expectations_of([entry], RULE, today=date(2027, *day))[0].state
            for day in ((1, 31), (2, 1))
        ]
        assert states == ["not checked", "expired"]


def record(property: str, decision: str, detail: str = "") -> TestRecord:
    return TestRecord.model_validate(
        {
            "property": property,
            "claim": "c",
            "evidence": "exact",
            "decision": decision,
            "detail": detail,
        }
    )


def case(id: str, verdict: str, *tests: TestRecord, **more: object) -> CaseRecord:
    return CaseRecord.model_validate({"id": id, "verdict": verdict, "tests": tests, **more})


def entry(property: str, **more: object) -> ExpectationRecord:
    plain = {"property": property, "reason": "known", "state": "not checked"}
    return ExpectationRecord.model_validate(plain | more)


@dataclass
class Together:
    """Cases of one run."""

    cases: list[CaseRecord]

    def judged(self, *entries: ExpectationRecord, **more: object) -> Overall:
        return overall(
            self.cases, all_properties(), tests=1, alpha=1e-6, expectations=entries, **more
        )


PASSES = case("exact/b", "preserved", record(ROUND, "pass"))
FAILS = case("exact/a", "violated", record(ROUND, "violated"), record(RUN, "pass"))


class TestVerdict:
    def test_what_is_listed_does_not_count(self) -> None:
        run = Together([FAILS, PASSES])
        assert run.judged().verdict == "violated"
        result = run.judged(entry(ROUND))
        assert result.verdict == "preserved"
        assert "apart from what is expected to fail: joint.round" in result.reason
        assert [(e.state, e.cases) for e in result.expectations] == [
            ("failed as expected", ("exact/a",))
        ]
        assert not result.stale

    def test_another_property_or_case_counts(self) -> None:
        assert Together([FAILS, PASSES]).judged(entry(RUN)).verdict == "violated"
        assert Together([FAILS, PASSES]).judged(entry(ROUND, case="*/b")).verdict == "violated"
        assert Together([FAILS, PASSES]).judged(entry(ROUND, case="*/a")).verdict == "preserved"

    def test_one_that_passes_is_stale(self) -> None:
        result = Together([PASSES]).judged(entry(ROUND))
        assert (result.verdict, result.stale) == ("preserved", True)
        assert "expected to fail and passes: joint.round; remove the entry" in result.reason

    def test_one_that_has_expired_counts_as_absent(self) -> None:
        result = Together([FAILS]).judged(entry(ROUND, state="expired"))
        assert (result.verdict, result.stale) == ("violated", False)
        assert "expired, and counts as absent" in result.reason
        assert not Together([PASSES]).judged(entry(ROUND, state="expired")).stale

    def test_one_that_was_not_checked_is_named_and_does_not_fail(self) -> None:
        result = Together([PASSES]).judged(entry(GREEDY))
        assert (result.verdict, result.stale) == ("preserved", False)
        assert result.expectations[0].state == "not checked"

    @pytest.mark.parametrize(
        "seen",
        [
            case("plain", "inconclusive", record(ROUND, "undecided")),
            case(
                "plain",
                "violated",
                record(ROUND, "pass"),
                record(RUN, "violated"),
                stopped="violated",
            ),
        ],
        ids=["undecided", "ended at another violation"],
    )
    def test_too_little_evidence_is_not_stale(self, seen: CaseRecord) -> None:
        result = Together([seen]).judged(entry(ROUND))
        assert (result.expectations[0].state, result.stale) == ("undecided", False)

    def test_nothing_but_expected_failures_is_inconclusive(self) -> None:
        alone = case("exact/a", "violated", record(ROUND, "violated"))
        result = Together([alone]).judged(entry(ROUND))
        assert result.verdict == "inconclusive"
        assert result.reason.startswith(ONLY_EXPECTED)

    def test_bounds_out_of_reach_do_not_count_where_it_fails(self) -> None:
        sampled = case(
            "plain", "violated", record(ROUND, "violated"), record(RUN, "undecided", "more tokens")
        )
        assert Together([sampled, PASSES]).judged(entry(ROUND)).verdict == "preserved"
        elsewhere = case("history", "inconclusive", record(RUN, "undecided", "more tokens"))
        assert Together([sampled, elsewhere]).judged(entry(ROUND)).verdict == "inconclusive"

    def test_what_builds_on_it_does_not_count(self) -> None:
        base = case("exact/plain", "violated", record(RUN, "violated"), record(ROUND, "pass"))
        probe = case(
            f"probe/{GREEDY}/K1",
            "violated",
            record(GREEDY, "blocked", "blocked by joint.run in exact/plain"),
        )
        run = Together([base, probe])
        assert run.judged(entry(RUN)).verdict == "preserved"
        assert run.judged(entry(ROUND)).verdict == "violated"

    def test_all_cases_together_still_fail(self) -> None:
        e_process = record("joint.every_token", "pass").model_copy(
            update={"statistic": 40.0, "alpha": 1e-300}
        )
        run = Together([FAILS, case("plain", "preserved", e_process)])
        result = run.judged(entry(ROUND))
        assert result.verdict == "violated"
        assert "all together" in result.reason
        listed = run.judged(entry(ROUND), entry("joint.every_token"))
        assert listed.verdict == "violated"  # it does not fail in that case, so it counts
        crossed = e_process.model_copy(update={"decision": "violated"})
        run = Together([PASSES, case("plain", "violated", crossed, record(RUN, "pass"))])
        assert run.judged(entry("joint.every_token")).verdict == "preserved"


class TestErrors:
    CRASHES = case("probe/batch.rows_of_rule/ragged", "error", reason="raised ValueError: no")

    def test_an_error_stays_one(self) -> None:
        run = Together([self.CRASHES, PASSES])
        assert run.judged(entry("batch.rows_of_rule")).verdict == "error"

    def test_unless_the_entry_says_so(self) -> None:
        run = Together([self.CRASHES, PASSES])
        result = run.judged(entry("batch.rows_of_rule", case="probe/*", error=True))
        assert result.verdict == "preserved"
        assert result.expectations[0].cases == (self.CRASHES.id,)
        other = entry("batch.independent_rows_of_rule", case="probe/*", error=True)
        assert run.judged(other).verdict == "error"

    def test_a_crash_behind_an_expected_violation_shows(self) -> None:
        both = FAILS.model_copy(update={"error": "raised ValueError: no"})
        result = Together([both, PASSES]).judged(entry(ROUND))
        assert result.verdict == "error"
        assert "raised ValueError: no" in result.reason


class TestStrict:
    TOLD = PASSES.model_copy(update={"findings": ("changes logits in place",)})

    def test_findings_are_violations(self) -> None:
        assert Together([self.TOLD]).judged().verdict == "preserved"
        result = Together([self.TOLD]).judged(strict=True)
        assert result.verdict == "violated"
        assert result.reason == (
            "strict, so that findings are violations: in exact/b, changes logits in place"
        )

    def test_those_of_the_whole_run_too(self) -> None:
        result = Together([PASSES]).judged(strict=True, findings=("couples its randomness",))
        assert result.verdict == "violated"
        assert "couples its randomness" in result.reason
        assert Together([PASSES]).judged(strict=True).verdict == "preserved"

    def test_not_those_of_a_case_that_fails_as_expected(self) -> None:
        told = FAILS.model_copy(update={"findings": ("changes logits in place",)})
        only = case("exact/a", "violated", record(ROUND, "violated"), findings=("odd",))
        assert Together([only, PASSES]).judged(entry(ROUND), strict=True).verdict == "preserved"
        assert Together([told]).judged(strict=True).verdict == "violated"


class TestSampling:
    def test_a_case_does_not_end_at_what_is_expected(self) -> None:
        known = Known.of([entry("joint.every_token")], properties_of("rule"))
        asked = ["joint.every_token", "randomness.independence", "stopping.run_length"]
        assert known.excused(asked, "plain") == {"joint.every_token", "randomness.independence"}
        elsewhere = Known.of([entry("joint.first_token", case="exact/*")], properties_of("rule"))
        assert elsewhere.excused(asked, "plain") == frozenset()

    def test_cases_without_entries_stay_as_they_are(self) -> None:
        known = Known.of([entry(GREEDY)], properties_of("decoder"))
        assert beside_expected([FAILS, PASSES], known) == [FAILS, PASSES]


class TestRuns:
    ONLY = (NEUTRAL, BATCH)

    def run(self, *entries: Expectation, **options: object) -> Certificate:
        return certify(WRONG, only=self.ONLY, expected=entries, shrink=False, **options)

    def test_exit_codes(self) -> None:
        known = Expectation(property=NEUTRAL, reason="issue 12")
        stale = Expectation(property=BATCH, reason="issue 13")
        assert self.run().exit_code == 1
        assert (self.run(known).verdict, self.run(known).exit_code) == ("preserved", 0)
        made = self.run(known, stale)
        assert (made.verdict, made.exit_code, made.stale) == ("preserved", 1, True)

    def test_the_digest_tells_states_not_days(self) -> None:
        open_ended = Expectation(property=NEUTRAL, reason="issue 12")
        far = open_ended.model_copy(update={"expires": date(2999, 1, 1)})
        past = open_ended.model_copy(update={"expires": date(2000, 1, 1)})
        assert self.run(far).digest() == self.run(far).digest()
        assert self.run(far).verdict == "preserved"
        expired = self.run(past)
        assert (expired.verdict, expired.expectations[0].state) == ("violated", "expired")

    def test_strict_is_recorded(self) -> None:
        assert self.run(strict=True).strict
        assert not self.run().strict

    def test_expected_failures_are_not_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[list[str]] = []

        def explained(cases: list[CaseRecord], *_: object, **__: object) -> list[CaseRecord]:
            seen.append([c.id for c in cases if c.verdict == "violated"])
            return list(cases)

        monkeypatch.setattr("specverify.certification.run.explained", explained)
        entries = [Expectation(property=NEUTRAL, reason="issue 12")]
        certify(WRONG, only=[NEUTRAL, EQUAL], expected=entries)
        certify(WRONG, only=[NEUTRAL, EQUAL])
        assert not any(id.startswith("probe/") for id in seen[0])
        assert any(id.startswith("probe/") for id in seen[1])
