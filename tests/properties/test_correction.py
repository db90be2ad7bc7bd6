"""Chapter correction: residuals that are wrong in amount, and wrong in support."""

from dataclasses import replace

import pytest

from specverify.certification.conditional import WITH_CORRECTION
from specverify.certification.registry import UNREPORTED, properties_of
from specverify.certification.run import certify
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.properties.correction import given_rejection, inside_residual
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import BLOCK, MATCH, TOKEN

ALPHA = 1e-6


@pytest.mark.parametrize("mutant", ["residual-not-subtracted", "correction-next-row"])
def test_a_wrong_amount_is_caught(mutant, evidence, rejects):
    assert rejects(given_rejection(evidence(mutant), ALPHA))


@pytest.mark.slow
def test_an_unweighted_residual_of_the_block_rule_is_caught(evidence, rejects):
    assert rejects(given_rejection(evidence("block-residual-unweighted", tokens=600_000), ALPHA))


@pytest.mark.parametrize("mutant", ["residual-absolute", "residual-reversed"])
def test_tokens_outside_the_residual_are_caught(mutant, evidence, rejects):
    assert rejects(inside_residual(evidence(mutant), ALPHA))


@pytest.mark.parametrize("name", ["reference", "reference-block", "reference-match"])
@pytest.mark.parametrize("settings", ["plain", "filtered"])
def test_right_rules_pass(name, settings, evidence, calm):
    made = evidence(name, settings)
    assert calm(given_rejection(made, ALPHA))
    outcome = inside_residual(made, ALPHA)
    assert calm(outcome)
    assert made.excluded_corrections()[0] == 0


@pytest.mark.parametrize("wrong", ["bonus-from-draft", "one-coin-per-block"])
def test_mistakes_elsewhere_are_not_blamed_on_the_correction(wrong, evidence, calm):
    assert calm(inside_residual(evidence(wrong), ALPHA))


@pytest.mark.parametrize("settings", ["plain", "filtered"])
def test_a_rule_in_float32_is_no_suspect(settings, evidence, calm):
    """Probabilities off in their last bits, where p and q agree all but exactly."""

    def narrow(target, draft, ids, mask, settings, k, generator):
        from specverify.decoding.speculative import SpeculativeDecoder
        from specverify.drafting.draft_model import DraftModel
        from specverify.drafting.schedule import Fixed
        from specverify.verification import TOKEN as RULE

        def verification(tokens, q, p, generator, counts):
            return RULE(tokens, None if q is None else q.float(), p.float(), generator, counts)

        loop = SpeculativeDecoder(target, DraftModel(draft), verification, Fixed(k))
        return loop.generate(ids, mask, settings=settings, generator=generator)

    capabilities = Capabilities(algorithm="token", models=frozenset({"language_model"}))
    made = evidence(Subject("narrow", "decoder", narrow, capabilities), settings)
    assert calm(given_rejection(made, ALPHA))
    assert calm(inside_residual(made, ALPHA))


def test_the_declared_algorithm_decides(evidence, rejects):
    liar = replace(MATCH, capabilities=replace(MATCH.capabilities, algorithm="token"))
    assert rejects(given_rejection(evidence(liar), ALPHA))


class TestNeeds:
    @pytest.mark.parametrize("id", ["correction.given_rejection", "correction.inside_residual"])
    @pytest.mark.parametrize(
        ("algorithm", "reason"),
        [
            (None, "declares no algorithm"),
            ("greedy", "'greedy' is not random"),
            *((name, None) for name in sorted(WITH_CORRECTION)),
        ],
    )
    def test_a_closed_form(self, id, algorithm, reason):
        (needs,) = [p.needs for p in properties_of("decoder") if p.id == id]
        subject = replace(TOKEN, capabilities=replace(TOKEN.capabilities, algorithm=algorithm))
        found = needs(subject)
        assert found is None if reason is None else reason in (found or "")

    @pytest.mark.parametrize("check", [given_rejection, inside_residual])
    def test_reported_acceptance(self, check, evidence):
        bare = replace(BLOCK, name="bare", call=lambda *a: BLOCK.call(*a).tokens)
        assert check(evidence(bare, tokens=6_000), ALPHA).not_applicable == UNREPORTED

    @pytest.mark.parametrize("check", [given_rejection, inside_residual])
    def test_transforms_without_hidden_coins(self, check, evidence):
        made = evidence("reference", '{"xtc_probability": 0.5}', tokens=6_000)
        assert "random transform" in (check(made, ALPHA).not_applicable or "")

    def test_drafts_sampled_as_the_closed_form_supposes(self):
        """A right decoder may draft at its own temperature; nobody can tell what its q is."""
        (needs,) = [
            p.needs for p in properties_of("decoder") if p.id == "correction.given_rejection"
        ]
        own = replace(TOKEN, capabilities=replace(TOKEN.capabilities, standard_draft=False))
        assert "standard_draft" in (needs(own) or "")
        rule = replace(own, kind="rule")
        assert needs(rule) is None


def test_a_draft_at_its_own_temperature_would_be_accused_by_the_closed_form(evidence, rejects):
    cooler = LOOKALIKES["draft-cooler"].subject
    declared = replace(
        cooler,
        capabilities=replace(cooler.capabilities, algorithm="token", standard_draft=False),
    )
    made = evidence(declared)
    assert rejects(given_rejection(made, ALPHA))
    plain = {"plain": SamplingSettings()}
    certificate = certify(declared, "toy", settings=plain, tokens=30_000, exact=False)
    assert certificate.verdict != "violated"
    assert "correction.given_rejection" in {n.property for n in certificate.not_applicable}
