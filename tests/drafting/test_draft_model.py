import math

import numpy as np
import pytest
import torch
from scipy import stats

from specverify.drafting.draft_model import DraftModel
from specverify.drafting.protocol import DraftBlock, Histories
from specverify.errors import UsageError
from specverify.models.table import TableModel
from specverify.verification import TOKEN

V = 4
MODEL = TableModel.random(V, 2, seed=1, scale=1.5)
PROMPTS = [2, 0, 1], [3], [1, 1, 2, 0, 3]


def softmax(logits):
    weights = [math.exp(z - max(logits)) for z in logits]
    return [w / sum(weights) for w in weights]


def penalised(prefix, prompt, repetition, presence):
    """q after a prefix, written out: repetition over all tokens, presence over new ones only."""
    logits = MODEL.logits[MODEL.context_after(prefix)].tolist()
    for token in set(prefix):
        logits[token] = (
            logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
        )
    for token in set(prefix[len(prompt) :]):
        logits[token] -= presence
    return softmax(logits)


def start(batch, drafter, *prompts):
    ids, mask = batch(*prompts)
    target = MODEL.start(ids, mask)
    return drafter.start(ids, mask, target), Histories.from_prompts(ids, mask)


def check_block(block: DraftBlock, history: Histories, **penalties) -> None:
    """Every reported row is q after the row's own prefix; nothing is reported beyond."""
    assert block.probs is not None
    for row, count in enumerate(block.counts.tolist()):
        committed = history.tokens[row, : history.lengths[row]].tolist()
        prompt = committed[: history.prompt_lengths[row]]
        tokens = block.tokens[row].tolist()
        for step in range(count):
            expected = penalised(committed + tokens[:step], prompt, **penalties)
            assert block.probs[row, step].tolist() == pytest.approx(expected, abs=1e-12)
            assert expected[tokens[step]] > 0
        assert all(token == -1 for token in tokens[count:])
        assert bool((block.probs[row, count:] == 0).all())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("repetition", "presence"), [(1.0, 0.0), (1.7, 0.0), (1.3, 0.8)])
def test_probs_are_what_each_token_was_drawn_from(batch, pipeline, repetition, presence, seed):
    session, history = start(batch, DraftModel(MODEL), *PROMPTS)
    run = pipeline(V, repetition_penalty=repetition, presence_penalty=presence)
    limits = torch.tensor([3, 1, 4])
    block = session.propose(history, limits, run, torch.Generator().manual_seed(seed))
    assert block.counts.tolist() == [3, 1, 4]
    assert block.tokens.shape == (3, 4)
    check_block(block, history, repetition=repetition, presence=presence)


def test_reads_what_it_lacks_whatever_was_accepted(batch, pipeline, commit):
    """Full acceptance leaves two tokens unread, a rejection one, rounds without drafts many."""
    session, history = start(batch, DraftModel(MODEL), *PROMPTS)
    run, generator = pipeline(V), torch.Generator().manual_seed(2)
    first = session.propose(history, torch.tensor([2, 2, 0]), run, generator)
    check_block(first, history, repetition=1.0, presence=0.0)
    a, b = first.tokens[0].tolist(), first.tokens[1].tolist()
    # Row 0 accepts all and takes a bonus, row 1 rejects its first token, row 2 had no draft.
    commit(session, history, [2, 0, 0], [[*a, 3], [(b[0] + 1) % V], [2]])
    assert session.passes == 3
    second = session.propose(history, torch.tensor([2, 2, 0]), run, generator)
    check_block(second, history, repetition=1.0, presence=0.0)
    commit(session, history, [0, 0, 0], [[(second.tokens[0, 0].item() + 1) % V], [0], [1]])
    third = session.propose(history, torch.tensor([1, 1, 3]), run, generator)
    check_block(third, history, repetition=1.0, presence=0.0)
    # One to read the prompts, then as many as the longest block has tokens.
    assert session.passes == 1 + 2 + 2 + 3


def test_rows_without_a_limit_are_left_alone(batch, pipeline):
    session, history = start(batch, DraftModel(MODEL), *PROMPTS)
    held = session._session.lengths.clone()
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    block = session.propose(history, torch.zeros(3, dtype=torch.long), pipeline(V), generator)
    assert block.tokens.shape == (3, 0)
    assert block.counts.tolist() == [0, 0, 0]
    assert torch.equal(generator.get_state(), before)
    session.propose(history, torch.tensor([0, 2, 0]), pipeline(V), generator)
    assert (session._session.lengths - held).tolist() == [0, 2, 0]


def test_what_is_said_about_resting_rows_is_never_looked_at(batch, pipeline):
    """Model and pipeline may leave anything, here NaN, where a row reads and draws nothing."""
    run = pipeline(V)
    seen = []

    class Spoiling:
        settings = run.settings

        def probabilities(self, logits, tokens, starts, prompt_lengths, counts=None):
            probs = run.probabilities(logits, tokens, starts, prompt_lengths, counts)
            if counts is not None:
                seen.append(int((counts == 0).sum()))
                probs = probs.masked_fill((counts == 0)[:, None, None], torch.nan)
            return probs

    session, history = start(batch, DraftModel(MODEL), *PROMPTS)
    extend = session._session.extend

    def spoiling(tokens, counts):
        return extend(tokens, counts).masked_fill((counts == 0)[:, None, None], torch.nan)

    session._session.extend = spoiling
    generator = torch.Generator().manual_seed(3)
    block = session.propose(history, torch.tensor([3, 0, 2]), Spoiling(), generator)
    assert seen == [1, 1, 2]
    assert block.counts.tolist() == [3, 0, 2]
    check_block(block, history, repetition=1.0, presence=0.0)


def test_the_last_draft_token_is_not_read(batch, pipeline):
    session, history = start(batch, DraftModel(MODEL), *PROMPTS)
    session.propose(history, torch.tensor([3, 3, 3]), pipeline(V), torch.Generator().manual_seed(4))
    assert session.passes == 1 + 3
    assert torch.equal(session._session.lengths, history.lengths + 2)


def test_greedy_drafts_are_deterministic(batch, pipeline):
    session, history = start(batch, DraftModel(MODEL), *PROMPTS)
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    run = pipeline(V, temperature=0.0)
    block = session.propose(history, torch.tensor([2, 2, 2]), run, generator)
    assert block.probs is None
    assert torch.equal(generator.get_state(), before)
    for row, prompt in enumerate(PROMPTS):
        prefix = list(prompt)
        for token in block.tokens[row].tolist():
            assert token == MODEL.logits[MODEL.context_after(prefix)].argmax()
            prefix.append(token)


def test_a_random_transform_reports_the_outcome_it_sampled_from(batch, pipeline):
    """XTC at probability 1/2: some rows keep every token, some lose the likely ones."""
    generator = torch.Generator().manual_seed(6)
    session, history = start(batch, DraftModel(MODEL), *([[2, 0]] * 200))
    run = pipeline(V, generator, xtc_probability=0.5, xtc_threshold=0.1)
    block = session.propose(history, torch.full((200,), 2), run, generator)
    assert block.probs is not None
    survivors = (block.probs[:, 0] > 0).sum(-1)
    assert survivors.unique().numel() == 2
    assert bool((block.probs.gather(2, block.tokens[:, :, None]) > 0).all())


def test_tokens_follow_the_probs(batch, pipeline):
    rows = 40_000
    session, history = start(batch, DraftModel(MODEL), *([[2, 0]] * rows))
    generator = torch.Generator().manual_seed(7)
    block = session.propose(history, torch.full((rows,), 2), pipeline(V), generator)
    observed = np.bincount(block.tokens[:, 0] * V + block.tokens[:, 1], minlength=V * V)
    first = softmax(MODEL.logits[MODEL.context_after([2, 0])].tolist())
    law = np.array(
        [
            first[a] * q
            for a in range(V)
            for q in softmax(MODEL.logits[MODEL.context_after([2, 0, a])].tolist())
        ]
    )
    assert stats.chisquare(observed, rows * law).pvalue > 1e-4
    assert stats.chisquare(observed, rows * np.full(V * V, 1 / V**2)).pvalue < 1e-9


def test_the_global_generator_is_untouched(batch, pipeline):
    before = torch.get_rng_state()
    session, history = start(batch, DraftModel(MODEL), *PROMPTS)
    session.propose(history, torch.tensor([3, 3, 3]), pipeline(V), torch.Generator().manual_seed(8))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_row_stops_after_the_first_improbable_token_and_keeps_it(batch, pipeline):
    rows, limit, threshold = 2_000, 5, 0.2
    drafter = DraftModel(MODEL, confidence_threshold=threshold)
    session, history = start(batch, drafter, *([[2, 0]] * rows))
    run, generator = pipeline(V, repetition_penalty=1.5), torch.Generator().manual_seed(9)
    block = session.propose(history, torch.full((rows,), limit), run, generator)
    assert block.probs is not None
    offered = torch.arange(limit) < block.counts[:, None]
    q = block.probs.gather(2, block.tokens.clamp(min=0)[:, :, None]).squeeze(2)
    last = torch.arange(limit) == block.counts[:, None] - 1
    assert bool((q[offered & ~last] >= threshold).all())
    stopped = block.counts < limit
    assert 0 < stopped.sum() < rows
    assert bool((q[last & stopped[:, None]] < threshold).all())
    check_block(
        DraftBlock(block.tokens[:50], block.counts[:50], block.probs[:50]),
        Histories(history.tokens[:50], history.lengths[:50], history.prompt_lengths[:50]),
        repetition=1.5,
        presence=0.0,
    )


def round_p_value(batch, pipeline, *, drop: bool) -> float:
    """Two tokens' joint law after one round of token verification with a confidence stop."""
    rows = 200_000
    target = TableModel.random(3, 1, seed=2)
    draft = target.near(seed=3, noise=1.0)
    ids = torch.zeros((rows, 1), dtype=torch.long)
    mask = torch.ones_like(ids)
    session = DraftModel(draft, confidence_threshold=0.3).start(ids, mask, target.start(ids, mask))
    generator = torch.Generator().manual_seed(10)
    history = Histories.from_prompts(ids, mask)
    block = session.propose(history, torch.ones(rows, dtype=torch.long), pipeline(3), generator)
    assert block.probs is not None
    counts = block.counts
    if drop:
        q = block.probs.gather(2, block.tokens[:, :, None])[:, 0, 0]
        counts = torch.where(q < 0.3, 0, counts)
    logits = target.start(ids, mask).extend(torch.cat([ids, block.tokens], 1))
    verified = TOKEN(block.tokens, block.probs, logits.softmax(-1), generator, counts)
    observed = np.bincount(verified.tokens[:, 0], minlength=3)
    expected = softmax(target.logits[target.context_after([0])].tolist())
    return float(stats.chisquare(observed, rows * np.array(expected)).pvalue)


def test_a_confidence_stop_leaves_the_law_alone(batch, pipeline):
    assert round_p_value(batch, pipeline, drop=False) > 1e-4


def test_dropping_the_improbable_token_would_not(batch, pipeline):
    assert round_p_value(batch, pipeline, drop=True) < 1e-9


def test_greedy_confidence_is_the_models_own(batch, pipeline):
    """At temperature 0 q is one-hot; the draft's softmax still says how sure it is."""
    run, generator = pipeline(V, temperature=0.0), torch.Generator()
    prompt = [2, 0]
    best = max(softmax(MODEL.logits[MODEL.context_after(prompt)].tolist()))
    for threshold, count in ((best - 1e-9, 2), (best + 1e-9, 1)):
        drafter = DraftModel(MODEL, confidence_threshold=threshold)
        session, history = start(batch, drafter, prompt)
        block = session.propose(history, torch.tensor([2]), run, generator)
        assert block.counts.tolist() == [count]


def test_a_small_window_ends_the_drafts_of_long_rows(batch, pipeline):
    """A row may hold 5 tokens; the last one drafted is not read, so it may be the sixth."""
    small = TableModel(MODEL.logits, 2, window=5)
    session, history = start(batch, DraftModel(small), *PROMPTS)
    run, generator = pipeline(V), torch.Generator().manual_seed(11)
    block = session.propose(history, torch.tensor([4, 4, 4]), run, generator)
    assert block.counts.tolist() == [3, 4, 1]
    check_block(block, history, repetition=1.0, presence=0.0)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan])
def test_a_threshold_that_is_no_probability_is_refused(threshold):
    with pytest.raises(UsageError, match=f"confidence_threshold={threshold}"):
        DraftModel(MODEL, confidence_threshold=threshold)
