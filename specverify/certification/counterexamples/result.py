"""What a subject makes of one input that a counterexample is looked for among."""

from dataclasses import dataclass

from specverify.certification.exact_evidence import Comparison
from specverify.exact.joint import Joint


@dataclass(frozen=True)
class Result:
    """A round, completed to K+1 tokens, or the runs in a world."""

    observed: Joint
    """Without the mass of crashes and of malformed tuples."""
    expected: Joint
    comparison: Comparison
    tolerance: float

    @property
    def wrong(self) -> bool:
        """Whether it is off, whatever crashes would have emitted."""
        return self.comparison.certain > self.tolerance
