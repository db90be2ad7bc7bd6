"""The exact distribution of a rule on one round."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from specverify.certification.exact_calls import SteeredCalls, check_tokens
from specverify.certification.exact_edges import edge_coins_of
from specverify.certification.exact_evidence import (
    Comparison,
    ExactEvidence,
    RowsCompared,
    tolerance_of,
)
from specverify.certification.exact_rounds import RoundCase
from specverify.errors import CannotSteer, CoupledRandomness
from specverify.exact.compare_round import compare_round
from specverify.exact.distribution import JointDistribution
from specverify.exact.joint import total_variation
from specverify.exact.programs import SEPARATOR, program_distribution
from specverify.exact.round import Round
from specverify.exact.steer import joint_distribution
from specverify.subjects.protocols import Subject

MAXIMUM_RUNS = 600
"""Calls of a rule for one round: 360 for one that decides on after a rejection, all rows a call."""

Marginal = dict[tuple[int, ...], float]


def steer_rule(subject: Subject, case: RoundCase, seed: int, time_limit: float) -> ExactEvidence:
    """Compute what a rule emits in one round.

    Raises:
        CannotSteer: its randomness cannot be followed.
        SubjectError: it returned something malformed.
    """
    declared = subject.capabilities
    one_by_one = declared.coins is not None and not declared.batch
    calls = SteeredCalls(subject, time_limit, function=row_by_row(subject) if one_by_one else None)

    joint = joint_distribution(
        calls,
        case.round,
        coins=declared.coins,
        batch=declared.batch,
        generator=declared.generator,
        seed=seed,
        maximum_runs=MAXIMUM_RUNS,
    )
    check_tokens(subject, joint, case.round.vocab_size)
    comparison = Comparison.of_round(compare_round(case.round, joint.probabilities))
    to_target = None
    if declared.lossy is not None:
        to_target = comparison.total_variation
        comparison = Comparison.of_lossy_round(declared.lossy, case.round, joint)
    # What a lossy rule may emit is not what is possible for the target.
    edges = case.edge_coins and declared.lossy is None
    rows, sharing, unknown = None, None, None
    if case.rows_compared and declared.batch and declared.coins is None:
        try:
            rows = _compare_rows(calls, case.round, seed, generator=declared.generator)
        except CoupledRandomness as coupled:
            sharing = str(coupled)
        except CannotSteer as refusal:
            unknown = f"two rows cannot be followed in one call: {refusal}"
    return ExactEvidence(
        subject,
        case,
        joint,
        comparison,
        tolerance_of(subject, float64=case.round.dtype == torch.float64),
        case.round,
        rows,
        sharing,
        unknown,
        to_target,
        edge_coins_of(subject, case.round, seed, time_limit) if edges else None,
        calls.remarks(joint),
    )


def row_by_row(subject: Subject) -> Callable[..., Any]:
    """A rule of one row a call as one of many rows, which feeding coins asks for."""

    def kernel(*arguments: Any, **coins: Any) -> Any:
        rows = []
        for row in range(len(arguments[0])):
            part = slice(row, row + 1)
            own = [None if value is None else value[part] for value in arguments]
            fed = {name: value[part] for name, value in coins.items()}
            rows.append(subject.call(*own, **fed))
        return torch.cat(rows) if isinstance(rows[0], Tensor) else np.concatenate(rows)

    return kernel


def _compare_rows(
    calls: SteeredCalls, round: Round, seed: int, *, generator: bool
) -> RowsCompared | None:
    """Two rows that could share a coin with effect; None if one of them raises.

    Raises:
        CannotSteer: they cannot be followed together.
    """
    chosen = _doubtful_blocks(round)
    tokens, draft, target = round.inputs(chosen)

    def emits(rows: slice) -> JointDistribution:
        def program(source: Generator) -> Tensor:
            given = None if draft is None else draft[rows].clone()
            arguments = [tokens[rows].clone(), given, target[rows].clone()]
            return calls(*arguments, source) if generator else calls(*arguments)

        return program_distribution(program, seed=seed, maximum_runs=MAXIMUM_RUNS)

    both, first, second = emits(slice(2)), emits(slice(1)), emits(slice(1, 2))
    if both.crashes:
        return None
    upper, lower = _marginals(both)
    product = {
        (*a, SEPARATOR, *b): p * q for a, p in upper.items() for b, q in lower.items() if p * q > 0
    }
    return RowsCompared(
        tuple(map(tuple, chosen.tolist())),
        total_variation(both.probabilities, product),
        max(
            total_variation(upper, first.probabilities),
            total_variation(lower, second.probabilities),
        ),
    )


def _doubtful_blocks(round: Round) -> Tensor:
    """Two blocks with one first token, whose acceptance is as undecided as may be."""
    ratio = round.p(0)[0] / np.maximum(round.q(0)[0], np.finfo(np.float64).tiny)
    token = int(np.abs(np.minimum(ratio, 1.0) - 0.5).argmin())
    return round.blocks[round.blocks[:, 0] == token][:2]


def _marginals(both: JointDistribution) -> tuple[Marginal, Marginal]:
    upper: Marginal = {}
    lower: Marginal = {}
    for tokens, mass in both.probabilities.items():
        at = tokens.index(SEPARATOR)
        for marginal, key in ((upper, tokens[:at]), (lower, tokens[at + 1 :])):
            marginal[key] = marginal.get(key, 0.0) + mass
    return upper, lower
