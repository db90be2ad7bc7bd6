"""The command line: every exit code, every refusal, nothing lost on the way out."""

import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specverify import cli, cli_certify
from specverify.certification.certificate import Certificate, Verdict
from specverify.certification.progress import ProgressEvent
from specverify.errors import SubjectError
from specverify.settings import SamplingSettings

SAMPLE_FILE = Path(__file__).parent / "certification" / "sample_certificate.json"
SAMPLE = Certificate.load(SAMPLE_FILE)
RUN = "specverify.certification.run"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Replaces the certification by one that records its arguments and returns the sample."""
    made: list[SimpleNamespace] = []

    def certify(subject: Any, pair: Any, **options: Any) -> Certificate:
        options["progress"](ProgressEvent("plain", 1, 2, "runs"))
        made.append(SimpleNamespace(subject=subject, pair=pair, **options))
        return SAMPLE

    returning(monkeypatch, certify)
    return made


def returning(monkeypatch: pytest.MonkeyPatch, certify: Callable[..., Certificate]) -> None:
    monkeypatch.setitem(sys.modules, RUN, SimpleNamespace(certify=certify))


def run(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class TestExitCodes:
    @pytest.mark.parametrize(
        ("verdict", "interrupted", "code"),
        [
            ("preserved", False, 0),
            ("lossy-as-declared", False, 0),
            ("violated", False, 1),
            ("inconclusive", False, 2),
            ("error", False, 3),
            ("inconclusive", True, 130),
            ("violated", True, 130),
        ],
    )
    def test_a_finished_run(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        verdict: Verdict,
        interrupted: bool,
        code: int,
    ) -> None:
        certificate = SAMPLE.model_copy(update={"verdict": verdict, "interrupted": interrupted})
        returning(monkeypatch, lambda *_, **__: certificate)
        argv = ["certify", "reference", "--out", str(tmp_path)]
        returned, out, _ = run(argv, capsys)
        assert returned == code
        assert verdict.upper() in out
        (path,) = tmp_path.iterdir()
        assert Certificate.load(path) == certificate
        assert certificate.digest() in out

    @pytest.mark.parametrize(
        "argv",
        [
            [],
            ["certfy"],
            ["--nope"],
            ["certify"],
            ["certify", "reference", "--nope"],
            ["certify", "reference", "surplus"],
            ["certify", "reference", "--kind", "rules"],
            ["certify", "reference", "--profile", "slow"],
            ["certify", "reference", "--seed", "-1"],
            ["certify", "reference", "--seed", "x"],
            ["certify", "reference", "--seed", str(2**63)],
            ["certify", "reference", "--out", ""],
            ["certify", "reference", "--resume", ""],
            ["exact", "reference", "--seed", str(2**63)],
            ["exact", "reference", "--resume", ""],
            ["exact", "reference", "--time-limit", "0"],
            ["exact", "reference", "--memory", "9" * 400],
            ["certify", "reference", "--tokens", "0"],
            ["certify", "reference", "--num-draft-tokens", "0"],
            ["certify", "reference", "--time-limit", "0"],
            ["certify", "reference", "--time-limit", "1e30"],
            ["subjects", "surplus"],
        ],
        ids=" ".join,
    )
    def test_bad_usage_is_4_not_clicks_2(
        self,
        calls: list[SimpleNamespace],
        capsys: pytest.CaptureFixture[str],
        argv: list[str],
    ) -> None:
        code, out, err = run(argv, capsys)
        assert code == 4
        assert out == ""
        assert "Usage: specverify" in err
        assert calls == []

    @pytest.mark.parametrize("argv", [["--help"], ["certify", "-h"], ["--version"]])
    def test_asking_for_help_is_0(
        self, capsys: pytest.CaptureFixture[str], argv: list[str]
    ) -> None:
        code, out, err = run(argv, capsys)
        assert code == 0
        assert "specverify" in out
        assert err == ""

    def test_an_error_in_the_suite_is_3_and_asks_for_a_report(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def broken(*_: Any, **__: Any) -> Certificate:
            raise KeyError("cells")

        returning(monkeypatch, broken)
        code, _, err = run(["certify", "reference"], capsys)
        assert code == 3
        assert err.startswith("Error: specverify itself failed with KeyError: 'cells'.")
        assert "Traceback" not in err
        code, _, err = run(["--traceback", "certify", "reference"], capsys)
        assert code == 3
        assert "Traceback" in err

    def test_an_error_in_the_subject_is_3(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def crashing(*_: Any, **__: Any) -> Certificate:
            raise SubjectError("subject 'x' raised ValueError")

        returning(monkeypatch, crashing)
        code, _, err = run(["certify", "reference"], capsys)
        assert (code, err) == (3, "Error: subject 'x' raised ValueError\n")

    @pytest.mark.parametrize("name", ["load_subject", "subject_names"])
    def test_control_c_before_the_run_is_130_not_clicks_1(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(f"specverify.subjects.registry.{name}", interrupt)
        argv = ["certify", "reference"] if name == "load_subject" else ["subjects"]
        code, _, err = run(argv, capsys)
        assert code == 130
        assert err.strip() == "Interrupted."


class TestRefusals:
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["referense"], "unknown subject 'referense' (did you mean 'reference'?)"),
            (["no_such_module:f"], "there is no module 'no_such_module'"),
            (["math:sqrt"], "pass --kind rule, --kind transform or --kind decoder"),
            (["math:no_such"], "has no attribute 'no_such'"),
            (["reference", "--kind", "rule"], "is a decoder, not a rule"),
            (["reference", "--pair", "toi"], "unknown pair 'toi' (did you mean 'toy'?)"),
            (["reference", "--settings", "plane"], "no settings named 'plane'"),
            (["reference", "--settings", '{"top_p": 1.5}'], "top_p=1.5"),
            (["reference", "--settings", '{"temperature": -1}'], "temperature=-1"),
            (["reference", "--settings", '{"tempratur": 1}'], "tempratur=1"),
            (["reference", "--settings", "{"], "not valid JSON"),
            (["reference", "--settings", "[]"], "must be a JSON object of fields, such as"),
            (["reference", "--settings", "missing.json"], "no settings file 'missing.json'"),
            (["math.py:sqrt"], "(did you mean 'math:sqrt'?)"),
            (["reference", "--reference-transform", "top_k"], "which is a decoder"),
            (["math.sqrt"], "unknown subject 'math.sqrt' (did you mean 'math:sqrt'?)"),
            (
                ["math:sqrt", "--kind", "transform", "--settings", "plain"],
                "its parameters come from its reference; leave out --settings",
            ),
            (
                ["math:sqrt", "--kind=transform", "--tokens=9", "--pair=none"],
                "leave out --tokens",
            ),
            (
                ["math:sqrt", "--kind=transform", "--num-draft-tokens=2", "--one-row-a-call"],
                "leave out --num-draft-tokens, --one-row-a-call",
            ),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_one_clear_message_and_no_work(
        self,
        calls: list[SimpleNamespace],
        capsys: pytest.CaptureFixture[str],
        argv: list[str],
        message: str,
    ) -> None:
        code, out, err = run(["certify", *argv], capsys)
        assert code == 4
        assert out == ""
        assert err.startswith("Error: ")
        assert message in err
        assert err.count("\n") == 1
        assert calls == []

    def test_an_out_folder_that_cannot_be(
        self, calls: list[SimpleNamespace], capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, _, err = run(["certify", "reference", "--out", str(SAMPLE_FILE)], capsys)
        assert code == 4
        assert "choose another folder for --out" in err
        assert calls == []

    def test_a_full_disk_at_the_end_is_an_error_after_the_report(
        self,
        monkeypatch: pytest.MonkeyPatch,
        calls: list[SimpleNamespace],
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
    ) -> None:
        def full(*_: Any) -> Path:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Certificate, "save", full)
        code, out, err = run(["certify", "reference", "--out", str(tmp_path)], capsys)
        assert code == 3
        assert "VIOLATED" in out
        assert "No space left on device; make room" in err


class TestWhatIsPassedOn:
    def test_defaults(
        self, calls: list[SimpleNamespace], capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, out, err = run(["certify", "reference"], capsys)
        (call,) = calls
        assert code == 1
        assert (call.subject.name, call.pair.name) == ("reference", "toy")
        assert call.settings is None
        assert (call.profile, call.seed, call.time_limit) == ("quick", 0, 60.0)
        assert (call.tokens, call.num_draft_tokens) == (None, None)
        assert call.command == ("specverify", "certify", "reference")
        assert "certificate" not in out
        assert call.subject.capabilities.batch
        assert err == ""

    def test_every_option(self, calls: list[SimpleNamespace], tmp_path: Path) -> None:
        file = tmp_path / "mine.json"
        file.write_text('{"stop_token_ids": [3], "max_new_tokens": 5}')
        argv = ["certify", "specverify.subjects.reference:BLOCK", "--pair", "toy"]
        argv += ["--settings", "filtered", "--settings", str(file)]
        argv += ["--settings", '{"temperature": 0.5}', "--settings", '{"temperature": 0.7}']
        argv += ["--profile", "standard", "--seed", "5", "--tokens", "100"]
        argv += ["--num-draft-tokens", "3", "--time-limit", "1.5", "--out", str(tmp_path / "out")]
        cli.main(argv)
        (call,) = calls
        assert call.subject.name == "reference-block"
        filtered, mine, first, second = call.settings.values()
        assert list(call.settings)[:2] == ["filtered", "mine"]
        assert filtered.top_p == 0.9
        assert mine == SamplingSettings(stop_token_ids=(3,), max_new_tokens=5)
        assert (first.temperature, second.temperature) == (0.5, 0.7)
        assert (call.profile, call.seed, call.tokens) == ("standard", 5, 100)
        assert (call.num_draft_tokens, call.time_limit) == (3, 1.5)
        assert call.command[-1] == "out"
        assert call.command[8] == "mine.json"

    def test_a_transform_and_its_reference(self, calls: list[SimpleNamespace]) -> None:
        argv = ["certify", "specverify.transforms:TopK", "--kind", "transform"]
        cli.main([*argv, "--reference-transform", "top_k"])
        (call,) = calls
        assert (call.subject.kind, call.subject.reference) == ("transform", "top_k")

    def test_a_transform_needs_no_pair(self, calls: list[SimpleNamespace]) -> None:
        argv = ["certify", "specverify.transforms:TopK", "--kind", "transform", "--pair", "none"]
        cli.main([*argv, "--reference-transform", "top_k"])
        assert len(calls) == 1

    def test_violations_are_explained_unless_it_is_asked_not_to(
        self, calls: list[SimpleNamespace]
    ) -> None:
        cli.main(["certify", "reference"])
        cli.main(["certify", "reference", "--no-shrink"])
        assert [call.shrink for call in calls] == [True, False]

    def test_one_row_a_call(self, calls: list[SimpleNamespace]) -> None:
        cli.main(["certify", "reference", "--one-row-a-call"])
        (call,) = calls
        assert not call.subject.capabilities.batch
        assert call.subject.capabilities.algorithm == "token"

    def test_the_recorded_command_holds_no_machine_paths(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        command = [
            "specverify",
            "--pair",
            f"{tmp_path}/models/target,/elsewhere/models/draft",
            f"--out={tmp_path}/certificates",
            "mylib/decoder.py",
            '{"top_p": 0.5}',
        ]
        assert cli_certify.host_free(command) == (
            "specverify",
            "--pair",
            "models/target,draft",
            "--out=certificates",
            "mylib/decoder.py",
            '{"top_p": 0.5}',
        )


class TestLists:
    def test_subjects(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = run(["subjects"], capsys)
        assert code == 0
        names = [line.split()[0] for line in out.splitlines()]
        assert {"reference", "transformers"} <= set(names)
        assert all(line.split()[1] == "decoder" for line in out.splitlines())

    def test_pairs(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = run(["pairs"], capsys)
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()] == ["smollm2", "toy", "trained"]

    def test_one_that_does_not_load_does_not_hide_the_others(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        names = ["gone", "reference"]
        monkeypatch.setattr("specverify.subjects.registry.subject_names", lambda: names)
        code, out, _ = run(["subjects"], capsys)
        first, second = out.splitlines()
        assert code == 0
        assert first.startswith("gone       cannot be loaded: unknown subject 'gone'")
        assert second.startswith("reference  decoder")


DECODERS = """
import os, time, torch
from specverify.subjects.reference import TOKEN

right = TOKEN.call

def runs(token):
    def generate(target, draft, ids, mask, settings, k, generator):
        return torch.full((len(ids), settings.max_new_tokens), token)
    return generate

constant, unknown, silent = runs(0), runs(99), runs(-1)

def moves(*arguments):
    os.chdir(os.path.dirname(os.getcwd()))
    return runs(0)(*arguments)

def mumbles(target, draft, ids, mask, settings, k, generator):
    raise RuntimeError("\\udc80 \\x1b[31mred")

def crashes(target, draft, ids, mask, settings, k, generator):
    raise RuntimeError("out of cheese")

def hangs(target, draft, ids, mask, settings, k, generator):
    while True:
        try:
            time.sleep(1)
        except Exception:
            pass

def interrupts(target, draft, ids, mask, settings, k, generator):
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("name", "code", "verdict", "message"),
    [
        ("right", 2, "inconclusive", "the bound on the first token's TV"),
        ("constant", 1, "violated", "joint.first_token"),
        ("crashes", 3, "error", "raised RuntimeError: out of cheese"),
        ("moves", 1, "violated", "joint.first_token"),
        ("mumbles", 3, "error", "raised RuntimeError: ? red"),
        ("hangs", 3, "error", "ran past its time limit of 0.5 s"),
        ("silent", 3, "error", "holds no token"),
        ("unknown", 3, "error", "is 99, but token ids run from 0 to 7"),
        ("interrupts", 130, "inconclusive", "interrupted after 0 of"),
    ],
)
def test_subjects_of_a_users_own_module(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    code: int,
    verdict: Verdict,
    message: str,
) -> None:
    (tmp_path / "users_decoders.py").write_text(DECODERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    argv = ["certify", f"users_decoders:{name}", "--kind", "decoder", "--out", "certificates"]
    argv += ["--settings", "plain", "--tokens", "3000", "--only", "joint.first_token"]
    argv += ["--time-limit", "0.5" if name == "hangs" else "60"]
    returned, out, err = run(argv, capsys)
    sys.modules.pop("users_decoders")
    assert "Traceback" not in err
    assert returned == code, out
    (path,) = (tmp_path / "certificates").glob("*.json")
    certificate = Certificate.load(path)
    assert certificate.verdict == verdict
    assert message in path.read_text()
    assert certificate.interrupted is (code == 130)


def test_help_is_quick() -> None:
    """Under 0.3 s: processor time, and the best of several tries, so a busy machine may run it."""
    executable = Path(sys.executable).with_name("specverify")

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([executable, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.3
