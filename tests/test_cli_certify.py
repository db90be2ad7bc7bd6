"""`specverify certify`: configuration, expected failures, strictness, several subjects."""

from pathlib import Path

import pytest

from specverify import cli
from specverify.certification.certificate import Certificate
from specverify.certification.registry import properties_of
from specverify.certification.verdict import NOT_ASKED, worst_exit_code

SUBJECTS = """
from specverify.fixtures.mutants.transforms import MUTANTS
from specverify.subjects.protocols import Subject
from specverify.transforms import REFERENCE

wrong = MUTANTS[0].subject
right = Subject("right", "transform", REFERENCE["top_k"], reference="top_k")
bare = REFERENCE["top_k"]
"""
EXPECTED = "".join(
    f'[[expected]]\nproperty = "{property}"\nreason = "issue 12"\n'
    for property in ("transforms.equals_reference", "transforms.round", "transforms.neutral")
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "listed_subjects.py").write_text(SUBJECTS)
    return tmp_path


def configure(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.specverify]\n{text}")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(["certify", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_configured_subject_and_options(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(folder, 'subject = "listed_subjects:right"\nseed = 3\nalpha = 0.01\ntokens = 5')
    code, out, _ = run(capsys, "--out", "made", "--alpha", "0.001")
    assert code == 0
    assert "seed 3 · alpha 0.001" in out
    (path,) = (folder / "made").iterdir()
    made = Certificate.load(path)
    assert (made.seed, made.alpha, made.subject.name) == (3, 0.001, "right")


def test_the_configured_folder_and_isolation(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(folder, 'subject = "listed_subjects:right"\nout = "kept"\nisolate = true\njobs = 2')
    code, out, _ = run(capsys, "--only", "transforms.round")
    assert (code, len(list((folder / "kept").iterdir()))) == (0, 1)
    code, out, _ = run(capsys, "--only", "transforms.round", "--no-isolate", "--out", "made")
    assert (code, len(list((folder / "made").iterdir()))) == (0, 1)
    assert "PRESERVED" in out


def test_configured_forms_are_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(folder, 'subject = "listed_subjects:right"\nreport = ["markdown", "junit"]')
    code, _, err = run(capsys, "--only", "transforms.round")
    assert code == 4
    assert "`out` of [tool.specverify]" in err
    run(capsys, "--only", "transforms.round", "--out", "made")
    endings = {path.name.partition(".")[2] for path in (folder / "made").iterdir()}
    assert endings == {"json", "md", "junit.xml"}
    run(capsys, "--only", "transforms.round", "--out", "badge", "--report", "badge")
    endings = {path.name.partition(".")[2] for path in (folder / "badge").iterdir()}
    assert endings == {"json", "badge.json"}


def test_a_configured_search(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its limits say nothing to a run that does not search, unless they are given for it."""
    configure(
        folder,
        'subject = "listed_subjects:right"\nprofile = "fuzz"\nfuzz_inputs = 3\ndatabase = "found"',
    )
    only = ("--only", "transforms.equals_reference")
    code, out, _ = run(capsys, *only)
    assert code == 0
    assert "3 inputs tried" in out
    assert (folder / "found").is_dir()
    code, out, _ = run(capsys, *only, "--fuzz-inputs", "2")
    assert "2 inputs tried" in out
    code, out, _ = run(capsys, *only, "--profile", "quick")
    assert (code, "inputs tried" in out) == (0, False)
    code, _, err = run(capsys, *only, "--profile", "quick", "--fuzz-inputs", "2")
    assert code == 4
    assert "fuzz_inputs: only profile 'fuzz' searches" in err


def test_some_properties_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The certificate says that the others were not asked for."""
    argv = ["listed_subjects:right", "--kind", "transform", "--reference-transform", "top_k"]
    code, out, _ = run(capsys, *argv, "--only", "transforms.round", "--out", "made")
    assert code == 0
    assert "transforms.round" in out
    (path,) = (folder / "made").iterdir()
    made = Certificate.load(path)
    checked = {test.property for case in made.cases for test in case.tests}
    assert checked == {"transforms.round"}
    left = {e.property for e in made.not_applicable if e.reason == NOT_ASKED}
    others = {p.id for p in properties_of("transform")} - checked
    assert left == others
    assert f"{len(others)} other properties were not asked for" in out


def test_a_property_that_does_not_exist(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "reference", "--only", "joint.rum")
    assert code == 4
    assert "'joint.rum'" in err
    assert "did you mean 'joint.run'" in err


def test_several_subjects_and_the_worst_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subjects = '["listed_subjects:wrong", "listed_subjects:right"]'
    configure(folder, f"subject = {subjects}")
    code, out, _ = run(capsys, "--no-shrink", "--out", "made")
    assert code == 1
    assert out.index("VIOLATED") < out.index("PRESERVED")
    assert len(list((folder / "made").iterdir())) == 2


def test_the_kind_is_that_of_configured_subjects(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(folder, 'subject = "listed_subjects:wrong"\nkind = "transform"')
    code, _, err = run(capsys, "listed_subjects:bare")
    assert code == 4
    assert "does not say what kind" in err


def test_no_subject_anywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys)
    assert code == 4
    assert "no SUBJECT" in err
    assert "[tool.specverify]" in err


def test_a_wrong_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(folder, "sed = 3")
    code, _, err = run(capsys, "listed_subjects:right")
    assert code == 4
    assert "unknown key 'sed' (did you mean 'seed'?)" in err
    assert run(capsys, "--help")[0] == 0


def test_expected_failures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "expected.toml").write_text(EXPECTED)
    code, out, _ = run(capsys, "listed_subjects:wrong", "--expected", "expected.toml")
    assert code == 0
    assert "expected failure of transforms.neutral: failed as expected in" in out
    assert "(issue 12)" in out
    assert "apart from what is expected to fail" in out


def test_one_that_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "expected.toml").write_text(EXPECTED)
    configure(folder, 'expected = "expected.toml"')
    code, out, _ = run(capsys, "listed_subjects:right")
    assert code == 1
    assert "expected failure of transforms.neutral: passes; remove the entry" in out
    assert "PRESERVED" in out


def test_one_that_does_not_exist(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '[[expected]]\nproperty = "transforms.nutral"\nreason = "x"'
    (folder / "expected.toml").write_text(text)
    code, out, err = run(capsys, "listed_subjects:wrong", "--expected", "expected.toml")
    assert (code, out) == (4, "")
    assert "did you mean 'transforms.neutral'?" in err


def test_strict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SUBJECTS + (
        "import random\n"
        "class Draws(REFERENCE['top_k']):\n"
        "    def __call__(self, input_ids, logits):\n"
        "        random.random()\n"
        "        return super().__call__(input_ids, logits)\n"
        "told = Subject('told', 'transform', Draws, reference='top_k')\n"
    )
    (folder / "strict_subjects.py").write_text(text)
    configure(folder, "strict = true")
    code, out, _ = run(capsys, "strict_subjects:told", "--no-strict")
    assert code == 0
    code, out, _ = run(capsys, "strict_subjects:told", "--no-shrink")
    assert code == 1
    assert "strict: findings count as violations" in out
    verdict = " ".join(out[out.index("VIOLATED") :].split())
    assert verdict.startswith("VIOLATED strict, so that findings are violations: ")
    assert "in top_k[1], top_k[3]" in verdict
    assert "global generator" in verdict


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([0, 2], 2), ([3, 2, 0], 3), ([0, 3, 1], 1), ([1, 130], 130), ([0, 0], 0)],
)
def test_the_worst_verdict_decides(codes: list[int], worst: int) -> None:
    assert worst_exit_code(codes) == worst
