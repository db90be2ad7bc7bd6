"""Any causal language model of transformers as a `LanguageModel`, on its real cache.

A session keeps rows of different length in one cache: the tokens of a row occupy the last slots,
what lies before them is dead and masked. A block is appended with its own padding on the right,
where causality hides it, so no query is ever without a slot to look at; slots that end up dead are
then cropped, or squeezed out row by row.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specverify.errors import UsageError
from specverify.models import kv_cache
from specverify.models.prompts import check_block, check_roll_back, prompt_lengths, strip_padding
from specverify.models.protocol import LanguageModel
from specverify.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specverify.models.early_exit import EarlyExit


class TransformersModel:
    """A transformers model that decodes batches with rows of different length.

    The model's weights, configuration and training mode are left as they are; passes run without
    gradients and in evaluation mode.

    Args:
        model: a decoder-only model with a language modelling head.
        tokenizer: its tokenizer, needed to compare the vocabularies of a target and a draft.

    Raises:
        UsageError: the model is an encoder-decoder, or the tokenizer does not fit its logits.
    """

    def __init__(self, model: "PreTrainedModel", tokenizer: Any = None) -> None:
        config = model.config.get_text_config(decoder=True)
        if model.config.is_encoder_decoder:
            raise UsageError(
                f"{type(model).__name__} is an encoder-decoder; only decoder-only models with a "
                "language modelling head can be decoded here"
            )
        self.model = model
        self.vocab_size: int = config.vocab_size
        self.window: int | None = getattr(config, "max_position_embeddings", None)
        self.vocabulary = (
            None if tokenizer is None else Vocabulary.from_tokenizer(tokenizer, self.vocab_size)
        )

    def start(
        self, prompt_ids: Tensor, attention_mask: Tensor | None = None
    ) -> "TransformersSession":
        """Open a session that holds all but the last token of every prompt."""
        lengths = prompt_lengths(prompt_ids, attention_mask, self.vocab_size, self.window)
        tokens = strip_padding(prompt_ids, lengths)[:, :-1]
        session = TransformersSession(self, len(lengths))
        session.read_silently(tokens, lengths - 1)
        return session

    def check_rollable(self) -> None:
        """Raise `CacheNotRollable`, without a forward pass, if drafts cannot be rolled back."""
        kv_cache.check_rollable(kv_cache.new_cache(self.model.config), type(self.model).__name__)

    def early_exit(self, layers: int) -> "EarlyExit":
        """The model that stops after its first `layers` layers, drafting on the same cache."""
        from specverify.models.early_exit import EarlyExit

        return EarlyExit(self, layers)


class TransformersSession:
    """B rows of tokens in one `DynamicCache`."""

    def __init__(self, model: TransformersModel, rows: int) -> None:
        device = model.model.device
        self.model = model
        self.cache = kv_cache.new_cache(model.model.config)
        self.live = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        """Which cache slots hold a token of their row, [B, S]."""
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.passes = 0
        self.training = any(module.training for module in model.model.modules())
        """Whether some module was in training mode when the session began."""
        self.borrowed = 0
        """Slots at the end of the cache that an early-exit session has written and not returned."""

    @property
    def positions(self) -> Tensor:
        """Position id of each row's next token, [B]; a negative control counts differently."""
        return self.lengths

    def extend(self, tokens: Tensor, counts: Tensor | None = None) -> Tensor:
        """Read a block per row and return logits [B, n, V] (see `Session.extend`)."""
        return self._extend(tokens, counts)

    def read_silently(self, tokens: Tensor, counts: Tensor) -> None:
        """Read a block per row as `extend` does, without the cost of its logits."""
        self._extend(tokens, counts, last_logits_only=True)

    def repeated(self, rows: int) -> "TransformersSession":
        """A new session of `rows` rows that hold the tokens of this one, which has a single row.

        Raises:
            CacheNotRollable: a layer keeps its past in another form than keys and values.
        """
        kv_cache.check_rollable(self.cache, type(self.model.model).__name__)
        made = copy.copy(self)
        made.cache = kv_cache.repeated(self.cache, rows)
        made.live = self.live.expand(rows, -1)
        made.lengths = self.lengths.expand(rows).clone()
        return made

    def roll_back(self, lengths: Tensor) -> None:
        """Forget all but the first `lengths[b]` tokens of each row.

        Raises:
            CacheNotRollable: the model's cache cannot forget; nothing has changed then.
            ValueError: see `Session.roll_back`.
        """
        lengths = lengths.to(self.lengths.device)
        check_roll_back(lengths, self.lengths)
        if torch.equal(lengths, self.lengths):
            return
        self._check_returned()
        kv_cache.check_rollable(self.cache, type(self.model.model).__name__)
        dropped = self.lengths - lengths
        surplus = int(dropped[0])
        if bool((dropped == surplus).all()) and int(lengths.min()):
            # The usual case of a single row; the rows stay aligned.
            kv_cache.crop(self.cache.layers, surplus)
            self.live = self.live[:, : self.live.shape[1] - surplus]
            self.lengths = lengths.clone()
            return
        self.live = self.live & (self.live.cumsum(1) <= lengths[:, None])
        self.lengths = lengths.clone()
        self._settle()

    def _extend(
        self, tokens: Tensor, counts: Tensor | None, *, last_logits_only: bool = False
    ) -> Tensor:
        model = self.model
        tokens = tokens.to(self.lengths.device)
        counts, read = check_block(tokens, counts, self.lengths, model.vocab_size, model.window)
        fewest, width = (int(bound) for bound in counts.aminmax()) if len(counts) else (0, 0)
        if not width:
            return logits_of_nothing(model, tokens)
        self._check_returned()
        whole = fewest == width
        if not whole:
            # Rows that read less leave dead slots, which must be squeezed out afterwards.
            kv_cache.check_rollable(self.cache, type(model.model).__name__)
        read = read[:, :width]
        logits = forward(
            model.model,
            self.cache,
            tokens[:, :width],
            read,
            self.live,
            self.positions,
            training=self.training,
            last_logits_only=last_logits_only,
        )
        self.passes += 1
        self.live = torch.cat([self.live, read], dim=1)
        self.lengths = self.lengths + counts
        if not whole:
            self._settle()
        if logits.shape[1] == tokens.shape[1]:
            return logits
        return torch.nn.functional.pad(logits, (0, 0, 0, tokens.shape[1] - logits.shape[1]))

    def _settle(self) -> None:
        """Drop dead slots until every row is padded on the left and some row not at all."""
        slots = self.live.shape[1]
        last = (self.live * torch.arange(1, slots + 1, device=self.live.device)).amax(1)
        surplus = slots - int(last.max())
        kv_cache.crop(self.cache.layers, surplus)
        self.live = self.live[:, : slots - surplus]
        slots -= surplus
        longest = int(self.lengths.max())
        padded_left = torch.arange(slots, device=self.live.device) >= slots - self.lengths[:, None]
        if longest == slots and torch.equal(padded_left, self.live):
            return
        order = self.live.long().argsort(dim=1, stable=True)[:, slots - longest :]
        kv_cache.select(self.cache.layers, order)
        self.live = self.live.gather(1, order)

    def _check_returned(self) -> None:
        if self.borrowed:
            raise RuntimeError(
                f"an early-exit session still holds {self.borrowed} slots of this cache; roll it "
                "back to the target's lengths before the target goes on"
            )


def forward(
    model: "PreTrainedModel",
    cache: Any,
    tokens: Tensor,
    read: Tensor,
    live: Tensor,
    lengths: Tensor,
    *,
    training: bool,
    last_logits_only: bool = False,
) -> Tensor:
    """One pass over a block that is padded on the right, behind what the cache holds.

    Args:
        model: a transformers model, or a truncated copy of one.
        cache: gains n slots per row.
        tokens: long [B, n].
        read: bool [B, n], False on the block's padding.
        live: bool [B, S], the cache slots that count.
        lengths: long [B], tokens before the block, which give its position ids.
        training: whether some module is in training mode, to be put in evaluation mode for the
            pass; looking through all modules costs a good part of a small model's pass.
        last_logits_only: spare the language modelling head all positions but one.

    Returns:
        logits [B, n, V], or [B, 1, V] where `last_logits_only` is honoured.
    """
    parameters = _parameters(type(model))
    steps = torch.arange(tokens.shape[1], device=tokens.device)
    arguments: dict[str, Any] = {
        "input_ids": tokens.masked_fill(~read, 0),
        # Padding comes after the tokens of its row, so causality hides it from them; left
        # unmasked, it sees itself, and no attention row is empty.
        "attention_mask": torch.cat([live, torch.ones_like(read)], dim=1).long(),
        "use_cache": True,
        ("cache" if "cache" in parameters else "past_key_values"): cache,
    }
    if "position_ids" in parameters:
        # Padding gets position 0, which exists in every model, however full the window is.
        arguments["position_ids"] = (lengths[:, None] + steps).masked_fill(~read, 0)
    if last_logits_only and "logits_to_keep" in parameters:
        arguments["logits_to_keep"] = 1
    with _evaluating(model) if training else nullcontext(), torch.inference_mode():
        return model(**arguments).logits


def logits_of_nothing(model: TransformersModel, tokens: Tensor) -> Tensor:
    """What `extend` returns when no row reads anything: [B, n, V], all of it unspecified."""
    shape = (*tokens.shape, model.vocab_size)
    return torch.zeros(shape, dtype=model.model.dtype, device=tokens.device)


@lru_cache
def _parameters(model_class: type) -> frozenset[str]:
    """Names of what the model's forward pass takes."""
    return frozenset(signature(model_class.forward).parameters)


@contextmanager
def _evaluating(model: "PreTrainedModel") -> Iterator[None]:
    """Evaluation mode for the time of a pass, restored module by module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def as_language_model(model: Any) -> LanguageModel:
    """The model itself if it is a `LanguageModel`, a `PreTrainedModel` wrapped as one.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(model, LanguageModel):
        return model
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return TransformersModel(model)
    raise UsageError(
        f"{type(model).__name__} is neither a specverify LanguageModel (vocab_size, window, "
        "vocabulary, start) nor a transformers PreTrainedModel; wrap it as one of the two"
    )
