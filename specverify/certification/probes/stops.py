"""Worlds that stop in known places: at every place of a block, by every rule."""

from collections.abc import Callable, Iterator, Sequence

import torch

from specverify.certification.probes.certain import Runs, ranked
from specverify.certification.probes.paths import (
    AFTER,
    NUM_DRAFT_TOKENS,
    PLACES,
    Instead,
    counting,
    following,
    next_but_one,
    own,
)
from specverify.certification.probes.world import World
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.stopping import REASONS as ALL_REASONS
from specverify.stopping import FinishReason, stop_codes


def reasons(emitted: Sequence[int], settings: SamplingSettings) -> list[FinishReason]:
    """Every rule that ends a run with the last of these tokens."""
    tokens, none = torch.tensor([emitted]), torch.zeros(1, dtype=torch.long)
    last = none + len(emitted) - 1
    alone = {
        "stop_token": {"stop_sequences": (), "max_new_tokens": len(emitted) + 1},
        "stop_sequence": {"stop_token_ids": (), "max_new_tokens": len(emitted) + 1},
        "length": {"stop_sequences": (), "stop_token_ids": ()},
    }
    return [
        reason
        for reason in ALL_REASONS
        if int(stop_codes(tokens, none, last, 1, settings.model_copy(update=alone[reason]))) != 0
    ]


def _in_block() -> Runs:
    for n in PLACES:
        yield f"with stop token {n}", counting().under(stop_token_ids=(n,))
    # An id that is not true where a program asks whether there is one.
    yield "with stop token 0", counting(start=9).under(stop_token_ids=(0,))


def _correction() -> Runs:
    for n in PLACES:
        world = counting(next_but_one)
        yield f"with stop token {n}, never drafted in its place", world.under(stop_token_ids=(n,))


def _drafted_early() -> Runs:
    for n in (2, 3, 4, 6):
        # The draft proposes the stop token for all that comes before it.
        world = counting(lambda place, n=n: n if place < n else None)
        yield f"with stop token {n}, drafted too early", world.under(stop_token_ids=(n,))


def _several() -> Runs:
    for n in (1, 3, 4, 6):
        for ids in ((AFTER, n), (n, AFTER), (n + 2, AFTER, n), (n + 1, n, n + 2)):
            yield f"with stop tokens {list(ids)}", counting().under(stop_token_ids=ids)


def _in_prompt() -> Runs:
    world = counting().under(stop_token_ids=(0,))
    yield "with a stop token at the end of the prompt", world
    path = [2, 0, 1, 3, 4, 0, 1, 3]
    yield "with a stop token in the prompt", following(path, 2, prompt=2).under(stop_token_ids=(2,))


def _before_limit() -> Runs:
    for n in (1, 2, 3, 5, 6):
        for limit in (n, n + 1, n + 2):
            world = counting(limit=limit).under(stop_token_ids=(n,))
            yield f"with stop token {n} and at most {limit} tokens", world


TOKENS: dict[str, Callable[[], Runs]] = {
    "in_block": _in_block,
    "correction": _correction,
    "drafted_early": _drafted_early,
    "several": _several,
    "in_prompt": _in_prompt,
    "before_limit": _before_limit,
}
"""Of stop tokens."""


def _anywhere() -> Runs:
    for n in range(2, 9):
        for width in (2, 3, 6):
            if n >= width:
                sequence = tuple(range(n - width + 1, n + 1))
                world = counting().under(stop_sequences=(sequence,))
                yield f"with stop sequence {list(sequence)}", world


def _overlapping() -> Runs:
    for k in (1, 2, 3, 4):
        for path, sequence in (
            ((0, 0, 0, 0, 1, 1, 1, 2, 3, 4), (1, 1, 2)),
            ((0, 0, 0, 0, 1, 2, 1, 2, 1, 3, 4, 0), (1, 2, 1, 3)),
        ):
            world = following(path, 4, prompt=4 if sequence[1] == 1 else 3, num_draft_tokens=k)
            what = f"with stop sequence {list(sequence)}, begun twice"
            yield what, world.under(stop_sequences=(sequence,))


def _several_sequences() -> Runs:
    for n in (3, 4, 6):
        pair = (n - 1, n)
        for sequences in (
            ((AFTER, 0), pair),
            (pair, (AFTER, 0)),
            ((n, n + 1), pair, (n - 2, n - 1, n, n + 1)),
            ((n - 1, n + 1), (n,), pair),
        ):
            world = counting().under(stop_sequences=sequences)
            yield f"with stop sequences {[list(s) for s in sequences]}", world


def _across_prompt() -> Runs:
    path = [1, 2, 3, 0] * 3
    for sequence in ((3, 0, 1), (0, 1), (2, 3, 0, 1)):
        world = following(path, 1, prompt=4).under(stop_sequences=(sequence,))
        yield f"with stop sequence {list(sequence)}, begun in the prompt", world


def _rejected() -> Runs:
    for n in (2, 3, 5):
        # Drafted after n - 1, and rejected there: the run goes on with n.
        world = counting(lambda place, n=n: AFTER if place == n else None)
        world = world.under(stop_sequences=((n - 1, AFTER), (AFTER, n)))
        yield f"with a stop sequence that a rejected token at {n} completes", world


SEQUENCES: dict[str, Callable[[], Runs]] = {
    "anywhere": _anywhere,
    "overlapping": _overlapping,
    "several": _several_sequences,
    "across_prompt": _across_prompt,
    "rejected": _rejected,
}
"""Of stop sequences."""


def _eager(draft_seed: int | None = None) -> World:
    """A target whose first choice is its last token everywhere, the stop token below."""
    target = ranked(5, 2, seed=9)
    logits = target.logits.clone()
    logits[:, -1] = 5.0
    target = TableModel(logits, 2)
    draft = target if draft_seed is None else ranked(5, 2, draft_seed)
    return World(target, draft, SamplingSettings(max_new_tokens=9), ((0, 1),), NUM_DRAFT_TOKENS)


def _minimum(world: World) -> Runs:
    for least in (*range(8), 9):
        here = world.under(stop_token_ids=(4,), min_new_tokens=least)
        yield f"with the stop token likely and min_new_tokens={least}", here


def _minimum_of_sequences() -> Runs:
    for least in range(1, 7):
        for sequence in ((2, 3), (3, 4), (4, 5)):
            world = counting().under(stop_sequences=(sequence, (8,)), min_new_tokens=least)
            yield f"with stop sequence {list(sequence)} and min_new_tokens={least}", world


MINIMUM: dict[str, Callable[[], Runs]] = {
    "accepted": lambda: _minimum(_eager()),
    "rejected": lambda: _minimum(_eager(draft_seed=3)),
    "sequences": _minimum_of_sequences,
}
"""Of the minimum length."""


def _limited(limits: Sequence[int], instead: Instead = own) -> Runs:
    for limit in limits:
        yield f"with max_new_tokens={limit}", counting(instead, limit=limit)


LIMITS: dict[str, Callable[[], Runs]] = {
    "accepted": lambda: _limited(range(1, 10)),
    "rejected": lambda: _limited(range(1, 10), next_but_one),
    "long": lambda: _limited((17, 33, 70, 130)),
}
"""Of the length limit."""


def _together(instead: Instead) -> World:
    """Rows that reach token 6 at different times, one of them never."""
    world = counting(instead)
    prompts = ((5,), (2, 3), (0,), (7, 8, 9), (4,), (6,))
    return World(world.target, world.draft, world.settings, prompts, NUM_DRAFT_TOKENS)


def _rows(instead: Instead) -> Runs:
    world = _together(instead)
    yield "rows with stop token 6", world.under(stop_token_ids=(6,), max_new_tokens=7)
    yield "rows with stop sequence [5, 6]", world.under(stop_sequences=((5, 6),), max_new_tokens=7)


ROWS: dict[str, Callable[[], Runs]] = {
    "accepted": lambda: _rows(own),
    "rejected": lambda: _rows(next_but_one),
}
"""Of batches."""


def _reasons_of_rows() -> Iterator[tuple[str, World]]:
    world = _together(own).under(
        stop_token_ids=(6,), stop_sequences=((8, 9), (10, 11)), max_new_tokens=3
    )
    yield "rows", world


REASONS: dict[str, Callable[[], Runs]] = {
    "stop_token": _in_block,
    "stop_sequence": _anywhere,
    "length": lambda: _limited(range(1, 10)),
    "before_limit": _before_limit,
    "rows": _reasons_of_rows,
}
"""Of what is reported."""
