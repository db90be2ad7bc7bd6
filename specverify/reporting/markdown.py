"""A certificate in Markdown, short enough for a pull request or the summary of a CI step."""

import html
import re
from collections.abc import Iterator

from specverify.certification.case_records import CaseRecord
from specverify.certification.certificate import Certificate
from specverify.certification.verdict import listed
from specverify.reporting.expectations import expectation_said
from specverify.reporting.failure import looks_like, replay_command
from specverify.reporting.overview import (
    NO_PROOF,
    PropertyRow,
    budget_said,
    counterexamples,
    errors,
    findings,
    not_applicable,
    property_rows,
)

SHOWN = 8
"""Outcomes of a counterexample, those furthest off."""
_LONGEST = 400
"""Letters of a message."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~@!])")


def markdown_summary(certificate: Certificate, *, file: str = "CERTIFICATE.json") -> str:
    """Verdict, what is wrong and how to see it again, properties, bounds, what is not covered.

    Args:
        certificate: what to summarise.
        file: name of its file, for the commands.
    """
    blocks = [*_head(certificate)]
    for case in counterexamples(certificate):
        blocks += _failure(case, file)
    for reason, cases in errors(certificate):
        blocks += [f"### Error in {_text(cases)}", _code(reason)]
    blocks += _properties(property_rows(certificate))
    blocks += _bounds(certificate)
    blocks += _lists(certificate)
    blocks.append(
        f"**{NO_PROOF}** {_text(certificate.disclaimer)}\n\n"
        f"{_text(budget_said(certificate))}. Recompute it: "
        f"{_span(f'specverify check-certificate {file}')}. sha256 {_span(certificate.digest())}"
    )
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head(certificate: Certificate) -> Iterator[str]:
    subject, environment = certificate.subject, certificate.environment
    yield f"## specverify: {_text(subject.name)} is **{certificate.verdict}**"
    pair = f", pair {_text(certificate.pair)}" if certificate.pair else ""
    yield (
        f"{subject.kind}{pair}, profile {_text(certificate.profile)}, seed {certificate.seed}, "
        f"{certificate.level} level, torch {_text(environment.torch)} on "
        f"{_text(environment.device)} in {_text(environment.dtype)}"
    )
    if certificate.interrupted:
        yield "The run was interrupted: what was computed before is judged."
    yield _text(certificate.reason)


def _failure(case: CaseRecord, file: str) -> Iterator[str]:
    record, diagnosis = case.counterexample, case.diagnosis
    if record is not None:
        yield f"### {_text(record.property)} fails in {_text(case.id)}"
        yield _text(record.text)
        furthest = sorted(record.outcomes, key=lambda entry: -abs(entry.observed - entry.expected))
        rows = [
            f"| {_text(entry.what)} | {entry.expected:.6g} | {entry.observed:.6g} |"
            for entry in sorted(furthest[:SHOWN], key=lambda entry: (entry.tokens, entry.what))
        ]
        yield "\n".join(["| outcome | expected | observed |", "| --- | ---: | ---: |", *rows])
        if (more := len(record.outcomes) - len(rows)) > 0:
            yield f"and {more} more."
    if diagnosis is not None:
        yield f"Looks like: {_text(looks_like(diagnosis))}"
    if record is not None:
        command = replay_command(case, None).replace("CERTIFICATE", file, 1)
        yield f"Run it again: {_span(command)}"


def _properties(rows: list[PropertyRow]) -> Iterator[str]:
    if not rows:
        return
    wrong = [row for row in rows if row.decision != "pass"]
    if wrong:
        lines = ["| property | result | where | what was found |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {_text(row.property)} | **{row.decision}** | {_text(listed(row.where))} | "
            f"{_text(row.detail)} |"
            for row in wrong
        ]
        yield "\n".join(lines)
    passed = [row for row in rows if row.decision == "pass"]
    if passed:
        lines = ["| property | evidence | cases | what was found |", "| --- | --- | ---: | --- |"]
        lines += [
            f"| {_text(row.property)} | {row.evidence} | {len(row.cases)} | {_text(row.detail)} |"
            for row in passed
        ]
        noun = "property passes" if len(passed) == 1 else "properties pass"
        yield _folded(f"{len(passed)} {noun}", "\n".join(lines))


def _bounds(certificate: Certificate) -> Iterator[str]:
    lines = [
        f"| {_text(case.id)} | {_text(bound.name)} | {bound.value:.3g} | "
        f"{'' if bound.limit is None else f'{bound.limit:g}'} | {bound.n:,} |"
        for case in certificate.cases
        for bound in case.bounds
    ]
    if lines:
        head = [
            "| case | bound on | at most | asked for | n |",
            "| --- | --- | ---: | ---: | ---: |",
        ]
        yield _folded("Bounds", "\n".join([*head, *lines]))


def _lists(certificate: Certificate) -> Iterator[str]:
    expected = [
        f"- {_span(entry.property)}: {_text(expectation_said(entry))}"
        for entry in certificate.expectations
    ]
    if expected:
        yield "\n".join(["Expected failures:\n", *expected])
    found = [
        f"- {_text(text)}" + (f" ({_text(cases)})" if cases else "")
        for text, cases in findings(certificate)
    ]
    if found:
        yield "\n".join(["Findings:\n", *found])
    left = [
        f"- {_span(entry.property)}: {_text(entry.reason)}" for entry in not_applicable(certificate)
    ]
    if left:
        yield _folded(f"{len(left)} not applicable", "\n".join(left))


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _text(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return _SPECIAL.sub(r"\\\1", html.escape(" ".join(short.split()), quote=False))


def _span(code: str) -> str:
    """Code within a line, fenced by more backticks than it holds."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{' '.join(code.split())}{pad}{fence}"


def _code(text: str) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
