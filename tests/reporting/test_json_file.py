"""Certificates as files: names, folders, and folders that cannot be."""

from pathlib import Path

import pytest

from specverify.certification.certificate import Certificate
from specverify.errors import UsageError
from specverify.reporting.json_file import certificate_name, prepare_directory, write_certificate

SAMPLE = Certificate.load(Path(__file__).parents[1] / "certification" / "sample_certificate.json")


def named(subject: str, pair: str = "toy") -> str:
    renamed = SAMPLE.subject.model_copy(update={"name": subject})
    return certificate_name(SAMPLE.model_copy(update={"subject": renamed, "pair": pair}))


def test_names_are_made_of_subject_pair_and_seed() -> None:
    assert named("reference") == "reference-toy-seed7.json"
    assert named("scale", pair="") == "scale-seed7.json"


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("mylib.spec:decode", "mylib.spec-decode-toy-seed7.json"),
        ("../../etc/passwd", "etc-passwd-toy-seed7.json"),
        ("ünïcode näme", "n-code-n-me-toy-seed7.json"),
        ("::", "unnamed-toy-seed7.json"),
    ],
)
def test_names_are_safe(subject: str, name: str) -> None:
    assert named(subject) == name


def test_a_certificate_is_written_and_replaced(tmp_path: Path) -> None:
    folder = prepare_directory(tmp_path / "a" / "b")
    path = write_certificate(SAMPLE, folder)
    again = write_certificate(SAMPLE.model_copy(update={"reason": "again"}), folder)
    assert path == again
    assert Certificate.load(path).reason == "again"
    assert list(folder.iterdir()) == [path]


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file'.*choose another folder for --out"):
        prepare_directory(tmp_path / "file")
    with pytest.raises(UsageError, match="choose another folder"):
        prepare_directory(tmp_path / "file" / "below")
