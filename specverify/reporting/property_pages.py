"""Properties for a reader: one page a chapter, made from what the properties say of themselves."""

import inspect
from collections.abc import Sequence

from specverify.certification.kill_table import kill_table
from specverify.certification.registry import Property, all_properties

CHAPTERS = {
    "transforms": "logits to logits: the algebra, and each engine's conventions",
    "proposal": "the q that is reported is the q that was sampled",
    "acceptance": "how many draft tokens are accepted",
    "correction": "the token that replaces a rejected one",
    "bonus": "the token after a fully accepted block",
    "joint": "the joint distribution of a round and of a run",
    "support": "what can never be emitted, and degenerate rows",
    "invariance": "what may change the cost and never the distribution",
    "history": "transforms that look at what came before",
    "state": "caches, positions, and what stays from one call to the next",
    "batch": "rows of a batch are requests of different users",
    "randomness": "each draw is made once, from the generator that was handed over",
    "stopping": "where a run ends",
    "greedy": "temperature 0",
    "accounting": "counters and log probabilities that are reported",
    "vocabulary": "padded, permuted and smaller vocabularies",
}
"""Every chapter of the contract with what it is about, in order."""

SHOWN = 6
"""Mutants that are named for a property, the first that it catches."""

_HEADINGS = ("Why it holds", "What breaks it", "Error rate")


def by_chapter() -> dict[str, list[Property]]:
    """Properties by chapter, in the order of `CHAPTERS`."""
    found: dict[str, list[Property]] = {chapter: [] for chapter in CHAPTERS}
    for property in all_properties():
        found[property.chapter].append(property)
    return found


def page(chapter: str, properties: Sequence[Property]) -> str:
    """A chapter as Markdown."""
    lines = [f"# Chapter {chapter}: {CHAPTERS[chapter]}", ""]
    lines += ["Made from the properties themselves by `specverify properties --write`.", ""]
    table = kill_table()
    kills = {} if table is None else table.kills()
    for property in properties:
        lines += [f"## {property.id}", "", property.claim, ""]
        lines.append(f"- Subjects: {', '.join(sorted(property.kinds))}")
        lines.append(f"- Evidence: {_evidence(property)}")
        if property.after:
            lines.append(f"- Builds on: {', '.join(property.after)}")
        if property.why_kept:
            lines.append(f"- Why it is kept: {property.why_kept}")
        if caught := kills.get(property.id):
            rest = len(caught) - SHOWN
            more = f" and {rest} more" if rest > 0 else ""
            names = ", ".join(f"`{id}`" for id in caught[:SHOWN])
            lines.append(f"- Catches, in the [self-test](../selftest.md): {names}{more}")
        lines += ["", *_paragraphs(property)]
    return "\n".join(lines).rstrip() + "\n"


def _evidence(property: Property) -> str:
    if property.evidence != "probed":
        return property.evidence
    return f"probed on {', '.join(property.inputs)}"


def _paragraphs(property: Property) -> list[str]:
    """The docstring after its claim, with its headings set off."""
    text = inspect.getdoc(property.check) or ""
    lines: list[str] = []
    for line in text.splitlines()[1:]:
        for heading in _HEADINGS:
            if line.startswith(f"{heading}:"):
                line = f"**{heading}.**{line.removeprefix(f'{heading}:')}"
        lines.append(line)
    return ["\n".join(lines).strip(), ""]
