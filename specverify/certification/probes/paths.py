"""Worlds that follow a path of tokens laid down for them, with drafts that do or do not.

Most of them *count*: the tokens 0, 1, 2, ... in turn, so that stopping at token n means a run of n
tokens after the prompt 0.
"""

from collections.abc import Callable, Sequence

from specverify.certification.probes.certain import ranked
from specverify.certification.probes.world import World
from specverify.errors import UsageError
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings

_LEAD = 2.0
"""How far a token of the path stands above all others."""

VOCAB_SIZE = 12
LENGTH = 10
NUM_DRAFT_TOKENS = 3
AFTER = VOCAB_SIZE - 1
"""A token that no run below comes to."""
PLACES = range(1, 9)
"""The first two blocks of three draft tokens, each with a bonus token."""

Instead = Callable[[int], int | None]
"""From a place in the path to the token preferred there; None where it is the path's own."""


def own(place: int) -> int | None:
    """A draft that proposes what the target emits: whole blocks are accepted."""
    return None


def next_but_one(place: int) -> int | None:
    """A draft that is wrong throughout: each token is a correction."""
    return (place + 1) % VOCAB_SIZE


def counting(instead: Instead = own, *, limit: int = LENGTH, start: int = 0) -> World:
    """A world that counts from `start`, the last token of its prompt."""
    path = [*range(VOCAB_SIZE), *range(VOCAB_SIZE)]
    target = scripted(path, VOCAB_SIZE, 1)
    cyclic = {place % VOCAB_SIZE: instead(place) for place in range(VOCAB_SIZE)}
    draft = scripted(path, VOCAB_SIZE, 1, instead=lambda place: cyclic[place % VOCAB_SIZE])
    settings = SamplingSettings(max_new_tokens=limit)
    return World(target, draft, settings, ((start,),), NUM_DRAFT_TOKENS)


def following(
    path: Sequence[int], order: int, *, prompt: int, num_draft_tokens: int = NUM_DRAFT_TOKENS
) -> World:
    """A world that follows a path of small tokens, of which the first `prompt` are given."""
    table = scripted(path, max(path) + 1, order)
    settings = SamplingSettings(max_new_tokens=len(path) - prompt)
    return World(table, table, settings, (tuple(path[:prompt]),), num_draft_tokens)


def scripted(
    path: Sequence[int],
    vocab_size: int,
    order: int,
    *,
    instead: Instead = own,
) -> TableModel:
    """A table that continues any beginning of `path` by its next token.

    Args:
        path: token ids, prompt and run; the last `order` of them tell where one is.
        vocab_size: V.
        order: of the table.
        instead: what the table prefers.

    Raises:
        UsageError: the same `order` tokens are continued in two ways.
    """
    table = ranked(vocab_size, order, seed=1)
    logits, chosen = table.logits.clone(), dict[int, int]()
    for place in range(1, len(path)):
        context = table.context_after(path[:place])
        if chosen.setdefault(context, path[place]) != path[place]:
            raise UsageError(
                f"after {list(path[:place])} the path goes on in another way than after the same "
                f"{order} tokens before; raise order={order}"
            )
        other = instead(place)
        logits[context, path[place] if other is None else other] = vocab_size + _LEAD
    return TableModel(logits, order)
