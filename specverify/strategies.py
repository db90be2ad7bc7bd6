"""Hypothesis strategies for tests of speculative decoding: what models, drafts and engines meet.

All of them shrink towards small vocabularies, few draft tokens and round probabilities: a failing
example ends at halves and quarters. Nothing else of specverify imports this module.

Example:
    >>> from hypothesis import given
    >>> from specverify import strategies
    >>> @given(strategies.rounds())
    ... def test_my_rule(round):
    ...     tokens, draft_probs, target_probs = round.inputs(round.blocks)
"""

from specverify.certification.generated.contracts import pipelines, schedules, settings
from specverify.certification.generated.pairs_of_rows import PAIR_KINDS, row_pairs
from specverify.certification.generated.rounds import (
    DraftBlocks,
    RoundTables,
    draft_blocks,
    round_tables,
    rounds,
)
from specverify.certification.generated.rows import (
    KINDS,
    distributions,
    logit_rows,
    logits,
    simple_rows,
)
from specverify.certification.generated.transformed import histories, transform_parameters
from specverify.certification.generated.trees import TREE_SHAPES, DraftTree, trees
from specverify.certification.generated.worlds import (
    WorldTables,
    padded_prompts,
    prompts,
    table_pairs,
    world_tables,
    worlds,
)

__all__ = [
    "KINDS",
    "PAIR_KINDS",
    "TREE_SHAPES",
    "DraftBlocks",
    "DraftTree",
    "RoundTables",
    "WorldTables",
    "distributions",
    "draft_blocks",
    "histories",
    "logit_rows",
    "logits",
    "padded_prompts",
    "pipelines",
    "prompts",
    "round_tables",
    "rounds",
    "row_pairs",
    "schedules",
    "settings",
    "simple_rows",
    "table_pairs",
    "transform_parameters",
    "trees",
    "world_tables",
    "worlds",
]
