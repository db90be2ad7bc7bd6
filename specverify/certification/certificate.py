"""The certificate: what was checked, on what, with what result, in numbers that can be recomputed.

Records are frozen pydantic models that forbid unknown fields; `Certificate.model_json_schema()` is
their published schema. Infinite numbers are written as the strings "Infinity" and "-Infinity".
"""

import hashlib
import json
import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, computed_field

from specverify.certification.verdict import EXACT, Verdict, exit_code, worst
from specverify.errors import UsageError

__all__ = [
    "DISCLAIMER",
    "CaseRecord",
    "CellRecord",
    "Certificate",
    "Decision",
    "EnvironmentRecord",
    "Evidence",
    "ExactRecord",
    "Level",
    "NotApplicable",
    "SequenceRecord",
    "SubjectRecord",
    "SuiteRecord",
    "TestRecord",
    "Verdict",
    "exit_code",
    "worst",
]

Level = Literal["algorithmic", "numerical"]
"""algorithmic: float64, tolerance 1e-12 in TV; numerical: the dtype and device it was run on."""

Evidence = Literal["exact", "sampled", "structural"]
Decision = Literal["pass", "violated", "undecided", "untested"]
"""undecided: too little evidence for the claim; untested: too few counts to compare anything."""

DISCLAIMER = (
    "Finding no violation is not a proof of correctness: nothing is claimed beyond the listed "
    "cases, at their sample sizes and bounds, in this environment."
)

_NOT_IN_DIGEST: Any = {
    "started": True,
    "finished": True,
    "seconds": True,
    "command": True,
    "sha256": True,
    "cases": {"__all__": {"seconds", "measurements"}},
}


class Record(BaseModel):
    """Base of all parts of a certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class CellRecord(Record):
    """One cell of a comparison: a token, a run of tokens, or several of them pooled."""

    stratum: int = 0
    cell: int
    observed: int
    expected: float
    label: str = ""
    """What the cell stands for, where there are words for it."""


class SequenceRecord(Record):
    """A sequence of tokens whose probability was computed, not counted."""

    tokens: tuple[int, ...]
    observed: float
    expected: float


class ExactRecord(Record):
    """A joint distribution that was computed, against the one it should be."""

    total_variation: float
    """Of whole sequences, between 0 and 1."""
    tolerance: float
    """Largest total variation of an implementation that is right."""
    largest_ratio: float
    """Largest observed / expected; infinite outside the support."""
    outside_support: float
    """Mass of what the target excludes."""
    crashing: float
    """Mass of the calls that raise."""
    method: Literal["branching", "forcing", "coins"]
    """How the subject's randomness was steered."""
    runs: int
    """Calls of the subject."""
    worst: tuple[SequenceRecord, ...] = ()
    """Largest absolute differences, largest first."""


class TestRecord(Record):
    """One property judged on one case by one test, or without statistics."""

    __test__: ClassVar[bool] = False  # keeps pytest from collecting the class

    property: str
    claim: str
    """What the property says, in one sentence."""
    evidence: Evidence
    decision: Decision
    test: str | None = None
    """chi-squared, G, support, ...; None where a single observation decides."""
    statistic: float | None = None
    df: int | None = None
    p_value: float | None = None
    n: int = 0
    """Observations."""
    cells: int | None = None
    """Cells compared after pooling."""
    strata: int | None = None
    impossible: int = 0
    """Observations on cells of probability 0."""
    alpha: float | None = None
    """The test's share of the run's false-alarm budget."""
    detail: str = ""
    """The contradiction in words, or what it would take to decide."""
    worst_cells: tuple[CellRecord, ...] = ()
    exact: ExactRecord | None = None
    """What was computed, where nothing was sampled."""


class NotApplicable(Record):
    """A property that was not checked, and why."""

    property: str
    reason: str


class CaseRecord(Record):
    """One subject on one pair under one set of settings."""

    id: str
    verdict: Verdict
    reason: str = ""
    settings: dict[str, JsonValue] = {}
    """Fields that differ from their neutral values, see `settings_record`."""
    num_draft_tokens: int | None = None
    rows: int | None = None
    """Rows of a batch, at most."""
    tests: tuple[TestRecord, ...] = ()
    runs: int = 0
    tokens: int = 0
    tv_bound: float | None = None
    """Upper bound on the total variation distance of the first token's distribution; in a case with
    exact evidence the distance itself, of whole sequences."""
    tv_bound_alpha: float | None = None
    """Probability that the bound fails; 0 for what was computed."""
    missing: str | None = None
    """What it would take to decide, where the evidence is too thin."""
    counters: dict[str, JsonValue] = {}
    """Counts that the seed determines: rounds, passes, drafted, accepted, ..."""
    measurements: dict[str, float] = {}
    """What differs from run to run: seconds by phase, tokens per second, peak memory."""
    findings: tuple[str, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    seconds: float = 0.0

    @property
    def computed(self) -> bool:
        """Whether its evidence is exact, from its id."""
        return self.id.startswith(EXACT)


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

    schema_version: Literal[1] = 1
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
    """Number of tests that share it."""
    cases: tuple[CaseRecord, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    """Properties that no case of this run could check."""
    findings: tuple[str, ...] = ()
    """Findings that kept cases from being computed."""
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

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of everything but times, measurements and command line.

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
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read a certificate from {str(path)!r}: {error}") from None
        if not isinstance(content, dict):
            raise UsageError(f"{str(path)!r} holds no certificate, but a {type(content).__name__}")
        stated = content.pop("sha256", None)
        try:
            certificate = cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UsageError(
                f"{str(path)!r} is no certificate of schema version 1: {where}: {first['msg']}"
            ) from None
        if stated != certificate.digest():
            raise UsageError(
                f"{str(path)!r} states sha256 {stated}, but its contents have "
                f"{certificate.digest()}; it was changed after it was written"
            )
        return certificate
