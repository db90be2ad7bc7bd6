"""Inputs that failed, kept in a folder as JSON, and how far searches have got."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from specverify import __version__
from specverify.errors import UsageError
from specverify.subjects.protocols import Subject

_FORMAT = 1


@dataclass(frozen=True)
class Database:
    """A folder; with no folder nothing is kept.

    One file an input, named after its contents, so that several searches may share a folder, and a
    subject is tried on what others failed on. Files are plain numbers: they outlive versions of
    Hypothesis, whose own database holds choices of a generator.
    """

    folder: Path | None

    def __post_init__(self) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"database {str(self.folder)!r} cannot be used: {error.strerror}; name a folder "
                "that can be written"
            ) from None

    def stored(self, kind: str) -> Iterator[Mapping[str, JsonValue]]:
        """Inputs of a kind, in an order that depends on them alone.

        Raises:
            UsageError: a file is malformed.
        """
        for path in sorted(self.folder.glob(f"{kind}-*.json")) if self.folder else ():
            content = _read(path)
            inputs = content.get("inputs")
            if content.get("format") != _FORMAT or not isinstance(inputs, dict):
                raise UsageError(
                    f"{str(path)!r} is no stored input of this version; move it away, and search "
                    "again"
                )
            yield inputs

    def keep(self, kind: str, property: str, subject: str, inputs: Mapping[str, JsonValue]) -> None:
        """Store an input."""
        if self.folder is None:
            return
        canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
        name = hashlib.sha256(canonical.encode()).hexdigest()[:16]
        content = {"format": _FORMAT, "property": property, "subject": subject, "inputs": inputs}
        _write(self.folder / f"{kind}-{name}.json", content)

    def position(self, subject: Subject, seed: int) -> int:
        """How many batches of this search are done."""
        if self.folder is None:
            return 0
        path = self._progress(subject, seed)
        done = _read(path).get("batches", 0) if path.exists() else 0
        return done if isinstance(done, int) and done >= 0 else 0

    def advance(self, subject: Subject, seed: int, batches: int) -> None:
        """Note that so many are done."""
        if self.folder is not None:
            content = {"subject": subject.name, "seed": seed, "batches": batches}
            _write(self._progress(subject, seed), content)

    def _progress(self, subject: Subject, seed: int) -> Path:
        assert self.folder is not None
        of = f"{subject.kind} {subject.name} {seed} {__version__}"
        return self.folder / f"progress-{hashlib.sha256(of.encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error}; move it away") from None
    if not isinstance(content, dict):
        raise UsageError(f"{str(path)!r} holds no object; move it away")
    return content


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """All of a file or nothing; a folder that fills up costs what is kept, not the search."""
    part = path.with_suffix(".part")
    with suppress(OSError):
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
