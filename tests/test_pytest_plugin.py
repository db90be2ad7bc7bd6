"""The pytest plugin: items, failures, the section, options, workers."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specverify import check_plan, checking, cli, pytest_items
from specverify.certification import merged
from specverify.certification.certificate import Certificate, SuiteRecord
from specverify.certification.registry import all_properties
from specverify.certification.together import TOGETHER
from specverify.certification.verdict import NOT_ASKED
from specverify.fixtures.mutants.transforms import MUTANTS
from specverify.reporting import session as section
from specverify.session import current_session

# pytester forgets what was imported during a run, and torch cannot be imported twice.
LOADED = (check_plan, checking, pytest_items, merged, section, all_properties())

pytest_plugins = ["pytester"]

SUBJECTS = """
import specverify
from specverify.fixtures.mutants.transforms import MUTANTS
from specverify.subjects.protocols import Subject
from specverify.transforms import REFERENCE

wrong = MUTANTS[0].subject

class TopK(REFERENCE["top_k"]):
    pass

right = Subject("right", "transform", TopK, reference="top_k")

class InPlace(REFERENCE["top_k"]):
    def __call__(self, input_ids, logits):
        result = super().__call__(input_ids, logits.clone())
        logits.fill_(0.0)
        return result

told = Subject("told", "transform", InPlace, reference="top_k")
"""
NEUTRAL, BATCH, SIZES = "transforms.neutral", "transforms.batch", "transforms.sizes"
EQUAL, ROUND = "transforms.equals_reference", "transforms.round"


@pytest.fixture
def tests(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a right and a wrong subject, and no test file."""
    pytester.makepyfile(mine=SUBJECTS)
    return pytester


def node(subject: str, property: str) -> str:
    return f"specverify::mine:{subject}::{property}"


def run(tests: pytest.Pytester, *argv: str) -> pytest.RunResult:
    return tests.runpytest_inprocess("-p", "no:cacheprovider", *argv)


class TestLoading:
    PROBE = """
import sys

def test_light():
    heavy = {"torch", "pydantic", "numpy", "scipy", "specverify.certification"}
    assert heavy & set(sys.modules) == set()
"""

    def light(self, folder: Path) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "specverify.pytest_plugin"]
        alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=alone, check=False
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.returncode == 0

    def test_the_plugin_is_light(self, tmp_path: Path) -> None:
        (tmp_path / "test_light.py").write_text(self.PROBE)
        assert self.light(tmp_path)

    def test_a_configuration_is_read_by_pydantic(self, tmp_path: Path) -> None:
        (tmp_path / "test_light.py").write_text(self.PROBE)
        (tmp_path / "pyproject.toml").write_text("[tool.specverify]\nseed = 1\n")
        assert not self.light(tmp_path)

    def test_a_session_ends_with_its_run(self, tests: pytest.Pytester) -> None:
        before = current_session()
        run(tests, "--collect-only")
        assert current_session() is before


class TestItems:
    def test_every_property_is_an_item_without_a_test_file(self, tests: pytest.Pytester) -> None:
        result = run(tests, "--specverify-subject", "mine:right", "--collect-only", "-q")
        ids = [line for line in result.outlines if line.startswith("specverify::")]
        assert ids == sorted(ids)
        assert node("right", BATCH) in ids
        assert len(ids) == len({*ids}) >= 15
        again = run(tests, "specverify::mine:right", "--collect-only", "-q")
        assert [line for line in again.outlines if line.startswith("specverify::")] == ids

    @pytest.mark.parametrize(
        "select",
        [
            ["-k", "batch"],
            ["-m", "specverify and not slow", "-k", BATCH],
            ["-m", f"specverify(property='{BATCH}')"],
        ],
        ids=str,
    )
    def test_they_are_selected_as_usual(self, tests: pytest.Pytester, select: list[str]) -> None:
        found = run(tests, "--specverify-subject=mine:right", "--collect-only", "-q", *select)
        ids = [line for line in found.outlines if line.startswith("specverify::")]
        assert ids == [node("right", BATCH)]

    def test_the_last_failed_ones_are_found_again(self, tests: pytest.Pytester) -> None:
        tests.runpytest_inprocess(node("wrong", EQUAL), node("wrong", BATCH))
        again = tests.runpytest_inprocess("--specverify-subject=mine:wrong", "--lf")
        assert again.parseoutcomes()["failed"] == 1
        assert "passed" not in again.parseoutcomes()

    def test_an_id_with_the_group_of_a_worker_is_understood(self, tests: pytest.Pytester) -> None:
        run(tests, f"{node('right', EQUAL)}@right/sampled").assert_outcomes(passed=1)

    def test_test_files_stay(self, tests: pytest.Pytester) -> None:
        tests.makepyfile(test_other="def test_other(): pass")
        found = run(tests, "--specverify-subject=mine:right", "--collect-only", "-q")
        found.stdout.fnmatch_lines(["test_other.py::test_other", node("right", BATCH)])
        only = run(tests, node("right", BATCH), "--collect-only", "-q")
        assert "test_other" not in only.stdout.str()

    def test_a_bare_callable_takes_its_kind_from_the_options(self, tests: pytest.Pytester) -> None:
        tests.makepyfile(rules="def verify(draft_tokens, draft_probs, target_probs, coins): ...")
        argv = ["specverify::rules:verify", "--collect-only", "-q"]
        assert "does not say what kind" in run(tests, *argv).stderr.str()
        found = run(tests, *argv, "--specverify-kind", "rule")
        found.stdout.fnmatch_lines(["specverify::rules:verify::joint.round"])

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["specverify::mine:wrnog"], "did you mean 'wrong'?"),
            ([node("told", "proposal.unknown")], "no property 'proposal.unknown' is asked"),
            ([node("right", "transforms.bach")], "did you mean 'transforms.batch'?"),
            (["specverify::mine:SUBJECTS"], "has no attribute 'SUBJECTS'"),
            (["--specverify"], "set subject"),
            (["--specverify-profile", "slow"], "invalid choice"),
        ],
        ids=str,
    )
    def test_what_makes_no_sense_is_a_usage_error(
        self, tests: pytest.Pytester, argv: list[str], said: str
    ) -> None:
        result = run(tests, *argv)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert said in result.stderr.str()
        assert "Traceback" not in result.stderr.str()


class TestFailures:
    def test_a_wrong_subject_fails_with_its_counterexample_alone(
        self, tests: pytest.Pytester
    ) -> None:
        result = run(tests, node("wrong", EQUAL), node("wrong", BATCH), "--junitxml=out.xml")
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines(
            [
                "*mine:wrong: transforms.equals_reference*",
                "violated in top_p[[]0.25], looks like top-p-crossing-dropped",
                "top-p-crossing-dropped (specverify *) * profile quick * seed 0 * alpha 1e-06",
                "VIOLATED transforms.equals_reference in top_p[[]0.25]",
                "*However, *",
                f"FAILED {node('wrong', EQUAL)} - violated in *",
            ]
        )
        for noise in ("Traceback", "ConformanceError", "property_checks.py", "def "):
            assert noise not in result.stdout.str()
        self.check_junit(tests.path / "out.xml")

    def check_junit(self, path: Path) -> None:
        cases = ElementTree.parse(path).findall(".//testcase")
        told = {
            case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
            for case in cases
        }
        assert set(told) == {EQUAL, BATCH}
        assert told[EQUAL]["specverify_property"] == EQUAL
        assert told[EQUAL]["specverify_verdict"] == "violated"
        assert told[BATCH]["specverify_verdict"] == "preserved"
        assert re.fullmatch("[0-9a-f]{64}", told[BATCH]["specverify_sha256"] or "")
        (failure,) = [case.find("failure") for case in cases if case.get("name") == EQUAL]
        assert failure is not None
        message = "violated in top_p[0.25], looks like top-p-crossing-dropped"
        assert failure.get("message") == message

    def test_what_follows_from_a_violation_is_skipped(self, tests: pytest.Pytester) -> None:
        result = run(tests, node("wrong", SIZES), "-rs")
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines([f"*blocked by {EQUAL}"])

    def test_functions_of_test_files_fail_likewise(self, tests: pytest.Pytester) -> None:
        tests.makepyfile(
            test_mine=f"""
            import mine, specverify

            @specverify.parametrize(mine.wrong, only=["{EQUAL}", "{BATCH}"])
            def test_conformance(check_property):
                check_property()

            def test_whole():
                specverify.check(mine.wrong, only=["{EQUAL}"], shrink=False)
            """
        )
        result = run(tests, "--strict-markers")
        result.assert_outcomes(passed=1, failed=2)
        result.stdout.fnmatch_lines(
            [
                f"*test_conformance[[]{EQUAL}]*",
                "violated in top_p[[]0.25], looks like top-p-crossing-dropped",
                "*test_whole*",
                "top-p-crossing-dropped is violated: *",
                "* specverify *",
                "VIOLATED  top-p-crossing-dropped *",
                "VIOLATED  top-p-crossing-dropped *",
            ]
        )
        assert "check_property()" not in result.stdout.str()

    def test_without_the_plugin_the_suite_runs_too(self, tests: pytest.Pytester) -> None:
        tests.makepyfile(
            test_mine=f"""
            import mine, specverify

            @specverify.parametrize(mine.right, only=["{BATCH}"])
            def test_conformance(check_property):
                check_property()
            """
        )
        result = run(tests, "--strict-markers", "-p", "no:specverify")
        result.assert_outcomes(passed=1)

    def test_an_interrupt_ends_the_session(
        self, tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certify = check_plan.certify

        def interrupted(*arguments: object, **options: object) -> Certificate:
            return certify(*arguments, **options).model_copy(update={"interrupted": True})

        monkeypatch.setattr(check_plan, "certify", interrupted)
        result = tests.runpytest_inprocess(node("right", BATCH), no_reraise_ctrlc=True)
        assert result.ret == pytest.ExitCode.INTERRUPTED


class TestSection:
    def test_it_closes_the_session(self, tests: pytest.Pytester) -> None:
        argv = [node("right", p) for p in (BATCH, EQUAL)]
        result = run(tests, *argv, "--specverify-seed", "5", "--specverify-report", "out")
        result.assert_outcomes(passed=2)
        result.stdout.fnmatch_lines(
            [
                "specverify *: subject mine:right * profile quick * seed 5 * alpha 1e-06",
                "*== specverify ==*",
                "PRESERVED  right * 2 properties * cases",
                "  certificate out/right-seed5.json * sha256 *",
                "Finding no violation is not a proof of correctness*",
            ]
        )
        certificate = Certificate.load(tests.path / "out" / "right-seed5.json")
        assert certificate.digest() in result.stdout.str()
        reasons = {entry.property: entry.reason for entry in certificate.not_applicable}
        assert reasons[NEUTRAL] == NOT_ASKED
        assert BATCH not in reasons

    def test_it_says_how_to_see_a_violation_again(self, tests: pytest.Pytester) -> None:
        result = run(tests, node("wrong", EQUAL), "--specverify-report", "out")
        case = "top_p[[]0.25]"
        again = f"specverify replay out/top-p-crossing-dropped-seed0.json {case} --counterexample"
        result.stdout.fnmatch_lines([f"  violated: {EQUAL} in {case} * {again}"])

    def test_all_cases_together_fail_a_session_without_a_failed_item(
        self, tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert run(tests, node("right", BATCH)).ret == pytest.ExitCode.OK
        update = {"verdict": "violated", "reason": f"{TOGETHER}; and more"}
        monkeypatch.setattr(merged, "merged", lambda parts: parts[0].model_copy(update=update))
        result = run(tests, node("right", BATCH))
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["VIOLATED  right *", "  no case crosses its threshold alone*"])

    def test_a_violation_that_a_test_expects_does_not_fail_the_session(
        self, tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not even one that no case shows alone."""
        certify, update = checking.certify, {"verdict": "violated", "reason": TOGETHER}
        monkeypatch.setattr(
            checking, "certify", lambda *a, **b: certify(*a, **b).model_copy(update=update)
        )
        tests.makepyfile(
            test_control=f"""
            import mine, pytest, specverify

            def test_my_mutant_is_caught():
                with pytest.raises(specverify.ConformanceError, match="all together do"):
                    specverify.check(mine.right, only=["{NEUTRAL}"])
            """
        )
        result = run(tests)
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.OK

    def test_nothing_is_said_of_other_tests(self, tests: pytest.Pytester) -> None:
        tests.makepyfile(test_other="def test_other(): pass")
        assert "specverify" not in re.sub(r"plugins:.*", "", run(tests).stdout.str())

    def test_parts_make_the_certificate_of_the_whole(self, tests: pytest.Pytester) -> None:
        run(tests, "specverify::mine:wrong", "--specverify-report", "out")
        (path,) = (tests.path / "out").iterdir()
        whole, parts = checking.certify(MUTANTS[0].subject), Certificate.load(path)
        assert (parts.verdict, parts.reason) == (whole.verdict, whole.reason)
        assert [case.id for case in parts.cases] == [case.id for case in whole.cases]
        for one, other in zip(parts.cases, whole.cases, strict=True):
            assert one.tests == other.tests
        assert {e.property for e in parts.not_applicable} == {
            e.property for e in whole.not_applicable
        }
        assert cli.main(["check-certificate", str(path)]) == 0


class TestOptions:
    def test_they_are_defaults_of_checks_in_test_files(self, tests: pytest.Pytester) -> None:
        tests.makepyfile(
            test_mine=f"""
            import mine, specverify

            def test_options():
                made = specverify.check(mine.right, only=["{BATCH}"])
                assert (made.seed, made.alpha, made.profile) == (5, 1e-3, "standard")
                made = specverify.check(mine.right, only=["{BATCH}"], seed=7, profile="quick")
                assert (made.seed, made.alpha, made.profile) == (7, 1e-3, "quick")
            """
        )
        argv = ["--specverify-seed=5", "--specverify-alpha=1e-3", "--specverify-profile=standard"]
        run(tests, *argv).assert_outcomes(passed=1)

    def test_the_configuration_is_behind_them(self, tests: pytest.Pytester) -> None:
        tests.makepyprojecttoml('[tool.specverify]\nsubject = "mine:right"\nseed = 3\nalpha = 0.01')
        result = run(tests, "--specverify", "-k", BATCH, "--specverify-seed", "4")
        result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
        result.stdout.fnmatch_lines(["specverify *: subject mine:right * seed 4 * alpha 0.01*"])

    def test_a_wrong_configuration_is_a_usage_error(self, tests: pytest.Pytester) -> None:
        tests.makepyprojecttoml("[tool.specverify]\nsed = 3")
        result = run(tests)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "unknown key 'sed' (did you mean 'seed'?)" in result.stderr.str()

    def test_strict_makes_findings_fail(self, tests: pytest.Pytester) -> None:
        ids = [node("told", EQUAL), node("told", BATCH)]
        run(tests, *ids).assert_outcomes(passed=2)
        result = run(tests, *ids, node("told", "findings.sampled"), "--specverify-strict")
        result.assert_outcomes(passed=1, failed=2)
        result.stdout.fnmatch_lines(
            [
                "strict, in probe/transforms.batch/alone: changes the logits *",
                "strict, in top_k*: changes the logits *",
            ]
        )


class TestExpected:
    def expecting(self, tests: pytest.Pytester, text: str) -> str:
        (tests.path / "expected.toml").write_text(text)
        return "--specverify-expected=expected.toml"

    def entry(self, property: str, more: str = "") -> str:
        return f'[[expected]]\nproperty = "{property}"\nreason = "issue 12"\n{more}\n'

    def test_a_listed_failure_is_xfailed_with_its_reason(self, tests: pytest.Pytester) -> None:
        option = self.expecting(tests, self.entry(EQUAL))
        result = run(tests, node("wrong", EQUAL), node("wrong", BATCH), option, "-rx")
        result.assert_outcomes(passed=1, xfailed=1)
        assert result.ret == 0
        result.stdout.fnmatch_lines([f"XFAIL {node('wrong', EQUAL)} - issue 12 *"])
        result.stdout.fnmatch_lines(["PRESERVED  top-p-crossing-dropped *"])

    def test_one_that_passes_fails_the_session(self, tests: pytest.Pytester) -> None:
        option = self.expecting(tests, self.entry(BATCH))
        result = run(tests, node("wrong", BATCH), option)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*XPASS(strict)* issue 12 *remove the entry*"])
        result.stdout.fnmatch_lines([f"  expected failure of {BATCH} passes, remove the entry*"])

    def test_a_case_that_is_not_listed_fails(self, tests: pytest.Pytester) -> None:
        entry = self.entry(EQUAL, 'case = "top_p?0.5?"')
        result = run(tests, node("wrong", EQUAL), self.expecting(tests, entry))
        result.assert_outcomes(failed=1)

    def test_an_expired_entry_counts_as_absent(self, tests: pytest.Pytester) -> None:
        entry = self.entry(EQUAL, "expires = 2020-01-31")
        result = run(tests, node("wrong", EQUAL), self.expecting(tests, entry))
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"  expected failure of {EQUAL} has expired: issue 12"])

    def test_what_follows_from_a_listed_failure_is_xfailed(self, tests: pytest.Pytester) -> None:
        option = self.expecting(tests, self.entry(EQUAL))
        result = run(tests, node("wrong", SIZES), option, "-rx")
        result.assert_outcomes(xfailed=1)
        result.stdout.fnmatch_lines([f"*blocked by {EQUAL}, which is expected to fail"])


class TestWorkers:
    IDS = (node("wrong", NEUTRAL), node("wrong", EQUAL), node("wrong", BATCH), node("right", ROUND))

    def certified(self, tests: pytest.Pytester, out: str) -> dict[str, str]:
        """Digests by name; the suite may be edited while its own tests run."""
        suite = {"suite": SuiteRecord(version="0"), "kill_table": None}
        found = {path.name: Certificate.load(path) for path in (tests.path / out).iterdir()}
        return {name: made.model_copy(update=suite).digest() for name, made in found.items()}

    @pytest.mark.slow
    def test_workers_make_the_same_certificates(self, tests: pytest.Pytester) -> None:
        alone = run(tests, *self.IDS, "--specverify-report=alone")
        alone.assert_outcomes(passed=2, failed=1, skipped=1)
        result = tests.runpytest_subprocess(*self.IDS, "--specverify-report=two", "-n", "2")
        result.assert_outcomes(passed=2, failed=1, skipped=1)
        one, two = self.certified(tests, "alone"), self.certified(tests, "two")
        assert one == two
        assert len(two) == 2
        text = result.stdout.str()
        assert text.count("= specverify =") == 1
        assert text.count("VIOLATED  top-p-crossing-dropped") == 1
        assert text.count("PRESERVED  right") == 1
        assert "Traceback" not in text

    def test_items_that_share_a_run_are_a_group(self, tests: pytest.Pytester) -> None:
        recorder = tests.inline_run("specverify::mine:right", "--collect-only", "-p", "xdist")
        items = recorder.getcalls("pytest_collection_finish")[0].session.items
        groups = {
            item.name: [mark.args[0] for mark in item.iter_markers("xdist_group")] for item in items
        }
        assert groups[EQUAL] == ["right/sampled"]
        assert groups[ROUND] == ["right/exact"]
        assert groups[BATCH] == []
