"""Calls into subjects: answers are checked, failures named, randomness watched."""

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError, SubjectTimeout, UsageError
from specverify.exact.coins import Coins
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.calling import (
    build_transform,
    call_decoder,
    call_rule,
    call_transform,
    vocab_size_of,
)
from specverify.subjects.guard import Call
from specverify.subjects.protocols import Capabilities, Subject

torch.set_num_threads(1)
V, K, ROWS = 5, 2, 2
PROMPTS = torch.tensor([[0, 1], [2, 3]])
SETTINGS = SamplingSettings(max_new_tokens=4)
GOOD = torch.tensor([[0, 4, -1], [1, 2, 3]])
NEG = -torch.inf


class Model:
    vocab_size = V


def decoder(call: Callable[..., Any], **capabilities: Any) -> Subject:
    return Subject("mine", "decoder", call, Capabilities(**capabilities))


def run(call: Callable[..., Any], limit: float = 60.0, **capabilities: Any) -> Call[DecoderOutput]:
    return call_decoder(
        decoder(call, **capabilities), Model(), Model(), PROMPTS, torch.ones_like(PROMPTS),
        SETTINGS, K, torch.Generator().manual_seed(0), time_limit=limit,
    )  # fmt: skip


def returns(value: Any) -> Call[DecoderOutput]:
    return run(lambda *_: value)


class TestDecoderOutput:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
    def test_a_bare_tensor_is_an_output(self, dtype: torch.dtype) -> None:
        call = returns(GOOD.to(dtype))
        assert torch.equal(call.value.tokens, GOOD)
        assert call.value.tokens.dtype == torch.long
        assert call.value.accepted is None
        assert call.findings == ()

    def test_all_fields_come_through(self) -> None:
        output = DecoderOutput(
            tokens=GOOD,
            accepted=torch.tensor([[1, -1], [2, -1]]),
            drafted=torch.tensor([[2, -1], [2, -1]]),
            finish_reasons=["length", "length"],
            logprobs=torch.zeros(2, 3),
        )
        value = returns(output).value
        assert value.accepted is not None
        assert value.accepted.tolist() == [[1, -1], [2, -1]]
        assert value.finish_reasons == ["length", "length"]
        assert value.logprobs is not None
        assert value.logprobs.tolist() == [[0.0] * 3] * 2

    def test_a_run_beyond_its_length_limit_is_left_to_the_judge(self) -> None:
        long = torch.zeros(ROWS, SETTINGS.max_new_tokens + 2, dtype=torch.long)
        assert torch.equal(returns(long).value.tokens, long)

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (None, "output of 'mine' is a NoneType"),
            ([[1, 2]], "is a list"),
            (DecoderOutput(tokens=[[1]]), "tokens is a list"),  # type: ignore[arg-type]
            (torch.tensor([1, 2]), r"shape \[2\]; the call had 2 rows"),
            (torch.tensor([[1, 2]]), r"shape \[1, 2\]; the call had 2 rows"),
            (torch.zeros(2, 3, 4).long(), r"shape \[2, 3, 4\]"),
            (torch.zeros(2, 3), r"dtype torch.float32; it must hold integers"),
            (torch.zeros(2, 3, dtype=torch.bool), "dtype torch.bool"),
            (torch.tensor([[1, 5], [0, 0]]), r"tokens\[0, 1\] is 5, but token ids run from 0 to 4"),
            (torch.tensor([[1, 1], [0, -2]]), r"tokens\[1, 1\] is -2"),
            (torch.tensor([[1, -1, 2], [0, 0, 0]]), r"tokens\[0, 1\] is -1 and a value follows"),
            (torch.tensor([[-1, 1], [0, 0]]), r"tokens\[0, 0\] is -1 and a value follows"),
            (torch.tensor([[1, 1], [-1, -1]]), r"tokens\[1\] holds no token"),
            (torch.empty(2, 0, dtype=torch.long), r"tokens\[0\] holds no token"),
        ],
    )
    def test_wrong_tokens(self, value: Any, message: str) -> None:
        with pytest.raises(SubjectError, match=message):
            returns(value)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"accepted": torch.tensor([[1], [-2]])}, r"accepted\[1, 0\] is -2; it counts"),
            ({"accepted": torch.tensor([1, 2])}, r"accepted has shape \[2\]"),
            ({"accepted": torch.tensor([[1.0], [2.0]])}, r"accepted has dtype"),
            ({"accepted": torch.tensor([[-1, 1], [2, -1]])}, r"accepted\[0, 0\] is -1 and a value"),
            ({"accepted": torch.tensor([[0], [2]])}, r"accepted\[0\] is \[0\], which makes 1 to 1"),
            (
                {
                    "accepted": torch.tensor([[1, 0], [2, -1]]),
                    "drafted": torch.tensor([[2, 2], [2, -1]]),
                },
                "which makes 3 to 3 tokens, but the row",
            ),
            ({"accepted": torch.empty(2, 0).long()}, "makes 1 to 0 tokens"),
            ({"drafted": torch.tensor([[-3], [0]])}, r"drafted\[0, 0\] is -3"),
            (
                {"accepted": torch.tensor([[1], [2]]), "drafted": torch.tensor([[1], [1]])},
                r"accepted\[1, 0\] is 2, more than the 1 draft tokens",
            ),
            (
                {"accepted": torch.tensor([[1], [2]]), "drafted": torch.tensor([[1, 1], [2, 2]])},
                r"accepted\[0\] has 1 rounds and .*drafted\[0\] 2; both have one entry for each",
            ),
            ({"logprobs": torch.zeros(2, 2)}, r"logprobs has shape \[2, 2\]"),
            ({"raw_logprobs": [0.0]}, "raw_logprobs has shape list"),
            ({"finish_reasons": ["length"]}, "finish_reasons has 1 entries for 2 rows"),
            ({"finish_reasons": 2}, "finish_reasons has int entries for 2 rows"),
        ],
    )
    def test_wrong_extras(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(SubjectError, match=message):
            returns(DecoderOutput(tokens=GOOD, **fields))

    def test_rounds_follow_the_decoders_own_schedule(self) -> None:
        """More than K drafts, and counts padded to widths of their own."""
        output = DecoderOutput(
            tokens=torch.zeros(2, K + 3, dtype=torch.long),
            accepted=torch.tensor([[K + 2], [K + 2]]),
            drafted=torch.tensor([[K + 2, -1], [K + 5, -1]]),
        )
        value = returns(output).value
        assert value.accepted is not None
        assert value.drafted is not None
        assert value.accepted.tolist() == [[K + 2, -1]] * 2
        assert value.drafted.tolist() == [[K + 2, -1], [K + 5, -1]]

    @pytest.mark.parametrize("tokens", [GOOD[:1], GOOD[0]])
    def test_one_row_for_many_names_the_capability(self, tokens: Tensor) -> None:
        with pytest.raises(SubjectError, match=r"declare batch=False, or say --one-row-a-call"):
            returns(tokens)
        with pytest.raises(SubjectError) as caught:
            returns(torch.zeros(3, 2, dtype=torch.long))
        assert "batch" not in str(caught.value)

    @pytest.mark.parametrize(
        ("tokens", "message"),
        [(GOOD.to("meta"), "on the meta device"), (GOOD.to_sparse(), "of layout torch.sparse_coo")],
    )
    def test_tensors_that_cannot_be_read(self, tokens: Tensor, message: str) -> None:
        with pytest.raises(SubjectError, match=f"{message}, whose entries cannot be read"):
            returns(tokens)

    def test_a_last_round_may_be_cut(self) -> None:
        accepted = torch.tensor([[2, -1], [0, 2]])
        value = returns(DecoderOutput(tokens=GOOD, accepted=accepted)).value
        assert value.accepted is not None

    def test_recorded_distributions_may_require_grad(self) -> None:
        probs = torch.full((ROWS, 3, V), 1 / V, requires_grad=True)
        value = returns(DecoderOutput(GOOD, target_probs=probs)).value
        assert value.target_probs is not None
        assert not value.target_probs.requires_grad

    @pytest.mark.parametrize("drafted", [None, torch.tensor([[2], [2]])])
    def test_the_bonus_may_be_missing_where_no_algorithm_is_declared(
        self, drafted: Tensor | None
    ) -> None:
        tokens = torch.tensor([[0, 4], [1, 2]])
        output = DecoderOutput(tokens, accepted=torch.tensor([[2], [2]]), drafted=drafted)
        value = returns(output).value
        assert value.accepted is not None
        assert value.accepted.tolist() == [[2], [2]]

    def test_a_correction_may_not_be_missing(self) -> None:
        output = DecoderOutput(
            torch.tensor([[0, 4], [1, 2]]),
            accepted=torch.tensor([[0, 1], [0, 0]]),
            drafted=torch.tensor([[2, 2], [2, 2]]),
        )
        assert returns(output).value.accepted is not None
        output.accepted = torch.tensor([[1, 1, 1], [1, 1, 1]])
        output.drafted = 2 * output.accepted
        with pytest.raises(SubjectError, match="which makes 5 to 6 tokens, but the row has 2"):
            returns(output)


@pytest.mark.parametrize("batch", [True, False])
def test_buffers_that_are_returned_again_are_no_older_output(batch: bool) -> None:
    tokens = torch.zeros(ROWS, 1, dtype=torch.long)
    probs = torch.zeros(ROWS, 1, V)

    def call(target: Any, draft: Any, ids: Tensor, *_: Any) -> DecoderOutput:
        rows = len(ids)
        tokens[:rows] = ids[:, -1:]
        probs[:rows] = torch.eye(V)[ids[:, -1:]]
        return DecoderOutput(tokens[:rows], target_probs=probs[:rows])

    first = run(call, batch=batch).value
    tokens.zero_()
    probs.zero_()
    assert first.tokens.tolist() == [[1], [3]]
    assert first.target_probs is not None
    assert first.target_probs.argmax(2).tolist() == [[1], [3]]


@pytest.mark.parametrize("batch", [True, False])
def test_a_subject_works_on_copies(batch: bool) -> None:
    bias = {0: 1.0}
    settings = SamplingSettings(logit_bias=bias, allowed_tokens=lambda _: range(V))
    prompts, mask = PROMPTS.clone(), torch.ones_like(PROMPTS)
    seen = []

    def call(target: Any, draft: Any, ids: Tensor, shown: Tensor, *rest: Any) -> Tensor:
        seen.append(dict(rest[0].logit_bias))
        assert rest[0] == settings
        rest[0].logit_bias.clear()
        ids += 1
        shown.zero_()
        return GOOD[: len(ids)]

    result = call_decoder(
        decoder(call, batch=batch), Model(), Model(), prompts, mask, settings, K,
        torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert torch.equal(prompts, PROMPTS)
    assert bool(mask.all())
    assert seen == [{0: 1.0}] * (1 if batch else ROWS)
    assert settings.logit_bias == {0: 1.0}
    ids_changed, mask_changed = result.findings
    assert "changes prompt_ids in place" in ids_changed
    assert "changes attention_mask in place" in mask_changed


LONG = torch.arange(16).remainder(V).reshape(2, 8)
LONG_MASK = torch.tensor([[1] * 8, [0] * 2 + [1] * 6])
UNPADDED = torch.cat([LONG[1, 2:], LONG.new_tensor([-1, -1])])


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (LONG, True),
        (torch.stack([LONG[0], UNPADDED]), True),
        (torch.stack([LONG[0], LONG[1].flip(0)]), False),
        (LONG[:, :4], False),
    ],
    ids=["padded", "unpadded", "one row alone", "too short"],
)
def test_an_output_that_begins_with_the_prompt_is_a_finding(tokens: Tensor, told: bool) -> None:
    call = call_decoder(
        decoder(lambda *_: tokens), Model(), Model(), LONG, LONG_MASK, SETTINGS, K,
        torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert [finding[:35] for finding in call.findings] == [
        "the output begins with the prompt i"
    ] * told


def test_few_prompt_tokens_may_be_repeated_by_chance() -> None:
    assert run(lambda *_: PROMPTS).findings == ()


def test_a_subject_without_batches_gets_one_row_a_call() -> None:
    seen = []

    def call(target: Any, draft: Any, ids: Tensor, mask: Tensor, *_: Any) -> DecoderOutput:
        seen.append((ids.shape, mask.shape))
        random.random()
        row = [0] * (3 if len(seen) == 1 else 1)
        return DecoderOutput(torch.tensor([row]), accepted=torch.tensor([[len(row) - 1]]))

    call_once = run(call, batch=False)
    assert seen == [((1, 2), (1, 2))] * 2
    assert call_once.value.tokens.tolist() == [[0, 0, 0], [0, -1, -1]]
    assert call_once.value.accepted is not None
    assert call_once.value.accepted.tolist() == [[2], [0]]
    assert len(call_once.findings) == 1


def test_vocabulary_sizes_are_found_or_asked_for() -> None:
    assert vocab_size_of(TableModel.random(3, 1, seed=0)) == 3
    with pytest.raises(UsageError, match="object does not say its vocabulary size"):
        vocab_size_of(object())


RULE_ARGUMENTS = (
    torch.zeros(ROWS, K, dtype=torch.long),
    torch.full((ROWS, K, V), 0.2, dtype=torch.float64),
    torch.full((ROWS, K + 1, V), 0.2, dtype=torch.float64),
)


def rule(call: Callable[..., Any], limit: float = 60.0, **capabilities: Any) -> Call[Tensor]:
    made = Subject("mine", "rule", call, Capabilities(**capabilities))
    generator = torch.Generator().manual_seed(0)
    return call_rule(made, *RULE_ARGUMENTS, generator, time_limit=limit)


class TestRules:
    def test_tokens_come_through(self) -> None:
        call = rule(lambda *_: GOOD)
        assert torch.equal(call.value, GOOD)
        assert call.findings == ()

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ((GOOD, 1), "is a tuple"),
            (GOOD[:, :2], r"shape \[2, 2\]; for 2 draft tokens it must be \[2, 3\]"),
            (GOOD[:1], r"the call had 2 rows"),
            (GOOD.double(), "dtype torch.float64"),
            (GOOD + 1, r"is 5, but token ids run from 0 to 4"),
            (torch.tensor([[0, -1, 2], [1, 1, 1]]), "a value follows"),
            (torch.tensor([[0, 1, 2], [-1, -1, -1]]), r"\[1\] holds no token"),
        ],
    )
    def test_wrong_outputs(self, value: Any, message: str) -> None:
        with pytest.raises(SubjectError, match=message):
            rule(lambda *_: value)

    def test_failures_and_hangs(self) -> None:
        with pytest.raises(SubjectError, match="raised RuntimeError: expected"):
            rule(lambda *_: exec("raise RuntimeError('expected')"))
        with pytest.raises(SubjectTimeout):
            rule(lambda *_: time.sleep(30), limit=0.05)

    def test_in_place_work_stays_the_rules_own(self) -> None:
        def call(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
            tokens.fill_(1)
            p[:, :K] -= q
            q.zero_()
            return GOOD

        before = [argument.clone() for argument in RULE_ARGUMENTS]
        rule(call)
        assert all(torch.equal(a, b) for a, b in zip(before, RULE_ARGUMENTS, strict=True))

    def test_declared_variations(self) -> None:
        def call(tokens: Tensor, q: Tensor, p: Tensor) -> Tensor:
            assert (len(tokens), len(q), len(p)) == (1, 1, 1)
            return torch.cat([tokens, torch.multinomial(p[:, K], 1)], 1)

        first, again = (rule(call, generator=False, batch=False) for _ in range(2))
        assert first.value.shape == (ROWS, K + 1)
        assert torch.equal(first.value, again.value)
        assert first.findings == ()

    @pytest.mark.parametrize(("batch", "rows"), [(True, ROWS), (False, 1)])
    def test_declared_coins_are_drawn_from_the_generator(self, batch: bool, rows: int) -> None:
        def call(tokens: Tensor, q: Tensor, p: Tensor, *, accept: Tensor, last: Tensor) -> Tensor:
            assert (accept.shape, last.shape) == ((rows, K), (rows,))
            seen.append(accept)
            assert bool(((accept >= 0) & (accept < 1)).all())
            return torch.cat([tokens, (last[:, None] * V).long()], 1)

        seen: list[Tensor] = []
        coins = Coins({"accept": "[B,K]", "last": "[B]"}, "float64")
        first, again = (
            rule(call, coins=coins, coin_dtype="float64", batch=batch) for _ in range(2)
        )
        assert torch.equal(first.value, again.value)
        assert first.findings == ()
        assert torch.cat(seen).unique().numel() == ROWS * K

    def test_coins_and_all_else_can_be_numpy_arrays(self) -> None:
        def call(tokens: Any, q: Any, p: Any, *, last: Any) -> Any:
            assert all(isinstance(value, np.ndarray) for value in (tokens, q, p, last))
            return answer

        coins = Coins({"last": "[B]"}, "float32", "numpy")
        answer: Any = GOOD.int().numpy()
        assert torch.equal(rule(call, coins=coins).value, GOOD)
        answer = GOOD.double().numpy()
        with pytest.raises(SubjectError, match="is an ndarray"):
            rule(call, coins=coins)

    def test_buffers_that_are_returned_again_are_no_older_output(self) -> None:
        buffer = torch.zeros(1, K + 1, dtype=torch.long)

        def call(tokens: Tensor, *_: Any) -> Tensor:
            buffer.add_(1)
            return buffer

        assert rule(call, batch=False).value.tolist() == [[1] * (K + 1), [2] * (K + 1)]

    def test_a_touched_global_generator_is_a_finding(self) -> None:
        def call(*_: Any) -> Tensor:
            torch.rand(1)
            return GOOD

        assert len(rule(call).findings) == 1


LOGITS = torch.tensor([[0.0, 1.0, NEG], [2.0, NEG, 0.5]], dtype=torch.float64)
HISTORY = torch.tensor([[1], [2]])


def transform(call: Callable[..., Any], limit: float = 60.0) -> Call[Tensor]:
    made = Subject("mine", "transform", lambda: call)
    built = build_transform(made, time_limit=limit)
    return call_transform(made, built, HISTORY, LOGITS, time_limit=limit)


class TestTransforms:
    def test_logits_come_through(self) -> None:
        call = transform(lambda _, logits: logits / 2)
        assert torch.equal(call.value, LOGITS / 2)
        assert call.findings == ()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda x: x.tolist(), "is a list"),
            (lambda x: x.to("meta"), "on the meta device"),
            (lambda x: x[:1], r"shape \[1, 3\]; it must be that of the logits handed in, \[2, 3\]"),
            (lambda x: torch.zeros_like(x).long(), "dtype torch.int64"),
            (lambda x: x - x, r"\[0, 2\] is NaN"),
            (lambda x: -x, r"\[0, 2\] is \+inf"),
            (lambda x: x + NEG, r"\[0\] is -inf throughout"),
        ],
    )
    def test_wrong_outputs(self, change: Callable[[Tensor], Any], message: str) -> None:
        with pytest.raises(SubjectError, match=message):
            transform(lambda _, logits: change(logits))

    def test_in_place_changes_are_findings_and_reach_nobody(self) -> None:
        def change(ids: Tensor, logits: Tensor) -> Tensor:
            ids.zero_()
            return logits.mul_(2)

        history, before = HISTORY.clone(), LOGITS.clone()
        call = transform(change)
        assert torch.equal(call.value, before * 2)
        assert torch.equal(LOGITS, before)
        assert torch.equal(HISTORY, history)
        assert [finding.split(" in place")[0] for finding in call.findings] == [
            "changes input_ids",
            "changes the logits it is handed",
        ]

    def test_factories_that_fail(self) -> None:
        with pytest.raises(SubjectError, match="built a NoneType, which cannot be called"):
            transform(None)  # type: ignore[arg-type]
        with pytest.raises(SubjectError, match="raised TypeError"):
            build_transform(Subject("mine", "transform", lambda: None), temperature=2.0)
        with pytest.raises(SubjectTimeout):
            transform(lambda *_: time.sleep(30), limit=0.05)
