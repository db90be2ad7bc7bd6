"""The exact joint distribution of what an implementation emits: the one function most need."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Generator, Tensor

from specverify.errors import CannotSteer, OutsideRandomness, RowsDepend, UsageError
from specverify.exact.branching import MAXIMUM_RUNS
from specverify.exact.coins import Coins, fed_distribution
from specverify.exact.distribution import JointDistribution
from specverify.exact.forcing import Rule, branched_distribution, forced_distribution
from specverify.exact.programs import program_distribution
from specverify.exact.round import Round
from specverify.quoting import a_type


def joint_distribution(
    subject: Any,
    inputs: Round | tuple[Any, ...] = (),
    *,
    coins: Coins | None = None,
    batch: bool | None = None,
    generator: bool | None = None,
    seed: int = 0,
    maximum_runs: int = MAXIMUM_RUNS,
) -> JointDistribution:
    """Compute what an implementation emits, without sampling.

    Its own randomness is steered: every decision it takes is followed both ways, with the exact
    probability of each (design.md section 6).

    Args:
        subject: a verification rule, if `inputs` is a `Round`: called as
            `f(draft_tokens [B, K], draft_probs [B, K, V], target_probs [B, K+1, V], generator)`, it
            returns the emitted tokens [B, K+1], padded right with -1. Otherwise any function that
            returns the tokens it emits, [B, L] or [L]. A specverify `Subject` brings along what it
            declares.
        inputs: the `Round` whose draft blocks a rule verifies, or the arguments of the function;
            the generator follows them as the last one.
        coins: for a rule that takes its uniforms as keyword arguments, see `exact.coins`.
        batch: whether a rule takes more than one row a call; as declared, else True.
        generator: whether the generator is passed; as declared, else True. Without it the subject
            is expected to draw from torch's global one.
        seed: of checks and of whatever is not steered.
        maximum_runs: calls after which to give up.

    Returns:
        The distribution of what one call emits; for a `Round`, of the tuple one round emits, with
        its draft blocks drawn from the draft. Compare it by `compare_round` or
        `joint.total_variation`.

    Raises:
        CannotSteer: its randomness cannot be followed; the message names operation and line. Its
            output can still be sampled.
        MalformedOutput: it returns something else than token ids of that shape.
        UsageError: the subject cannot be called.

    Example:
        >>> import torch
        >>> from specverify.exact import Round, compare_round, joint_distribution
        >>> def rule(tokens, q, p, generator):
        ...     index = tokens[..., None]
        ...     ratio = p[:, :-1].gather(2, index) / q.gather(2, index)
        ...     coins = torch.rand(tokens.shape, dtype=p.dtype, generator=generator)
        ...     n = (coins < ratio[..., 0]).long().cumprod(1).sum(1)
        ...     weights = torch.cat([(p[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)
        ...     last = torch.multinomial(weights[range(len(n)), n], 1, generator=generator)
        ...     out = torch.cat([tokens, last], 1).scatter(1, n[:, None], last)
        ...     return out.masked_fill(torch.arange(out.shape[1]) > n[:, None], -1)
        >>> round = Round.random(vocab_size=4, num_draft_tokens=2)
        >>> joint = joint_distribution(rule, round)
        >>> joint.method, abs(joint.total - 1) < 1e-12
        ('forcing', True)
        >>> compare_round(round, joint.probabilities).total_variation < 1e-12
        True
        >>> p = torch.tensor([0.25, 0.75], dtype=torch.float64)
        >>> joint_distribution(lambda g: torch.multinomial(p, 1, generator=g)).probabilities
        {(0,): 0.25, (1,): 0.75}
    """
    call = getattr(subject, "call", subject)
    if not callable(call):
        raise UsageError(f"the subject is {a_type(call)}, which cannot be called")
    declared = getattr(subject, "capabilities", None)
    if not isinstance(inputs, (Round, tuple)):
        raise UsageError(
            f"inputs is {a_type(inputs)}; give a Round for a verification rule, or a "
            "tuple of the arguments of any other function"
        )
    coins = coins or getattr(declared, "coins", None)
    batch = bool(getattr(declared, "batch", True)) if batch is None else batch
    generator = bool(getattr(declared, "generator", True)) if generator is None else generator
    if coins is None:
        _check_call(call, 3 if isinstance(inputs, Round) else len(inputs), generator=generator)
    if not isinstance(inputs, Round):
        program = _program(call, inputs, passes_generator=generator)
        return program_distribution(program, seed=seed, maximum_runs=maximum_runs)
    if coins is not None:
        return fed_distribution(call, inputs, coins, seed=seed)
    rule = _rule(call, passes_generator=generator)
    if not batch:
        return branched_distribution(rule, inputs, seed=seed, maximum_runs=maximum_runs)
    try:
        return forced_distribution(rule, inputs, seed=seed, maximum_runs=maximum_runs)
    except OutsideRandomness:
        raise
    except CannotSteer as error:
        joint = branched_distribution(rule, inputs, seed=seed, maximum_runs=maximum_runs)
        return replace(joint, alone=str(error), rows_depend=isinstance(error, RowsDepend))


def _check_call(call: Callable[..., Any], arguments: int, *, generator: bool) -> None:
    """Refuse a function whose signature does not take what it will be called with."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # built-in functions do not all tell
    try:
        signature.bind(*[None] * (arguments + generator))
    except TypeError as error:
        last = " and the generator" if generator else ""
        raise UsageError(
            f"the subject takes {signature}, but is called with {arguments} arguments{last}: "
            f"{error}"
        ) from None


def _rule(call: Callable[..., Any], *, passes_generator: bool) -> Rule:
    return call if passes_generator else (lambda tokens, q, p, _: call(tokens, q, p))


def _program(
    call: Callable[..., Any], arguments: tuple[Any, ...], *, passes_generator: bool
) -> Callable[[Generator], Tensor]:
    def program(source: Generator) -> Tensor:
        value = call(*arguments, source) if passes_generator else call(*arguments)
        tokens = getattr(value, "tokens", value)
        return tokens[None] if isinstance(tokens, Tensor) and tokens.dim() == 1 else tokens

    return program
