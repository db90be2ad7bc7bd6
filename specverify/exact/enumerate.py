"""Exact distributions of autoregressive models and of the reference rules, by enumeration."""

import numpy as np
from numpy.typing import NDArray

from specverify.exact.closed_forms import Algorithm as Algorithm
from specverify.exact.closed_forms import accepted_tables, checked, emission_tables
from specverify.exact.conditional import Conditional, IsEnd
from specverify.exact.joint import Joint, Tokens, joint_of_block_kernel
from specverify.exact.prefix_tree import PrefixTree
from specverify.exact.round import Round
from specverify.exact.tuple_tables import autoregressive_table, to_dict


def round_distribution(algorithm: str, round: Round) -> dict[Tokens, float]:
    """What a reference rule emits in one round: accepted tokens, then correction or bonus token.

    Leviathan et al. 2023 (arXiv 2211.17192) for "token", Sun et al. 2024 (arXiv 2403.10444) for
    "block"; "match" draws from the target at every position and goes on while the draft agrees,
    "greedy" does so with the argmax.

    Args:
        algorithm: greedy, token, block or match.
        round: what the rule is handed.

    Returns:
        Tuples of 1 to K+1 tokens to probability, positive entries only; not completed.

    Raises:
        UsageError: no such algorithm.

    Example:
        >>> from specverify.exact.round import Round
        >>> pair = Round(lambda x: [[0.75, 0.25]] * len(x), lambda x: [[0.5, 0.5]] * len(x), 2, 1)
        >>> round_distribution("token", pair)
        {(0,): 0.25, (0, 0): 0.375, (0, 1): 0.125, (1, 0): 0.1875, (1, 1): 0.0625}
    """
    emitted: dict[Tokens, float] = {}
    for accepted, table in enumerate(emission_tables(algorithm, round)):
        emitted |= to_dict(table.reshape(-1), accepted + 1, round.vocab_size)
    return emitted


def acceptance_distribution(algorithm: str, round: Round) -> NDArray[np.float64]:
    """Probability that a reference rule accepts at least i draft tokens, for i = 0 to K.

    The sum over i from 1 is the expected number of accepted tokens (algorithms.md section 0, P5).

    Args:
        algorithm: greedy, token, block or match.
        round: what the rule is handed.

    Returns:
        float64 [K+1], the first 1.

    Raises:
        UsageError: no such algorithm.
    """
    return np.array([table.sum() for table in accepted_tables(algorithm, round)])


def expected_joint(round: Round) -> dict[Tokens, float]:
    """The target's distribution of exactly K+1 tokens, which a completed round must have."""
    length = round.num_draft_tokens + 1
    return to_dict(autoregressive_table(length, round.p), length, round.vocab_size)


def run_distribution(
    algorithm: str,
    target: Conditional,
    draft: Conditional,
    vocab_size: int,
    num_draft_tokens: int,
    length: int,
    is_end: IsEnd | None = None,
) -> dict[Tokens, float]:
    """What a whole run of a reference rule emits, round after round until it stops.

    Args:
        algorithm: greedy, token, block or match.
        target: next-token distributions, int64 [N, t] to [N, V]; every round drafts K tokens, so
            also asked beyond `length` and after prefixes that ended, for t up to length + K - 1.
        draft: the same for the draft.
        vocab_size: V.
        num_draft_tokens: K.
        length: tokens to follow a run for, at least 1.
        is_end: stopping rule on prefixes; none stop when omitted.

    Returns:
        Distribution over sequences that ended or have `length` tokens.

    Raises:
        UsageError: no such algorithm, or an argument that `Round` or `joint_of_block_kernel`
            refuses.
    """
    checked(algorithm)
    first = Round(target, draft, vocab_size, num_draft_tokens)

    def kernel(prefix: Tokens) -> Joint:
        return round_distribution(algorithm, first.after(prefix))

    return joint_of_block_kernel(kernel, length, is_end)


def autoregressive(
    target: Conditional, vocab_size: int, length: int, is_end: IsEnd | None = None
) -> dict[Tokens, float]:
    """What sampling token by token emits: sequences that ended or have `length` tokens.

    Arguments and errors as `PrefixTree.grow` has them.
    """
    return PrefixTree.grow(target, vocab_size, length, is_end).sequences()
