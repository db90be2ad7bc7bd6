"""Chapter batch: rows of a call are requests of different users, and know nothing of each other."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.certification.exact_evidence import Comparison
from specverify.certification.exact_outcome import distance_outcome, unless_crashed
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.ranks import LAW, ORDER, Prompts, certain, ranked, wrong_row
from specverify.certification.probes.sampled import sampled_outcome, wrong_ends
from specverify.certification.probes.together import comparisons, mixed_outcome, tuples_apart
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.errors import CannotSteer
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS, Subject

SIZES = (2, 3, 5, 8, 17, 33, 64, 130, 257)
"""Rows of a call: small ones, odd ones, and those around the tiles of kernels."""
CACHED = {"cached-3": 3, "cached-9": 9}
"""Rows of a call on glass-box models, whose caches have to be cut row by row."""
MANY = (6, 24, 96)

PROMPTS: Prompts = ((0, 1, 2), (3,), (2, 2, 1, 0, 3), (1, 0), (3, 1, 0, 2, 2, 1))
"""Of different lengths, one row each in turn."""
STOP = 3
_RUN = 8
"""Tokens of a sampled run."""
_CALLS = 24
_PAIRS = 256
"""Calls of two rows that are sampled where they cannot be computed."""

Ranks = NDArray[np.int64]

BUILT_ON = ("joint.run in exact/plain", "joint.run in exact/greedy")


def takes_rows(subject: Subject) -> str | None:
    """Need of what is asked about batches."""
    if not subject.capabilities.batch:
        return "the subject takes one row a call"
    return takes_tiny_models(subject)


def samples_rows(subject: Subject) -> str | None:
    """Need of what is asked about batches at temperatures above 0."""
    if subject.capabilities.algorithm == "greedy":
        return "the subject decodes greedily only"
    return takes_rows(subject)


@register(
    "batch.rows",
    kinds=DECODERS,
    needs=takes_rows,
    evidence="probed",
    inputs=(*map(str, SIZES), *CACHED),
    after=BUILT_ON,
    why_kept="one run is proof, in batches of all sizes and on caches, and it names the row",
)
def rows(trial: DecoderTrial, alpha: float) -> Outcome:
    """Each row of a batch emits what it would emit alone, whatever its length and its neighbours'.

    Why it holds: a row's tokens are a function of its prompt, its settings and its own draws. Here
    the target leaves one outcome, at temperature 0 and at 1, so a batch in any order and each of
    its rows alone must emit the same tokens.

    What breaks it: rows that are mixed up once some have ended, caches cut by the same amount in
    all rows (mlx-vlm issue 1144), padding that is read or counted in position ids, a run that ends
    when another one does, a kernel that forgets the last row of a tile.

    Error rate: none.
    """
    size = CACHED.get(trial.input) or int(trial.input)
    make = _glass_box if trial.input in CACHED else None
    for tables, settings in certain(trial.subject):
        first = PROMPTS[:size]
        for prompts in (first, first[::-1]):
            plain = tables.world(prompts, 12, **settings)
            for world in (plain, plain.under(**settings, stop_token_ids=(STOP,))):
                if world.refused_by(trial.subject) is not None:
                    continue
                output = trial.generate(world, trial.generator(), rows=size, make=make)
                fault = wrong_row(world, tables, output.tokens)
                if fault is not None:
                    at = f"at temperature {world.settings.temperature:g}"
                    return Outcome(violations=(f"{at}: {fault}",))
    return Outcome()


@register(
    "batch.row_law",
    kinds=DECODERS,
    tests=1,
    needs=samples_rows,
    evidence="probed",
    inputs=tuple(map(str, SIZES)),
    after=BUILT_ON,
    why_kept="sees rows that cannot be steered together, in batches too large to be followed",
)
def row_law(trial: DecoderTrial, alpha: float) -> Outcome:
    """Each row of a batch of any size has the target's distribution: the first, the last, any.

    Why it holds: as `batch.rows`, for rows that are sampled.

    What breaks it: a path for some batch sizes that samples from the draft, a cut of all rows to
    the slowest one that draws anew (algorithms.md section 1.11), tiles whose tail is not verified.

    Error rate: one e-process at its share, the mean of those of the first, the last and the other
    rows together and of each row by itself, all on ranks that are independent draws of one law
    (`certification.probes.ranks`).
    """
    size = int(trial.input)
    tables = ranked()
    prompts = PROMPTS[:size]
    world = tables.world(prompts, _RUN)
    counts = np.zeros((size, len(LAW)), np.int64)
    of_rows = [prompts[row % len(prompts)] for row in range(size)]
    for call in range(_CALLS):
        output = trial.generate(world, trial.generator(call), rows=size)
        for row, ranks in enumerate(tables.ranks_of(of_rows, output.tokens)):
            counts[row] += np.bincount(ranks[ranks >= 0], minlength=len(LAW))
    law = np.array(LAW)
    classes = [counts[:1].sum(0), counts[1:-1].sum(0), counts[-1:].sum(0)]
    by_row = {f"row {row}": ([own], [law]) for row, own in enumerate(counts)}
    return mixed_outcome(
        {"first, others, last": (classes, [law] * 3), **by_row}, int(counts.sum()), trial.share
    )


@register(
    "batch.independent_rows",
    kinds=DECODERS,
    tests=1,
    needs=samples_rows,
    evidence="probed",
    inputs=tuple(map(str, MANY)),
    after=(*BUILT_ON, "batch.row_law"),
)
def independent_rows(trial: DecoderTrial, alpha: float) -> Outcome:
    """Rows of a batch are independent at every distance, even where their prompts are the same.

    Why it holds: rows are requests of different users; two that share a draw tell each other what
    they emit.

    What breaks it: noise broadcast over rows or lanes of a tile, sub-batches that start from one
    state of the generator, a generator for every so many rows. Each row is right all the same.

    Error rate: one e-process at its share, the mean of those of pairs of rows at several distances
    and of three rows in succession.
    """
    size = int(trial.input)
    tables = ranked()
    # A draft that hardly varies proposes the same to all rows, so that shared coins decide alike.
    world = replace(
        tables.world(PROMPTS[:1], _RUN), draft=TableModel(tables.draft.logits * 3, ORDER)
    )
    law = np.array(LAW)
    counts: dict[str, tuple[list[Ranks], list[NDArray[np.float64]]]] = {}
    for call in range(_CALLS):
        output = trial.generate(world, trial.generator(call), rows=size)
        ranks = tables.ranks_of(PROMPTS[:1] * size, output.tokens)
        for name, apart, count in comparisons(size):
            cells, product = tuples_apart(ranks, law, apart, count)
            known = counts[name][0][0] if name in counts else np.zeros_like(cells)
            counts[name] = ([known + cells], [product])
    return mixed_outcome(counts, _CALLS * size * _RUN, trial.share)


@register(
    "batch.two_rows",
    kinds=DECODERS,
    tests=1,
    needs=samples_rows,
    evidence="probed",
    inputs=("alike", "different", "lengths"),
    after=BUILT_ON,
    why_kept="computed: sees deviations and couplings that the samples of the other tests miss",
)
def two_rows(trial: DecoderTrial, alpha: float) -> Outcome:
    """The joint distribution of two rows is the product of what each emits alone.

    Why it holds: rows share nothing but the time at which they are decoded.

    What breaks it: shared coins (rows alike: TV 1 - sum p^2, algorithms.md section 5, B3), a cut of
    both to the slower one that draws anew (B1), padding read as text (C7).

    Error rate: none where the two can be computed together; otherwise an e-process at its share.
    """
    prompts: Prompts = {
        "alike": ((0, 1), (0, 1)),
        "different": ((0, 1), (1, 0)),
        "lengths": ((0, 1, 1), (1,)),
    }[trial.input]
    world = World(*small_tables(2), SamplingSettings(max_new_tokens=2), prompts, 1)
    what = f"a batch of two rows, {trial.input},"
    try:
        joint = trial.joint(world)
    except CannotSteer as refusal:
        trial.note((f"two rows are sampled: {refusal}",))
        return _sampled_pairs(trial, world, what)
    compared = Comparison.of_runs(
        joint.probabilities, world.expected(), sum(joint.crashes.values())
    )
    return unless_crashed(distance_outcome(compared, joint, trial.tolerance, what), joint)


def _sampled_pairs(trial: DecoderTrial, world: World, what: str) -> Outcome:
    trees = [world.tree(row) for row in (0, 1)]
    laws = [np.append(tree.leaf_probabilities(), 0.0) for tree in trees]
    counts = np.zeros((len(laws[0]), len(laws[1])), np.int64)
    violations: tuple[str, ...] = ()
    for call in range(_PAIRS):
        tokens = trial.generate(world, trial.generator(call)).tokens.numpy()
        cells = np.concatenate([tree.locate(tokens[[row]]) for row, tree in enumerate(trees)])
        violations = violations or wrong_ends(tokens, cells, what)
        # What the target excludes is counted in the last cell.
        counts[tuple(np.where(cells < 0, -1, cells))] += 1
    return sampled_outcome(
        [counts.reshape(-1)],
        [np.outer(*laws).reshape(-1)],
        what,
        tokens=2 * world.settings.max_new_tokens,
        coin_dtype=trial.subject.capabilities.coin_dtype,
        share=trial.share,
        violations=violations,
    )


def _glass_box(table: TableModel) -> torch.nn.Module:
    from specverify.models.glass_box import GlassBoxModel

    return GlassBoxModel.from_table(table)
