"""`specverify schema`: what it prints, and that the published copies are current."""

import json
from pathlib import Path

import pytest

from specverify import cli
from specverify.certification.certificate import Certificate
from specverify.cli_schema import schema_text

PUBLISHED = Path(__file__).parent.parent / "docs" / "schemas"


@pytest.mark.parametrize("what", ["config", "certificate"])
def test_the_published_schema_is_current(what: str) -> None:
    path = PUBLISHED / f"{what}.schema.json"
    assert path.read_text() == schema_text(what), f"run: specverify schema {what} > {path}"


def test_it_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "config"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["seed"]["anyOf"][0]["minimum"] == 0


def test_the_certificate_is_described_as_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["schema", "certificate"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {*Certificate.model_fields, "sha256"}
    assert schema["additionalProperties"] is False


def test_another_word_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "configuration"]) == 4
    assert "config" in capsys.readouterr().err
