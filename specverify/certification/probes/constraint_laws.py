"""The laws of constraints, which ban tokens by the history, whatever the logits."""

from collections.abc import Sequence

from specverify.certification.allowed_in_turn import AllowedInTurn
from specverify.certification.probes.transform_law import Laws, Parameters, each, same
from specverify.certification.transform_case import HISTORY, SPARED, VOCAB_SIZE

LONG = 700
"""Tokens of a long history, most of them the same."""

BEFORE_LARGE = 8
"""Tokens before the next one of a large vocabulary."""

BEYOND_ANY_HISTORY = 1_000
"""Length of an n-gram that no history tried holds."""


def _allowed(*sets: Sequence[int], turning: tuple[int, ...] = ()) -> Parameters:
    rule = AllowedInTurn(tuple(map(tuple, sets)), turning)
    return {"allowed": rule, "prompt_length": 0}


def _min_length(least: int, *stops: int) -> Parameters:
    return {"min_new_tokens": least, "stop_token_ids": list(stops), "prompt_length": 0}


def _forced(*positions: int, token: int = SPARED) -> Parameters:
    return {"forced": dict.fromkeys(positions, token), "prompt_length": 0}


CONSTRAINTS: dict[str, Laws] = {
    "no_repeat_ngram": Laws(
        "bans",
        each("ngram_size", 1, 2, 3, 4),
        each("ngram_size", BEYOND_ANY_HISTORY),
        {"ngram_size": 2},
        idempotent=True,
        cooled=same,
    ),
    "bad_words": Laws(
        "bans",
        each("bad_words", [[1], [2], [3, 4]], [[1], [2]], [[1]]),
        each("bad_words", [[SPARED, 0]]),
        {"bad_words": [[40_001], [40_002, 49_998]]},
        idempotent=True,
        cooled=same,
    ),
    "allowed_tokens": Laws(
        "bans",
        (
            _allowed([SPARED]),
            _allowed([2, SPARED], [SPARED], turning=(0, 1, 2)),
            _allowed([2, SPARED]),
            _allowed([2, SPARED], range(VOCAB_SIZE), turning=(0, 1, 2)),
            _allowed(range(VOCAB_SIZE)),
        ),
        (_allowed(range(VOCAB_SIZE)),),
        _allowed([33_000, 40_002], [40_001, 49_999], turning=(40_002,)),
        idempotent=True,
        cooled=same,
    ),
    "min_length": Laws(
        "bans",
        (
            _min_length(HISTORY + 2, 0, 1, 3),
            _min_length(HISTORY + 1, 1, 3),
            _min_length(HISTORY + 1, 3),
            _min_length(HISTORY, 3),
        ),
        (_min_length(0, 0),),
        _min_length(BEFORE_LARGE + 1, 40_001, 49_999),
        idempotent=True,
        cooled=same,
        more=(_min_length(1, 0), _min_length(2, 0), _min_length(LONG, 0), _min_length(LONG + 1, 0)),
    ),
    "forced_tokens": Laws(
        "bans",
        (_forced(HISTORY), _forced(HISTORY - 1, HISTORY + 1)),
        (_forced(),),
        _forced(BEFORE_LARGE, token=40_001),
        idempotent=True,
        cooled=same,
        more=(_forced(1), _forced(LONG), _forced(0, 2, LONG - 1, LONG + 1)),
    ),
}
"""Those of every reference that goes by the history alone."""
