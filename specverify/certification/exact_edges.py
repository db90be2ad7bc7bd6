"""A rule run for real with its coins at the ends of every interval."""

from dataclasses import dataclass

from torch import Generator, Tensor

from specverify.certification.exact_calls import SteeredCalls
from specverify.errors import CannotSteer
from specverify.exact.edge_coins import EdgeSummary, edge_coin_outcomes, summary
from specverify.exact.round import Round
from specverify.subjects.protocols import Subject

MAXIMUM_CALLS = 4_000


@dataclass(frozen=True)
class EdgeCoins:
    """What extreme coins led to in one round."""

    outcomes: tuple[EdgeSummary, ...] = ()
    """By kind, coin and value."""
    unknown: str | None = None
    """Why they could not be chosen; then there are no outcomes."""


def edge_coins_of(subject: Subject, round: Round, seed: int, time_limit: float) -> EdgeCoins:
    """Run a rule with chosen coins.

    Args:
        subject: of kind rule.
        round: a small one.
        seed: of whatever is not chosen.
        time_limit: seconds for a single call.

    Raises:
        SubjectError: it returned something malformed.
    """
    declared = subject.capabilities
    if declared.coins is not None:
        return EdgeCoins(unknown="it is handed its coins, all of whose values are told apart")
    calls = SteeredCalls(subject, time_limit)

    def rule(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        arguments = (tokens, q, p)
        return calls(*arguments, generator) if declared.generator else calls(*arguments)

    try:
        outcomes = edge_coin_outcomes(
            rule, round, batch=declared.batch, seed=seed, maximum_calls=MAXIMUM_CALLS
        )
    except CannotSteer as refusal:
        return EdgeCoins(unknown=f"its coins cannot be chosen one by one: {refusal}")
    return EdgeCoins(summary(outcomes))
