"""What `specverify certify` runs: the subjects, each on its pair."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from specverify.cli_configuration import configured, given
from specverify.errors import UsageError
from specverify.pyproject import TABLE

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate
    from specverify.models.pairs import Pair
    from specverify.settings import SamplingSettings
    from specverify.subjects.protocols import Subject


@dataclass(frozen=True)
class Request:
    """One subject on its pair."""

    subject: "Subject"
    pair: "Pair | str"
    settings: "dict[str, SamplingSettings] | None" = None


def load_subjects(subject: str | None, kind: str | None) -> "list[Subject]":
    """The subject of the command line, or those that are configured."""
    from specverify.subjects.registry import load_subject

    found = configured()
    known = () if found is None else found.subjects
    names = (subject,) if subject is not None else known
    if not names:
        raise click.UsageError(
            "no SUBJECT: name one of `specverify subjects` or your own package.module:object, or "
            f'set subject = "..." under [{TABLE}] in pyproject.toml'
        )
    kinds = dict.fromkeys(known, None if found is None else found.kind)
    return [load_subject(name, kind or kinds.get(name)) for name in names]


def request(
    subject: "Subject",
    pair_name: str,
    settings_texts: Sequence[str],
    reference: str | None,
    one_row_a_call: bool,  # noqa: FBT001
) -> Request:
    """What is run of a subject.

    Raises:
        UsageError: an option says nothing of this kind of subject, or names nothing.
    """
    subject = _with_reference(subject, reference)
    if subject.kind == "transform":
        _refuse_for_transform()
        return Request(subject, pair_name)

    from specverify.certification.configuration import chosen_settings
    from specverify.models.pairs import load_pair

    if one_row_a_call:
        subject = replace(subject, capabilities=replace(subject.capabilities, batch=False))
    pair = load_pair(pair_name)
    return Request(subject, pair, chosen_settings(settings_texts, pair))


def run(asked: Request, options: dict[str, Any]) -> "Certificate":
    """Certify one subject, with a bar that says how far it has got."""
    from specverify.certification.run import certify
    from specverify.reporting.terminal import progress_bar, progress_console

    with progress_bar(progress_console()) as progress:
        return certify(
            asked.subject, asked.pair, settings=asked.settings, progress=progress, **options
        )


def _with_reference(subject: "Subject", reference: str | None) -> "Subject":
    if reference is None:
        return subject
    if subject.kind != "transform":
        raise UsageError(
            f"--reference-transform {reference!r} was given for {subject.name!r}, which is a "
            f"{subject.kind}; leave it out, or say --kind transform"
        )
    return replace(subject, reference=reference)


_NOT_FOR_TRANSFORMS = {
    "settings_texts": "--settings",
    "tokens": "--tokens",
    "num_draft_tokens": "--num-draft-tokens",
    "one_row_a_call": "--one-row-a-call",
    "run_length": "--run-length",
    "jobs": "--jobs",
    "resume": "--resume",
    "no_early_stop": "--no-early-stop",
}


def _refuse_for_transform() -> None:
    """Refuse options that say nothing of a transform; a configuration may be for others too."""
    refused = [_NOT_FOR_TRANSFORMS[name] for name in given(*_NOT_FOR_TRANSFORMS)]
    if refused:
        raise UsageError(
            "a transform generates nothing, and its parameters come from its reference; leave out "
            f"{', '.join(refused)}"
        )
