"""What one statistical test found, in plain numbers."""

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test; `dataclasses.asdict` gives JSON-ready numbers that recompute it.

    P(p_value <= alpha) <= alpha under the null, exactly or asymptotically as the test says: at any
    look for an e-process, at a sample size fixed beforehand for every other.
    """

    __test__: ClassVar[bool] = False  # keeps pytest from collecting the class

    name: str
    """Which test: "e-process", "support", "chi-squared", "G", "exact G", "band q/p", ..."""

    statistic: float
    """Value of the test statistic, summed over strata; larger is further from the expectation.

    It is ln E for an e-process, and for the support test, which is one."""

    df: int
    """Degrees of freedom of the chi-squared law of the statistic; 0 where it has none."""

    p_value: float
    """Probability under the null of a statistic at least this large; for an e-process min(1, 1/E),
    which holds at whatever time one looks (Ville 1939)."""

    n: int
    """Observations the test was given, those on impossible cells included."""

    cells: int
    """Cells compared after pooling, over all strata."""

    strata: int = 1
    """Independent groups of observations whose statistics were added."""

    impossible: int = 0
    """Observations on cells of probability 0; they enter no statistic but the support test's."""

    @classmethod
    def of_e_process(
        cls, log_e: float, n: int, *, cells: int, strata: int = 1, impossible: int = 0
    ) -> "TestResult":
        """The result of an e-process from ln E: p = min(1, 1/E).

        Valid at every look: E ever reaches 1/alpha with probability at most alpha under the null
        (Ville 1939).

        Args:
            log_e: ln E now.
            n: observations so far, those on impossible cells included.
            cells: cells bet on, over all strata.
            strata: groups of observations with a law of their own.
            impossible: observations on cells of probability 0.
        """
        p_value = math.exp(min(0.0, -log_e))
        return cls("e-process", log_e, 0, p_value, n, cells, strata, impossible)
