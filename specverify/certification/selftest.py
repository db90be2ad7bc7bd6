"""The suite tried on what is known: every mutant is killed, every look-alike survives.

There are some three hundred controls and some two hundred cases for each, hours of work. So each
control is tried in full on the properties that it is there for, and of those that are there for the
same ones the first, and every look-alike, on one case of every other property: on these it shows
what a property catches that no other does. A thorough self-test tries all on all; a brief one tries
mutants on nothing but what they are there for.
"""

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, Protocol

from specverify.certification.certificate import CaseRecord, Certificate, TestRecord
from specverify.certification.kill_table import ControlRecord, Effect, KillRecord, KillTable
from specverify.certification.plan import pair_presets
from specverify.certification.records import property_digest
from specverify.certification.registry import Property, properties_of
from specverify.certification.run import certify
from specverify.models.pairs import load_pair
from specverify.sampling.engines import Engine
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject

CONTROLS = "specverify.fixtures.controls:CONTROLS"
"""The catalogue. Named, not imported: it is made of subjects, as the suite is of properties."""
PAIR = "toy"
COMPUTED = "filtered"
"""Preset under which the runs of a decoder are computed that is there for something else: the one
with the fewest paths of those that draw."""
TIME_LIMIT = 600.0
"""Seconds for a call, and ten times what any takes on an idle machine: what is found must not
depend on how busy this one is."""
Extent = Literal["brief", "usual", "thorough"]
"""What each control is tried on."""
FOUND = {"violated", "blocked", "suspect"}
"""Decisions that catch. A suspicion does: what shows in acceptance alone may be a wrong report."""


class Control(Protocol):
    """An implementation that is known to be wrong, or known to be right and to look wrong."""

    @property
    def id(self) -> str: ...

    @property
    def code(self) -> str: ...

    @property
    def flag(self) -> str:
        """The kind of mistake; empty for what is right."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def effect(self) -> Effect:
        """What must become of it; preserved for a look-alike."""
        ...

    @property
    def caught_by(self) -> frozenset[str]:
        """Properties that must be violated."""
        ...

    @property
    def closely(self) -> frozenset[str]:
        """Patterns of the properties that it is tried on with all of their inputs."""
        ...

    @property
    def alone(self) -> bool:
        """Whether it is tried on every property even if others are there for the same."""
        ...

    @property
    def slow(self) -> bool:
        """Whether it takes minutes, and is left out unless it is named."""
        ...

    @property
    def tokens(self) -> int:
        """To sample under each of its settings; 0 for what is computed and probed only."""
        ...

    @property
    def subject(self) -> Subject: ...

    @property
    def size(self) -> str:
        """Expected size of the deviation, in words."""
        ...

    @property
    def links(self) -> tuple[str, ...]:
        """Public reports that show the mistake in the wild."""
        ...

    def contract(self, presets: Mapping[str, SamplingSettings]) -> dict[str, SamplingSettings]:
        """The settings to sample under, by name."""
        ...


def run_selftest(
    engine: Engine,
    *,
    only: Callable[[Control], bool] = lambda control: True,
    seed: int = 0,
    extent: Extent = "usual",
    done: Callable[[ControlRecord], None] = lambda record: None,
) -> KillTable:
    """Try the suite on every control.

    Args:
        engine: runs one control a shard.
        only: which of them.
        seed: of every certification.
        extent: on what to try each.
        done: told of each as it is finished, in any order.
    """
    chosen = [index for index, control in enumerate(controls()) if only(control)]
    found: list[ControlRecord] = []
    for _, record in engine.run(partial(try_control, seed=seed, extent=extent), chosen):
        found.append(record)
        done(record)
    return table_of(found, seed=seed, thorough=extent == "thorough")


def table_of(records: Iterable[ControlRecord], *, seed: int, thorough: bool) -> KillTable:
    """The table of some records, in the order of the catalogue."""
    known = {record.id: record for record in records}
    return KillTable(
        controls=tuple(known[control.id] for control in controls() if control.id in known),
        seed=seed,
        suite=property_digest(),
        thorough=thorough,
    )


def controls() -> Sequence[Control]:
    """The whole catalogue, in its order."""
    module, _, name = CONTROLS.partition(":")
    return getattr(importlib.import_module(module), name)


def try_control(index: int, *, seed: int, extent: Extent = "usual") -> ControlRecord:
    """Certify one of the catalogue and say whether what came out is what should."""
    control = controls()[index]
    brief = extent == "brief" and control.effect == "violated"
    beside = extent == "thorough" or (not brief and _is_first(index))
    only = ["*"] if extent == "thorough" else _asked(control, beside=beside, brief=brief)
    certificate = _certify(control, seed, only, thorough=extent == "thorough")
    kills = tuple(_kills(certificate.cases))
    return ControlRecord(
        id=control.id,
        kind=control.subject.kind,
        code=control.code,
        flag=control.flag,
        description=control.description,
        effect=control.effect,
        caught_by=tuple(sorted(control.caught_by)),
        size=control.size,
        links=control.links,
        killed_by=kills,
        reason=_wrong(control, certificate, {kill.property for kill in kills}),
        beside=beside,
        seconds=certificate.seconds,
    )


def _is_first(index: int) -> bool:
    """Whether no other before it is there for the same; right ones and transforms all count.

    So do those that say that one property alone catches them.
    """
    control = controls()[index]
    cheap = control.subject.kind == "transform"
    return (
        cheap
        or control.alone
        or control.effect == "preserved"
        or not any(
            other.closely == control.closely and other.subject.kind == control.subject.kind
            for other in controls()[:index]
        )
    )


def _certify(control: Control, seed: int, only: list[str], *, thorough: bool) -> Certificate:
    subject = control.subject
    if subject.kind == "transform":
        return certify(subject, seed=seed, only=only, shrink=False, time_limit=TIME_LIMIT)
    pair = load_pair(PAIR)
    presets = pair_presets(pair, pair.open("language_model")[0])
    options: dict[str, Any] = {"sample": False}
    if control.tokens:
        settings = control.contract(presets)
        tokens = control.tokens * len(settings)
        options = {"settings": settings, "tokens": tokens, "stop_early": False}
    elif subject.kind == "decoder" and not thorough and not _computed(control):
        options["settings"] = {COMPUTED: presets[COMPUTED]}
    options |= {"seed": seed, "only": only, "shrink": False, "time_limit": TIME_LIMIT}
    return certify(subject, pair, **options)


def _asked(control: Control, *, beside: bool, brief: bool = False) -> list[str]:
    """Patterns for `certify`.

    What the control is there for in full; beside it the first input of all else, or only what runs
    are judged by, or in brief nothing. One that is there for nothing in particular is tried on
    everything.
    """
    patterns = []
    for property in properties_of(control.subject.kind):
        of_runs = not property.inputs and not brief
        if of_runs or not control.closely or _closely(control, property):
            patterns.append(property.id)
        elif beside:
            patterns.append(f"{property.id}/{property.inputs[0]}")
    return patterns


def _computed(control: Control) -> bool:
    """Whether a control is there for a property of whole runs that are computed."""
    exact = (p for p in properties_of(control.subject.kind) if p.evidence == "exact")
    return any(_closely(control, property) for property in exact)


def _closely(control: Control, property: Property) -> bool:
    return any(fnmatchcase(property.id, pattern) for pattern in control.closely)


def _kills(cases: Iterable[CaseRecord]) -> Iterator[KillRecord]:
    """What is violated, each property once, by its cheapest evidence."""
    found: dict[str, KillRecord] = {}
    for case in cases:
        for test in case.tests:
            if test.decision in FOUND:
                cost = _cost(test, case)
                kill = KillRecord(property=test.property, evidence=test.evidence, cost=cost)
                known = found.get(test.property)
                if known is None or cost < known.cost:
                    found[test.property] = kill
    yield from (found[name] for name in sorted(found))


def _cost(test: TestRecord, case: CaseRecord) -> int:
    """Runs that were followed, or tokens that were sampled until the test rejected; 0 for a probe.

    Where the first look that rejects is not on record, all that were sampled.
    """
    if test.exact is not None:
        return test.exact.runs
    looks = case.looks
    path = looks.log_e.get(test.property, ()) if looks is not None else ()
    if looks is not None and test.alpha is not None:
        for tokens, log_e in zip(looks.tokens, path, strict=False):
            if log_e is not None and log_e >= -math.log(test.alpha):
                return tokens
    return test.n and case.tokens


def _wrong(control: Control, certificate: Certificate, killed: set[str]) -> str:
    verdict, effect = certificate.verdict, control.effect
    if effect == "preserved":
        accused = verdict in {"violated", "error"}
        return f"a look-alike came out {verdict}: {certificate.reason}" if accused else ""
    if effect == "finding":
        told = certificate.findings or any(case.findings for case in certificate.cases)
        return "" if told and verdict != "violated" else f"came out {verdict}, and no finding"
    if effect == "error":
        return "" if verdict in {"error", "violated"} else f"came out {verdict}, not as an error"
    if not killed:
        return f"a mutant came out {verdict}: {certificate.reason}"
    missing = sorted(control.caught_by - killed)
    if missing:
        return f"not caught by {', '.join(missing)}"
    suspected = verdict == "inconclusive" and control.caught_by
    return "" if verdict == "violated" or suspected else f"caught, and came out {verdict}"
