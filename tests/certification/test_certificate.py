"""Certificates: round trips, digests, and files that were tampered with."""

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specverify.certification.certificate import DISCLAIMER, Certificate
from specverify.errors import UsageError

SAMPLE_FILE = Path(__file__).parent / "sample_certificate.json"
SAMPLE = Certificate.load(SAMPLE_FILE)
CASE = SAMPLE.cases[0]


def certificate(**changes: Any) -> Certificate:
    return SAMPLE.model_copy(update=changes)


def test_a_certificate_survives_the_round_trip(tmp_path: Path) -> None:
    path = SAMPLE.save(tmp_path / "it.json")
    loaded = Certificate.load(path)
    assert loaded == SAMPLE
    assert loaded.cases[1].tests[1].statistic == float("inf")
    assert list(tmp_path.iterdir()) == [path]


def test_the_published_format_is_pinned(tmp_path: Path) -> None:
    """A failure here is a change of the format: raise the schema version."""
    assert SAMPLE.save(tmp_path / "it.json").read_text() == SAMPLE_FILE.read_text()


def test_the_file_is_plain_json_with_digest_and_disclaimer() -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    content = json.loads(SAMPLE_FILE.read_text(), parse_constant=refuse)
    assert content["sha256"] == SAMPLE.digest()
    assert content["disclaimer"] == DISCLAIMER
    assert content["cases"][1]["tests"][1]["statistic"] == "Infinity"


def test_the_file_is_readable_for_those_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = certificate().save(tmp_path / "it.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = certificate().save(tmp_path / "it.json")
    before = path.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        certificate(seed=8).save(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "changes",
    [
        {"started": datetime(2027, 1, 1, tzinfo=UTC)},
        {"finished": datetime(2027, 1, 1, tzinfo=UTC)},
        {"seconds": 1.0},
        {"command": ("python", "-m", "specverify")},
        {"cases": (CASE.model_copy(update={"seconds": 99.0}), SAMPLE.cases[1])},
        {"cases": (CASE.model_copy(update={"measurements": {}}), SAMPLE.cases[1])},
    ],
    ids=["started", "finished", "seconds", "command", "case seconds", "measurements"],
)
def test_the_digest_ignores_times_and_the_command_line(changes: dict[str, Any]) -> None:
    assert certificate(**changes).digest() == certificate().digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "preserved"},
        {"reason": "because"},
        {"seed": 8},
        {"alpha": 1e-5},
        {"tests": 41},
        {"interrupted": True},
        {"pair": "trained"},
        {"not_applicable": ()},
        {"disclaimer": "All is proved."},
        {"environment": certificate().environment.model_copy(update={"dtype": "float16"})},
        {"subject": certificate().subject.model_copy(update={"source_sha256": None})},
        {"cases": (CASE, CASE)},
        {"cases": (CASE.model_copy(update={"tv_bound": 0.0124}), SAMPLE.cases[1])},
        {"cases": (CASE.model_copy(update={"counters": {"rounds": 1}}), SAMPLE.cases[1])},
        {"cases": (CASE.model_copy(update={"tests": ()}), SAMPLE.cases[1])},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_digest_covers_everything_else(changes: dict[str, Any]) -> None:
    assert certificate(**changes).digest() != certificate().digest()


def test_evidence_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    path = certificate().save(tmp_path / "it.json")
    path.write_text(path.read_text().replace('"p_value": 0.31', '"p_value": 0.32'))
    with pytest.raises(UsageError, match="changed after it was written"):
        Certificate.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read a certificate"),
        ("{", "cannot read a certificate"),
        ("[1]", "holds no certificate, but a list"),
        ("{}", "no certificate of schema version 4: verdict: Field required"),
        ('{"schema_version": 1}', "schema_version: Input should be 5"),
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "it.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message):
        Certificate.load(path)


def test_records_are_closed_and_frozen() -> None:
    content = json.loads(SAMPLE_FILE.read_text())
    del content["sha256"]
    assert Certificate(**content) == SAMPLE
    with pytest.raises(ValidationError, match="Extra inputs"):
        Certificate(**content, verdicts="preserved")
    with pytest.raises(ValidationError, match="verdict"):
        Certificate(**(content | {"verdict": "passed"}))
    with pytest.raises(ValidationError, match="frozen"):
        SAMPLE.verdict = "preserved"


def test_the_schema_is_closed() -> None:
    schema = Certificate.model_json_schema(mode="serialization")
    objects = [part for part in (schema, *schema["$defs"].values()) if "properties" in part]
    assert len(objects) > 5
    assert all(part["additionalProperties"] is False for part in objects)
    assert "sha256" in schema["properties"]
