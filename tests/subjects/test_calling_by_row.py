"""Calls row by row: as `call_decoder` would judge them, each under its own limit."""

import random
import time

import numpy as np
import pytest
import torch

from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError, SubjectTimeout
from specverify.settings import SamplingSettings
from specverify.subjects.calling import call_decoder_by_row
from specverify.subjects.protocols import Capabilities, Subject

V, PROMPT = 5, 13
PROMPTS = [torch.arange(PROMPT) % V, torch.tensor([3]), torch.tensor([1, 2])]
SETTINGS = SamplingSettings(max_new_tokens=2, logit_bias={0: 1.0})


class Model:
    vocab_size = V


def by_row(call, *, limit=60.0, **capabilities):
    subject = Subject("mine", "decoder", call, Capabilities(batch=False, **capabilities))
    generator = torch.Generator().manual_seed(0)
    return call_decoder_by_row(
        subject, Model(), Model(), PROMPTS, SETTINGS, 2, generator, time_limit=limit
    )


def last(target, draft, prompt_ids, attention_mask, settings, num_draft_tokens, generator):
    return prompt_ids[:, -1:].clone()


def test_each_prompt_is_handed_over_alone_and_unpadded():
    seen = []

    def call(target, draft, prompt_ids, attention_mask, settings, num_draft_tokens, generator):
        seen.append((prompt_ids[0].tolist(), attention_mask.tolist()))
        return torch.full((1, len(seen)), len(seen))

    output = by_row(call)
    assert seen == [(prompt.tolist(), [[1] * len(prompt)]) for prompt in PROMPTS]
    assert output.value.tokens.tolist() == [[1, -1, -1], [2, 2, -1], [3, 3, 3]]
    assert output.failure is None
    assert output.findings == ()


def test_an_output_is_copied_before_the_next_call_overwrites_it():
    buffer = torch.zeros(1, 1, dtype=torch.long)

    def call(target, draft, prompt_ids, *rest):
        return buffer.copy_(prompt_ids[:, -1:])

    assert by_row(call).value.tokens.tolist() == [[2], [3], [2]]


def test_rows_before_a_failure_are_kept():
    def call(target, draft, prompt_ids, *rest):
        if prompt_ids.shape[1] == 2:
            raise ZeroDivisionError("no more")
        return prompt_ids[:, -1:]

    output = by_row(call)
    assert len(output.value.tokens) == 2
    assert "raised ZeroDivisionError: no more" in output.failure
    assert "test_calling_by_row.py" in output.failure
    assert "calling.py:" not in output.failure.replace("test_calling", "")

    def wrong_shape(target, draft, prompt_ids, *rest):
        return prompt_ids[:, -1:].expand(prompt_ids.shape[1] % 2 + 1, -1)

    with pytest.raises(SubjectError, match=r"has shape \[2, 1\]"):
        by_row(wrong_shape)


def test_the_first_row_that_fails_is_an_error():
    with pytest.raises(SubjectError, match="raised ZeroDivisionError"):
        by_row(lambda *_: 1 / 0)


def test_every_row_has_a_time_limit_of_its_own():
    def slow(target, draft, prompt_ids, *rest):
        time.sleep(0.15)
        return prompt_ids[:, -1:]

    assert by_row(slow, limit=0.3).failure is None

    def stuck(*_):
        while True:
            pass

    with pytest.raises(SubjectTimeout, match=r"time limit of 0\.2 s"):
        by_row(stuck, limit=0.2)


def test_settings_are_a_copy_for_every_row():
    def call(target, draft, prompt_ids, attention_mask, settings, *rest):
        assert settings == SETTINGS
        assert settings.model_fields_set == SETTINGS.model_fields_set
        settings.logit_bias[1] = -5.0
        return prompt_ids[:, -1:]

    assert by_row(call).failure is None
    assert SETTINGS.logit_bias == {0: 1.0}


@pytest.mark.parametrize(
    ("touch", "said"),
    [
        (lambda ids, mask: ids.zero_(), "changes prompt_ids"),
        (lambda ids, mask: mask.zero_(), "changes attention_mask"),
        (lambda ids, mask: np.random.random(), "numpy's global generator"),
        (lambda ids, mask: np.random.seed(0), "numpy's global generator"),
        (lambda ids, mask: random.random(), "python's global generator"),
        (lambda ids, mask: torch.rand(1), "torch's global generator"),
        (lambda ids, mask: torch.set_grad_enabled(not torch.is_grad_enabled()), "gradient mode"),
    ],
)
def test_what_a_row_does_beside_its_task_is_told(touch, said):
    def call(target, draft, prompt_ids, attention_mask, *rest):
        output = prompt_ids[:, -1:].clone()
        if prompt_ids.shape[1] == 1:
            touch(prompt_ids, attention_mask)
        return output

    (finding,) = by_row(call).findings
    assert said in finding
    assert by_row(last).findings == ()


def test_an_output_that_begins_with_its_prompt_is_told_once_it_is_no_chance():
    def echo(target, draft, prompt_ids, *rest):
        return torch.cat([prompt_ids, prompt_ids[:, :1]], 1)

    (finding,) = by_row(echo).findings
    assert "begins with the prompt" in finding
    PROMPTS_BUT_FIRST = PROMPTS[1:]
    subject = Subject("mine", "decoder", echo, Capabilities(batch=False))
    call = call_decoder_by_row(
        subject, Model(), Model(), PROMPTS_BUT_FIRST, SETTINGS, 2, torch.Generator()
    )
    assert call.findings == ()


def test_values_are_left_to_the_caller():
    call = by_row(lambda *_: DecoderOutput(torch.tensor([[V + 1]])))
    assert call.value.tokens.tolist() == [[V + 1]] * 3
