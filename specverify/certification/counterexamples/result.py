"""What a subject makes of one input that a counterexample is looked for among."""

from dataclasses import dataclass

from specverify.certification.exact_evidence import Comparison
from specverify.exact.joint import Joint


@dataclass(frozen=True)
class Result:
    """A round, completed to K+1 tokens, the runs in a world, or the row of a transform."""

    observed: Joint
    """Without the mass of crashes and of malformed tuples."""
    expected: Joint
    comparison: Comparison
    tolerance: float
    support: bool = False
    """Whether anything outside the support is wrong, however improbable: a transform's masks are
    looked at one by one, where rounding leaves no mass behind."""

    @property
    def wrong(self) -> bool:
        """Whether it is off, whatever crashes would have emitted."""
        if self.support and self.comparison.outside_support:
            return True
        return self.comparison.certain > self.tolerance
