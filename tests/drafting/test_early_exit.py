import pytest
import torch

from specverify.drafting.early_exit import EarlyExitDrafter
from specverify.drafting.protocol import Histories
from specverify.errors import UsageError
from specverify.models.table import TableModel

V = 7
PROMPTS = [3, 1, 4, 1, 5], [2, 6]


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).double().eval()


@pytest.fixture
def target(llama):
    from specverify.models.transformers_model import TransformersModel

    return TransformersModel(llama)


def cut_logits(llama, tokens, layers):
    """Logits after a whole sequence by its first layers alone, from the hidden states."""
    with torch.no_grad():
        seen = llama(torch.tensor([tokens]), output_hidden_states=True).hidden_states[layers]
        return llama.lm_head(llama.model.norm(seen))[0, -1]


def whole_logits(llama, tokens):
    with torch.no_grad():
        return llama(torch.tensor([tokens])).logits[0, -1]


@pytest.fixture
def run(target, batch):
    def start(**options):
        ids, mask = batch(*PROMPTS)
        session = target.start(ids, mask)
        drafter = EarlyExitDrafter(target, 1, **options)
        return session, drafter.start(ids, mask, session), Histories.from_prompts(ids, mask)

    return start


def test_drafts_with_the_first_layers(llama, run, pipeline):
    _, draft, history = run()
    limits = torch.tensor([3, 2])
    block = draft.propose(history, limits, pipeline(V), torch.Generator().manual_seed(1))
    assert block.counts.tolist() == [3, 2]
    assert draft.passes == 3
    for row, prompt in enumerate(PROMPTS):
        tokens = block.tokens[row].tolist()
        for step in range(int(limits[row])):
            expected = cut_logits(llama, prompt + tokens[:step], 1).softmax(-1)
            torch.testing.assert_close(block.probs[row, step], expected, atol=1e-9, rtol=0)
            whole = whole_logits(llama, prompt + tokens[:step]).softmax(-1)
            assert (whole - expected).abs().max() > 1e-3


def test_the_shared_cache_is_left_as_it_was(llama, run, pipeline):
    """Over several rounds the target's logits stay those of a fresh pass over the whole text."""
    target, draft, history = run()
    generator = torch.Generator().manual_seed(2)
    for accepted in ([1, 2], [0, 1], [2, 0]):
        held = target.lengths.clone()
        block = draft.propose(history, torch.tensor([2, 2]), pipeline(V), generator)
        assert torch.equal(target.lengths, held)
        last = history.tokens.gather(1, history.lengths[:, None] - 1)
        logits = target.extend(torch.cat([last, block.tokens], 1))
        for row in range(2):
            text = history.tokens[row, : history.lengths[row]].tolist()
            for step in range(3):
                expected = whole_logits(llama, text + block.tokens[row, :step].tolist())
                torch.testing.assert_close(logits[row, step], expected, atol=1e-9, rtol=0)
        # Commit the accepted tokens and one more.
        history.reserve(3)
        history.write(torch.cat([block.tokens, block.tokens[:, :1]], 1))
        history.lengths = history.lengths + torch.tensor(accepted) + 1
        target.roll_back(history.lengths - 1)
        draft.commit(history.lengths - 1)


def test_a_confidence_threshold_of_one_stops_after_the_first_token(run, pipeline):
    _, draft, history = run(confidence_threshold=1.0)
    generator = torch.Generator().manual_seed(3)
    block = draft.propose(history, torch.tensor([3, 3]), pipeline(V), generator)
    assert block.counts.tolist() == [1, 1]
    assert bool((block.tokens >= 0).all())


def test_a_failure_while_drafting_still_returns_the_cache(run, pipeline, llama):
    class Interrupted(Exception):
        pass

    class Broken:
        settings = pipeline(V).settings
        calls = 0

        def probabilities(self, logits, *_):
            self.calls += 1
            if self.calls == 2:
                raise Interrupted
            return logits.double().softmax(-1)

    target, draft, history = run()
    with pytest.raises(Interrupted):
        draft.propose(history, torch.tensor([3, 3]), Broken(), torch.Generator().manual_seed(4))
    assert draft.passes == 2
    logits = target.extend(history.tokens.gather(1, history.lengths[:, None] - 1))
    for row, prompt in enumerate(PROMPTS):
        expected = whole_logits(llama, prompt)
        torch.testing.assert_close(logits[row, 0], expected, atol=1e-9, rtol=0)


def test_a_model_without_layers_is_refused():
    with pytest.raises(UsageError, match="TableModel has no layers to leave early"):
        EarlyExitDrafter(TableModel.random(3, 1, seed=0), 1)


@pytest.mark.parametrize("layers", [0, 3])
def test_an_exit_outside_the_model_is_refused(target, layers):
    with pytest.raises(UsageError, match=f"{layers} layers"):
        EarlyExitDrafter(target, layers)
