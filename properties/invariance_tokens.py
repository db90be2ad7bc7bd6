"""Chapter invariance, to how tokens are numbered: permuted or padded.

What is compared is a subject with itself, so that one that is lossy on purpose, or whose algorithm
is not known, can be asked too: whatever it emits, other ids must not change it.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.certification.exact_evidence import Comparison
from specverify.certification.exact_outcome import exact_numbers
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.relabelled import Relabelling
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.probes.suited import suited_round, suited_world
from specverify.certification.probes.world import World
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.exact.compare_round import completed
from specverify.exact.distribution import JointDistribution
from specverify.exact.joint import Joint
from specverify.exact.round import Round
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS, RULES

PERMUTED_OF_RULE = {
    "rotated": Relabelling((1, 2, 3, 0), 4),
    "reversed": Relabelling((3, 2, 1, 0), 4),
    "tied": Relabelling((1, 2, 3, 0), 4),
}
"""New ids by input; where rows are tied, many of their entries are equal."""
PERMUTED = {"rotated": Relabelling((1, 2, 0), 3), "reversed": Relabelling((2, 1, 0), 3)}
PADDED = {
    "end": Relabelling((0, 1, 2), 5),
    "middle": Relabelling((0, 2, 4), 5),
    "front": Relabelling((2, 3, 4), 5),
}
WIDE = Relabelling((40_000, 69_999), 70_000)
"""Ids that 16 bits do not hold, signed and unsigned."""


@register(
    "invariance.permuted_vocabulary_of_rule",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=tuple(PERMUTED_OF_RULE),
    lossy=True,
    why_kept="localises: says that ids decide where probabilities should",
)
def permuted_of_rule(trial: RuleTrial, alpha: float) -> Outcome:
    """If the vocabulary is permuted, what a round emits is permuted, and nothing else changes.

    Of rounds that are continued by the target: which tokens are accepted may well depend on ids.

    Why it holds: p and q are looked up by id, and no id means anything to a rule.

    What breaks it: ids taken for padding or for the end, a draw that favours one of two equal
    entries, a search that ends one token too early.

    Error rate: none where the round is computed; otherwise an e-process at its share, against the
    target.
    """
    tied = trial.input == "tied"
    base = _tied_round() if tied else Round.random(4, 1, seed=12)
    return _round_unchanged(
        trial, base, PERMUTED_OF_RULE[trial.input], f"a {trial.input} vocabulary"
    )


@register(
    "invariance.permuted_vocabulary",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=tuple(PERMUTED),
    needs=takes_tiny_models,
    why_kept="localises: says that ids decide where probabilities should",
)
def permuted(trial: DecoderTrial, alpha: float) -> Outcome:
    """If the vocabulary is permuted, what a run emits is permuted, and nothing else changes.

    Why it holds: both models are permuted alike, and the settings name no token.

    What breaks it: ids taken for padding or for the end of a text, buffers filled with an id.

    Error rate: none where the run is computed; otherwise an e-process at its share, against the
    target.
    """
    return _run_unchanged(trial, _world(), PERMUTED[trial.input], f"a {trial.input} vocabulary")


@register(
    "invariance.padded_vocabulary_of_rule",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=tuple(PADDED),
    lossy=True,
    why_kept="localises: says that ids behind the last token are drawn or counted",
)
def padded_of_rule(trial: RuleTrial, alpha: float) -> Outcome:
    """Ids of probability 0 change nothing of what a round emits, wherever they stand.

    Why it holds: they are neither drafted, nor accepted, nor in the residual.

    What breaks it: quantities that count the vocabulary (uniform mixtures, an epsilon in every
    entry), a draw that ends in the last entry, whatever its weight.

    Error rate: none where the round is computed; otherwise an e-process at its share, against the
    target.
    """
    what = f"impossible ids at the {trial.input}"
    return _round_unchanged(trial, Round.random(3, 1, seed=13), PADDED[trial.input], what)


@register(
    "invariance.padded_vocabulary",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=("end", "middle", "wide"),
    needs=takes_tiny_models,
    why_kept="localises: says that ids behind the last token are drawn or counted",
)
def padded(trial: DecoderTrial, alpha: float) -> Outcome:
    """Ids with logits of -inf change nothing of what a run emits, wherever they stand.

    In `wide`, ids are larger than 16 bits hold.

    Why it holds: they are impossible for both models.

    What breaks it: ids kept in a narrow dtype, logits cut to a fixed width, an epsilon in every
    entry.

    Error rate: none where the run is computed; otherwise an e-process at its share, against the
    target.
    """
    if trial.input == "wide":
        # A table of order 0, since one of order 1 has V^2 entries.
        rows = torch.tensor([[[0.4, 0.6]], [[1.0, 0.0]]], dtype=torch.float64).log()
        target, draft = (TableModel(row, 0) for row in rows)
        world = replace(_world(), target=target, draft=draft, prompts=((0, 1),))
        return _run_unchanged(trial, world, WIDE, "a vocabulary of 70,000 ids")
    return _run_unchanged(
        trial, _world(), PADDED[trial.input], f"impossible ids at the {trial.input}"
    )


def _world() -> World:
    return World(settings=SamplingSettings(max_new_tokens=2), num_draft_tokens=1)


def _tied_round() -> Round:
    """Equal entries in p, and in the residual of every row."""

    def constant(*row: float) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
        return lambda prefixes: np.tile(row, (len(prefixes), 1))

    return Round(constant(0.25, 0.25, 0.25, 0.25), constant(0.5, 0.25, 0.125, 0.125), 4, 1)


def _round_unchanged(trial: RuleTrial, base: Round, relabelling: Relabelling, what: str) -> Outcome:
    """Whether a completed round is the same under other ids."""
    base = suited_round(base, trial.subject)
    other = relabelling.round(base)
    outcome = trial.follows(other, f"one round over {what}")
    if not outcome.violations or outcome.tests:
        return outcome
    # It is not the target's: lossy, or wrong in a way that the ids may have nothing to do with.
    joints = [trial.joint(round) for round in (base, other)]
    if any(joint.crashes for joint in joints):
        return outcome
    before, after = (
        completed(round, joint.probabilities)
        for round, joint in zip((base, other), joints, strict=True)
    )
    expected = relabelling.joint(before)
    return _compared(after, expected, joints[1], trial.tolerance(base), f"a round over {what}")


def _run_unchanged(
    trial: DecoderTrial, base: World, relabelling: Relabelling, what: str
) -> Outcome:
    """Whether a run is the same under other ids."""
    base = suited_world(base, trial.subject)
    other = relabelling.world(base)
    outcome = trial.follows(other, f"a run over {what}")
    if not outcome.violations or outcome.tests:
        return outcome
    joints = [trial.joint(world) for world in (base, other)]
    if any(joint.crashes for joint in joints):
        return outcome
    expected = relabelling.joint(joints[0].probabilities)
    return _compared(
        joints[1].probabilities, expected, joints[1], trial.tolerance, f"a run over {what}"
    )


def _compared(
    observed: Joint, expected: Joint, joint: JointDistribution, tolerance: float, what: str
) -> Outcome:
    compared = Comparison.of_runs(observed, expected, 0.0)
    violations = ()
    if compared.certain > tolerance:
        violations = (
            f"{what} is {compared.certain:.6g} in TV from the same with its former ids; those of "
            f"an implementation to which ids mean nothing stay below {tolerance:g}",
        )
    return Outcome(
        violations=violations, details={"exact": exact_numbers(compared, joint, tolerance)}
    )
