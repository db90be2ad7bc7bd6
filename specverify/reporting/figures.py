"""Figures of a certificate as SVG for an HTML page: the same numbers, the same bytes.

Colours are those of the page (CSS variables), text stays text, ids are the figure's own.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

_INK, _PAPER = "#010203", "#fdfcfb"
_SERIES = ("#0a0001", "#0a0002", "#0a0003", "#0a0004")
_COLOURS = {
    _INK: "currentColor",
    _PAPER: "transparent",
    **{colour: f"var(--series-{index})" for index, colour in enumerate(_SERIES, 1)},
}
"""What stands for the colours of the page while a figure is drawn."""
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D")
_STYLE: Any = {
    "svg.hashsalt": "specverify",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "figure.facecolor": _PAPER,
    "axes.facecolor": _PAPER,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "text.parse_math": False,
    "savefig.transparent": False,
}
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_WIDTH = 7.2
_LONGEST = 44
"""Letters of a label."""


Series = Mapping[str, Sequence[float | None]]
"""Values at each look, by name; at most four, None where there is none."""


@dataclass(frozen=True)
class Panel:
    """Outcomes side by side: how often each was observed, and how often it should be."""

    title: str
    labels: Sequence[str]
    observed: Sequence[float]
    expected: Sequence[float]


def distributions(panels: Sequence[Panel], *, id: str, title: str, unit: str) -> str:
    """Observed against expected, a panel each.

    Args:
        panels: at least one.
        id: begins the ids of the figure's elements; its own on the page.
        title: what the figure shows, in words.
        unit: of the numbers.
    """
    rows = [max(1, len(panel.labels)) for panel in panels]
    with matplotlib.rc_context(_STYLE):
        height = 1.1 + sum(0.34 * count + 0.5 for count in rows)
        figure = Figure((_WIDTH, height), layout="constrained")
        grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            _bars(axes, panel)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
        grid[-1, 0].set_xlabel(unit)
        return _svg(figure, id, title)


def paths(
    tokens: Sequence[int],
    series: Series,
    *,
    id: str,
    title: str,
    quantity: str,
    line: float | None,
    line_name: str,
    logarithmic: bool = False,
) -> str:
    """Numbers against the tokens seen so far, with the line that they are held against.

    Args:
        tokens: at each look.
        series: what is drawn against them.
        id: as in `distributions`.
        title: likewise.
        quantity: what the values are.
        line: threshold or limit, if there is one.
        line_name: what it is.
        logarithmic: whether values are positive and shown on a logarithmic scale.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure((_WIDTH, 3.2), layout="constrained")
        axes = figure.subplots()
        for index, (name, values) in enumerate(series.items()):
            pairs = zip(tokens, values, strict=True)
            # An impossible token makes ln E infinite: off the figure, not off the table.
            seen = [(n, v) for n, v in pairs if v is not None and math.isfinite(v)]
            axes.plot(
                [n for n, _ in seen],
                [v for _, v in seen],
                color=_SERIES[index % len(_SERIES)],
                linestyle=_LINES[index % len(_LINES)],
                marker=_MARKERS[index % len(_MARKERS)],
                markersize=3,
                label=_short(name),
            )
        if line is not None:
            axes.axhline(line, color=_INK, linewidth=1, linestyle=(0, (6, 3)), label=line_name)
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis, "{:,.0f}")
        if logarithmic:
            axes.set_yscale("log")
            _plain_numbers(axes.yaxis, "{:g}")
        axes.set_xlabel("tokens")
        axes.set_ylabel(quantity)
        figure.legend(loc="outside lower center", ncols=2)
        return _svg(figure, id, title)


def acceptance(rates: Sequence[float], *, id: str, title: str) -> str:
    """Share of rounds in which the draft token of each position was accepted.

    Args:
        rates: of positions 1, 2, ...
        id: as in `distributions`.
        title: likewise.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure((_WIDTH, 2.4), layout="constrained")
        axes = figure.subplots()
        positions = range(1, len(rates) + 1)
        bars = axes.bar(positions, rates, width=0.6, color=_SERIES[0])
        axes.bar_label(bars, labels=[f"{rate:.1%}" for rate in rates], padding=2)
        axes.set_ylim(0, 1.12)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("position in the block")
        axes.set_ylabel("accepted")
        return _svg(figure, id, title)


def _plain_numbers(axis: Axis, style: str) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, written out."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: style.format(value)))
    axis.set_minor_formatter(NullFormatter())


def _bars(axes: Axes, panel: Panel) -> None:
    places = range(len(panel.labels))
    half = 0.38
    for shift, values, colour, name in (
        (-half / 2, panel.expected, _SERIES[1], "expected"),
        (half / 2, panel.observed, _SERIES[0], "observed"),
    ):
        axes.barh(
            [place + shift for place in places],
            values,
            height=half,
            facecolor=colour if name == "observed" else _PAPER,
            edgecolor=colour,
            label=name,
        )
    axes.set_yticks(list(places), [_short(label) for label in panel.labels])
    axes.invert_yaxis()
    axes.set_title(_short(panel.title, 60))


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _svg(figure: Figure, id: str, title: str) -> str:
    """The figure as an `<svg>` element."""
    file = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(file, metadata=_METADATA)
    text = file.getvalue().decode()
    text = text[text.index("<svg") :].rstrip()
    # The page has the style, since it would hold for all of it.
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    for drawn, meant in _COLOURS.items():
        text = text.replace(drawn, meant)
    # Ids are numbered anew in every figure, and a page has several.
    text = re.sub(r'\bid="', f'id="{id}-', text)
    text = text.replace("url(#", f"url(#{id}-").replace('href="#', f'href="#{id}-')
    head = f'<svg role="img" aria-labelledby="{id}-title"'
    body = text.removeprefix("<svg")
    opening, rest = body.split(">", 1)
    return f'{head}{opening}>\n <title id="{id}-title">{escape(title)}</title>{rest}'
