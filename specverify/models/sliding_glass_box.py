"""A glass-box model with sliding-window attention: its cache forgets what has left the window."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from specverify.models.glass_box import GlassBoxConfig, GlassBoxModel
from specverify.models.table import context_index


class SlidingGlassBoxConfig(GlassBoxConfig):
    """Configuration of a `SlidingGlassBoxModel`.

    Args:
        sliding_window: tokens a query sees, its own included; those the table depends on when
            omitted. A cache made for this configuration keeps one fewer.
        kwargs: see `GlassBoxConfig`.
    """

    model_type = "specverify_sliding_glass_box"

    def __init__(self, sliding_window: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sliding_window = self.order if sliding_window is None else sliding_window
        self.layer_types = ["sliding_attention"]


class SlidingGlassBoxModel(GlassBoxModel):
    """A `GlassBoxModel` whose queries see the last `sliding_window` tokens only.

    A query at position P is right when the slots it sees hold the last positions up to P, once
    each. A `DynamicCache` made for its configuration drops older ones for good, so a rejected token
    can be taken back only if the cache was told to record its past (transformers:
    `activate_past_recording`); after a roll-back that did nothing, or one that was done too late,
    the distribution is wrong.
    """

    config_class = _settings = SlidingGlassBoxConfig
    config: SlidingGlassBoxConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def _read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache,
    ) -> Tensor:
        rows, new = input_ids.shape
        past, window = int(cache.get_seq_length()), self.config.sliding_window
        if position_ids is None:
            position_ids = torch.arange(past, past + new, device=input_ids.device)[None]
        position_ids = position_ids.expand(rows, new)
        _, offset = cache.get_mask_sizes(new, 0)
        keys, values = cache.update(
            input_ids.reshape(rows, 1, new, 1), position_ids.reshape(rows, 1, new, 1), 0
        )
        tokens, positions = keys[:, 0, :, 0], values[:, 0, :, 0]
        visible = self._in_sight(attention_mask, offset, past, tokens, new)
        first = (position_ids - window + 1).clamp(min=0)
        wanted_sum = (position_ids * (position_ids + 1) - first * (first - 1)) // 2
        wrong = (visible.sum(-1) != position_ids - first + 1) | (
            (visible * positions[:, None]).sum(-1) != wanted_sum
        )
        history: list[Tensor] = []
        for distance in reversed(range(self.config.order)):
            match = visible & (positions[:, None] == (position_ids - distance)[..., None])
            token = (match * tokens[:, None]).sum(-1)
            history.append(token.masked_fill(match.sum(-1) != 1, self.config.vocab_size))
        digits = torch.stack(history, -1) if history else input_ids.new_zeros(rows, new, 0)
        logits = self.table[context_index(digits, self.config.vocab_size)]
        return torch.where(wrong[..., None], logits.flip(-1), logits)

    def _in_sight(
        self, attention_mask: Tensor | None, offset: int, past: int, tokens: Tensor, new: int
    ) -> Tensor:
        """Which slots every query sees, bool [B, T, S]; slot 0 is column `offset` of the mask."""
        rows, slots = tokens.shape
        if attention_mask is not None and attention_mask.dim() == 4:
            mask = attention_mask[:, 0, :, -slots:]
            return mask if mask.dtype == torch.bool else mask == 0
        columns = offset + torch.arange(slots, device=tokens.device)
        queries = torch.arange(past, past + new, device=tokens.device)[:, None]
        seen = (columns <= queries) & (columns > queries - self.config.sliding_window)
        seen = seen.expand(rows, new, slots)
        if attention_mask is None:
            return seen
        real = torch.nn.functional.pad(attention_mask, (0, offset + slots))[:, offset:][:, :slots]
        return seen & real.bool()[:, None]
