"""How far passes over one prefix differ, against what the decision allows for."""

import numpy as np
import torch

from specverify.certification.decoder_case import SLACK
from specverify.decoding.scoring import TeacherForced
from specverify.models.pairs import load_pair
from specverify.settings import SamplingSettings
from specverify.statistics.bets import Bets

PREFIXES, LENGTH = 6, 12


def test_no_bet_gains_more_from_rounding_than_is_taken_off() -> None:
    """Tokens from cached passes of one row, scored by prefills of many, on the trained pair."""
    pair = load_pair("trained")
    target, draft = pair.open("language_model")
    prompt = torch.tensor(pair.prompts[0])
    generator = torch.Generator().manual_seed(0)
    runs, cached = [], []
    assert target.start(prompt[None]).extend(prompt[None, -1:]).dtype == torch.float32
    for _ in range(PREFIXES):
        session, new = target.start(prompt[None]), prompt[None, -1:]
        tokens, laws = [], []
        for _ in range(LENGTH):
            law = session.extend(new)[0, -1].double().softmax(0)
            new = torch.multinomial(law, 1, generator=generator)[None]
            tokens.append(int(new))
            laws.append(law)
        runs.append(tokens)
        cached.append(torch.stack(laws))
    emitted, settings = torch.tensor(runs), SamplingSettings()
    prompts = tuple(prompt.tolist())
    p = TeacherForced(target, prompts, settings, PREFIXES).along(emitted).flatten(0, 1).numpy()
    q = TeacherForced(draft, prompts, settings, PREFIXES).along(emitted).flatten(0, 1).numpy()
    a = torch.cat(cached).numpy()
    bets = Bets.standard(raw=False)
    gains = [
        (own * np.exp(bets.table(own, other).T)) @ (law / own - 1)
        for own, other, law in zip(p, q, a, strict=True)
    ]
    largest = float(np.mean(gains, 0).max())
    # The passes do differ; a pair on which they did not would show nothing.
    assert np.abs(a - p).max() > 0
    assert largest < SLACK[torch.float32] / 2
