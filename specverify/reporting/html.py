"""A certificate as one HTML page that needs nothing else: no network, no script, no other file."""

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from specverify.certification.case_records import (
    CaseRecord,
    CounterexampleRecord,
    LooksRecord,
    OutcomeRecord,
    TestRecord,
)
from specverify.certification.certificate import Certificate
from specverify.certification.verdict import listed
from specverify.reporting import figures
from specverify.reporting.exact_rows import exact_violations
from specverify.reporting.expectations import expectation_said
from specverify.reporting.failure import looks_like, replay_command
from specverify.reporting.kill_table import UNITS
from specverify.reporting.overview import (
    NO_PROOF,
    VERDICTS_SAID,
    acceptance_rates,
    budget_said,
    counterexamples,
    errors,
    findings,
    not_applicable,
    property_rows,
    threshold,
)

SHOWN = 12
"""Outcomes of a counterexample in its figure, those furthest off."""
_NAME = "CERTIFICATE.json"


@dataclass(frozen=True)
class _Figure:
    svg: str
    caption: str


def html_page(certificate: Certificate, *, file: str = _NAME) -> str:
    """The page; the same certificate gives the same bytes.

    Args:
        certificate: what to show.
        file: name of its file, for the commands that the page shows.
    """
    template = _environment().get_template("certificate.html.j2")
    return template.render(
        certificate=certificate,
        command=shlex.join(certificate.command),
        file=file,
        no_proof=NO_PROOF,
        said=VERDICTS_SAID[certificate.verdict],
        digest=certificate.digest(),
        budget=budget_said(certificate),
        rows=property_rows(certificate),
        not_applicable=not_applicable(certificate),
        errors=errors(certificate),
        findings=findings(certificate),
        failures=list(_failures(certificate, file)),
        violations=list(_violations(certificate)),
        sampled=[_sampled(case, f"s{index}") for index, case in _numbered_sampled(certificate)],
        small=[case for case in certificate.cases if case.small],
        expectations=[(entry, expectation_said(entry)) for entry in certificate.expectations],
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("specverify.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "listed": listed,
        "ln": math.log,
        "number": _number,
        "unit": UNITS.__getitem__,
        "sentence": lambda text: text[:1].upper() + text[1:],
    }
    return environment


def _numbered_sampled(certificate: Certificate) -> Iterator[tuple[int, CaseRecord]]:
    return enumerate(case for case in certificate.cases if not case.small)


def _failures(certificate: Certificate, file: str) -> Iterator[dict[str, Any]]:
    """Counterexamples with their figures, and what they look like."""
    for index, case in enumerate(counterexamples(certificate)):
        record, diagnosis = case.counterexample, case.diagnosis
        yield {
            "case": case,
            "record": record,
            "argument": [] if record is None else _sentences(record.text),
            "figure": None if record is None else _outcomes(record, case, f"c{index}"),
            "diagnosis": None if diagnosis is None else looks_like(diagnosis),
            "replay": replay_command(case, None).replace("CERTIFICATE", file, 1),
        }


def _sentences(text: str) -> list[str]:
    given, _, then = text.partition(" Then ")
    return [given, f"Then {then}"] if then else [given]


def _outcomes(record: CounterexampleRecord, case: CaseRecord, id: str) -> _Figure:
    furthest = sorted(record.outcomes, key=lambda entry: -abs(entry.observed - entry.expected))
    shown = sorted(furthest[:SHOWN], key=_place)
    panel = figures.Panel(
        record.property,
        [entry.what for entry in shown],
        [entry.observed for entry in shown],
        [entry.expected for entry in shown],
    )
    unit = "samples" if record.kind == "cell" else "probability"
    title = f"Counterexample to {record.property} in {case.id}: observed against expected {unit}"
    svg = figures.distributions([panel], id=id, title=title, unit=unit)
    more = len(record.outcomes) - len(shown)
    rest = f" The {len(shown)} outcomes furthest off; {more} more are in the file." if more else ""
    return _Figure(svg, f"What the implementation emits, and what the target does.{rest}")


def _place(entry: OutcomeRecord) -> tuple[tuple[int, ...], str]:
    return entry.tokens, entry.what


def _violations(certificate: Certificate) -> Iterator[dict[str, Any]]:
    """Violated properties, in small cases the first one that shows each."""
    small = [case for case in certificate.cases if case.small]
    found: list[tuple[CaseRecord, TestRecord, int]] = list(exact_violations(small))
    for case in certificate.cases:
        seen: set[str] = set()
        for test in case.tests:
            new = not case.small and test.decision == "violated" and test.property not in seen
            if new:
                seen.add(test.property)
                found.append((case, test, 0))
    for index, (case, test, more) in enumerate(found):
        yield {"case": case, "test": test, "more": more, "figure": _worst(case, test, f"v{index}")}


def _worst(case: CaseRecord, test: TestRecord, id: str) -> _Figure | None:
    """Where the distributions of a violated property differ most."""
    if test.exact is None or not test.exact.worst:
        return None
    worst = test.exact.worst
    panel = figures.Panel(
        test.property,
        [" ".join(map(str, entry.tokens)) or "nothing" for entry in worst],
        [entry.observed for entry in worst],
        [entry.expected for entry in worst],
    )
    title = f"{test.property} in {case.id}: observed against expected probability"
    svg = figures.distributions([panel], id=id, title=title, unit="probability")
    return _Figure(svg, f"The {len(worst)} sequences of tokens that are furthest off.")


def _sampled(case: CaseRecord, id: str) -> dict[str, Any]:
    """A case that was sampled, with its figures."""
    return {
        "case": case,
        "figures": [figure for figure in _figures(case, id) if figure is not None],
        "settings": _json(case.settings),
    }


def _figures(case: CaseRecord, id: str) -> Iterator[_Figure | None]:
    yield _cells(case, f"{id}d")
    if (looks := case.looks) is not None:
        alphas = [test for test in case.tests if test.alpha is not None]
        line = threshold(alphas[0]) if alphas else None
        if looks.log_e:
            svg = figures.paths(
                looks.tokens,
                looks.log_e,
                id=f"{id}e",
                title=f"{case.id}: ln E of the e-processes against the tokens seen",
                quantity="ln E",
                line=line,
                line_name="" if line is None else f"rejects from {line:.1f}",
            )
            yield _Figure(
                svg,
                "Evidence against the claims as tokens came in. Right implementations stay below "
                "the dashed line for ever, but with probability alpha.",
            )
        for index, (limit, series) in enumerate(_bounds(case, looks).items()):
            yield _bound(case, looks, limit, series, f"{id}b{index}")
    if rates := acceptance_rates(case):
        title = f"{case.id}: share of first rounds that accepted each draft position"
        yield _Figure(
            figures.acceptance(rates, id=f"{id}a", title=title),
            "How often the first round of a run accepted its draft tokens up to each position. "
            "It decides about speed only.",
        )


def _bounds(case: CaseRecord, looks: LooksRecord) -> Mapping[float | None, figures.Series]:
    """Bounds that were claimed at some look, by what is asked of them."""
    limits = {bound.name: bound.limit for bound in case.bounds}
    found: dict[float | None, dict[str, list[float | None]]] = {}
    for name, values in looks.bounds.items():
        # A bound of 0, where nothing can deviate, has no place on a logarithmic scale.
        shown = [value or None for value in values]
        if any(shown):
            found.setdefault(limits.get(name), {})[name] = shown
    return found


def _bound(
    case: CaseRecord, looks: LooksRecord, limit: float | None, series: figures.Series, id: str
) -> _Figure:
    names = ", ".join(series)
    svg = figures.paths(
        looks.tokens,
        series,
        id=id,
        title=f"{case.id}: upper bounds against the tokens seen: {names}",
        quantity="at most",
        line=limit,
        line_name="" if limit is None else f"asked for: {limit:g}",
        logarithmic=True,
    )
    return _Figure(svg, f"Upper confidence bounds where they are claimed: {names}.")


def _cells(case: CaseRecord, id: str) -> _Figure | None:
    """The cells furthest off of every property that counts."""
    panels, seen = [], set[str]()
    for test in case.tests:
        if test.worst_cells and test.property not in seen:
            seen.add(test.property)
            panels.append(
                figures.Panel(
                    f"{test.property}, n = {test.n:,}",
                    [cell.label or f"cell {cell.cell}" for cell in test.worst_cells],
                    [float(cell.observed) for cell in test.worst_cells],
                    [cell.expected for cell in test.worst_cells],
                )
            )
    if not panels:
        return None
    title = f"{case.id}: observed against expected counts"
    svg = figures.distributions(panels, id=id, title=title, unit="samples")
    return _Figure(
        svg, "The cells of each property whose counts are furthest from what is expected."
    )


def _number(value: float | int | None, style: str = "") -> str:
    return "" if value is None else format(value, style)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
