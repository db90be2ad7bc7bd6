"""Whole certifications: verdicts, seeds, requests refused, and what a null run looks like."""

import time
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from specverify.categorical import draw
from specverify.certification import run
from specverify.errors import SettingsError, UsageError
from specverify.settings import SamplingSettings
from specverify.subjects.reference import TOKEN
from specverify.verification import BLOCK as BLOCK_RULE
from specverify.verification import TOKEN as TOKEN_RULE

certify = partial(run.certify, exact=False)
"""What is sampled; exact evidence has tests of its own, and takes seconds."""
PLAIN = {"plain": SamplingSettings()}
ENOUGH = 640_000
"""Tokens with which the small pair's bound comes down to that of `loose_bounds`."""

pytestmark = pytest.mark.usefixtures("loose_bounds")


def violated(certificate) -> set[str]:
    return {
        record.property
        for case in certificate.cases
        for record in case.tests
        if record.decision in ("violated", "blocked")
    }


def never(*_):
    pytest.fail("the subject was called")


class TestRuleSubjects:
    """Rules as users write them, in the reference loop."""

    @staticmethod
    def batched(draft, q, p, generator):
        """All rows at once, in float32, in the manner of transformers."""
        rows, k = draft.shape
        q, p = q.float(), p.float()
        index = draft[:, :, None]
        ratio = p[:, :-1].gather(2, index).squeeze(2) / q.gather(2, index).squeeze(2)
        rejected = torch.rand(draft.shape, generator=generator) > ratio
        accepted = ((rejected.cumsum(1) > 0) == 0).sum(1)
        row = torch.arange(rows)
        law = p[row, accepted]
        some = accepted < k
        residual = (law - q[row, accepted.clamp(max=k - 1)]).clamp(min=0)
        law = torch.where(some[:, None], residual, law)
        last = torch.multinomial(law, 1, generator=generator).squeeze(1)
        tokens = torch.where(torch.arange(k + 1) < accepted[:, None], pad(draft), -1)
        tokens[row, accepted] = last
        return tokens

    @staticmethod
    def numpy_row(draft, q, p):
        """One row a call, drawing from numpy's global generator."""
        draft, q, p = draft[0].numpy(), q[0].numpy(), p[0].numpy()
        emitted = []
        for i, token in enumerate(draft):
            if np.random.random() >= p[i, token] / q[i, token]:
                law = np.maximum(p[i] - q[i], 0)
                emitted.append(np.random.choice(len(law), p=law / law.sum()))
                break
            emitted.append(token)
        else:
            emitted.append(np.random.choice(p.shape[1], p=p[-1] / p[-1].sum()))
        padding = [-1] * (len(draft) + 1 - len(emitted))
        return torch.tensor([[*emitted, *padding]])

    @staticmethod
    def without_bonus(draft, q, p, generator):
        tokens = TOKEN_RULE(draft, q, p, generator).tokens.clone()
        tokens[:, -1] = -1
        return tokens

    @staticmethod
    def block_without_bonus(draft, q, p, generator):
        tokens = BLOCK_RULE(draft, q, p, generator).tokens.clone()
        tokens[:, -1] = -1
        return tokens

    @staticmethod
    def correction_from_target(draft, q, p, generator):
        verified = TOKEN_RULE(draft, q, p, generator)
        tokens, row = verified.tokens.clone(), torch.arange(len(draft))
        tokens[row, verified.accepted] = draw(p[row, verified.accepted], generator)
        return tokens

    @staticmethod
    def silent_unless_rejected(draft, q, p, generator):
        """Withholds the last token of a block, chosen by looking at it."""
        verified = TOKEN_RULE(draft, q, p, generator)
        tokens = verified.tokens.clone()
        hidden = (verified.accepted == draft.shape[1]) & (tokens[:, -1] == 0)
        tokens[hidden, -1] = -1
        return tokens

    def test_a_batched_one_in_float32(self, rule, pair):
        certificate = certify(
            rule(self.batched, algorithm="token"), pair, settings=PLAIN, tokens=ENOUGH
        )
        assert certificate.verdict == "preserved", certificate.reason
        assert certificate.subject.kind == "rule"
        assert not certificate.cases[0].findings

    def test_one_row_a_call_without_a_generator(self, rule, pair):
        before = np.random.get_state()[1].copy()
        subject = rule(self.numpy_row, algorithm="token", batch=False, generator=False)
        certificate = certify(subject, pair, settings=PLAIN, tokens=20_000)
        assert certificate.verdict == "inconclusive"
        assert not violated(certificate)
        assert all(case.tests for case in certificate.cases)
        assert (np.random.get_state()[1] == before).all()

    def test_one_that_cannot_be_steered_is_not_tried_on_every_case(self, rule, pair, monkeypatch):
        monkeypatch.setattr("specverify.certification.asked.probes_of", lambda properties: [])
        calls = []

        def sorting(draft, q, p, generator):
            calls.append(len(draft))
            torch.rand(3, generator=generator).argsort()
            return TOKEN_RULE(draft, q, p, generator).tokens

        certificate = certify(
            rule(sorting, algorithm="token"), pair, settings=PLAIN, tokens=500, exact=True
        )
        (entry,) = [n for n in certificate.not_applicable if n.property == "exact/*"]
        assert "sort of random numbers" in entry.reason
        assert "more exact cases" in entry.reason
        assert not any(case.small for case in certificate.cases)
        assert len(calls) < 60

    @pytest.mark.parametrize(
        ("call", "algorithm"),
        [("without_bonus", None), ("without_bonus", "token"), ("block_without_bonus", "block")],
    )
    def test_one_without_a_bonus_token(self, rule, pair, call, algorithm):
        subject = rule(getattr(self, call), algorithm=algorithm)
        certificate = certify(subject, pair, settings=PLAIN, tokens=ENOUGH)
        assert certificate.verdict == "preserved", certificate.reason
        accepted = certificate.cases[0].counters["first_round_accepted"]
        assert set(accepted) == {"0", "1", "2"}

    @pytest.mark.parametrize(
        ("call", "caught_by"),
        [
            ("correction_from_target", {"joint.every_token", "correction.given_rejection"}),
            ("silent_unless_rejected", {"joint.every_token", "bonus.given_full_acceptance"}),
        ],
    )
    def test_wrong_ones(self, rule, pair, call, caught_by):
        subject = rule(getattr(self, call), algorithm="token")
        certificate = certify(subject, pair, settings=PLAIN, tokens=200_000, stop_early=False)
        assert certificate.verdict == "violated"
        assert caught_by <= violated(certificate)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda d, q, p, g: d, r"for 2 draft tokens it must be \[\d+, 3\]"),
            (lambda d, q, p, g: TOKEN_RULE(d, q, p, g).accepted, r"it must be \[\d+, L\]"),
            (lambda d, q, p, g: pad(d) * 0 - 1, "holds no token"),
            (lambda d, q, p, g: 1 / 0, "raised ZeroDivisionError"),
        ],
        ids=["too narrow", "one-dimensional", "silent", "raises"],
    )
    def test_one_that_fails_is_an_error(self, rule, pair, call, message):
        certificate = certify(rule(call), pair, settings=PLAIN, tokens=1_000)
        assert certificate.verdict == "error"
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(certificate.reason)

    def test_one_that_hangs(self, rule, pair):
        subject = rule(lambda d, q, p, g: time.sleep(30))
        certificate = certify(subject, pair, settings=PLAIN, tokens=1_000, time_limit=0.2)
        assert certificate.verdict == "error"
        assert "ran past its time limit of 0.2 s" in certificate.reason


def pad(draft):
    return torch.nn.functional.pad(draft, (0, 1), value=-1)


class TestDecoderSubjects:
    def test_settings_of_a_preset_not_honoured_are_listed(self, decoder, pair):
        subject = decoder(settings=frozenset({"top_k", "repetition_penalty"}))
        certificate = certify(subject, pair, tokens=4_000)
        cases = {case.id: case for case in certificate.cases}
        dropped = {n.property for n in cases["filtered"].not_applicable}
        assert dropped == {"settings.top_p", "joint.own_distributions"}
        assert "settings.presence_penalty" in {n.property for n in cases["history"].not_applicable}
        assert cases["history"].settings["repetition_penalty"] == 1.2
        assert "presence_penalty" not in cases["history"].settings

    def test_what_a_subject_does_not_report_is_not_judged(self, decoder, pair):
        bare = decoder(lambda *arguments: TOKEN.call(*arguments).tokens)
        certificate = certify(bare, pair, settings=PLAIN, tokens=4_000)
        (case,) = certificate.cases
        unjudged = {n.property for n in case.not_applicable}
        assert unjudged == {
            "bonus.given_full_acceptance",
            "correction.given_rejection",
            "correction.inside_residual",
            "joint.own_distributions",
        }

    def test_an_undeclared_algorithm_is_printed_not_judged(self, decoder, pair):
        certificate = certify(decoder(algorithm=None), pair, settings=PLAIN, tokens=4_000)
        unjudged = {n.property for n in certificate.not_applicable}
        assert "correction.given_rejection" in unjudged
        assert certificate.cases[0].counters["first_round_accepted"]

    def test_a_greedy_one(self, decoder, pair):
        certificate = certify(decoder(algorithm="greedy"), pair, tokens=4_000)
        assert [case.id for case in certificate.cases] == ["greedy"]
        assert {n.property for n in certificate.not_applicable} >= {
            "settings.plain",
            "settings.filtered",
        }
        assert not violated(certificate)

    def test_random_transforms_have_no_closed_form_of_a_correction(self, decoder, pair):
        settings = {"xtc": SamplingSettings(xtc_probability=0.5, xtc_threshold=0.2)}
        certificate = certify(decoder(), pair, settings=settings, tokens=ENOUGH)
        assert certificate.verdict == "preserved", certificate.reason
        assert {n.property for n in certificate.cases[0].not_applicable} == {
            "correction.given_rejection",
            "correction.inside_residual",
            "joint.own_distributions",
        }

    def test_other_cases_go_on_after_one_failed(self, decoder, pair):
        def call(target, draft, ids, mask, settings, k, generator):
            if settings.temperature != 1.0:
                raise RuntimeError("only 1.0")
            return TOKEN.call(target, draft, ids, mask, settings, k, generator)

        settings = {"cool": SamplingSettings(temperature=0.5), **PLAIN}
        certificate = certify(decoder(call), pair, settings=settings, tokens=2 * ENOUGH)
        assert [case.verdict for case in certificate.cases] == ["error", "preserved"]
        assert certificate.verdict == "error"
        assert certificate.reason.startswith("cool: ")

    def test_a_violation_outranks_an_error_and_an_error_thin_evidence(self, decoder, pair):
        def call(target, draft, ids, mask, settings, k, generator):
            if settings.temperature == 0.5:
                raise RuntimeError("only 1.0")
            if settings.temperature == 0.7:
                return torch.zeros(len(ids), settings.max_new_tokens, dtype=torch.long)
            return TOKEN.call(target, draft, ids, mask, settings, k, generator)

        cases = {t: SamplingSettings(temperature=t) for t in (1.0, 0.5, 0.7)}
        settings = {f"t{t}": value for t, value in cases.items()}
        all_three = certify(decoder(call), pair, settings=settings, tokens=12_000)
        assert [c.verdict for c in all_three.cases] == ["inconclusive", "error", "violated"]
        assert all_three.verdict == "violated"
        del settings["t0.7"]
        assert certify(decoder(call), pair, settings=settings, tokens=8_000).verdict == "error"

    def test_control_c_ends_the_run_with_what_is_there(self, decoder, pair):
        def call(target, draft, ids, mask, settings, k, generator):
            if settings.greedy:
                raise KeyboardInterrupt
            return TOKEN.call(target, draft, ids, mask, settings, k, generator)

        settings = {**PLAIN, "greedy": SamplingSettings(temperature=0.0), "more": PLAIN["plain"]}
        certificate = certify(decoder(call), pair, settings=settings, tokens=3 * ENOUGH)
        assert certificate.interrupted
        assert certificate.verdict == "inconclusive"
        assert [case.verdict for case in certificate.cases] == ["preserved", "inconclusive"]
        assert "interrupted after 0 of" in certificate.reason


class TestSeeds:
    def test_same_seed_same_digest_another_seed_another(self, decoder, pair):
        first, again, other = (
            certify(decoder(), pair, settings=PLAIN, tokens=8_000, seed=seed) for seed in (4, 4, 5)
        )
        assert first.digest() == again.digest() != other.digest()
        assert first.seed == 4

    def test_threads_are_put_back(self, decoder, pair):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            certificate = certify(decoder(), pair, settings=PLAIN, tokens=800)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
        assert certificate.environment.threads == 1


class TestRequests:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"pair": "toi"}, "unknown pair 'toi'"),
            ({"profile": "fast"}, "unknown profile 'fast'"),
            ({"profile": "fast", "tokens": 100}, "unknown profile 'fast'"),
            ({"num_draft_tokens": 0}, "num_draft_tokens=0"),
            ({"tokens": 0}, "tokens=0"),
            ({"seed": -1}, "seed=-1"),
            ({"seed": 2**63}, f"seed={2**63}; .* at most"),
            ({"time_limit": 1e30}, r"time_limit=1e\+30.* at most 31536000"),
            ({"time_limit": 0.0}, r"time_limit=0\.0"),
            ({"time_limit": float("nan")}, "time_limit=nan"),
        ],
    )
    def test_senseless_ones_are_refused_before_any_call(self, decoder, pair, options, message):
        with pytest.raises(UsageError, match=message):
            certify(decoder(never), **{"pair": pair, "settings": PLAIN, **options})

    def test_an_unknown_subject(self):
        with pytest.raises(UsageError, match="unknown subject 'referense'"):
            certify("referense")

    def test_a_window_too_small(self, decoder, windowed):
        with pytest.raises(UsageError, match="the target's window holds 9"):
            certify(decoder(never), windowed, settings=PLAIN, num_draft_tokens=6)

    def test_a_greedy_subject_under_other_settings(self, decoder, pair):
        with pytest.raises(UsageError, match="declares the greedy algorithm"):
            certify(decoder(never, algorithm="greedy"), pair, settings=PLAIN)

    def test_settings_the_pair_cannot_have(self, decoder, pair):
        with pytest.raises(SettingsError, match="token id 9"):
            certify(decoder(never), pair, settings={"x": SamplingSettings(stop_token_ids=(9,))})

    def test_names_are_looked_up(self):
        certificate = certify("reference-block", "toy", settings=PLAIN, tokens=2_000)
        assert (certificate.subject.name, certificate.pair) == ("reference-block", "toy")
        assert certificate.subject.algorithm == "block"


def test_the_budget_is_shared_by_all_tests_of_all_cases(decoder, pair):
    settings = {**PLAIN, "cool": SamplingSettings(temperature=0.7)}
    certificate = certify(decoder(), pair, settings=settings, tokens=80_000)
    shares = [r.alpha for c in certificate.cases for r in c.tests if r.alpha is not None]
    idle = [n for c in certificate.cases for n in c.not_applicable]
    assert [n.property for n in idle] == ["joint.own_distributions"] * 2
    assert certificate.tests == len(shares) + len(idle)
    assert shares == [pytest.approx(certificate.alpha / 2 / certificate.tests)] * len(shares)
    assert certificate.log_e is not None
    assert certificate.log_e < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reference", "reference-block", "reference-match"])
def test_under_the_null_nothing_is_rejected_and_p_values_are_uniform(name):
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(30):
        certificate = certify(name, "toy", settings=PLAIN, tokens=12_000, seed=seed)
        assert certificate.verdict == "inconclusive", certificate.reason
        for record in certificate.cases[0].tests:
            if record.p_value is not None and record.df:
                found.setdefault((record.property, record.test or ""), []).append(record.p_value)
    assert {property for property, _ in found} >= {
        "joint.first_token",
        "joint.each_position",
        "joint.stopped_run",
    }
    for values in found.values():
        assert len(values) >= 25
        # Those by context may be larger than uniform, since their groups are mixtures.
        assert kstest(values, "uniform", alternative="greater").pvalue > 1e-3
    for property in ("joint.first_token", "joint.stopped_run"):
        assert kstest(found[property, "G"], "uniform").pvalue > 1e-3
