"""One mistake is one failure: whatever builds on what it violates is blocked."""

import pytest

from specverify.certification.blocked import BLOCKED_BY
from specverify.certification.certificate import Certificate
from specverify.certification.registry import all_properties
from specverify.certification.run import certify
from specverify.fixtures.mutants.rules import AlwaysAccept
from specverify.fixtures.mutants.transforms import MUTANTS as TRANSFORMS
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.settings import SamplingSettings
from tests.certified import certified

PLAIN = SamplingSettings()


def decided(certificate: Certificate, decision: str) -> set[str]:
    tests = (test for case in certificate.cases for test in case.tests)
    return {test.property for test in tests if test.decision == decision}


def test_a_wrong_rule_has_one_root() -> None:
    certificate = certified("violated")
    assert decided(certificate, "violated") == {"joint.round"}
    blocked = decided(certificate, "blocked")
    assert {"joint.every_token", "support.nothing_outside", "batch.rows_of_rule"} <= blocked
    details = {
        test.detail
        for case in certificate.cases
        for test in case.tests
        if test.decision == "blocked"
    }
    assert all(detail.startswith(f"{BLOCKED_BY}joint.round") for detail in details)


@pytest.mark.parametrize("mutant", TRANSFORMS[:3], ids=lambda mutant: mutant.id)
def test_a_wrong_transform_has_one_root(mutant) -> None:
    certificate = certify(mutant.subject, shrink=False)
    assert decided(certificate, "violated") == {"transforms.equals_reference"}
    # Those that show on ties only leave all else as it is.
    follows = {"transforms.round", "transforms.neutral"} if mutant.code == "T1" else set()
    assert follows <= decided(certificate, "blocked")


def test_a_wrong_decoder_has_one_root_where_nothing_is_computed() -> None:
    subject = decoder_subject("wrong", verification=AlwaysAccept())
    only = ["joint.*", "correction.*", "bonus.*", "support.*", "randomness.independence"]
    options = {"tokens": 20_000, "exact": False, "shrink": False, "stop_early": False}
    certificate = certify(subject, "toy", settings={"plain": PLAIN}, only=only, **options)
    assert decided(certificate, "violated") == {"joint.every_token"}
    assert {"joint.first_token", "joint.each_position"} <= decided(certificate, "blocked")


def test_what_others_build_on_exists_and_comes_to_an_end() -> None:
    after = {property.id: property.after for property in all_properties()}

    def bases(id: str, path: tuple[str, ...] = ()) -> None:
        assert id in after, f"{path} build on {id}, which is no property"
        assert id not in path, f"{path} build on each other"
        for name in after[id]:
            bases(name.partition(" in ")[0], (*path, id))

    for id in after:
        bases(id)
