"""Cutting and realigning the key-value cache of a transformers model, row by row."""

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from specverify.errors import CacheNotRollable


def new_cache(config: Any) -> Any:
    """A `DynamicCache` for this model configuration, one that never forgets by itself.

    Sliding-window layers are given full storage: the attention mask still hides what has left the
    window, and a token that moves out of it can come back when later ones are rolled back.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    cache = DynamicCache(config=config)
    cache.layers = [
        DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
        for layer in cache.layers
    ]
    return cache


def check_rollable(cache: Any, owner: str) -> None:
    """Raise `CacheNotRollable` if some layer cannot forget the tokens of one row alone.

    Args:
        cache: a transformers `Cache`, filled or not.
        owner: class of the model, for the message.
    """
    from transformers.cache_utils import DummyLayer, DynamicLayer

    for index, layer in enumerate(cache.layers):
        if type(layer) not in (DynamicLayer, DummyLayer):
            raise CacheNotRollable(
                f"layer {index} of {owner} keeps its past in a {type(layer).__name__}, which "
                f"cannot {_reason(layer)}: rejected draft tokens would stay in it. Use a model "
                "whose layers all use DynamicLayer (full or sliding-window attention), or decode "
                "without a draft"
            )


def crop(layers: Iterable[Any], slots: int) -> None:
    """Remove the last `slots` slots of every layer and row.

    A negative argument to `crop` means "remove that many" in every version of transformers; a
    positive one was the new length before version 5 and is refused since.
    """
    if slots:
        for layer in layers:
            layer.crop(-slots)


def repeated(cache: Any, rows: int) -> Any:
    """A cache of `rows` rows that hold what `cache` does in its single row.

    The memory is shared: `DynamicLayer` never writes into keys and values that it holds.
    """
    made = copy.copy(cache)
    made.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in made.layers:
        if layer.get_seq_length():
            layer.keys = layer.keys.expand(rows, -1, -1, -1)
            layer.values = layer.values.expand(rows, -1, -1, -1)
    return made


def select(layers: Iterable[Any], slots: Tensor) -> None:
    """Rearrange the cache: slot `j` of row `b` becomes what was its slot `slots[b, j]`.

    Args:
        layers: `DynamicLayer`s, keys and values of shape [B, heads, S, width].
        slots: long [B, S'].
    """
    index = slots[:, None, :, None]
    for layer in layers:
        if layer.get_seq_length():
            for name in ("keys", "values"):
                states = getattr(layer, name)
                wanted = index.to(states.device).expand(-1, states.shape[1], -1, states.shape[3])
                setattr(layer, name, states.gather(2, wanted))


def _reason(layer: Any) -> str:
    """What keeps this kind of layer from being rolled back."""
    from transformers import cache_utils

    if isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin):
        return "undo the updates of its recurrent or convolutional state"
    if isinstance(layer, cache_utils.StaticLayer):
        return "drop the slots of one row"
    if getattr(layer, "is_croppable", True):
        return "be realigned when the rows of a batch keep different numbers of tokens"
    return "be cropped"
