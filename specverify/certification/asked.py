"""Which properties a run checks, and how its false-alarm budget is shared among their tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from specverify.certification.probes.run import Probe, probes_of
from specverify.certification.registry import Property, properties_of, unmet_need
from specverify.errors import UsageError
from specverify.lookup import did_you_mean
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject


@dataclass(frozen=True)
class Asked:
    """The properties of one run, by how their evidence comes about."""

    chosen: Sequence[Property]
    sampled: Sequence[Property]
    computed: Sequence[Property]
    probes: Sequence[Probe]
    unmet: Mapping[str, str]
    """Why some of them do not apply, by property."""
    left_out: Sequence[str]
    """Properties that are about such a subject and were not asked for."""
    tests_a_case: int
    """Tests that share the budget in each sampled case."""
    tests_probed: int
    """Tests of all probes that share it."""

    def budget(self, alpha: float, cases: int) -> Budget:
        """A share of `alpha` for every test of `cases` sampled cases and of all probes."""
        return Budget(alpha, max(1, cases * self.tests_a_case + self.tests_probed))


def asked_of(subject: Subject, only: Sequence[str], *, sample: bool, exact: bool) -> Asked:
    """What is asked of a subject.

    Asked for some properties only, as by one pytest item each, the budget is still shared by all
    that could be: all items together have one.

    Raises:
        UsageError: a pattern of `only` names no property.
    """
    everything = properties_of(subject.kind)
    chosen = chosen_of(everything, only)
    named = {p.id for p in chosen}
    unmet = {p.id: reason for p in chosen if (reason := unmet_need(p, subject)) is not None}
    applicable = [p for p in chosen if p.id not in unmet]
    sampled = [p for p in applicable if sample and p.evidence == "sampled"]
    probes = probes_of([p for p in applicable if exact and p.evidence == "probed"])
    sharing, trying = sampled, probes
    if any(entry not in chosen for entry in everything):
        askable = [p for p in everything if unmet_need(p, subject) is None]
        sharing = [p for p in askable if p.evidence == "sampled"]
        trying = probes_of([p for p in askable if p.evidence == "probed"])
    return Asked(
        chosen,
        sampled,
        [p for p in applicable if exact and p.evidence == "exact"],
        probes,
        unmet,
        [p.id for p in everything if p.id not in named],
        tests_a_case=sum(p.tests for p in sharing),
        tests_probed=sum(probe.asked.tests for probe in trying),
    )


def chosen_of(properties: Sequence[Property], patterns: Sequence[str]) -> list[Property]:
    """Those that a pattern names, each with the inputs that one names: `property/input`, or all.

    Raises:
        UsageError: a pattern names no property, or an input that it has not.
    """
    split = [pattern.partition("/")[::2] for pattern in patterns]
    for pattern, (name, _) in zip(patterns, split, strict=True):
        if not any(fnmatchcase(p.id, name) for p in properties):
            known = {p.id for p in properties} | {f"{p.chapter}.*" for p in properties}
            raise UsageError(
                f"no property {pattern!r} for this kind of subject{did_you_mean(pattern, known)}; "
                f"the chapters are {', '.join(sorted({p.chapter for p in properties}))}"
            )
    chosen: list[Property] = []
    for property in properties:
        wanted = [inputs or "*" for name, inputs in split if fnmatchcase(property.id, name)]
        if "*" in wanted:
            chosen.append(property)
        elif wanted:
            chosen.append(replace(property, inputs=_inputs(property, wanted)))
    return chosen


def _inputs(property: Property, patterns: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(i for i in property.inputs if any(fnmatchcase(i, p) for p in patterns))
    if not kept:
        raise UsageError(
            f"the property {property.id!r} has no input {' or '.join(map(repr, patterns))}; it has "
            f"{', '.join(property.inputs) or 'none'}"
        )
    return kept
