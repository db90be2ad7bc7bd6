"""What a rule does with each draft block: accepted tokens, correction and bonus token.

A round averages over the blocks. Given the block, the declared algorithm has a closed form too, and
says how the correction depends on the token that was rejected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from specverify.certification.exact_calls import SteeredCalls, check_tokens
from specverify.certification.exact_evidence import Comparison
from specverify.certification.exact_outcome import exact_numbers, unless_crashed
from specverify.certification.exact_rule import MAXIMUM_RUNS
from specverify.certification.probes.rule_trial import SAMPLED_ROWS, RuleTrial
from specverify.certification.probes.sampled import sampled_outcome
from specverify.certification.probes.suited import suited_round
from specverify.certification.registry import Outcome
from specverify.errors import CannotSteer
from specverify.exact.distribution import JointDistribution
from specverify.exact.given_block import emission_given_block
from specverify.exact.joint import Tokens
from specverify.exact.programs import SEPARATOR, program_distribution
from specverify.exact.round import Round

Array = NDArray[np.float64]
Part = Literal["acceptance", "correction", "bonus"]

INPUTS = {"K1": (4, 1), "K2": (4, 2)}
"""V and K by input: on fewer tokens a token that may be rejected leaves one correction only."""
REPLAYS = 1
"""Paths that are taken again for each block; there are some twenty."""
_SEED = 29


@dataclass(frozen=True)
class Stratum:
    """Outcomes that are held against one law: those of a block, or of a block and a length."""

    block: Tokens
    drafted: float
    """Probability of the block."""
    outcomes: tuple[Tokens, ...]
    observed: Array
    """[cells]: probabilities given the block, or samples."""
    expected: Array
    """[cells], summing to 1."""


@dataclass(frozen=True)
class GivenBlocks:
    """What a rule emits for each block of a round."""

    trial: RuleTrial
    round: Round
    emitted: Array
    """[B, K+1, V]: probability, or samples, of i accepted tokens and y after them."""
    other: Array
    """[B]: of anything else."""
    computed: JointDistribution | None
    """All blocks together; None where they are sampled."""

    def strata(self, algorithm: str, part: Part) -> Iterator[Stratum]:
        """What is judged of an algorithm; lengths that it never comes to are left out."""
        tokens, q, p = self.round.inputs(self.round.blocks)
        assert q is not None
        table = emission_given_block(
            algorithm, tokens.numpy(), q.double().numpy(), p.double().numpy()
        )
        width, size = self.round.num_draft_tokens, self.round.vocab_size
        for row, block in enumerate(map(tuple, tokens.tolist())):
            drafted = float(self.round.block_probabilities[row])
            if part == "acceptance":
                # What is no beginning of the block and one token more stands as a token of its own.
                outcomes = (*(block[:i] for i in range(width + 1)), (size,))
                observed = np.append(self.emitted[row].sum(1), self.other[row])
                law = np.append(table[row].sum(1), 0.0)
                yield Stratum(block, drafted, outcomes, observed, law)
                continue
            for i in (width,) if part == "bonus" else range(width):
                total = table[row, i].sum()
                if total > 0:
                    outcomes = tuple((*block[:i], token) for token in range(size))
                    law = table[row, i] / total
                    yield Stratum(block, drafted, outcomes, self.emitted[row, i], law)

    def follows(self, algorithm: str, part: Part) -> Outcome:
        """Whether a part of what is emitted has the law of an algorithm."""
        strata = list(self.strata(algorithm, part))
        if self.computed is None:
            return sampled_outcome(
                [stratum.observed.astype(np.int64) for stratum in strata],
                [stratum.expected for stratum in strata],
                f"rounds of given draft blocks, {self.round.num_draft_tokens} tokens each",
                tokens=self.round.num_draft_tokens + 1,
                coin_dtype=self.trial.subject.capabilities.coin_dtype,
                share=self.trial.share,
            )
        compared = _compared(strata, sum(self.computed.crashes.values()))
        tolerance = self.trial.tolerance(self.round)
        violations: tuple[str, ...] = ()
        if compared.certain > tolerance:
            violations = (_said(compared, algorithm, part, self.round.vocab_size),)
        details = {"exact": exact_numbers(compared, self.computed, tolerance)}
        return unless_crashed(Outcome(violations=violations, details=details), self.computed)

    def alike(self, algorithms: Sequence[str], part: Part) -> list[str]:
        """Which algorithms a computed part agrees with."""
        tolerance = self.trial.tolerance(self.round)
        return [
            algorithm
            for algorithm in algorithms
            if _compared(list(self.strata(algorithm, part)), 0.0).total_variation <= tolerance
        ]


def given_blocks(trial: RuleTrial) -> GivenBlocks:
    """Compute, or sample where that is impossible, what a rule emits for each block of a round.

    Raises:
        SubjectError: it returned something malformed.
    """
    size, count = INPUTS[trial.input]
    round = suited_round(Round.random(size, count, seed=_SEED), trial.subject)
    laws = _laws(trial, round)
    computed = None if laws is None else _together(laws, round)
    masses: Sequence[Mapping[Tokens, float]]
    masses = _sampled(trial, round) if laws is None else [law.probabilities for law in laws]
    emitted = np.zeros((len(round.blocks), count + 1, size))
    other = np.zeros(len(round.blocks))
    for row, block in enumerate(map(tuple, round.blocks.tolist())):
        for tokens, mass in masses[row].items():
            accepted = len(tokens) - 1
            if tokens[:-1] == block[:accepted]:
                emitted[row, accepted, tokens[-1]] += mass
            else:
                other[row] += mass
    return GivenBlocks(trial, round, emitted, other, computed)


def _laws(trial: RuleTrial, round: Round) -> list[JointDistribution] | None:
    """What follows each block; None where it cannot be computed."""
    if trial.subject.capabilities.coins is not None:
        return None
    try:
        return [_computed(trial, round, block) for block in round.blocks]
    except CannotSteer:
        return None


def _computed(trial: RuleTrial, round: Round, block: Tensor) -> JointDistribution:
    calls = SteeredCalls(trial.subject, trial.time_limit)
    tokens, q, p = round.inputs(block[None])

    def program(source: Generator) -> Tensor:
        arguments = [tokens.clone(), None if q is None else q.clone(), p.clone()]
        generator = trial.subject.capabilities.generator
        return calls(*arguments, source) if generator else calls(*arguments)

    joint = program_distribution(
        program, seed=trial.seed, maximum_runs=MAXIMUM_RUNS, replays=REPLAYS
    )
    check_tokens(trial.subject, joint, round.vocab_size)
    trial.note(calls.remarks(joint))
    return joint


def _together(laws: Sequence[JointDistribution], round: Round) -> JointDistribution:
    """What steering all blocks came to; masses are those of a block and what it is followed by."""
    emitted: dict[Tokens, float] = {}
    crashes: dict[str, float] = {}
    for block, drafted, law in zip(
        round.blocks.tolist(), round.block_probabilities.tolist(), laws, strict=True
    ):
        for tokens, mass in law.probabilities.items():
            emitted[(*block, SEPARATOR, *tokens)] = drafted * mass
        for text, mass in law.crashes.items():
            crashes[text] = crashes.get(text, 0.0) + drafted * mass
    return JointDistribution(emitted, "branching", sum(law.runs for law in laws), crashes)


def _sampled(trial: RuleTrial, round: Round) -> list[dict[Tokens, float]]:
    """Samples by emitted tokens, as many for each block."""
    blocks = len(round.blocks)
    chosen = torch.arange(SAMPLED_ROWS) % blocks
    rows = trial.call(*round.inputs(round.blocks[chosen]), trial.generator()).tolist()
    found: list[dict[Tokens, float]] = [{} for _ in range(blocks)]
    for block, row in zip(chosen.tolist(), rows, strict=True):
        tokens = tuple(token for token in row if token >= 0)
        found[block][tokens] = found[block].get(tokens, 0.0) + 1.0
    return found


def _compared(strata: Sequence[Stratum], missing: float) -> Comparison:
    """Strata together, each weighted with what is observed in it."""
    observed: dict[Tokens, float] = {}
    expected: dict[Tokens, float] = {}
    for stratum in strata:
        weight = stratum.drafted * stratum.observed.sum()
        for outcome, found, law in zip(
            stratum.outcomes, stratum.observed.tolist(), stratum.expected.tolist(), strict=True
        ):
            key = (*stratum.block, SEPARATOR, *outcome)
            observed[key] = stratum.drafted * found
            expected[key] = weight * law
    return Comparison.of_runs(observed, expected, missing)


def _said(compared: Comparison, algorithm: str, part: Part, vocab_size: int) -> str:
    worst = compared.worst[0]
    at = worst.tokens.index(SEPARATOR)
    block, rest = list(worst.tokens[:at]), list(worst.tokens[at + 1 :])
    numbers = (
        f"has probability {worst.observed:.6g}, and {worst.expected:.6g} under {algorithm!r} (TV "
        f"{compared.certain:.3g} over all draft blocks)"
    )
    if part != "acceptance":
        return f"{rest[-1]} as the {part} after {rest[:-1]} of the draft block {block} {numbers}"
    if rest == [vocab_size]:
        return f"what is no beginning of the draft block {block} and one token {numbers}"
    return f"that exactly {rest} of the draft block {block} is accepted {numbers}"
