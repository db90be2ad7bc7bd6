"""Prompts as models receive them: padded on the left, checked before any work is done."""

import torch
from torch import Tensor

from specverify.errors import UsageError


def prompt_lengths(
    prompt_ids: Tensor, attention_mask: Tensor | None, vocab_size: int, window: int | None = None
) -> Tensor:
    """Check a batch of prompts and return how many tokens each holds.

    Args:
        prompt_ids: integers [B, T], padded on the left.
        attention_mask: [B, T], 1 on real tokens; all real when omitted.
        vocab_size: ids run from 0 to `vocab_size - 1`; padding may hold anything.
        window: most tokens a row can hold, None if unbounded.

    Returns:
        long [B], each at least 1.

    Raises:
        UsageError: wrong shape, an empty prompt, a mask with a hole or padding on the right, an id
            outside the vocabulary, a prompt longer than the window.
    """
    if prompt_ids.dim() != 2 or prompt_ids.is_floating_point():
        raise UsageError(
            f"prompt_ids must be integers of shape [B, T], got {prompt_ids.dtype} "
            f"{list(prompt_ids.shape)}; wrap a single prompt as a batch of one"
        )
    if attention_mask is None:
        attention_mask = torch.ones_like(prompt_ids)
    if attention_mask.shape != prompt_ids.shape:
        raise UsageError(
            f"attention_mask has shape {list(attention_mask.shape)}, prompt_ids "
            f"{list(prompt_ids.shape)}; they must agree"
        )
    real = attention_mask.bool().to(prompt_ids.device)
    lengths = real.sum(1)
    empty = (lengths == 0).nonzero()
    if len(empty):
        raise UsageError(f"prompt {empty[0].item()} is empty; give every row at least one token")
    if bool((real[:, :-1] & ~real[:, 1:]).any()):
        row = (real[:, :-1] & ~real[:, 1:]).any(1).nonzero()[0].item()
        raise UsageError(
            f"attention_mask row {row} has a 0 after a 1; prompts are padded on the left "
            "(tokenizer.padding_side = 'left') and have no holes"
        )
    outside = real & ((prompt_ids < 0) | (prompt_ids >= vocab_size))
    if bool(outside.any()):
        row, column = (int(i) for i in outside.nonzero()[0])
        raise UsageError(
            f"prompt {row} holds token id {int(prompt_ids[row, column])}, but the model's ids run "
            f"from 0 to {vocab_size - 1}; tokenize it with the model's own tokenizer"
        )
    check_window(lengths, window)
    return lengths


def strip_padding(prompt_ids: Tensor, lengths: Tensor) -> Tensor:
    """Move left-padded rows to the left edge: row `b` becomes its `lengths[b]` tokens, then 0s.

    Args:
        prompt_ids: [B, T], the last `lengths[b]` tokens of each row being real.
        lengths: long [B].

    Returns:
        long [B, T].
    """
    width = prompt_ids.shape[1]
    steps = torch.arange(width, device=prompt_ids.device)
    columns = (width - lengths)[:, None] + steps
    aligned = prompt_ids.long().gather(1, columns.clamp(max=width - 1))
    return aligned.masked_fill(steps >= lengths[:, None], 0)


def check_window(lengths: Tensor, window: int | None) -> None:
    """Raise `UsageError` if a row of `lengths[b]` tokens does not fit the model's window."""
    if window is not None and len(lengths) and int(lengths.max()) > window:
        row = int(lengths.argmax())
        raise UsageError(
            f"row {row} would hold {int(lengths[row])} tokens, but the model's window is {window}; "
            "shorten the prompt, lower max_new_tokens or num_draft_tokens, or use a model with a "
            "larger window"
        )


def check_block(
    tokens: Tensor, counts: Tensor | None, lengths: Tensor, vocab_size: int, window: int | None
) -> tuple[Tensor, Tensor]:
    """Check the arguments of `Session.extend` and fill in its default.

    Args:
        tokens: long [B, n].
        counts: long [B] or None.
        lengths: long [B], tokens the rows hold already.
        vocab_size: ids that are read must lie between 0 and `vocab_size - 1`.
        window: most tokens a row can hold, None if unbounded.

    Returns:
        counts long [B], and the mask [B, n] of the entries that are read.

    Raises:
        ValueError: shapes disagree, or a count lies outside 0 to n.
        UsageError: an id outside the vocabulary, a row longer than the window.
    """
    if tokens.dim() != 2 or len(tokens) != len(lengths):
        raise ValueError(f"tokens must have shape [{len(lengths)}, n], got {list(tokens.shape)}")
    width = tokens.shape[1]
    if counts is None:
        counts, read = torch.full_like(lengths, width), torch.ones_like(tokens, dtype=torch.bool)
        asked = tokens
    else:
        if counts.shape != lengths.shape:
            raise ValueError(f"counts must have shape [{len(lengths)}], got {list(counts.shape)}")
        counts = counts.to(lengths.device)
        if bool(((counts < 0) | (counts > width)).any()):
            raise ValueError(f"counts must lie between 0 and {width}, got {counts.tolist()[:8]}")
        read = torch.arange(width, device=tokens.device) < counts.to(tokens.device)[:, None]
        asked = tokens.masked_fill(~read, 0)
    if asked.numel():
        low, high = (int(bound) for bound in asked.aminmax())
        if low < 0 or high >= vocab_size:
            row, column = (int(i) for i in ((asked < 0) | (asked >= vocab_size)).nonzero()[0])
            raise UsageError(
                f"row {row} is fed token id {int(asked[row, column])}, but the model's ids run "
                f"from 0 to {vocab_size - 1}; do the draft and the target share a vocabulary?"
            )
    check_window(lengths + counts, window)
    return counts, read


def check_roll_back(new: Tensor, held: Tensor) -> None:
    """Raise `ValueError` if some row cannot be shortened to `new[b]` tokens."""
    if new.shape != held.shape:
        raise ValueError(f"lengths must have shape {list(held.shape)}, got {list(new.shape)}")
    wrong = (new < 0) | (new > held)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"row {row} holds {int(held[row])} tokens and cannot be rolled back to {int(new[row])}"
        )
