"""The page of a certificate: complete, escaped, the same every time, and shown by a browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specverify.certification.certificate import (
    Certificate,
    ExpectationRecord,
    KillTableRecord,
)
from specverify.reporting.html import html_page
from specverify.reporting.overview import NO_PROOF
from tests.certified import OUTCOMES, certified

VOID = {"meta", "br"}
HOSTILE = """<img src=x onerror="alert(1)"><script>alert('x')</script>&amp;"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page(HTMLParser):
    """What is on a page; raises where a tag is not closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.ids: list[str] = []
        self.references: list[str] = []
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "src", "xlink:href", "action", "data", "srcset"}:
                self.references.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


def page(outcome: str, **changes: Any) -> Page:
    return Page(html_page(certified(outcome).model_copy(update=changes)))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_page_is_well_formed_and_needs_nothing_else(outcome: str) -> None:
    certificate = certified(outcome)
    text = html_page(certificate)
    shown = Page(text)
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    assert len(shown.ids) == len(set(shown.ids))
    assert all(reference[:1] == "#" for reference in shown.references)
    assert {reference[1:] for reference in shown.references} <= set(shown.ids)
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert shown.tags.keys().isdisjoint({"script", "img", "link", "iframe", "object"})
    assert shown.tags["h1"] == 1
    assert shown.tags.get("figure", 0) == shown.tags.get("svg", 0) == shown.tags.get("title", 0) - 1


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_it_says_what_is_claimed_and_what_is_not(outcome: str) -> None:
    certificate = certified(outcome)
    words = page(outcome).words
    assert certificate.verdict.upper() in words
    assert NO_PROOF in words
    assert certificate.disclaimer in words
    assert certificate.digest() in words
    for case in certificate.cases:
        assert case.id in words
        for test in case.tests:
            assert test.claim in words
    for entry in certificate.not_applicable:
        assert entry.reason in words
    assert f"alpha {certificate.alpha:g}" in words.lower()


def test_the_same_certificate_gives_the_same_page() -> None:
    certificate = certified("violated")
    again = Certificate.model_validate_json(certificate.model_dump_json(exclude={"sha256": True}))
    assert html_page(again) == html_page(certificate)


def test_a_violation_is_shown_with_its_argument_and_how_to_see_it_again() -> None:
    shown = page("violated")
    assert "Let p = (1/2, 1/2), q = (3/4, 1/4), K = 1" in shown.words
    assert "However, the subject does so with probability 3/4." in shown.words
    assert "Looks like: always-accept" in shown.words
    assert "specverify replay CERTIFICATE.json exact/random-V4-K3-float64 --counterexample" in (
        shown.words
    )
    assert "Counterexample to joint.round" in shown.words
    assert "blocked by joint.round" in shown.words


def test_figures_of_a_sampled_case_are_there() -> None:
    titles = "\n".join(re.findall(r"<title id=.*?</title>", html_page(certified("preserved"))))
    for what in (
        "plain: observed against expected counts",
        "plain: ln E of the e-processes against the tokens seen",
        "plain: upper bounds against the tokens seen: total variation of the first token",
        "plain: share of first rounds that accepted each draft position",
    ):
        assert what in titles


def test_a_case_with_nothing_to_draw_has_no_figure() -> None:
    assert "svg" not in page("error").tags


def test_the_kill_table_and_expected_failures_are_shown_when_there_are_any() -> None:
    assert "specverify selftest" in page("preserved", kill_table=None).words
    table = KillTableRecord(
        mutants={
            "always-accept": {"joint.round": ("exact", 1200), "greedy.rule": ("structural", 0)},
            "prints": {},
        },
        lookalikes=("race",),
        seed=3,
    )
    entry = ExpectationRecord(
        property="joint.round", reason="issue 7", state="passes", case="exact/*"
    )
    shown = page("preserved", kill_table=table, expectations=(entry,), strict=True).words
    assert "tried on 2 wrong implementations and 1 right ones" in shown
    assert "always-acceptjoint.round (exact, 1,200 runs), greedy.rule (structural)" in shown
    assert "printsshows as an error or a finding" in shown
    assert "joint.round: passes; remove the entry (issue 7)" in shown
    assert "Strict: findings count as violations." in shown


def hostile(outcome: str) -> Certificate:
    """The certificate with markup in every text that may hold any."""
    content = json.loads(certified(outcome).model_dump_json(exclude={"sha256": True}))

    def spoil(part: Any) -> None:
        items = part.items() if isinstance(part, dict) else enumerate(part)
        for key, value in list(items):
            if isinstance(value, dict | list):
                spoil(value)
            elif isinstance(value, str):
                part[key] = f"{value}{HOSTILE}"
                try:
                    Certificate.model_validate(content)
                except ValidationError:
                    part[key] = value

    for part in (content["subject"], content["environment"], content["not_applicable"]):
        spoil(part)
    for case in content["cases"][:3]:
        spoil(case)
    content |= {"reason": HOSTILE, "pair": HOSTILE, "findings": [HOSTILE], "command": [HOSTILE]}
    return Certificate.model_validate(content)


@pytest.mark.parametrize("outcome", ["violated", "error"])
def test_markup_in_names_reasons_and_details_stays_text(outcome: str) -> None:
    certificate = hostile(outcome)
    shown = Page(html_page(certificate, file=f"{HOSTILE}.json"))
    assert HOSTILE in shown.words
    assert shown.words.count("<script>") > 10
    assert shown.tags.keys().isdisjoint({"script", "img"})
    assert not any(name.startswith("on") for name in shown.attributes)


def test_a_browser_shows_it_without_any_network(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    file = tmp_path / "page.html"
    file.write_text(html_page(certified("violated")), encoding="utf-8")
    picture = tmp_path / "page.png"
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1000,3000",
            f"--screenshot={picture}",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "<strong>VIOLATED</strong>" in done.stdout
    assert done.stdout.count("<svg") == done.stdout.count("</svg>") > 2
    # A page that was not laid out is of one colour, and compresses to next to nothing.
    assert picture.stat().st_size > 30_000
