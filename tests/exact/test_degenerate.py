import numpy as np
import pytest
import torch
from transformers.generation.utils import _speculative_sampling

from specverify.errors import UsageError
from specverify.exact import Round
from specverify.exact.degenerate import degenerate_outcomes
from specverify.exact.degenerate_inputs import degenerate_rounds, degenerate_rows
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.verification import get_verification

MUTANTS = {mutant.id: mutant.subject.call for mutant in RULE_MUTANTS}
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]

CERTAIN = "one-hot p and q, different tokens"
"""Every draft token is one that the target cannot emit."""

OFF_TARGET = {
    "one-hot p",
    "one-hot p, last token",
    CERTAIN,
    "p(x) = 0, first token",
    "p(x) = 0, last token",
    "disjoint supports",
    "logit -inf in p and q, different tokens",
}
"""Where the draft proposes tokens that the target cannot emit."""


def reference(algorithm):
    verification = get_verification(algorithm)
    return lambda tokens, q, p, generator: verification(tokens, q, p, generator).tokens


def published(tokens, q, p, generator):
    """The rule of transformers, which takes one row of logits and the global generator."""
    width = tokens.shape[1]
    emitted, _ = _speculative_sampling(tokens, q.log(), width, p.log())
    return torch.nn.functional.pad(emitted, (0, width + 1 - emitted.shape[1]), value=-1)


def base(num_draft_tokens=1, dtype=torch.float64) -> Round:
    return Round.random(3, num_draft_tokens, seed=1, dtype=dtype)


def wrong(outcomes):
    return {(o.name, o.position): o for o in outcomes if o.kind != "right"}


def first_only(draw):
    """A rule that emits one token, drawn from some weights of the first position."""

    def rule(tokens, q, p, generator):
        last = torch.multinomial(draw(q[:, 0], p[:, 0]), 1, generator=generator)
        return torch.cat([last, torch.full_like(tokens, -1)], 1)

    return rule


@pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [
        ("token", torch.float64),
        ("block", torch.float64),
        ("match", torch.float64),
        ("token", torch.float32),
        ("block", torch.bfloat16),
    ],
)
def test_reference_rules_are_right_on_all_of_them(algorithm, dtype):
    outcomes = degenerate_outcomes(reference(algorithm), base(dtype=dtype), batch=False)
    assert not wrong(outcomes)
    refused = {outcome.name for outcome in outcomes if outcome.detail}
    assert refused == {
        "NaN in q at the drafted token",
        "NaN in q beside the drafted token",
        "NaN in all of q",
    }


@pytest.mark.slow
def test_rows_of_a_batch_and_every_position():
    outcomes = degenerate_outcomes(reference("token"), base(2))
    assert not wrong(outcomes)
    assert {outcome.position for outcome in outcomes} == {0, 1, 2}


def test_the_published_rule():
    found = wrong(degenerate_outcomes(published, base(), batch=False))
    findings = {name for (name, _), outcome in found.items() if outcome.kind == "finding"}
    crashes = {name for (name, _), outcome in found.items() if outcome.kind == "crash"}
    assert findings == OFF_TARGET
    assert found[CERTAIN, 0].mass == 2**-53
    assert crashes == {
        "NaN in q at the drafted token",
        "NaN in q beside the drafted token",
        "NaN in all of q",
    }


def test_the_closed_test_accepts_what_the_target_cannot_emit():
    found = wrong(degenerate_outcomes(MUTANTS["test-closed"], base(), batch=False))
    impossible = "p(x) = q(x) = 0 at the drafted token"
    assert {name for name, _ in found} == {*OFF_TARGET, impossible}
    assert {outcome.kind for outcome in found.values()} == {"finding"}
    assert found[CERTAIN, 0].mass == found[impossible, 0].mass == 2**-24
    mass = found["p(x) = 0, first token", 0].mass
    assert mass == pytest.approx(base().q(0)[0, 0] * 2**-24, rel=1e-12)


def test_a_guarded_closed_test_passes():
    """Look-alike of the closed test, with a residual that cannot be empty."""

    def guarded(tokens, q, p, generator):
        index = tokens[..., None]
        px, qx = p[:, :1].gather(2, index)[..., 0], q.gather(2, index)[..., 0]
        u = torch.rand(tokens.shape, generator=generator)
        accepted = (u <= px / qx) & (px > 0)
        residual = (p[:, 0] - q[:, 0]).clamp(min=0).nan_to_num(0.0)
        residual = torch.where(residual.sum(1, keepdim=True) > 0, residual, p[:, 0])
        weights = torch.where(accepted, p[:, 1], residual)
        last = torch.multinomial(weights, 1, generator=generator)
        pair = torch.cat([tokens, last], 1)
        return torch.where(accepted, pair, torch.cat([last, torch.full_like(last, -1)], 1))

    assert not wrong(degenerate_outcomes(guarded, base(), batch=False))


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [("residual-clamped", "violation"), ("residual-clamped-below-rounding", "finding")],
)
def test_a_clamped_residual_by_its_size(mutant, kind):
    found = wrong(degenerate_outcomes(MUTANTS[mutant], base(), batch=False))
    assert {found[name, 0].kind for name in OFF_TARGET} == {kind}
    assert found[CERTAIN, 0].detail.endswith("which the target cannot")


def test_an_emptied_residual_crashes_with_exact_mass():
    found = wrong(degenerate_outcomes(MUTANTS["residual-unchecked"], base(), batch=False))
    ((name, position),) = found
    outcome = found[name, position]
    assert (name, position, outcome.kind) == ("residual rounds to zero", 0, "crash")
    case = next(case for case in degenerate_rounds(base()) if case.name == name)
    p, q = (rows[0][0].numpy() for rows in (case.round.handed_target, case.round.handed_draft))
    rejecting = np.ceil((1 - p / q) * 2**53) * 2**-53
    assert outcome.mass == pytest.approx(float((case.round.q(0)[0] * rejecting).sum()), rel=1e-9)


def test_a_nan_may_not_lead_outside_the_target():
    ignoring = degenerate_outcomes(first_only(lambda q, p: p), base(), batch=False)
    assert not wrong(ignoring)
    patched = first_only(lambda q, p: torch.where(q.isnan().any(), torch.eye(3)[:1].double(), p))
    assert not wrong(degenerate_outcomes(patched, base(), batch=False))

    def beyond(tokens, q, p, generator):
        return torch.where(q.isnan().any(), 3, first_only(lambda q, p: p)(tokens, q, p, generator))

    found = wrong(degenerate_outcomes(beyond, base(), batch=False))
    assert {name for name, _ in found} == {
        "NaN in q at the drafted token",
        "NaN in q beside the drafted token",
        "NaN in all of q",
    }
    assert {(o.kind, o.mass) for o in found.values()} == {("violation", 1.0)}


def test_an_error_that_depends_on_the_coins_is_no_refusal():
    def checking(tokens, q, p, generator):
        coin = torch.rand((), dtype=torch.float64, generator=generator)
        if bool(q.isnan().any()) and bool(coin < 0.25):
            raise ValueError("NaN in q")
        return first_only(lambda q, p: p)(tokens, q, p, generator)

    found = wrong(degenerate_outcomes(checking, base(), batch=False))
    assert len(found) == 3
    assert {(o.kind, o.mass) for o in found.values()} == {("crash", 0.25)}


def test_another_distribution_is_a_violation_with_its_total_variation():
    found = wrong(degenerate_outcomes(first_only(lambda q, p: q), base(), batch=False))
    case = next(case for case in degenerate_rounds(base()) if case.name == "q(x) = 0")
    outcome = found["q(x) = 0", 0]
    difference = np.abs(case.round.p(0) - case.round.q(0)).sum() / 2
    assert (outcome.kind, outcome.mass) == ("violation", pytest.approx(difference))
    assert ("p = q", 0) not in found


def test_what_cannot_be_steered_is_unknown():
    def numpy(tokens, q, p, generator):
        torch.rand(1, generator=generator).numpy()
        return tokens

    outcomes = degenerate_outcomes(numpy, base(), batch=False)
    assert {outcome.kind for outcome in outcomes} == {"unknown"}
    assert all("numpy" in outcome.detail for outcome in outcomes)


def test_a_rule_that_always_raises_crashes_on_everything():
    def raising(tokens, q, p, generator):
        raise RuntimeError("no kernel image")

    outcomes = degenerate_outcomes(raising, base(), batch=False)
    assert {(outcome.kind, outcome.detail) for outcome in outcomes} == {
        ("crash", "RuntimeError: no kernel image")
    }
    assert all(outcome.mass == pytest.approx(1) for outcome in outcomes)


def test_a_wrong_shape_is_a_violation():
    outcomes = degenerate_outcomes(lambda tokens, q, p, generator: tokens, base(), batch=False)
    assert "right" not in {outcome.kind for outcome in outcomes}
    assert all("shape" in outcome.detail for outcome in outcomes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_what_their_names_say(dtype):
    cases = {(case.name, case.position): case.round for case in degenerate_rounds(base(2, dtype))}
    tiny = torch.finfo(dtype).tiny
    for depth in (0, 1):
        rows = {
            name: (round.handed_target[depth], round.handed_draft[depth])
            for (name, position), round in cases.items()
            if position == depth
        }
        p, q = rows["p = q"]
        assert torch.equal(p, q)
        p, q = rows["residual rounds to zero"]
        assert ((p - q).clamp(min=0) == 0).all()
        assert ((q > p).sum(1) == 1).all()
        p, q = rows["residual of one ulp"]
        assert (((p - q) > 0).sum(1) == 1).all()
        assert (q > p).sum() == 0
        for name, which in (("subnormal p(x)", 0), ("subnormal q(x)", 1)):
            assert ((rows[name][which][:, 0] > 0) & (rows[name][which][:, 0] < tiny)).all()
        p, q = rows["disjoint supports"]
        assert (p * q == 0).all()
        p, q = rows["logit -inf in p and q, different tokens"]
        assert (p[:, 0] == 0).all()
        assert (q[:, -1] == 0).all()
        assert (rows["q(x) = 0"][1][:, 0] == 0).all()
        p, q = rows[CERTAIN]
        assert (p.max(1).values == 1).all()
        assert (p.argmax(1) != q.argmax(1)).all()
    assert (cases["p(x) = 0, last token", 2].handed_target[2][:, -1] == 0).all()


def test_other_positions_keep_their_rows():
    plain = base(2)
    for case in degenerate_rounds(plain):
        for depth in {0, 1, 2} - {case.position}:
            assert torch.equal(case.round.handed_target[depth], plain.handed_target[depth])


def test_rows_that_no_draft_hands_over():
    rows = {(row.name, row.position): row for row in degenerate_rows(base(2))}
    assert len(rows) == 10
    for (name, position), row in rows.items():
        drafted = row.draft_probs[0, position, row.draft_tokens[0, position]]
        wanted = row.target_probs[0, position, row.draft_tokens[0, position]]
        if name.startswith("NaN"):
            assert row.draft_probs[0, position].isnan().any()
            assert bool(drafted.isnan()) == ("beside" not in name)
        else:
            assert drafted == 0
            assert (wanted == 0) == name.startswith("p(x)")
        assert row.draft_probs[0, 1 - position].isfinite().all()
        assert row.target_probs.sum(2).sub(1).abs().max() < 1e-12


def test_rounds_that_cannot_be_made_degenerate():
    with pytest.raises(UsageError, match="got 1 tokens"):
        degenerate_rounds(Round.random(1, 1))
    uniform = Round.random(3, 1)
    hot = Round(uniform.target, uniform.draft, 3, 1, one_hot=True)
    with pytest.raises(UsageError, match="one_hot=True"):
        degenerate_rounds(hot)
