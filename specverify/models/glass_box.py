"""Glass-box models: Hugging Face models whose cache is the token history, in the clear.

A glass-box model is a real `PreTrainedModel` that runs in any Hugging Face style loop, yet its next
token distribution is a row of a `TableModel`. What a real model computes from its cache, this one
looks up in it, so a cache, mask, position id or row that is wrong gives a distribution that is
wrong by a known amount.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from specverify.models.table import TableModel, context_index

_FIELDS = CausalLMOutputWithPast.__dataclass_fields__
_CACHE_FIELD = "cache" if "cache" in _FIELDS else "past_key_values"
"""Name of the cache in outputs: `cache` since transformers 5.24, `past_key_values` before."""


class GlassBoxConfig(PreTrainedConfig):
    """Configuration of a `GlassBoxModel`: the table's shape and the layout of a one-layer cache."""

    model_type = "specverify_glass_box"

    def __init__(
        self,
        vocab_size: int = 2,
        order: int = 1,
        max_position_embeddings: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.order = order
        self.max_position_embeddings = max_position_embeddings
        self.num_hidden_layers = 1
        self.num_attention_heads = 1
        self.num_key_value_heads = 1
        self.hidden_size = 1
        super().__init__(**kwargs)


class RecurrentGlassBoxConfig(GlassBoxConfig):
    """Configuration of a `RecurrentGlassBoxModel`: its one layer keeps a recurrent state."""

    model_type = "specverify_recurrent_glass_box"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer_types = ["linear_attention"]


class _TableLM(PreTrainedModel, GenerationMixin, ABC):
    """What both variants share: the table, and the Hugging Face call around the lookup."""

    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_cache_class = True
    _settings: type[GlassBoxConfig] = GlassBoxConfig

    def __init__(self, config: GlassBoxConfig) -> None:
        super().__init__(config)
        contexts = (config.vocab_size + 1) ** config.order
        self.table = nn.Parameter(torch.zeros(contexts, config.vocab_size), requires_grad=False)
        self.post_init()

    @classmethod
    def from_table(cls, table: TableModel, *, dtype: torch.dtype = torch.float32) -> Self:
        """Build the model whose logits are those of `table`.

        Args:
            table: logits, order and window are taken from it.
            dtype: of the logits; float32 for Hugging Face loops, float64 for exact comparisons.
        """
        config = cls._settings(
            vocab_size=table.vocab_size,
            order=table.order,
            max_position_embeddings=table.window,
        )
        model = cls(config)
        model.table = nn.Parameter(table.logits.to(dtype), requires_grad=False)
        return model.eval()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,  # noqa: FBT001 (the Hugging Face call)
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,  # noqa: FBT001
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits after every token, as any causal language model of transformers returns them.

        Args:
            input_ids: long [B, T].
            attention_mask: [B, S] over cached and new tokens, 1 on real ones, or [B, 1, T, S]
                (boolean, or additive with 0 on visible slots), which then replaces causality.
            position_ids: [B, T] or [1, T]; counts on from the cache's length when omitted.
            cache: from transformers 5.24; `past_key_values` is its name before.
            past_key_values: see `cache`.
            use_cache: False leaves the cache out of the result.
            logits_to_keep: keep the last n positions only (0: all), or these indices.
            return_dict: False returns a tuple.
            kwargs: arguments other models take are ignored.
        """
        cache = past_key_values if cache is None else cache
        if cache is None:
            cache = DynamicCache(config=self.config)
        logits = self._read(input_ids, attention_mask, position_ids, cache)
        if isinstance(logits_to_keep, Tensor):
            logits = logits[:, logits_to_keep]
        elif logits_to_keep > 0:
            logits = logits[:, -logits_to_keep:]
        output = CausalLMOutputWithPast(logits=logits)
        if use_cache is not False:
            output[_CACHE_FIELD] = cache
        return output.to_tuple() if return_dict is False else output

    @abstractmethod
    def _read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache,
    ) -> Tensor:
        """Put the new tokens into the cache and return logits [B, T, V]."""
        ...


class GlassBoxModel(_TableLM):
    """Attention over a cache whose keys are token ids and whose values are position ids.

    A query at position P is right when the slots it sees hold the positions 0 to P once each; its
    logits are then the table's row for the tokens at the last `order` positions. Otherwise (a
    rejected token not cropped, one cropped too many, a position id that is off or not rolled back,
    padding in sight or a token masked away) a token it cannot place counts as the start symbol, and
    when the number or the sum of the positions in sight is off, the row comes back in reverse order
    of the vocabulary: wrong, and always in the same way.

    Positions are absolute, as in models with learned position embeddings: left-padded rows need
    position ids that start at 0 on the first real token, which models with rotary embeddings would
    not notice.
    """

    config_class = GlassBoxConfig
    config: GlassBoxConfig

    def _read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache,
    ) -> Tensor:
        rows, new = input_ids.shape
        past = int(cache.get_seq_length())
        if position_ids is None:
            position_ids = torch.arange(past, past + new, device=input_ids.device)[None]
        position_ids = position_ids.expand(rows, new)
        # [B, heads, slots, width] is the layout every cache class expects.
        keys, values = cache.update(
            input_ids.reshape(rows, 1, new, 1), position_ids.reshape(rows, 1, new, 1), 0
        )
        tokens, positions = keys[:, 0, :, 0], values[:, 0, :, 0]
        visible = _visible(attention_mask, rows, past, new, tokens.shape[1], input_ids.device)
        seen, order_sum = visible.sum(-1), (visible * positions[:, None]).sum(-1)
        # Slots far behind the table's order count too: what is stale or missing anywhere shows, as
        # it would in a model that attends to everything.
        wrong = (seen != position_ids + 1) | (order_sum * 2 != position_ids * (position_ids + 1))
        history = []
        for distance in reversed(range(self.config.order)):
            wanted = position_ids - distance
            match = visible & (positions[:, None] == wanted[..., None])
            found = match.sum(-1) == 1
            token = (match * tokens[:, None]).sum(-1)
            history.append(token.masked_fill(~found, self.config.vocab_size))
        empty = input_ids.new_zeros(rows, new, 0)
        digits = torch.stack(history, -1) if history else empty
        logits = self.table[context_index(digits, self.config.vocab_size)]
        return torch.where(wrong[..., None], logits.flip(-1), logits)


class RecurrentGlassBoxModel(_TableLM):
    """The same distribution from a rolling state: it can be kept and restored, never cropped.

    The state is the last `order` tokens of each row, held as the recurrent state of a linear
    attention layer, so `cache.is_croppable` is False and `cache.crop` raises. Masked tokens leave
    the state as it is; position ids are not read.
    """

    config_class = _settings = RecurrentGlassBoxConfig
    config: RecurrentGlassBoxConfig

    def _read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache,
    ) -> Tensor:
        rows, new = input_ids.shape
        order = self.config.order
        layer: Any = cache.layers[0]
        if layer.is_recurrent_states_initialized[0]:
            state = layer.recurrent_states[0]
        else:
            state = input_ids.new_full((rows, order), self.config.vocab_size)
        real = torch.ones_like(input_ids, dtype=torch.bool)
        if attention_mask is not None:
            real = attention_mask[:, -new:].bool()
        tokens = torch.cat([state, input_ids], dim=1)
        kept = torch.cat([torch.ones_like(state, dtype=torch.bool), real], dim=1)
        # Real tokens move to the left edge; the n-th real one then closes the window that ends
        # at column order + n.
        tokens = tokens.gather(1, (~kept).long().argsort(dim=1, stable=True))
        ends = real.long().cumsum(1)
        window = torch.arange(order, device=input_ids.device)
        history = tokens[:, None].expand(rows, new, -1).gather(2, ends[..., None] + window)
        if new:
            cache.update_recurrent_state(tokens.gather(1, ends[:, -1:] + window), 0)
        return self.table[context_index(history, self.config.vocab_size)]


def _visible(
    attention_mask: Tensor | None,
    rows: int,
    past: int,
    new: int,
    slots: int,
    device: torch.device,
) -> Tensor:
    """Which of the cache's slots every query sees: bool [B, T, S]."""
    if attention_mask is not None and attention_mask.dim() == 4:
        mask = attention_mask[:, 0]
        seen = mask if mask.dtype == torch.bool else mask == 0
    else:
        columns = torch.arange(slots, device=device)
        queries = torch.arange(past, past + new, device=device)
        seen = (columns <= queries[:, None]).expand(rows, new, slots)
        if attention_mask is not None:
            width = min(slots, attention_mask.shape[1])
            real = torch.zeros(len(attention_mask), slots, dtype=torch.bool, device=device)
            real[:, :width] = attention_mask[:, :width].bool()
            seen = seen & real[:, None]
    return nn.functional.pad(seen, (0, slots - seen.shape[-1])).expand(rows, new, slots)
