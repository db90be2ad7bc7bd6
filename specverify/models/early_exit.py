"""Early exit: the first layers of a model as its own draft, on the same cache.

Layers 1 to E of the truncated model are those of the target, so what they have cached for the
committed tokens is what the draft needs (LayerSkip, Elhoushi et al. 2024, section 4.3). The draft
appends slots to these layers only, and must take them back before the target's next pass, which
writes them in every layer.
"""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specverify.errors import UsageError
from specverify.models import kv_cache
from specverify.models.prompts import check_block, check_roll_back
from specverify.models.protocol import Session
from specverify.models.transformers_model import (
    TransformersModel,
    TransformersSession,
    forward,
    logits_of_nothing,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EarlyExit:
    """A transformers model cut after its first layers, its final norm and head kept.

    Modules are shared with the model, never copied; its own configuration and layer list stay
    untouched.

    Args:
        target: the whole model.
        layers: how many of its layers the draft runs, from 1 to all but one.

    Raises:
        UsageError: the model has no `model.layers` to cut, or `layers` is out of range.
        CacheNotRollable: its cache cannot take drafts back.
    """

    def __init__(self, target: TransformersModel, layers: int) -> None:
        depth = _depth(target.model)
        if not 1 <= layers < depth:
            raise UsageError(
                f"early exit after {layers} layers of a model with {depth}; choose 1 to {depth - 1}"
            )
        target.check_rollable()
        self.target = target
        self.layers = layers
        self.vocab_size = target.vocab_size
        self.model = _truncate(target.model, layers)

    def session(self, target_session: Session) -> "EarlyExitSession":
        """Draft behind whatever the target's session holds, now and after its later rounds.

        Raises:
            UsageError: it is a session of another model.
        """
        if (
            not isinstance(target_session, TransformersSession)
            or target_session.model.model is not self.target.model
        ):
            raise UsageError(
                "this session does not belong to the model that exits early; start it with the "
                "same TransformersModel, which then serves as target and draft"
            )
        return EarlyExitSession(self, target_session)


class EarlyExitSession:
    """Draft tokens behind a target session's, in the first layers of its cache.

    `lengths` counts the target's tokens too, and follows them. Rolled back to the target's lengths,
    it leaves the cache as it found it.
    """

    def __init__(self, model: EarlyExit, target: TransformersSession) -> None:
        self.model = model
        self.target = target
        self.passes = 0
        self._live = target.live[:, :0]

    @property
    def lengths(self) -> Tensor:
        """Tokens held per row, the target's included, long [B]."""
        return self.target.lengths + self._live.sum(1)

    def extend(self, tokens: Tensor, counts: Tensor | None = None) -> Tensor:
        """Read a block per row and return logits [B, n, V] (see `Session.extend`)."""
        whole = self.model.target
        tokens = tokens.to(self.target.lengths.device)
        counts, read = check_block(tokens, counts, self.lengths, whole.vocab_size, whole.window)
        if not bool(counts.any()):
            return logits_of_nothing(whole, tokens)
        live = torch.cat([self.target.live, self._live], dim=1)
        logits = forward(
            self.model.model,
            self.target.cache,
            tokens,
            read,
            live,
            self.lengths,
            training=self.target.training,
        )
        self.passes += 1
        self._live = torch.cat([self._live, read], dim=1)
        self.target.borrowed = self._live.shape[1]
        return logits

    def roll_back(self, lengths: Tensor) -> None:
        """Forget drafted tokens; the target's own are not this session's to forget.

        Raises:
            ValueError: `lengths[b]` lies outside what the target and this session hold.
        """
        lengths = lengths.to(self.target.lengths.device)
        check_roll_back(lengths, self.lengths)
        drafted = lengths - self.target.lengths
        if bool((drafted < 0).any()):
            row = int((drafted < 0).nonzero()[0])
            raise ValueError(
                f"row {row} of the target holds {int(self.target.lengths[row])} tokens; roll the "
                f"target's session back to go down to {int(lengths[row])}"
            )
        self._live = self._live & (self._live.cumsum(1) <= drafted[:, None])
        # Slots that are dead in every row go; one that a single row still needs is masked in the
        # others, since moving it would shift these layers against the ones above.
        columns = self._live.any(0).nonzero()
        kept = int(columns.max()) + 1 if len(columns) else 0
        surplus = self._live.shape[1] - kept
        kv_cache.crop(self.target.cache.layers[: self.model.layers], surplus)
        self._live = self._live[:, :kept]
        self.target.borrowed = kept


def _depth(model: "PreTrainedModel") -> int:
    """Number of decoder layers, if the model is built in a way that can be cut."""
    inner = getattr(model, "model", None)
    layers = getattr(inner, "layers", None)
    if not isinstance(layers, nn.ModuleList) or model.get_output_embeddings() is None:
        raise UsageError(
            f"{type(model).__name__} has no list of decoder layers at model.layers with a language "
            "modelling head behind it (the Llama layout); early exit cannot cut it, use a separate "
            "draft model"
        )
    return len(layers)


def _truncate(model: "PreTrainedModel", layers: int) -> "PreTrainedModel":
    """A copy that shares every module but the list of layers and the configuration."""
    config = copy.deepcopy(model.config)
    text = config.get_text_config(decoder=True)
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None) is not None:
        text.layer_types = list(text.layer_types[:layers])
    inner: Any = model.model
    cut = _shallow(inner, config=text if inner.config is not model.config else config)
    cut._modules["layers"] = nn.ModuleList(list(inner.layers)[:layers])
    whole = _shallow(model, config=config)
    whole._modules["model"] = cut
    return whole


def _shallow(module: Any, **attributes: Any) -> Any:
    """A module with its own table of children, the children themselves shared."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    for name, value in attributes.items():
        setattr(twin, name, value)
    return twin
