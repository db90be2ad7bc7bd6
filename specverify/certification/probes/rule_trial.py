"""What a probed property may do with a rule: compute one round, or call it."""

import numpy as np
import torch
from torch import Generator, Tensor

from specverify.certification.exact_calls import SteeredCalls, check_tokens
from specverify.certification.exact_evidence import Comparison, tolerance_of
from specverify.certification.exact_outcome import distance_outcome, unless_crashed
from specverify.certification.exact_rule import MAXIMUM_RUNS, row_by_row
from specverify.certification.probes.sampled import sampled_outcome
from specverify.certification.probes.trial import Trial
from specverify.certification.registry import Outcome
from specverify.errors import CannotSteer
from specverify.exact.compare_round import compare_round
from specverify.exact.distribution import JointDistribution
from specverify.exact.round import Round
from specverify.exact.steer import joint_distribution
from specverify.subjects.calling import call_rule

SAMPLED_ROWS = 20_000
"""Rounds sampled where they cannot be computed."""


class RuleTrial(Trial):
    """A property of a rule on one of its inputs."""

    def joint(self, round: Round) -> JointDistribution:
        """What the rule emits in one round, before it is completed.

        Raises:
            CannotSteer: its randomness cannot be followed.
            SubjectError: it returned something malformed.
        """
        declared = self.subject.capabilities
        one_by_one = declared.coins is not None and not declared.batch
        function = row_by_row(self.subject) if one_by_one else None
        calls = SteeredCalls(self.subject, self.time_limit, function=function)
        joint = joint_distribution(
            calls,
            round,
            coins=declared.coins,
            batch=declared.batch,
            generator=declared.generator,
            seed=self.seed,
            maximum_runs=MAXIMUM_RUNS,
        )
        check_tokens(self.subject, joint, round.vocab_size)
        self.note(calls.remarks(joint))
        return joint

    def tolerance(self, round: Round) -> float:
        """Largest total variation of a right rule on this round."""
        return tolerance_of(self.subject, float64=round.dtype == torch.float64)

    def follows(self, round: Round, what: str) -> Outcome:
        """Whether a round, completed by the target, has the target's joint distribution.

        It is computed, or sampled where it cannot be. A rule with a lossy contract is held against
        that, and only where it can be computed.

        Args:
            round: what the rule is handed.
            what: the input in words, for a reader.
        """
        try:
            joint = self.joint(round)
        except CannotSteer:
            if self.subject.capabilities.lossy is not None:
                raise
            return self._sampled(round, what)
        contract = self.subject.capabilities.lossy
        if contract is None:
            compared = Comparison.of_round(compare_round(round, joint.probabilities))
        else:
            compared = Comparison.of_lossy_round(contract, round, joint)
        outcome = distance_outcome(compared, joint, self.tolerance(round), what)
        return unless_crashed(outcome, joint)

    def call(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        generator: Generator,
    ) -> Tensor:
        """Emitted tokens, long [B, K+1]; see `call_rule`."""
        result = call_rule(
            self.subject,
            draft_tokens,
            draft_probs,
            target_probs,
            generator,
            time_limit=self.time_limit,
        )
        self.note(result.findings)
        return result.value

    def _sampled(self, round: Round, what: str) -> Outcome:
        rng = np.random.default_rng([self.seed, *self.id.encode()])
        chosen = rng.choice(len(round.blocks), SAMPLED_ROWS, p=_normalised(round))
        tokens = self.call(*round.inputs(round.blocks[torch.from_numpy(chosen)]), self.generator())
        runs = completed(round, tokens.numpy(), rng)
        powers = round.vocab_size ** np.arange(round.num_draft_tokens, -1, -1)
        law = np.ones(1)
        for depth in range(round.num_draft_tokens + 1):
            law = (law[:, None] * round.p(depth)).reshape(-1)
        counts = np.bincount(runs @ powers, minlength=len(law))
        return sampled_outcome(
            [counts],
            [law],
            what,
            tokens=round.num_draft_tokens + 1,
            coin_dtype=self.subject.capabilities.coin_dtype,
            share=self.share,
        )


def _normalised(round: Round) -> np.ndarray:
    return round.block_probabilities / round.block_probabilities.sum()


def completed(round: Round, tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rounds [N, K+1] continued from the target where they are shorter."""
    runs = tokens.copy()
    for depth in range(round.num_draft_tokens + 1):
        rows = np.flatnonzero(runs[:, depth] < 0)
        if len(rows):
            laws = round.completed_target(runs[rows, :depth])
            drawn = (laws.cumsum(1) <= rng.random((len(rows), 1))).sum(1)
            runs[rows, depth] = np.minimum(drawn, round.vocab_size - 1)
    return runs
