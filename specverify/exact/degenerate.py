"""What a rule does with degenerate inputs: equal, one-hot, zero, subnormal and NaN entries."""

import math
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from specverify.errors import CannotSteer, SubjectError
from specverify.exact.branching import MAXIMUM_RUNS, Crash, Exploration
from specverify.exact.compare_round import compare_round
from specverify.exact.degenerate_inputs import DegenerateRow, degenerate_rounds, degenerate_rows
from specverify.exact.edge_coins import TOLERANCE
from specverify.exact.forcing import Rule, emitted
from specverify.exact.outcomes import check_padding, spread
from specverify.exact.round import Round
from specverify.exact.steer import joint_distribution
from specverify.exact.steering.outside import outside_randomness
from specverify.exact.steering.pinned import Pins, pinned

Kind = Literal["right", "finding", "violation", "crash", "unknown"]


@dataclass(frozen=True)
class DegenerateOutcome:
    """What one degenerate input leads to."""

    name: str
    """Of the input, see `degenerate_inputs`."""
    position: int
    """Where the input is degenerate, from 0; K is the position of the bonus token."""
    kind: Kind
    """right: as it must be within the tolerance, or it refuses an input that no draft hands over;
    crash: it raises on some path; finding: tokens that the target cannot produce, of a mass within
    the tolerance; violation: such of more mass, or another distribution than the target's;
    unknown: it cannot be steered on this input, so that nothing is known of it."""
    mass: float
    """Probability of crashing, if it crashes; else of impossible tokens, if there are any; else the
    total variation from the target, for a whole round."""
    detail: str


def degenerate_outcomes(
    rule: Rule,
    base: Round,
    *,
    batch: bool = True,
    tolerance: float | None = None,
    seed: int = 0,
    maximum_runs: int = MAXIMUM_RUNS,
) -> tuple[DegenerateOutcome, ...]:
    """Compute exactly what a rule emits on degenerate inputs at every position.

    Inputs that a draft can produce are whole rounds: everything emitted must be distributed as the
    target (`compare_round`). The others are single rows, see `degenerate_rows`, with no right
    distribution to be compared with: right is whatever the target's row at each position can
    produce, and a `ValueError` raised whatever the coins are. Of a NaN in q no more than that is
    asked either. Any other exception is a crash.

    Races of exponential or Gumbel noise count as ideal, and a multinomial as exact, so that what
    their floats do on subnormal weights is not seen here; `edge_coins` runs the uniforms for real.

    Args:
        rule: see `exact.joint_distribution`.
        base: a small round; its rows stand where an input is not degenerate.
        batch: whether the rule takes more than one row a call.
        tolerance: on masses. By default that of the coarsest
            dtype among probabilities and the uniforms that one real call of the rule draws
            (design.md section 1).
        seed: of checks.
        maximum_runs: calls for each input, after which it is unknown.

    Returns:
        The outcomes of `degenerate_rounds`, then those of `degenerate_rows`.

    Example:
        >>> from specverify.exact import Round
        >>> def rule(tokens, q, p, generator):
        ...     import torch
        ...     first = torch.multinomial(p[:, 0], 1, generator=generator)
        ...     return torch.cat([first, torch.full_like(tokens, -1)], 1)
        >>> {outcome.kind for outcome in degenerate_outcomes(rule, Round.random(3, 1))}
        {'right'}
    """
    if tolerance is None:
        tolerance = _tolerance(rule, base, seed)
    judge = _Judge(rule, batch, tolerance, seed, maximum_runs)
    rounds = [
        DegenerateOutcome(case.name, case.position, *judge.round(case.round))
        for case in degenerate_rounds(base)
    ]
    rows = [
        DegenerateOutcome(case.name, case.position, *judge.row(case))
        for case in degenerate_rows(base)
    ]
    return (*rounds, *rows)


_Verdict = tuple[Kind, float, str]


@dataclass(frozen=True)
class _Judge:
    rule: Rule
    batch: bool
    tolerance: float
    seed: int
    maximum_runs: int

    def round(self, round: Round) -> _Verdict:
        """Compare a whole round."""
        try:
            joint = joint_distribution(
                self.rule,
                round,
                batch=self.batch,
                generator=True,
                seed=self.seed,
                maximum_runs=self.maximum_runs,
            )
        except CannotSteer as error:
            return "unknown", 0.0, str(error)
        except SubjectError as error:
            return "violation", 1.0, str(error)
        if joint.crashes:
            return "crash", math.fsum(joint.crashes.values()), _worst(joint.crashes)
        compared = compare_round(round, joint.probabilities)
        outside = compared.outside_support
        if outside:
            mass = math.fsum(outside.values())
            return self._by(mass), mass, f"emits {next(iter(outside))}, which the target cannot"
        mass = compared.total_variation
        if mass <= self.tolerance:
            return "right", mass, ""
        return "violation", mass, "the emitted tokens are not distributed as the target's"

    def row(self, case: DegenerateRow) -> _Verdict:
        """Hold the support of a single row against the target's."""
        width = case.target_probs.shape[1]

        def program(rows: Tensor, generator: Generator) -> Tensor:
            tokens, q, p = (
                tensor.clone()
                for tensor in (case.draft_tokens, case.draft_probs, case.target_probs)
            )
            return emitted(self.rule(tokens, q, p, generator), 1, width)

        crashes: dict[str, float] = defaultdict(float)
        refused = 0.0
        impossible: dict[str, float] = defaultdict(float)
        exploration = Exploration(program, self.maximum_runs, self.seed, replays=1)
        try:
            for end in exploration.paths(torch.zeros(1, dtype=torch.long)):
                if isinstance(end, Crash):
                    text = f"{type(end.error).__name__}: {end.error}"
                    crashes[text] += end.probability
                    refused += end.probability * isinstance(end.error, ValueError)
                    continue
                _, outputs, masses = spread(end)
                check_padding(outputs)
                for output, mass in zip(outputs.tolist(), masses.tolist(), strict=True):
                    if (wrong := _impossible(case.target_probs[0], output)) is not None:
                        impossible[wrong] += mass
        except CannotSteer as error:
            return "unknown", 0.0, str(error)
        except SubjectError as error:
            return "violation", 1.0, str(error)
        if refused == 1:
            return "right", 0.0, f"refuses: {_worst(crashes)}"
        if crashes:
            return "crash", math.fsum(crashes.values()), _worst(crashes)
        if impossible:
            mass = math.fsum(impossible.values())
            return self._by(mass), mass, _worst(impossible)
        return "right", 0.0, ""

    def _by(self, mass: float) -> Kind:
        return "finding" if mass <= self.tolerance else "violation"


def _impossible(target_probs: Tensor, output: list[int]) -> str | None:
    """What is wrong with the support of an output, against target rows [K+1, V] by position."""
    tokens = [token for token in output if token >= 0]
    if not tokens:
        return "emits nothing"
    for position, token in enumerate(tokens):
        if token >= target_probs.shape[1] or not target_probs[position, token] > 0:
            return f"emits {token} at position {position}, which the target cannot"
    return None


def _worst(masses: Mapping[str, float]) -> str:
    return max(masses, key=lambda text: masses[text])


def _tolerance(rule: Rule, base: Round, seed: int) -> float:
    pins = Pins(torch.zeros(1, 0, dtype=torch.long))
    # An exception here will be one of the outcomes.
    with suppress(Exception), outside_randomness(seed + 1), pinned(pins):
        rule(*base.inputs(base.blocks[:1]), Generator().manual_seed(seed))
    dtypes = [base.dtype, *(entry.dtype for entry in pins.drawn if entry.name != "bernoulli")]
    return max(TOLERANCE.get(dtype, 0.0) for dtype in dtypes)
