"""What the checks of one subject share: what was asked for, and the runs that judge several."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specverify.certification.blocked import with_blocked
from specverify.certification.case_records import CaseRecord, NotApplicable
from specverify.certification.certificate import Certificate
from specverify.certification.configuration import chosen_settings
from specverify.certification.expected import Known
from specverify.certification.profiles import FUZZ
from specverify.certification.registry import Property
from specverify.certification.run import certify
from specverify.certification.verdict import NOT_ASKED
from specverify.errors import UsageError
from specverify.models.pairs import Pair, load_pair
from specverify.pyproject import TABLE
from specverify.session import Found, Judged, current_session
from specverify.subjects.protocols import Subject
from specverify.subjects.registry import as_subject, load_subject


@dataclass(frozen=True)
class CheckPlan:
    """What the checks of one subject share."""

    subject: Subject
    pair: Pair | str
    options: Mapping[str, Any]
    known: Known
    unmet: tuple[NotApplicable, ...]
    askable: tuple[Property, ...]
    together: Mapping[str, tuple[str, ...]]
    """Properties judged on one run, by evidence."""
    done: dict[str, Certificate] = field(default_factory=dict)
    """Finished runs, by evidence too, or by the property that has one of its own."""

    def run(self, only: tuple[str, ...], **options: Any) -> Certificate:
        """Certify some properties."""
        made = certify(self.subject, self.pair, only=only, **self.options, **options)
        if made.interrupted:
            raise KeyboardInterrupt
        entries = dict.fromkeys((*made.not_applicable, *self.unmet))
        # Another item may ask for what this one does not.
        entries = [entry for entry in entries if entry.reason != NOT_ASKED]
        made = made.model_copy(update={"not_applicable": tuple(entries)})
        if (session := current_session()) is not None:
            session.found.append(Found(made, part=True))
        return made

    def judge(self, id: str, verdict: str, whole: Certificate) -> None:
        """Tell the session."""
        if (session := current_session()) is not None:
            session.judged.append(Judged(id, verdict, whole.digest()))

    def certificate_of(self, property: Property) -> Certificate:
        """The run that judges a property: what is sampled or computed is so once for all."""
        evidence = property.evidence
        if evidence in self.together:
            return self.shared(evidence)
        if property.id not in self.done:
            self.done[property.id] = self.run((property.id,), sample=False)
        return self.done[property.id]

    def shared(self, evidence: str) -> Certificate:
        """The run of all properties of one kind of evidence."""
        if evidence not in self.done:
            self.done[evidence] = self.run(self.together[evidence])
        return self.done[evidence]

    def beside_bases(self, property: Property, whole: Certificate) -> list[CaseRecord]:
        """Cases of a run with violations that follow from others marked as blocked.

        What the property builds on is run where it was not. Where that is violated, a violation of
        the property is no news.
        """
        askable = {p.id: p for p in self.askable}
        cases = {case.id: case for case in whole.cases}
        todo = [*property.after]
        seen: set[str] = set()
        while todo:
            base = todo.pop().partition(" in ")[0]
            if base in seen or base not in askable:
                continue
            seen.add(base)
            todo += askable[base].after
            for case in self.certificate_of(askable[base]).cases:
                cases.setdefault(case.id, case)
        marked = with_blocked(list(cases.values()), self.askable)
        own = {case.id for case in whole.cases}
        return [case for case in marked if case.id in own]


def request(
    subject: Subject | Callable[..., Any] | str, pair: Pair | str | None, given: Mapping[str, Any]
) -> tuple[Subject, Pair | str, dict[str, Any]]:
    """Subject, pair and options of a check: those that are given, or else the session's.

    Raises:
        UsageError: the session's profile is fuzz.
    """
    session, given = current_session(), dict(given)
    options = {} if session is None else dict(session.options)
    if options.get("profile") == FUZZ and "profile" not in given:
        # How far a search by time gets differs from run to run; and it is one for all properties,
        # while items share a budget that is the same whichever of them run.
        raise UsageError(
            f"profile = {FUZZ!r} under [{TABLE}] starts a search, which `specverify certify` makes "
            "and pytest does not; give pytest --specverify-profile quick (addopts may hold it), or "
            "say profile= in the test"
        )
    kind = given.pop("kind", None)
    if isinstance(subject, str):
        known = {} if session is None else session.kinds
        loaded = load_subject(subject, kind or known.get(subject))
    else:
        loaded = as_subject(subject)
    usual, texts = options.pop("pair", "toy"), options.pop("settings_texts", ())
    on = usual if pair is None else pair
    if texts and "settings" not in given and loaded.kind != "transform":
        on = load_pair(on) if isinstance(on, str) else on
        options["settings"] = chosen_settings(texts, on)
    return loaded, on, {**options, **given}
