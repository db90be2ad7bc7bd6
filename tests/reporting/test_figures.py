"""Figures: well-formed SVG, the same bytes every time, nothing of one figure in another's ids."""

import re
import xml.etree.ElementTree as ET

import pytest

from specverify.reporting.figures import Panel, acceptance, distributions, paths

SVG = "{http://www.w3.org/2000/svg}"


def bars(id: str = "a", label: str = "0 1") -> str:
    panel = Panel("joint.round", [label, "1 1"], [0.375, 0.125], [0.25, 0.25])
    return distributions([panel], id=id, title="observed & expected", unit="probability")


def path(**changes: object) -> str:
    options: dict = {
        "id": "p",
        "title": "ln E",
        "quantity": "ln E",
        "line": 18.9,
        "line_name": "rejects from 18.9",
    } | changes
    series = {"joint.every_token": [None, -0.4, 3.5], "joint.first_token": [-0.1, -0.2, -0.3]}
    return paths([100, 2_000, 30_000], options.pop("series", series), **options)


FIGURES = {
    "bars": bars,
    "path": path,
    "acceptance": lambda: acceptance([0.8, 0.5], id="r", title="accepted"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_one_element_with_a_title(name: str) -> None:
    svg = ET.fromstring(FIGURES[name]())
    assert svg.tag == f"{SVG}svg"
    assert svg.get("role") == "img"
    title = svg[0]
    assert title.tag == f"{SVG}title"
    assert svg.get("aria-labelledby") == title.get("id")
    assert title.text


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_numbers_give_the_same_bytes(name: str) -> None:
    text = FIGURES[name]()
    assert text == FIGURES[name]()
    assert "Date" not in text
    assert "<metadata" not in text
    assert "<style" not in text, "it would hold for the whole page"


def test_ids_are_the_figures_own_and_all_references_stay_in_it() -> None:
    text = bars("one") + bars("two")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]+)\)", text) + re.findall(r'href="#([^"]+)"', text))
    assert used
    assert used <= set(ids)
    assert not re.findall(r'href="(?!#)', text)


def test_colours_are_those_of_the_page() -> None:
    text = "".join(make() for make in FIGURES.values())
    assert "currentColor" in text
    assert "var(--series-1)" in text
    assert re.findall(r"#[0-9a-f]{6}\b", text) == []


def test_labels_are_text_and_no_markup_or_mathematics() -> None:
    text = bars(label="<script>$x^2$")
    ET.fromstring(text)
    assert "&lt;script&gt;$x^2$" in text
    assert "<script" not in text


def test_numbers_on_logarithmic_axes_are_written_out() -> None:
    text = path(series={"bound": [0.2, 0.05, 0.01]}, line=0.02, logarithmic=True)
    shown = {"".join(entry.itertext()).strip() for entry in ET.fromstring(text).iter(f"{SVG}text")}
    assert {"200", "10,000", "0.02", "0.1"} <= shown
    assert not any("mathdefault" in label for label in shown)


def markers(values: list[float | None]) -> int:
    """Points of the longest line; ticks of an axis are lines of one."""
    groups = ET.fromstring(path(series={"a": values}, line=None)).iter(f"{SVG}g")
    lines = [part for part in groups if "line2d" in str(part.get("id"))]
    return max(len(list(line.iter(f"{SVG}use"))) for line in lines)


def test_what_was_not_seen_yet_or_is_infinite_is_left_out() -> None:
    assert markers([0.5, 1.0, 2.0]) == 3
    assert markers([None, 1.0, 2.0]) == 2
    assert markers([0.5, 1.0, float("inf")]) == 2


def test_a_line_is_drawn_where_there_is_one() -> None:
    assert "rejects from 18.9" in path()
    assert "rejects from" not in path(line=None)
