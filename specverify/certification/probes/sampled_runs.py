"""Many runs of a decoder in a small world, for what it reports beside its tokens."""

from collections.abc import Callable

from specverify.certification.probes.decoder_trial import ROWS, DecoderTrial
from specverify.certification.probes.world import World
from specverify.decoding.output import DecoderOutput, joined

RUNS = {"table": 20_000, "batch": 2_000, "single": 200}
"""Runs by how fast the subject is: each shows several rounds."""


def reported_runs(
    trial: DecoderTrial,
    world: World,
    missing: Callable[[DecoderOutput], str | None],
    most: int | None = None,
) -> DecoderOutput | str:
    """Runs of a decoder, as many as it has time for, or why none of them can be judged.

    Args:
        trial: of the decoder.
        world: what it is handed.
        missing: why an output cannot be judged, None if it can; asked of one run before the others
            are made, and of all of them together.
        most: runs, at most.
    """
    # Two, so that a batch is not taken for a single row.
    first = trial.generate(
        world, trial.generator(0), rows=2 if trial.subject.capabilities.batch else 1
    )
    if (reason := missing(first)) is not None:
        return reason
    speed = "single" if not trial.subject.capabilities.batch else "batch"
    if speed == "batch" and trial.takes_tables:
        speed = "table"
    runs = RUNS[speed] if most is None else min(most, RUNS[speed])
    rows = min(ROWS[speed], runs)
    calls = range(1, 1 + -(-runs // rows))
    outputs = [trial.generate(world, trial.generator(call), rows=rows) for call in calls]
    together = joined(outputs)
    return missing(together) or together
