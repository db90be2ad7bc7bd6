"""Rules under test inside the reference loop."""

import time
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from specverify.errors import SubjectError, SubjectTimeout, UsageError
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.rule_decoder import rule_as_verification
from specverify.verification import TOKEN

torch.set_num_threads(1)
V, K, ROWS = 4, 3, 6


def reference(draft: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    return TOKEN(draft, q, p, generator).tokens


def make(call: Any, **capabilities: Any) -> Subject:
    return Subject("mine", "rule", call, Capabilities(**capabilities))


def block(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.rand(ROWS, K, V, dtype=torch.float64, generator=generator)
    p = torch.rand(ROWS, K + 1, V, dtype=torch.float64, generator=generator)
    tokens = torch.randint(V, (ROWS, K), generator=generator)
    return tokens, q / q.sum(-1, keepdim=True), p / p.sum(-1, keepdim=True)


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def test_a_full_block_is_the_rules_own_decision() -> None:
    verified = rule_as_verification(make(reference))(*block(), seeded())
    expected = TOKEN(*block(), seeded())
    assert torch.equal(verified.tokens, expected.tokens)
    assert torch.equal(verified.accepted, expected.accepted)


def test_ragged_rows_reach_the_rule_in_groups_without_padding() -> None:
    shapes = []

    def rule(draft: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
        shapes.append((list(draft.shape), list(q.shape), list(p.shape)))
        assert (draft >= 0).all()
        return torch.cat([draft, p[:, -1].argmax(1, keepdim=True)], 1)

    counts = torch.tensor([3, 0, 1, 3, 1, 0])
    tokens, q, p = block()
    tokens = torch.where(torch.arange(K) < counts[:, None], tokens, -1)
    p[1, 0] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    verified = rule_as_verification(make(rule))(tokens, q, p, seeded(), counts)
    assert shapes == [([2, 1], [2, 1, V], [2, 2, V]), ([2, 3], [2, 3, V], [2, 4, V])]
    assert torch.equal(verified.accepted, counts)
    assert verified.tokens[1].tolist() == [2, -1, -1, -1]
    for row, count in enumerate(counts.tolist()):
        assert verified.tokens[row, :count].tolist() == tokens[row, :count].tolist()
        if count:
            assert verified.tokens[row, count] == p[row, count].argmax()
        assert (verified.tokens[row, count + 1 :] == -1).all()


def test_deterministic_drafts_arrive_one_hot() -> None:
    tokens, _, p = block()

    def rule(draft: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
        assert q.dtype == p.dtype
        assert torch.equal(q.argmax(-1), draft)
        assert q.sum() == draft.numel()
        return reference(draft, q, p, generator)

    verified = rule_as_verification(make(rule))(tokens, None, p, seeded())
    assert torch.equal(verified.tokens, TOKEN(tokens, None, p, seeded()).tokens)


@pytest.mark.parametrize("batch", [True, False])
def test_a_rule_on_the_global_generator_is_repeatable_and_right(batch: bool) -> None:
    def rule(draft: Tensor, q: Tensor, p: Tensor) -> Tensor:
        return TOKEN(draft, q, p, None).tokens

    verification = rule_as_verification(make(rule, generator=False, batch=batch))
    state = torch.get_rng_state()
    first = verification(*block(), seeded(1))
    assert torch.equal(first.tokens, verification(*block(), seeded(1)).tokens)
    outcomes = {tuple(verification(*block(), seeded(s)).accepted.tolist()) for s in range(5)}
    assert len(outcomes) > 1
    assert torch.equal(state, torch.get_rng_state())


def test_findings_are_told_once() -> None:
    def rule(draft: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
        torch.rand(1)
        return reference(draft, q, p, generator)

    told: list[str] = []
    verification = rule_as_verification(make(rule), on_finding=told.append)
    for _ in range(3):
        verification(*block(), seeded())
    assert len(told) == 1
    assert "torch's global generator" in told[0]


def test_errors_of_the_rule_come_through() -> None:
    with pytest.raises(SubjectError, match=r"for 3 draft tokens it must be \[6, 4\]"):
        rule_as_verification(make(lambda draft, *_: draft))(*block(), seeded())
    slow = rule_as_verification(make(lambda *_: time.sleep(30)), time_limit=0.05)
    with pytest.raises(SubjectTimeout):
        slow(*block(), seeded())


def test_misuse_is_refused() -> None:
    with pytest.raises(UsageError, match=r"needs a torch\.Generator"):
        rule_as_verification(make(reference))(*block())
    with pytest.raises(UsageError, match="'it' is a decoder; only a rule"):
        rule_as_verification(Subject("it", "decoder", reference))


def test_the_name_is_the_declared_algorithm() -> None:
    assert rule_as_verification(make(reference, algorithm="token")).name == "token"
    assert rule_as_verification(make(reference)).name == "mine"
