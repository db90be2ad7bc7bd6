"""`specverify check-certificate`: exit codes, and what it says of a file that was edited."""

import json
from pathlib import Path

import pytest

from specverify.certification.certificate import Certificate
from specverify.cli import main
from tests.certified import certified


def edited(path: Path) -> Path:
    """A certificate whose p-value was changed, with the digest made to fit."""
    content = json.loads(certified("violated").model_dump_json(exclude={"sha256": True}))
    rejected = {"violated", "blocked"}
    test = next(t for t in content["cases"][0]["tests"] if t["decision"] in rejected)
    test["p_value"] = 0.5
    return Certificate.model_validate(content).save(path)


@pytest.mark.parametrize("outcome", ["preserved", "violated", "error"])
def test_a_consistent_certificate_is_0_whatever_its_verdict(
    outcome: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = certified(outcome).save(tmp_path / "it.json")
    assert main(["check-certificate", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"{path}: consistent" in said
    certificate = certified(outcome)
    assert f"verdict {certificate.verdict}, exit code {certificate.exit_code}\n" in said
    assert "verdict of the run from its cases" in said
    assert "cannot be recomputed:" in said


def test_an_edited_one_is_1_and_names_field_and_both_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, good = edited(tmp_path / "it.json"), certified("violated").save(tmp_path / "good.json")
    assert main(["check-certificate", "--quiet", str(path), str(good)]) == 1
    said = capsys.readouterr().out
    assert "fields do not agree with the others" in said
    assert "].p_value: states 0.5, recomputed " in said
    assert f"{good}: consistent" in said
    assert "recomputed:" not in said


def test_another_file_is_4_and_the_rest_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, path = tmp_path / "other.json", edited(tmp_path / "it.json")
    other.write_text("[]")
    assert main(["check-certificate", str(other), str(path)]) == 4
    said = capsys.readouterr()
    assert "holds no certificate, but a list" in said.err
    assert "do not agree" in said.out
    assert main(["check-certificate", str(tmp_path / "none.json")]) == 4
    assert main(["check-certificate"]) == 4
