"""What the cases of a run say together."""

from collections.abc import Sequence

from specverify.certification.certificate import CaseRecord, TestRecord
from specverify.certification.verdict import FUZZ
from specverify.statistics.budget import combined, holm

TOGETHER = (
    "no case crosses its threshold alone, but all together do: the same deviation shows in several "
    "of them; sample more (--tokens, --profile) to see where"
)

EVERY_TOKEN = "joint.every_token"


def together(cases: Sequence[CaseRecord], planned: int) -> float | None:
    """Ln E of all cases, against the claim that the subject is right in every one.

    Half of it is the mean of all tests that decide, valid under any dependence; half the product
    over cases of the test of every token, valid because cases draw from streams of their own. A
    single test that crosses its share of half the budget brings it to ln(1/alpha) by itself.
    Tests that rest on what the subject reports of its rounds count as undecided.

    Args:
        cases: of the run.
        planned: tests that share the budget; those that were not run count as undecided.
    """
    # What a search confirmed was chosen among many, and has a budget of its own.
    fixed = [case for case in cases if not case.id.startswith(FUZZ)]
    tests = [test for case in fixed for test in case.tests if _is_e_value(test)]
    if not tests:
        return None
    log_es = [test.statistic for test in tests if test.statistic is not None]
    by_case = [
        test.statistic
        for test in tests
        if test.property == EVERY_TOKEN and test.statistic is not None
    ]
    return combined(log_es, by_case, planned)


def with_adjusted(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    """Give every reported test its p-value adjusted for all that were reported (Holm 1979).

    They decide nothing. Where a case ended at a moment that its e-process or a bound chose, their
    p-values are descriptive, and so are these.
    """
    reported = [
        test.p_value
        for case in cases
        for test in case.tests
        if test.decision == "reported" and test.p_value is not None
    ]
    adjusted = iter(holm(reported)) if reported else iter(())

    def adjust(test: TestRecord) -> TestRecord:
        if test.decision != "reported" or test.p_value is None:
            return test
        return test.model_copy(update={"p_adjusted": float(next(adjusted))})

    return [
        case.model_copy(update={"tests": tuple(adjust(test) for test in case.tests)})
        for case in cases
    ]


def _is_e_value(test: TestRecord) -> bool:
    decides = test.alpha is not None and not test.boundaries
    return decides and test.statistic is not None
