"""`specverify report`, and `--report` of `specverify certify`."""

from pathlib import Path

import pytest

from specverify.certification.certificate import Certificate
from specverify.cli import main
from tests.certified import certified


def test_reports_of_a_stored_certificate_go_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = certified("violated").save(tmp_path / "mine.json")
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'mine.html'}\n"
    assert "specverify replay mine.json" in (tmp_path / "mine.html").read_text()


def test_or_into_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = certified("violated").save(tmp_path / "mine.json")
    forms = ["--format", "markdown,badge", "--format", "junit", "--out", str(tmp_path / "new")]
    assert main(["report", str(path), *forms]) == 0
    assert sorted(entry.name for entry in (tmp_path / "new").iterdir()) == [
        "mine.badge.json",
        "mine.junit.xml",
        "mine.md",
    ]
    capsys.readouterr()


def test_what_is_no_certificate_or_was_changed_is_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = certified("violated").save(tmp_path / "mine.json")
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    assert main(["report", str(path)]) == 4
    assert "it was changed after it was written" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none.json")]) == 4
    assert list(tmp_path.glob("*.html")) == []


def test_certify_writes_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    subject = ["specverify.transforms:TopK", "--kind", "transform"]
    reports = ["--report", "markdown,badge", "--report", "junit"]
    code = main(["certify", *subject, "--reference-transform", "top_k", "--out", "made", *reports])
    name = "specverify.transforms-TopK-seed0"
    certificate = Certificate.load(f"made/{name}.json")
    assert code == certificate.exit_code == 0
    assert sorted(path.name for path in Path("made").iterdir()) == [
        f"{name}.badge.json",
        f"{name}.json",
        f"{name}.junit.xml",
        f"{name}.md",
    ]
    assert f"\nmarkdown made/{name}.md\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--report", "badge"], "say where with --out"),
        (["--report", "badges", "--out", "made"], "no report 'badges' (did you mean 'badge'?)"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", "reference", *options]) == 4
    assert said in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
