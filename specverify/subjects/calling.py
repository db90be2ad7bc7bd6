"""Calling a subject of each kind, with its answer checked before anything is concluded from it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Generator, Tensor

from specverify.decoding.output import DecoderOutput, joined
from specverify.decoding.row_settings import RowSettings
from specverify.errors import SubjectError, UsageError
from specverify.settings import SamplingSettings
from specverify.subjects import watchdog
from specverify.subjects.checks import (
    check_output,
    emitted_tokens,
    readable_output,
    transformed_logits,
)
from specverify.subjects.guard import DEFAULT_TIME_LIMIT, Call, run_guarded
from specverify.subjects.protocols import Subject, Transform

T = TypeVar("T")

_OF_RULES = ("draft_tokens", "draft_probs", "target_probs")
"""Arguments of a rule."""

_CHANGED = "changes {} in place, which the caller may still need"

_COMPARED = 4096
"""Entries of an argument that is compared with what was handed over after every call."""

_ECHO = 12
"""Prompt tokens that an output must repeat before that is told: fewer may agree by chance."""


def call_decoder(
    subject: Subject,
    target: Any,
    draft: Any,
    prompt_ids: Tensor,
    attention_mask: Tensor,
    settings: RowSettings,
    num_draft_tokens: int,
    generator: Generator,
    *,
    time_limit: float = DEFAULT_TIME_LIMIT,
    check_values: bool = True,
) -> Call[DecoderOutput]:
    """Let a decoder generate for a batch of prompts.

    A subject that takes one row a call gets one row a call, each under its own time limit. It works
    on copies; changing the prompts is a finding, and so is an output that begins with them.
    A run longer than its settings allow is no error here: it is a wrong output, to be judged.

    Args:
        subject: a subject of kind decoder.
        target: the target model, in a class the subject accepts.
        draft: the draft model.
        prompt_ids: long [B, T], padded on the left.
        attention_mask: [B, T], 1 on real tokens.
        settings: the output contract, of all rows, or of each where the subject takes that.
        num_draft_tokens: K, draft tokens a round.
        generator: source of all draws; a subject without a generator has the global ones seeded
            from it.
        time_limit: seconds for one call.
        check_values: whether to check not only types and shapes; otherwise the caller does, by
            `check_decoder_values`, for the outputs of several calls at once.

    Raises:
        SubjectError: the subject raised, or its output has a wrong type, shape or range.
        SubjectTimeout: it ran past the limit.
        UsageError: the target does not say its vocabulary size.
    """
    vocab_size = vocab_size_of(target)

    def rows(prompts: Tensor, mask: Tensor) -> Call[DecoderOutput]:
        ids, shown = prompts.clone(), mask.clone()
        call = run_guarded(
            subject,
            subject.call,
            target,
            draft,
            ids,
            shown,
            own_settings(settings),
            num_draft_tokens,
            generator,
            generator=generator,
            limit=time_limit,
        )
        what = f"output of {subject.name!r}"
        output = readable_output(call.value, len(prompts), vocab_size, what=what)
        if check_values:
            check_decoder_values(subject, output, vocab_size)
        findings = call.findings + _changed(
            {"prompt_ids": (ids, prompts), "attention_mask": (shown, mask)}
        )
        return Call(output, call.seconds, findings)

    if subject.capabilities.batch or len(prompt_ids) == 1:
        return _with_echo(rows(prompt_ids, attention_mask), prompt_ids, attention_mask)
    calls = [rows(prompt_ids[b : b + 1], attention_mask[b : b + 1]) for b in range(len(prompt_ids))]
    together = joined([call.value for call in calls])
    return _with_echo(_merge(together, calls), prompt_ids, attention_mask)


def call_decoder_by_row(
    subject: Subject,
    target: Any,
    draft: Any,
    prompts: Sequence[Tensor],
    settings: SamplingSettings,
    num_draft_tokens: int,
    generator: Generator,
    *,
    time_limit: float = DEFAULT_TIME_LIMIT,
) -> Call[DecoderOutput]:
    """Let a decoder that takes one row a call generate for prompts, one after the other.

    Cheaper than as many calls of `call_decoder`: what is watched of the process is looked at once
    for all of them. Each has its own time limit. Values of the output are left for the caller to
    check, by `check_decoder_values`.

    Args:
        subject: a subject of kind decoder.
        target: the target model, in a class the subject accepts.
        draft: the draft model.
        prompts: long [T] each, without padding.
        settings: the output contract.
        num_draft_tokens: K, draft tokens a round.
        generator: source of all draws, of one row after the other.
        time_limit: seconds for one row.

    Returns:
        The rows, [B, L]; if one fails those before it, with `failure`.

    Raises:
        SubjectError: the first row failed: the subject raised, or its output has a wrong type or
            shape.
        SubjectTimeout: it ran past the limit.
        UsageError: the target does not say its vocabulary size.
    """
    vocab_size, what = vocab_size_of(target), f"output of {subject.name!r}"
    outputs: list[DecoderOutput] = []
    findings: dict[str, None] = {}

    def one_after_the_other() -> None:
        for prompt in prompts:
            ids = prompt[None].clone()
            shown = torch.ones_like(ids)
            with watchdog.time_limit(time_limit):
                value = subject.call(
                    target, draft, ids, shown, own_settings(settings), num_draft_tokens, generator
                )
            output = readable_output(value, 1, vocab_size, what=what)
            outputs.append(output)
            everything = torch.ones_like(ids)
            found = _changed(
                {"prompt_ids": (ids, prompt[None]), "attention_mask": (shown, everything)}
            )
            if _ECHO <= len(prompt) <= output.tokens.shape[1]:
                found += _echo(output.tokens, prompt[None], everything)
            findings.update(dict.fromkeys(found))

    failure: str | None = None
    seconds, noticed = 0.0, ()
    try:
        call = run_guarded(subject, one_after_the_other, generator=generator, limit=None)
        seconds, noticed = call.seconds, call.findings
    except SubjectError as error:
        if not outputs:
            raise
        failure = str(error)
    return Call(joined(outputs), seconds, (*findings, *noticed), failure)


def check_decoder_values(subject: Subject, output: DecoderOutput, vocab_size: int) -> None:
    """Check token ids and counts of an output, or of several that were joined.

    Raises:
        SubjectError: some value is outside its range, or contradicts another.
    """
    declares = subject.capabilities.algorithm is not None
    what = f"output of {subject.name!r}"
    check_output(output, vocab_size, what=what, always_one_more=declares)


def call_rule(
    subject: Subject,
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    generator: Generator,
    *,
    time_limit: float = DEFAULT_TIME_LIMIT,
) -> Call[Tensor]:
    """Let a rule decide one round for a batch of rows.

    The subject works on copies, since rules that subtract in place are common; that it does is a
    finding, and so is a result that is a view of the draft tokens. A rule without a
    generator argument is called without one, the global generators seeded from `generator`; a rule
    that takes one row a call gets one row a call. One that declares coins is handed those, drawn
    from `generator`, in place of it.

    Args:
        subject: a subject of kind rule.
        draft_tokens: long [B, K].
        draft_probs: [B, K, V], None for deterministic drafts.
        target_probs: [B, K+1, V].
        generator: source of all draws.
        time_limit: seconds for one call.

    Returns:
        The emitted tokens, long [B, K+1], padded right with -1.

    Raises:
        SubjectError: the subject raised, or its output has a wrong type, shape or range.
        SubjectTimeout: it ran past the limit.
    """
    width, vocab_size = target_probs.shape[1], target_probs.shape[2]
    what = f"output of {subject.name!r}"
    given = draft_tokens, draft_probs, target_probs

    def rows(part: slice) -> Call[Tensor]:
        arguments: list[Any] = [
            draft_tokens[part].clone(),
            None if draft_probs is None else draft_probs[part].clone(),
            target_probs[part].clone(),
        ]
        handed = tuple(arguments)
        count = len(arguments[0])
        rule, coins = subject.call, subject.capabilities.coins
        if coins is not None:
            rule = partial(rule, **coins.draw(count, width - 1, generator))
            if coins.arrays == "numpy":
                arguments = [None if a is None else a.numpy() for a in arguments]
        elif subject.capabilities.generator:
            arguments.append(generator)
        call = run_guarded(subject, rule, *arguments, generator=generator, limit=time_limit)
        tokens = emitted_tokens(_as_tensor(call.value), count, vocab_size, what=what)
        findings = call.findings + _written_to(handed, given, part)
        if isinstance(call.value, Tensor) and _share_memory(call.value, handed[0]):
            findings += ("returns a view of draft_tokens, which changes with them",)
        return Call(_fit(tokens, width, what), call.seconds, findings)

    if subject.capabilities.batch or len(draft_tokens) == 1:
        return rows(slice(None))
    calls = [rows(slice(b, b + 1)) for b in range(len(draft_tokens))]
    return _merge(torch.cat([call.value for call in calls]), calls)


def build_transform(
    subject: Subject, *, time_limit: float = DEFAULT_TIME_LIMIT, **parameters: Any
) -> Transform:
    """Let a transform's factory build it for the given parameters.

    Raises:
        SubjectError: the factory raised or returned something that cannot be called.
        SubjectTimeout: it ran past the limit.
    """
    factory: Callable[[], Any] = partial(subject.call, **parameters)
    built = run_guarded(subject, factory, limit=time_limit).value
    if not callable(built):
        raise SubjectError(
            f"subject {subject.name!r} built a {type(built).__name__}, which cannot be called; a "
            "transform is a factory: called with its parameters it returns a function of "
            "(input_ids, logits)"
        )
    return cast("Transform", built)


def call_transform(
    subject: Subject,
    transform: Transform,
    input_ids: Tensor,
    logits: Tensor,
    *,
    generator: Generator | None = None,
    time_limit: float = DEFAULT_TIME_LIMIT,
    copy_result: bool = True,
) -> Call[Tensor]:
    """Let a transform change logits; it works on copies, and changing those is a finding.

    Args:
        subject: whose transform it is.
        transform: what `build_transform` returned.
        input_ids: long [B, T].
        logits: [B, V].
        generator: seeds the global generators for a random transform that declares none.
        time_limit: seconds for one call.
        copy_result: whether the caller wants a result that later calls cannot change.

    Returns:
        Logits [B, V].

    Raises:
        SubjectError: it raised, or returned another shape, NaN, +inf or a row without any token.
        SubjectTimeout: it ran past the limit.
    """
    ids, scores = input_ids.clone(), logits.clone()
    call = run_guarded(subject, transform, ids, scores, generator=generator, limit=time_limit)
    what = f"output of {subject.name!r}"
    value = transformed_logits(call.value, logits, what=what, copy=copy_result)
    findings = call.findings
    if not torch.equal(ids, input_ids):
        findings += ("changes input_ids in place, which every later step of a decoder reads",)
    if not torch.equal(scores, logits):
        findings += ("changes the logits it is handed in place; callers may still need them",)
    return Call(value, call.seconds, findings)


def vocab_size_of(model: Any) -> int:
    """V of a `LanguageModel` or of a transformers model.

    Raises:
        UsageError: the model says nowhere how wide its logits are.
    """
    size = getattr(model, "vocab_size", None)
    config = getattr(model, "config", None)
    if size is None and config is not None:
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        size = getattr(text, "vocab_size", None)
    if not isinstance(size, int):
        raise UsageError(
            f"{type(model).__name__} does not say its vocabulary size; give a model with an "
            "integer vocab_size, or a transformers model whose config has one"
        )
    return size


def own_settings(settings: RowSettings) -> RowSettings:
    """Settings a subject may do with as it likes; the constraint, mere code, is shared."""
    if not isinstance(settings, SamplingSettings):
        return [_own_copy(of_row) for of_row in settings]
    return _own_copy(settings)


def _own_copy(settings: SamplingSettings) -> SamplingSettings:
    own = settings.model_copy()
    # Settings are frozen, but for the entries of their mappings. As an update, a copy would count
    # as a field that was set.
    fields = vars(own)
    fields |= {name: value.copy() for name, value in fields.items() if isinstance(value, dict)}
    return own


def _changed(arguments: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[str, ...]:
    """A finding for each argument that is no longer what it was."""
    return tuple(
        _CHANGED.format(name)
        for name, (now, before) in arguments.items()
        if not torch.equal(now, before)
    )


def _written_to(
    handed: Sequence[Tensor | None], given: Sequence[Tensor | None], part: slice
) -> tuple[str, ...]:
    """A finding for each argument of a rule that is no longer what it was.

    Torch counts what it writes to a tensor, so large ones are compared only where it has; what is
    written past it, through numpy, shows in small ones.
    """
    found: tuple[str, ...] = ()
    for name, now, before in zip(_OF_RULES, handed, given, strict=True):
        if now is None or before is None:
            continue
        if now.numel() > _COMPARED and not now.is_inference() and now._version == 0:
            continue
        if not torch.equal(now, before if len(now) == len(before) else before[part]):
            found += (_CHANGED.format(name),)
    return found


def _share_memory(value: Tensor, other: Tensor) -> bool:
    return value.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _with_echo(
    call: Call[DecoderOutput], prompt_ids: Tensor, attention_mask: Tensor
) -> Call[DecoderOutput]:
    findings = _echo(call.value.tokens, prompt_ids, attention_mask)
    return Call(call.value, call.seconds, call.findings + findings) if findings else call


def _echo(tokens: Tensor, prompt_ids: Tensor, attention_mask: Tensor) -> tuple[str, ...]:
    """A finding if every row of the output begins with its prompt, padded or not."""
    if tokens.shape[1] < int(attention_mask.sum(1).min()):
        return ()
    shown = attention_mask.bool()
    padded = torch.equal(tokens[:, : prompt_ids.shape[1]], prompt_ids)
    echoed = padded or all(
        torch.equal(tokens[row, : int(shown[row].sum())], prompt_ids[row, shown[row]])
        for row in range(len(tokens))
    )
    if echoed and int(shown.sum()) >= _ECHO:
        return ("the output begins with the prompt in every row; return the new tokens only",)
    return ()


def _as_tensor(value: Any) -> Any:
    """What a rule on numpy arrays returned; anything else, to be refused, as it is."""
    integers = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.integer)
    return torch.from_numpy(value.astype(np.int64)) if integers else value


def _fit(tokens: Tensor, width: int, what: str) -> Tensor:
    if tokens.shape[1] != width:
        raise SubjectError(
            f"{what} has shape {list(tokens.shape)}; for {width - 1} draft tokens it must be "
            f"[{tokens.shape[0]}, {width}], padded right with -1"
        )
    return tokens


def _merge(value: T, calls: Sequence[Call[Any]]) -> Call[T]:
    """One call in place of one a row, each finding once."""
    findings = dict.fromkeys(finding for call in calls for finding in call.findings)
    return Call(value, sum(call.seconds for call in calls), tuple(findings))
