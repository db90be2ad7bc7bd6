"""The exact distribution of what any torch program emits, such as a whole generation loop."""

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from specverify.errors import MalformedOutput
from specverify.exact.branching import MAXIMUM_RUNS, REPLAYS, Crash, Exploration
from specverify.exact.distribution import JointDistribution
from specverify.exact.joint import Tokens
from specverify.exact.outcomes import check_padding, spread

Program = Callable[[Generator], Tensor]
"""A source of all draws to the emitted tokens, long [B, L], rows padded right with -1."""

SEPARATOR = -1
"""What stands between the rows of a batch in the outcomes of `program_distribution`."""


def program_distribution(
    program: Program,
    *,
    seed: int = 0,
    maximum_runs: int = MAXIMUM_RUNS,
    replays: int = REPLAYS,
) -> JointDistribution:
    """Run a program along every path of its own randomness.

    The draws of a draft model are branches like all others, so a whole `generate` call can be
    followed where vocabulary and length are small: three tokens of assisted generation at V = 3,
    K = 2 take some hundred runs, four some thousand; each further token about V^2 times as many.

    Args:
        program: takes the generator it should draw from; may use torch's global one. It must start
            from the same state at every call, and return what it emits.
        seed: of everything outside that is not steered; it changes from run to run.
        maximum_runs: runs after which to give up.
        replays: paths that are taken again at the end, to see whether the same comes out.

    Returns:
        The joint distribution of all rows: the tokens of a single row, those of several rows one
        after another with `SEPARATOR` between them.

    Raises:
        CannotSteer: an operation cannot be followed, there are too many paths, or the program is
            not determined by torch's randomness.
        MalformedOutput: the output is no tensor of token ids [B, L].
    """
    shapes: list[tuple[int, int]] = []

    def run(rows: Tensor, generator: Generator) -> Tensor:
        value = program(generator)
        if not isinstance(value, Tensor) or value.dim() != 2 or value.is_floating_point():
            what = (
                f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            )
            raise MalformedOutput(f"the program returned {what}; it must return token ids [B, L]")
        shapes.append((value.shape[0], value.shape[1]))
        return value.reshape(1, -1)

    exploration = Exploration(run, maximum_runs, seed, replays)
    probabilities: dict[Tokens, float] = defaultdict(float)
    crashes: dict[str, float] = defaultdict(float)
    for end in exploration.paths(torch.zeros(1, dtype=torch.long)):
        if isinstance(end, Crash):
            crashes[f"{type(end.error).__name__}: {end.error}"] += end.probability
            continue
        _, outputs, masses = spread(end)
        for output, mass in zip(outputs, masses.tolist(), strict=True):
            rows = output.reshape(shapes[-1])
            check_padding(rows)
            probabilities[_joined(rows.tolist())] += mass
    return JointDistribution(
        dict(probabilities),
        "branching",
        exploration.runs,
        dict(crashes),
        tuple(exploration.findings),
        tuple(exploration.reuses),
        tuple(map(str, exploration.global_draws)),
    ).checked()


def _joined(rows: list[list[int]]) -> Tokens:
    joined: list[int] = []
    for index, row in enumerate(rows):
        joined += [SEPARATOR] * (index > 0) + [token for token in row if token >= 0]
    return tuple(joined)
