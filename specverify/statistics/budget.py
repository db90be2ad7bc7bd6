"""The false-alarm budget of a run, shared over its tests."""

from dataclasses import dataclass

from specverify.errors import UsageError


@dataclass(frozen=True)
class Budget:
    """Bonferroni: each of m tests rejects at alpha / m.

    P(any false alarm) <= alpha, whatever the dependence between the tests (union bound), provided
    each p-value is valid and `tests` counts every test that could have rejected, not those run
    until the first alarm.
    """

    alpha: float = 1e-6
    """Probability that a run of a correct implementation raises any alarm."""

    tests: int = 1
    """Tests that share it."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise UsageError(f"alpha must lie strictly between 0 and 1, got {self.alpha}")
        if self.tests < 1:
            raise UsageError(f"a budget is shared by at least one test, got tests={self.tests}")

    @property
    def share(self) -> float:
        """Level of each test."""
        return self.alpha / self.tests

    def rejects(self, p_value: float) -> bool:
        """Whether this p-value alone exhausts its share."""
        return p_value <= self.share

    def split(self, tests: int) -> "Budget":
        """Divide one test's share further, among `tests` tests of its own."""
        return Budget(self.share, tests)
