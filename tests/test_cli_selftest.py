"""`specverify selftest`: what it prints and writes, and its exit codes."""

import json
from pathlib import Path

import pytest

from specverify import cli
from specverify.certification import kill_table as tables
from specverify.certification import selftest
from specverify.certification.kill_table import ControlRecord, KillRecord, KillTable
from specverify.certification.registry import all_properties
from specverify.certification.verdict import EXIT_INTERRUPTED, EXIT_USAGE

ONE, TWO = "zero-is-missing", "temperature-raised"


def control(id: str, *properties: str, reason: str = "") -> ControlRecord:
    kills = tuple(KillRecord(property=p, evidence="structural", cost=0) for p in properties)
    return ControlRecord(
        id=id,
        kind="transform",
        description="wrong",
        effect="violated",
        killed_by=kills,
        reason=reason,
        seconds=1.0,
    )


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    """Puts what the self-test finds in place of finding it."""

    def put(*controls: ControlRecord, suite: str = "s") -> None:
        table = KillTable(controls=controls, seed=0, suite=suite)
        monkeypatch.setattr(selftest, "run_selftest", lambda *args, **options: table)

    return put


def test_some_of_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    assert cli.main(["selftest", "--only", ONE, "--write", str(file)]) == 0
    assert "1 of 1 mutants are caught as they should be" in capsys.readouterr().out
    assert cli.main(["selftest", "--only", TWO, "--write", str(file)]) == 0
    written = json.loads(file.read_text())
    assert [control["id"] for control in written["controls"]] == [TWO, ONE], "the catalogue's order"
    assert written["controls"][0]["caught_by"] == ["transforms.extreme_temperature"]


def test_an_interrupt_writes_what_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(engine, *, done, **options):
        done(control(ONE, "transforms.neutral"))
        raise KeyboardInterrupt

    monkeypatch.setattr(selftest, "run_selftest", ended)
    file = tmp_path / "table.json"
    assert cli.main(["selftest", "--write", str(file)]) == EXIT_INTERRUPTED
    assert "Interrupted after 1 of" in capsys.readouterr().err
    assert [c["id"] for c in json.loads(file.read_text())["controls"]] == [ONE]


def test_one_that_survives_fails(found, capsys: pytest.CaptureFixture[str]) -> None:
    found(control("a", "joint.run"), control("b", reason="a mutant came out preserved"))
    assert cli.main(["selftest", "--only", ONE]) == 1
    said = capsys.readouterr().out
    assert "b: a mutant came out preserved" in said
    assert "1 of 2 mutants" in said


def test_a_property_without_a_reason_fails(
    found, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {p.id for p in all_properties() if p.why_kept}
    assert "joint.run" in kept
    assert "transforms.neutral" not in kept
    found(*(control(p.id, p.id) for p in all_properties() if p.id != "joint.run"))
    assert cli.main(["selftest"]) == 0
    found(*(control(p.id, p.id) for p in all_properties() if p.id != "transforms.neutral"))
    assert cli.main(["selftest"]) == 1
    assert "do not say why they are there: transforms.neutral" in capsys.readouterr().out


def test_differences_fail(
    found, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = KillTable(controls=(control("a", "joint.run"),), seed=0, suite="s")
    monkeypatch.setattr(tables, "kill_table", lambda: known)
    found(control("a", "joint.run"))
    assert cli.main(["selftest", "--only", ONE, "--compare"]) == 0
    found(control("a", "joint.run", "batch.rows"))
    assert cli.main(["selftest", "--only", ONE, "--compare"]) == 1
    assert "a is caught by batch.rows now" in capsys.readouterr().out
    monkeypatch.setattr(tables, "kill_table", lambda: None)
    assert cli.main(["selftest", "--only", ONE, "--compare"]) == 1
    assert "of another property set" in capsys.readouterr().out


def test_a_brief_one_knows_nothing_of_what_is_caught_alone(
    found, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found(control("a", "joint.run"))
    assert cli.main(["selftest", "--brief"]) == 0
    assert "alone" not in capsys.readouterr().out
    assert cli.main(["selftest", "--brief", "--thorough"]) == EXIT_USAGE
    assert "--brief and --thorough exclude each other" in capsys.readouterr().err
    assert cli.main(["selftest", "--brief", "--write", str(tmp_path / "t")]) == EXIT_USAGE
    assert "--brief and --write exclude each other" in capsys.readouterr().err


def test_pieces_of_another_suite_are_not_mixed(found, tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    found(control(ONE, "joint.run"), suite="old")
    assert cli.main(["selftest", "--only", ONE, "--write", str(file)]) == 0
    found(control(TWO, "joint.run"), suite="new")
    assert cli.main(["selftest", "--only", TWO, "--write", str(file)]) == 0
    assert [c["id"] for c in json.loads(file.read_text())["controls"]] == [TWO]


def test_what_cannot_be_done_is_said(
    found, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["selftest", "--only", "nothing-like-it"]) == EXIT_USAGE
    assert "no mutant or look-alike is named nothing-like-it" in capsys.readouterr().err
    found(control(ONE, "joint.run"))
    assert (
        cli.main(["selftest", "--only", ONE, "--write", str(tmp_path / "no" / "t")]) == EXIT_USAGE
    )
    assert "cannot write the table" in capsys.readouterr().err
    (tmp_path / "t").write_text("[]")
    assert cli.main(["selftest", "--only", ONE, "--write", str(tmp_path / "t")]) == EXIT_USAGE
    assert "is no kill table" in capsys.readouterr().err
