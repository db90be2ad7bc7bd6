"""The certificate: what was checked, on what, with what result, in numbers that can be recomputed.

`Certificate.model_json_schema()` is its published schema; `case_records` has the parts.
"""

import hashlib
import json
import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError, computed_field

from specverify.certification.case_records import (
    BoundRecord,
    CaseRecord,
    CellRecord,
    CounterexampleRecord,
    Decision,
    DiagnosisRecord,
    Evidence,
    ExactRecord,
    ExpectationRecord,
    KillTableRecord,
    LooksRecord,
    NotApplicable,
    OutcomeRecord,
    Record,
    SearchRecord,
    SequenceRecord,
    SuspectRecord,
    TestRecord,
)
from specverify.certification.verdict import Verdict, exit_code, worst
from specverify.errors import UsageError

__all__ = [
    "DISCLAIMER",
    "BoundRecord",
    "CaseRecord",
    "CellRecord",
    "Certificate",
    "CounterexampleRecord",
    "Decision",
    "DiagnosisRecord",
    "EnvironmentRecord",
    "Evidence",
    "ExactRecord",
    "ExpectationRecord",
    "KillTableRecord",
    "Level",
    "LooksRecord",
    "NotApplicable",
    "OutcomeRecord",
    "SearchRecord",
    "SequenceRecord",
    "SubjectRecord",
    "SuiteRecord",
    "SuspectRecord",
    "TestRecord",
    "Verdict",
    "exit_code",
    "worst",
]

Level = Literal["algorithmic", "numerical"]
"""algorithmic: float64, tolerance 1e-12 in TV; numerical: the dtype and device it was run on."""

DISCLAIMER = (
    "Finding no violation is not a proof of correctness: nothing is claimed beyond the listed "
    "cases, at their sample sizes and bounds, in this environment."
)

_NOT_IN_DIGEST: Any = {
    "started": True,
    "finished": True,
    "seconds": True,
    "command": True,
    "remarks": True,
    "sha256": True,
    "cases": {"__all__": {"seconds", "measurements"}},
}


class SubjectRecord(Record):
    """The implementation under test."""

    name: str
    kind: str
    distribution: str | None = None
    """The installed package it belongs to."""
    version: str | None = None
    source_sha256: str | None = None
    """Digest of the package that defines it, see `subjects.provenance`."""
    algorithm: str | None = None


class SuiteRecord(Record):
    """The suite that judged."""

    version: str
    properties_sha256: str = ""
    """Digest of the source of all properties."""


class EnvironmentRecord(Record):
    """Where the subject ran."""

    python: str
    torch: str
    numpy: str
    transformers: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1


class Certificate(Record):
    """The result of a certification."""

    schema_version: Literal[5] = 5
    verdict: Verdict
    reason: str
    level: Level
    subject: SubjectRecord
    suite: SuiteRecord
    environment: EnvironmentRecord
    pair: str
    prompts: tuple[tuple[int, ...], ...] = ()
    """Token ids of the prompts that were decoded."""
    profile: str
    seed: int
    alpha: float
    """False-alarm budget of the whole run."""
    tests: int
    """Number of tests that share half of it; the other half is that of all cases together."""
    log_e: float | None = None
    """ln E of all cases together, which rejects at ln(1/alpha)."""
    cases: tuple[CaseRecord, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    """Properties that no case of this run could check."""
    findings: tuple[str, ...] = ()
    """Findings that kept cases from being computed."""
    remarks: tuple[str, ...] = ()
    """What the subject does beside its task, such as printing, and what it kept from being
    explained. They say nothing about what it emits, and do not enter the digest."""
    kill_table: KillTableRecord | None = None
    """What this suite catches; None if its table is missing, or that of other properties."""
    expectations: tuple[ExpectationRecord, ...] = ()
    """Known failures, without which the verdict is formed, and what became of each."""
    strict: bool = False
    """Whether findings count as violations."""
    interrupted: bool = False
    disclaimer: str = DISCLAIMER
    started: datetime
    finished: datetime
    seconds: float
    command: tuple[str, ...] = ()
    """The command line without anything that belongs to one machine."""

    @computed_field
    @property
    def sha256(self) -> str:
        """The digest, as it is written into the file."""
        return self.digest()

    @property
    def stale(self) -> bool:
        """Whether a failure is expected that does not occur, so that the run fails."""
        return any(entry.state == "passes" for entry in self.expectations)

    @property
    def exit_code(self) -> int:
        """What the command line returns for it, see `verdict.exit_code`."""
        return exit_code(self.verdict, interrupted=self.interrupted, stale=self.stale)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of all but times, measurements, remarks and command line.

        The same seed in the same environment gives the same digest.
        """
        content = json.loads(self.model_dump_json(exclude=_NOT_IN_DIGEST))
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, path: str | Path) -> Path:
        """Write the certificate as JSON; a reader never sees half a file.

        Raises:
            OSError: the folder is missing or cannot be written.
        """
        path = Path(path)
        text = self.model_dump_json(indent=2) + "\n"
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp grants nobody else access, a certificate is there to be read.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a certificate and check its digest.

        Raises:
            UsageError: there is no such file, it is no certificate, or its contents do not have
                the digest it states.
        """
        certificate, stated = cls.read(path)
        if stated != certificate.digest():
            raise UsageError(
                f"{str(path)!r} states sha256 {stated}, but its contents have "
                f"{certificate.digest()}; it was changed after it was written"
            )
        return certificate

    @classmethod
    def read(cls, path: str | Path) -> tuple[Self, Any]:
        """Read a certificate, whatever digest it states, and what it states.

        Raises:
            UsageError: there is no such file, or it is no certificate.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read a certificate from {str(path)!r}: {error}") from None
        if not isinstance(content, dict):
            raise UsageError(f"{str(path)!r} holds no certificate, but a {type(content).__name__}")
        stated = content.pop("sha256", None)
        try:
            return cls.model_validate(content), stated
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UsageError(
                f"{str(path)!r} is no certificate of schema version 4: {where}: {first['msg']}"
            ) from None
