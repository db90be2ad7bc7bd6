"""Certifications of real models by sampling, as much as belongs into every run of the tests.

`make certify-thorough` runs the same with up to a million tokens.
"""

import pytest

from specverify.certification.run import certify
from specverify.fixtures.pairs import smollm2
from specverify.settings import SamplingSettings

PLAIN = {"plain": SamplingSettings()}


def assert_nothing_is_rejected(certificate, tokens: int) -> None:
    (case,) = certificate.cases
    assert certificate.verdict in {"preserved", "inconclusive"}, certificate.reason
    assert {test.decision for test in case.tests} <= {"pass", "undecided", "reported"}
    assert case.tokens > 0.9 * tokens or case.stopped == "bounds reached"
    bounds = {bound.name: bound.value for bound in case.bounds}
    assert bounds["mass moved to where q > 1 p"] < 1.5 * (4 / case.tokens) ** 0.5


@pytest.mark.slow
def test_transformers_on_the_trained_pair():
    certificate = certify("transformers", "trained", settings=PLAIN, tokens=20_000, exact=False)
    assert_nothing_is_rejected(certificate, 20_000)


@pytest.mark.slow
@pytest.mark.skipif(smollm2.remedy() is not None, reason="needs the extra real")
@pytest.mark.parametrize("subject", ["reference-early-exit", "reference-prompt-lookup"])
def test_drafts_of_its_own_on_the_real_pair(subject):
    """20,000 tokens over both, in runs of 12: passes over the prompt are most of a run's cost."""
    certificate = certify(
        subject,
        "smollm2",
        settings=PLAIN,
        tokens=10_000,
        run_length=12,
        exact=False,
        time_limit=600.0,
    )
    assert certificate.pair == "smollm2"
    assert_nothing_is_rejected(certificate, 10_000)
