"""What one statistical test found, in plain numbers."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test; `dataclasses.asdict` gives JSON-ready numbers that recompute it."""

    __test__: ClassVar[bool] = False  # keeps pytest from collecting the class

    name: str
    """Which test: "chi-squared", "G" or "support"."""

    statistic: float
    """Value of the test statistic, summed over strata; larger is further from the expectation."""

    df: int
    """Degrees of freedom of the chi-squared law of the statistic; 0 where it has none."""

    p_value: float
    """Probability under the null of a statistic at least this large."""

    n: int
    """Observations the test was given, those on impossible cells included."""

    cells: int
    """Cells compared after pooling, over all strata."""

    strata: int = 1
    """Independent groups of observations whose statistics were added."""

    impossible: int = 0
    """Observations on cells of probability 0; they enter no statistic but the support test's."""
