"""Which reports are written, under which names, and what is refused."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from specverify.errors import UsageError
from specverify.reporting.formats import SUFFIXES, read_formats, report_text, write_reports
from tests.certified import certified


def test_names_come_with_commas_or_one_by_one() -> None:
    assert read_formats(["markdown, badge", "junit", "badge"]) == ("markdown", "badge", "junit")
    assert read_formats([]) == ()


@pytest.mark.parametrize("text", ["markdwn", "", "badge,,junit", "HTML"])
def test_another_name_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="the forms are html, markdown, badge, junit"):
        read_formats([text])


def test_html_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"need matplotlib.*pip install 'specverify\[report\]'"):
        read_formats(["html"])
    assert read_formats(["markdown"]) == ("markdown",)


def test_every_form_is_written_beside_the_certificate(tmp_path: Path) -> None:
    certificate = certified("inconclusive")
    paths = write_reports(certificate, tuple(SUFFIXES), tmp_path)
    assert [path.name for path in paths] == [
        "mine-small-seed0.html",
        "mine-small-seed0.md",
        "mine-small-seed0.badge.json",
        "mine-small-seed0.junit.xml",
    ]
    for path, form in zip(paths, SUFFIXES, strict=True):
        text = report_text(certificate, form, file="mine-small-seed0.json")
        assert path.read_text(encoding="utf-8") == text
    assert json.loads(paths[2].read_text())["message"] == "inconclusive"
    assert "specverify check-certificate mine-small-seed0.json" in paths[1].read_text()
