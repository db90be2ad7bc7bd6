from itertools import product

import numpy as np
import pytest
import torch

from specverify.verification import MATCH, match


def test_law_is_the_targets_for_any_draft(pair, monkeypatch):
    """Every draft block under every outcome of the K+1 draws; each has its own noise."""
    width, size = pair.width, pair.vocab_size
    outcomes = np.array(list(product(range(size), repeat=width + 1)))
    inputs = pair.inputs(repeat=len(outcomes))
    sampled = torch.tensor(outcomes).repeat_interleave(len(pair.blocks), 0)
    seen = []

    def draw(probs, generator=None):
        seen.append(probs)
        return sampled

    monkeypatch.setattr(match, "draw", draw)
    verified = MATCH.decide(inputs, None)
    assert len(seen) == 1
    assert torch.equal(seen[0], inputs.p)
    index = sampled[:, :, None]
    weight = seen[0].gather(2, index).squeeze(2).prod(1).numpy()
    weight = weight * np.tile(pair.proposed, len(outcomes))
    accepted = verified.accepted.numpy()
    last = np.eye(size)[verified.tokens.numpy()[np.arange(len(accepted)), accepted]]
    blocks = np.tile(pair.blocks, (len(outcomes), 1))
    law = pair.completed(blocks, accepted, last, weight)
    np.testing.assert_allclose(law, pair.target_law(), atol=1e-12)
    agreement, reach = 0.0, np.ones(())
    for p, q in zip(pair.target[:-1], pair.draft, strict=True):
        reach = reach[..., None] * p * q
        agreement += reach.sum()
    assert weight @ accepted == pytest.approx(agreement, abs=1e-12)


def test_what_the_draft_reports_plays_no_part():
    generator = torch.Generator().manual_seed(1)
    p = torch.rand((1_000, 3, 4), dtype=torch.float64, generator=generator).softmax(-1)
    tokens = torch.randint(4, (1_000, 2), generator=generator)
    q = torch.full((1_000, 2, 4), 0.25, dtype=torch.float64)
    results = [MATCH(tokens, d, p, torch.Generator().manual_seed(2)) for d in (None, q)]
    assert torch.equal(results[0].tokens, results[1].tokens)
    assert 0 < results[0].accepted.double().mean() < 2
