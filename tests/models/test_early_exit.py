import copy

import pytest
import torch

from specverify.errors import CacheNotRollable, UsageError
from specverify.models.glass_box import GlassBoxModel, RecurrentGlassBoxModel
from specverify.models.table import TableModel
from specverify.models.transformers_model import TransformersModel

IDS = torch.tensor([[0, 0, 0, 16], [0, 3, 1, 4], [1, 5, 9, 2]])
MASK = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]])


@pytest.fixture
def model(make_tiny):
    return make_tiny("llama")


@pytest.fixture
def shallow(model, make_tiny):
    """An independent two-layer model with the weights of the first two layers."""
    twin = make_tiny("llama", layers=2)
    weights = {name: weight for name, weight in model.state_dict().items() if ".2." not in name}
    twin.load_state_dict(weights)
    return twin


def close(left, right):
    return torch.allclose(left, right, atol=2e-5, rtol=1e-5)


def layers_of(session):
    return [(layer.keys.clone(), layer.values.clone()) for layer in session.cache.layers]


def test_drafts_are_those_of_the_first_layers_and_leave_no_trace(model, shallow, solo, walk):
    lm = TransformersModel(model)
    target = lm.start(IDS, MASK)
    draft = lm.early_exit(2).session(target)
    texts = [[], [3, 1], [1, 5, 9]]
    for seed in range(3):
        cache, live = layers_of(target), target.live.clone()
        base = [len(text) for text in texts]
        # Ragged drafting with partial roll backs, never into what the target holds.
        block = torch.tensor([[1, 2], [3, -1], [-1, -1]])
        logits = draft.extend(block, torch.tensor([2, 1, 0]))
        assert close(logits[0], solo(shallow, [*texts[0], 1, 2])[-2:])
        assert close(logits[1, :1], solo(shallow, [*texts[1], 3])[-1:])
        draft.roll_back(torch.tensor([base[0] + 1, base[1] + 1, base[2]]))
        logits = draft.extend(torch.tensor([[5], [6], [7]]))
        assert draft.lengths.tolist() == [base[0] + 2, base[1] + 2, base[2] + 1]
        for row, suffix in enumerate(([1, 5], [3, 6], [7])):
            assert close(logits[row, 0], solo(shallow, [*texts[row], *suffix])[-1])
        draft.roll_back(target.lengths)
        assert torch.equal(target.live, live)
        for (keys, values), layer in zip(cache, target.cache.layers, strict=True):
            # Row 0 starts with nothing cached at all.
            assert torch.equal(keys, layer.keys)
            assert torch.equal(values, layer.values)
        for history, logits, counts in walk(target, texts, 17, seed, rounds=2):
            for row, text in enumerate(history):
                if counts[row]:
                    count = int(counts[row])
                    assert close(logits[row, :count], solo(model, text)[-count:])
    assert draft.passes == 6
    assert target.passes <= 7


def test_the_model_and_its_configuration_are_untouched(model):
    before = copy.deepcopy(model.config.to_dict())
    early = TransformersModel(model).early_exit(1)
    assert model.config.to_dict() == before
    assert len(model.model.layers) == 3
    assert len(early.model.model.layers) == early.model.config.num_hidden_layers == 1
    assert early.model.model.layers[0] is model.model.layers[0]
    assert early.model.lm_head is model.lm_head
    assert early.model.model.norm is model.model.norm


def test_layer_types_are_cut_with_the_layers(make_tiny, solo):
    model = make_tiny("gemma3")
    lm = TransformersModel(model)
    target = lm.start(torch.tensor([[1, 2, 3, 4, 5, 6]]))
    early = lm.early_exit(2)
    logits = early.session(target).extend(torch.tensor([[6]]))
    assert close(logits[0], solo(early.model, [1, 2, 3, 4, 5, 6])[-1:])
    assert len(model.config.layer_types) == 3


def test_the_target_refuses_to_go_on_over_drafts(model):
    lm = TransformersModel(model)
    target = lm.start(IDS, MASK)
    draft = lm.early_exit(1).session(target)
    draft.extend(torch.tensor([[1], [2], [3]]), torch.tensor([1, 0, 0]))
    for call in (
        lambda: target.extend(torch.tensor([[1]] * 3)),
        lambda: target.roll_back(torch.tensor([0, 1, 3])),
    ):
        with pytest.raises(RuntimeError, match="still holds 1 slots"):
            call()
    draft.roll_back(target.lengths)
    target.extend(torch.tensor([[1]] * 3))


def test_target_tokens_are_not_the_drafts_to_forget(model):
    lm = TransformersModel(model)
    draft = lm.early_exit(1).session(lm.start(IDS, MASK))
    with pytest.raises(ValueError, match="row 1 of the target holds 2 tokens"):
        draft.roll_back(torch.tensor([0, 1, 3]))


def test_rows_that_draft_nothing_cost_no_pass(model):
    lm = TransformersModel(model)
    draft = lm.early_exit(1).session(lm.start(IDS, MASK))
    assert draft.extend(torch.full((3, 2), -1), torch.zeros(3).long()).shape == (3, 2, 17)
    assert draft.passes == 0


@pytest.mark.parametrize("layers", [0, 3, -1])
def test_a_depth_out_of_range_is_refused(model, layers):
    with pytest.raises(UsageError, match=f"after {layers} layers of a model with 3; choose 1 to 2"):
        TransformersModel(model).early_exit(layers)


def test_other_architectures_and_sessions_are_refused(model, make_tiny):
    for other in (make_tiny("gpt2"), GlassBoxModel.from_table(TableModel.random(3, 1, 0))):
        with pytest.raises(UsageError, match=r"no list of decoder layers at model\.layers"):
            TransformersModel(other).early_exit(1)
    early = TransformersModel(model).early_exit(1)
    for session in (
        TransformersModel(make_tiny("llama")).start(IDS, MASK),
        TableModel.random(17, 1, 0).start(IDS, MASK),
    ):
        with pytest.raises(UsageError, match="does not belong to the model"):
            early.session(session)


def test_a_cache_that_cannot_be_rolled_back_is_refused():
    wrapped = TransformersModel(RecurrentGlassBoxModel.from_table(TableModel.random(3, 1, 0)))
    with pytest.raises((CacheNotRollable, UsageError)):
        wrapped.early_exit(1)
