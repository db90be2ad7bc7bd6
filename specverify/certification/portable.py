"""Subjects and pairs on their way to another process: by name where they have one, else pickled."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from specverify.errors import UsageError
from specverify.lookup import entry_point_names
from specverify.models.pairs import Pair, load_pair
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.registry import GROUP, load_subject


def portable_subject(subject: Subject) -> Callable[[], Subject]:
    """What makes the subject again in another process; it can be pickled if the subject can."""
    # A name that was registered as a module was imported is unknown where it was not.
    if ":" not in subject.name and subject.name not in entry_point_names(GROUP):
        return partial(_itself, subject)
    try:
        named = load_subject(subject.name, subject.kind)
    except UsageError:
        return partial(_itself, subject)
    if named.call is not subject.call:
        return partial(_itself, subject)
    # What a command line changed in the declaration goes along.
    return partial(
        _named_subject, subject.name, subject.kind, subject.capabilities, subject.reference
    )


def portable_pair(pair: Pair) -> Callable[[], Pair]:
    """What makes the pair again in another process."""
    try:
        named = load_pair(pair.name)
    except UsageError:
        return partial(_itself, pair)
    return partial(load_pair, pair.name) if named is pair else partial(_itself, pair)


def _itself(value: Any) -> Any:
    return value


def _named_subject(
    name: str, kind: str, capabilities: Capabilities, reference: str | None
) -> Subject:
    return replace(load_subject(name, kind), capabilities=capabilities, reference=reference)
