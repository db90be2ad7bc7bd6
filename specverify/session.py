"""A test session: what it says of all conformance checks, and what they found.

The pytest plugin opens one and reads it, `checking` follows it; outside pytest there is none.
Nothing heavy is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate


@dataclass(eq=False)
class Session:
    """Options of all checks, and the certificates that were made."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `specverify.check`, by name; where a test names an option itself, that wins."""
    report: Path | None = None
    """Where certificates will be written."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kind of a subject that does not say so itself, by the name it is given by."""
    found: "list[Found]" = field(default_factory=list)
    """Runs that were made, since it was last emptied."""
    judged: "list[Judged]" = field(default_factory=list)
    """Likewise, what they say."""


@dataclass(frozen=True)
class Found:
    """A certificate, and whether it is the whole of its run or a part of it."""

    certificate: "Certificate"
    part: bool = False


@dataclass(frozen=True)
class Judged:
    """What a certificate says of one property, or of all."""

    property: str
    """Its id; `*` for all."""
    verdict: str
    sha256: str
    """Digest of the certificate."""


_OPEN: list[Session] = []


def open_session(session: Session) -> None:
    """Make a session the current one, also within another, as a test of a plugin does."""
    _OPEN.append(session)


def close_session(session: Session) -> None:
    """End a session."""
    _OPEN.remove(session)


def current_session() -> Session | None:
    """The session that is open, None outside pytest."""
    return _OPEN[-1] if _OPEN else None
