"""Options of the pytest plugin, and what of a configuration reaches the checks of a session."""

from typing import Any

import pytest

from specverify import check_plan, checking, pytest_items
from specverify.certification import merged
from specverify.certification.certificate import Certificate
from specverify.certification.registry import all_properties
from specverify.reporting import session as section

# pytester forgets what was imported during a run, and torch cannot be imported twice.
LOADED = (check_plan, checking, pytest_items, merged, section, all_properties())

pytest_plugins = ["pytester"]

SUBJECTS = """
import specverify
from specverify.subjects.protocols import Subject
from specverify.transforms import REFERENCE

right = Subject("right", "transform", REFERENCE["top_k"], reference="top_k")
"""
BATCH = "transforms.batch"
NODE = f"specverify::mine:right::{BATCH}"
QUICK = "--specverify-profile=quick"


@pytest.fixture
def tests(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a right subject, and no test file."""
    pytester.makepyfile(mine=SUBJECTS)
    return pytester


def run(tests: pytest.Pytester, *argv: str) -> pytest.RunResult:
    return tests.runpytest_inprocess("-p", "no:cacheprovider", *argv)


def asked(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *argv: str
) -> tuple[dict[str, Any], pytest.RunResult]:
    """Options that a check hands on, and the run."""
    seen: list[dict[str, Any]] = []
    certify = checking.certify

    def recorded(*arguments: Any, **options: Any) -> Certificate:
        seen.append(options)
        return certify(*arguments, only=options["only"])

    with monkeypatch.context() as patched:
        patched.setattr(check_plan, "certify", recorded)
        result = run(tests, NODE, *argv)
    result.assert_outcomes(passed=1)
    return seen[0], result


SIZES = {"run_length": 7, "num_draft_tokens": 2, "isolate": True, "time_limit": 9.0}


def test_sizes_and_isolation_are_handed_on(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SIZES.keys() & asked(tests, monkeypatch)[0].keys() == set()
    argv = ["--specverify-run-length=7", "--specverify-num-draft-tokens=2"]
    argv += ["--specverify-isolate", "--specverify-time-limit=9"]
    found, _ = asked(tests, monkeypatch, *argv)
    assert {key: found[key] for key in SIZES} == SIZES


def test_the_command_line_wins_over_the_configuration(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests.makepyprojecttoml(
        "[tool.specverify]\nrun_length = 7\nnum_draft_tokens = 2\nisolate = true\ntime_limit = 9\n"
        "strict = true"
    )
    found, _ = asked(tests, monkeypatch)
    assert {key: found[key] for key in SIZES} == SIZES
    assert found["strict"] is True
    argv = ["--specverify-run-length=5", "--specverify-no-isolate", "--specverify-no-strict"]
    found, result = asked(tests, monkeypatch, *argv)
    assert (found["run_length"], found["isolate"], found["strict"]) == (5, False, False)
    assert found["num_draft_tokens"] == 2
    result.stdout.fnmatch_lines(["specverify *run_length 5*"])


def test_the_folder_of_certificates_may_be_configured(tests: pytest.Pytester) -> None:
    tests.makepyprojecttoml('[tool.specverify]\nout = "kept"')
    run(tests, NODE).assert_outcomes(passed=1)
    assert [path.name for path in (tests.path / "kept").iterdir()] == ["right-seed0.json"]
    run(tests, NODE, "--specverify-report=other").assert_outcomes(passed=1)
    assert (tests.path / "other" / "right-seed0.json").is_file()


class TestConfiguredSearch:
    """A search is what `specverify certify` makes of profile fuzz; items are not searched."""

    @pytest.fixture(autouse=True)
    def configured(self, tests: pytest.Pytester) -> None:
        text = '[tool.specverify]\nprofile = "fuzz"\nfuzz_inputs = 5\ndatabase = "found"'
        tests.makepyprojecttoml(text)

    def test_items_are_bad_usage(self, tests: pytest.Pytester) -> None:
        result = run(tests, NODE)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        said = result.stderr.str()
        assert "profile = 'fuzz' under [tool.specverify]" in said
        assert "--specverify-profile quick" in said

    def test_another_profile_is_taken(
        self, tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, _ = asked(tests, monkeypatch, QUICK)
        assert found["profile"] == "quick"
        assert {"fuzz_inputs", "database"} & found.keys() == set()

    def test_a_test_may_name_one_and_others_are_left_alone(self, tests: pytest.Pytester) -> None:
        tests.makepyfile(
            test_mine=f"""
            import mine, pytest, specverify
            from specverify.errors import UsageError

            def test_other(): pass

            def test_named():
                specverify.check(mine.right, only=["{BATCH}"], profile="quick")

            def test_unnamed():
                with pytest.raises(UsageError, match="starts a search"):
                    specverify.check(mine.right, only=["{BATCH}"])
            """
        )
        run(tests).assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--specverify-run-length=x", "invalid int value: 'x'"),
        ("--specverify-num-draft-tokens=1.5", "invalid int value: '1.5'"),
        ("--specverify-time-limit=long", "invalid float value: 'long'"),
        ("--specverify-run-length=0", "--specverify-run-length 0: input should be greater"),
        ("--specverify-num-draft-tokens=999", "--specverify-num-draft-tokens 999: input should be"),
        ("--specverify-time-limit=0", "--specverify-time-limit 0.0: input should be greater"),
        ("--specverify-alpha=0.9", "--specverify-alpha 0.9: input should be less"),
        ("--specverify-profile=fuzz", "invalid choice: 'fuzz'"),
    ],
)
def test_a_wrong_value_is_a_usage_error(tests: pytest.Pytester, argv: str, said: str) -> None:
    result = run(tests, NODE, argv)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()


@pytest.mark.parametrize("text", ['report = "kept"', "run_length = 0", "fuzz_time = 0"])
def test_a_wrong_configuration_is_a_usage_error(tests: pytest.Pytester, text: str) -> None:
    tests.makepyprojecttoml(f"[tool.specverify]\n{text}")
    result = run(tests, NODE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"[tool.specverify]: {text}: input should be" in result.stderr.str()
