"""Mistakes that only a whole decoder can make, with the deviation that their law predicts."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from specverify.exact.joint import outside_support, total_variation
from specverify.fixtures.mutants import MUTANTS
from specverify.fixtures.mutants.proposals import (
    CONFIDENCE,
    HierarchicalDraft,
    HierarchicalSession,
    MisreportingDraft,
    hotter,
)
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.fixtures.parts.sessions import cooler, largest, top_three
from specverify.models.protocol import Session
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from tests.exact_decoders.laws import Law, Row, Tokens, everything, run, token_round

PROMPT = (0, 1)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def raw(model: TableModel, prefix: Tokens) -> np.ndarray:
    return model.logits[model.context_after((*PROMPT, *prefix))].numpy()


def row(model: TableModel, distortion: Callable[[Tensor], Tensor] = lambda z: z) -> Row:
    return lambda prefix: softmax(distortion(torch.from_numpy(raw(model, prefix))).numpy())


@pytest.fixture(scope="module")
def four() -> tuple[TableModel, TableModel]:
    """Over four tokens, so that three of them are fewer."""
    target = TableModel.random(4, 2, seed=5)
    return target, target.near(7, 0.8)


def checked(id: str, law: Law, pair, length: int, follow, stopped) -> float:
    """The TV of a mutant, after its distribution was held against its law."""
    contract = SamplingSettings(max_new_tokens=length)
    joint = follow(MUTANTS[id].subject, *pair, contract)
    assert not joint.crashes
    assert total_variation(joint.probabilities, law) < 1e-9
    return total_variation(joint.probabilities, stopped(pair[0], contract))


DRAWN_AND_REPORTED = {
    "draft-argmax-reported-soft": (largest, 3),
    "draft-temperature-unreported": (cooler, 2),
}


@pytest.mark.parametrize("id", DRAWN_AND_REPORTED)
def test_a_draft_drawn_from_another_distribution_than_it_reports(id, tables, follow, stopped):
    """R9, R13."""
    distortion, length = DRAWN_AND_REPORTED[id]
    target, draft = tables
    p, drawn, q = row(target), row(draft, distortion), row(draft)
    law = run(lambda prefix, k: token_round(p, drawn, q, prefix, k), 2, length)
    assert checked(id, law, tables, length, follow, stopped) > 0.01


def test_a_truncated_draft_that_reports_what_was_not_truncated(four, follow, stopped):
    """R12."""
    p, drawn, q = row(four[0]), row(four[1], top_three), row(four[1])
    law = run(lambda prefix, k: token_round(p, drawn, q, prefix, k), 2, 2)
    assert checked("draft-top-k-reported-raw", law, four, 2, follow, stopped) > 0.01


def test_a_block_that_ends_before_an_improbable_token(four, follow, stopped):
    """R29."""
    p, q = row(four[0]), row(four[1])
    assert q(()).min() < CONFIDENCE < q(()).max()

    def offered(prefix: Tokens, token: int) -> bool:
        return bool(q(prefix)[token] >= CONFIDENCE)

    law = run(lambda prefix, k: token_round(p, q, q, prefix, k, offered), 2, 2)
    assert checked("draft-token-dropped", law, four, 2, follow, stopped) > 0.01


def test_a_draft_that_reports_the_q_of_its_own_draft(tables, follow, stopped):
    """R30."""
    target, draft = tables
    p, middle, bottom = row(target), row(draft), row(draft, hotter)
    law = run(lambda prefix, k: token_round(p, middle, bottom, prefix, k), 2, 2)
    assert checked("draft-of-draft-reported", law, tables, 2, follow, stopped) > 0.01


class OwnReported(HierarchicalSession):
    def reported(self, bottom: Tensor, own: Tensor) -> Tensor:
        return own[:, :-1]


class RightHierarchy(HierarchicalDraft):
    def start(self, prompt_ids: Tensor, attention_mask: Tensor, target: Session) -> OwnReported:
        wrong = super().start(prompt_ids, attention_mask, target)
        return OwnReported(wrong._bottom, wrong._middle, self.model.window)


@pytest.mark.parametrize(
    ("drafter", "contract"),
    [
        (
            lambda model: MisreportingDraft(model, lambda z: z),
            SamplingSettings(max_new_tokens=3, top_k=2),
        ),
        (RightHierarchy, SamplingSettings(max_new_tokens=2)),
        pytest.param(
            RightHierarchy,
            SamplingSettings(max_new_tokens=3, top_k=2),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["nothing distorted", "hierarchical", "hierarchical blocks"],
)
def test_the_same_drafts_with_a_truthful_q_are_exact(drafter, contract, tables, follow, stopped):
    """Look-alikes."""
    subject = decoder_subject("truthful", drafter=drafter)
    joint = follow(subject, *tables, contract)
    assert total_variation(joint.probabilities, stopped(tables[0], contract)) < 1e-12


def test_rejected_tokens_left_in_the_cache(tables, follow, stopped):
    """C1: the second token is conditioned on the draft token that was rejected."""
    target, draft = tables
    p, q = row(target), row(draft)
    law: Law = {}
    excess = np.maximum(p(()) - q(()), 0)
    for drafted in range(3):
        kept = min(p(())[drafted], q(())[drafted])
        for last in range(3):
            key = (drafted, last)
            law[key] = law.get(key, 0.0) + kept * p((drafted,))[last]
            for token, mass in enumerate(excess / excess.sum() * (q(())[drafted] - kept)):
                # The cache holds the rejected token before the correction.
                stale = p((drafted, token))[last]
                law[token, last] = law.get((token, last), 0.0) + mass * stale
    assert checked("cache-not-cropped", law, tables, 2, follow, stopped) > 0.01


def test_a_history_frozen_at_the_start_of_the_block(tables, follow, stopped):
    """T7: wrong by what the bonus row lacks, as often as it is reached."""
    contract = SamplingSettings(max_new_tokens=2, repetition_penalty=1.7)
    joint = follow(MUTANTS["history-frozen"].subject, *tables, contract)

    def penalised(model: TableModel, prefix: Tokens, history: Tokens) -> np.ndarray:
        z = raw(model, prefix).copy()
        for token in {*PROMPT, *history}:
            z[token] = z[token] / 1.7 if z[token] > 0 else z[token] * 1.7
        return softmax(z)

    target, draft = tables
    p, q = penalised(target, (), ()), penalised(draft, (), ())
    expected = sum(
        min(p[x], q[x])
        * np.abs(penalised(target, (x,), ()) - penalised(target, (x,), (x,))).sum()
        / 2
        for x in range(3)
    )
    assert expected > 0.01
    distance = total_variation(joint.probabilities, stopped(target, contract))
    assert distance == pytest.approx(expected, abs=1e-9)


def test_tokens_after_a_stop_token(tables, follow, stopped):
    """E1: whenever the draft proposes the stop token and it is accepted."""
    contract = SamplingSettings(max_new_tokens=2, stop_token_ids=(2,))
    joint = follow(MUTANTS["stops-at-block-end"].subject, *tables, contract)
    expected = stopped(tables[0], contract)
    accepted = min(row(tables[0])(())[2], row(tables[1])(())[2])
    outside = outside_support(joint.probabilities, expected)
    assert set(outside) == {(2, token) for token in range(3)}
    assert sum(outside.values()) == pytest.approx(accepted, abs=1e-9)
    assert total_variation(joint.probabilities, expected) == pytest.approx(accepted, abs=1e-9)
    assert accepted > 0.01


def test_the_law_of_a_truthful_draft_is_the_target(tables, stopped):
    """The control of the laws themselves."""
    p, q = row(tables[0]), row(tables[1])
    law = run(lambda prefix, k: token_round(p, q, q, prefix, k, everything), 2, 3)
    exact = stopped(tables[0], SamplingSettings(max_new_tokens=3))
    assert total_variation(law, exact) < 1e-14
