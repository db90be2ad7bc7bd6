import pytest
import torch
from transformers import StaticCache
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from specverify.errors import CacheNotRollable
from specverify.models import kv_cache


def filled(slots=4, rows=2):
    cache = DynamicCache()
    keys = torch.arange(rows * slots).float().reshape(rows, 1, slots, 1)
    cache.update(keys, -keys, 0)
    return cache


def test_crop_removes_from_the_end_and_zero_is_nothing():
    cache = filled()
    kv_cache.crop(cache.layers, 0)
    assert cache.get_seq_length() == 4
    kv_cache.crop(cache.layers, 3)
    assert cache.layers[0].keys.flatten().tolist() == [0, 4]


def test_select_moves_the_slots_of_each_row():
    cache = filled()
    kv_cache.select(cache.layers, torch.tensor([[2, 0], [1, 3]]))
    assert cache.layers[0].keys.flatten().tolist() == [2, 0, 5, 7]
    assert cache.layers[0].values.flatten().tolist() == [-2, 0, -5, -7]


def test_sliding_layers_get_full_storage(make_tiny):
    cache = kv_cache.new_cache(make_tiny("gemma3").config)
    assert [type(layer) for layer in cache.layers] == [DynamicLayer] * 3
    kv_cache.check_rollable(cache, "Gemma")


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (LinearAttentionLayer(), "recurrent or convolutional state"),
        (DynamicSlidingWindowLayer(sliding_window=4), "realigned"),
    ],
)
def test_other_layers_are_refused_by_name(layer, reason):
    cache = Cache(layers=[DynamicLayer(), layer])
    with pytest.raises(CacheNotRollable) as caught:
        kv_cache.check_rollable(cache, "Model")
    assert f"layer 1 of Model keeps its past in a {type(layer).__name__}" in str(caught.value)
    assert reason in str(caught.value)


def test_static_caches_are_refused(make_tiny):
    cache = StaticCache(config=make_tiny("mistral").config, max_cache_len=8)
    with pytest.raises(CacheNotRollable, match="StaticSlidingWindowLayer, which cannot drop"):
        kv_cache.check_rollable(cache, "Mistral")


def test_quantised_layers_are_refused():
    from transformers.cache_utils import QuantoQuantizedLayer

    layer = QuantoQuantizedLayer.__new__(QuantoQuantizedLayer)  # its backend is not installed
    with pytest.raises(CacheNotRollable, match="QuantoQuantizedLayer, which cannot be cropped"):
        kv_cache.check_rollable(Cache(layers=[layer]), "Model")
