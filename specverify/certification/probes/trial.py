"""What all trials have: a subject, the name of the input, and randomness of their own."""

from dataclasses import dataclass, field

from torch import Generator

from specverify.certification.shard import derived_generator
from specverify.errors import SubjectError
from specverify.subjects.guard import DEFAULT_TIME_LIMIT
from specverify.subjects.protocols import Subject


@dataclass
class Trial:
    """One property on one of its inputs."""

    subject: Subject
    id: str
    """Of the case, `probe/` and so on: it seeds what is random."""
    input: str
    """Which of the property's inputs to try."""
    seed: int = 0
    time_limit: float = DEFAULT_TIME_LIMIT
    """Seconds for a single call of the subject."""
    share: float = 0.0
    """Of the budget, each test's; 0 where none is known, and then no power is stated."""
    findings: dict[str, None] = field(default_factory=dict)
    """Remarks of the calls, each once."""
    failures: list[SubjectError] = field(default_factory=list)
    """What the subject failed by on the paths of a run that was followed."""

    def generator(self, call: int = 0) -> Generator:
        """A generator of its own for a call; the same number gives the same draws."""
        return derived_generator(self.seed, self.id, 0, call)

    def note(self, findings: tuple[str, ...]) -> None:
        """Keep remarks of a call."""
        self.findings |= dict.fromkeys(findings)
