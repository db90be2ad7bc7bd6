"""transformers' own speculative decoding, `generate(assistant_model=...)`, as a subject."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from specverify.decoding.output import DecoderOutput
from specverify.errors import SettingsError, UsageError
from specverify.quoting import a_type
from specverify.settings import SamplingSettings
from specverify.subjects.guard import lend_global_generators
from specverify.subjects.protocols import Capabilities, Subject

HONOURED = frozenset(
    {
        "min_new_tokens",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "bad_words",
        "logit_bias",
        "allowed_tokens",
    }
)
"""Settings that transformers has too. Stop sequences are not among them: assisted generation looks
for them between rounds, not between tokens."""

_ALWAYS = frozenset({"dialect", "max_new_tokens"})


def generate(
    target: Any,
    draft: Any,
    prompt_ids: Tensor,
    attention_mask: Tensor,
    settings: SamplingSettings,
    num_draft_tokens: int,
    generator: Generator,
) -> DecoderOutput:
    """Generate with `target.generate(assistant_model=draft)`, one row at a time.

    transformers draws from the global generators; they are seeded from `generator` and put back.
    Both models have their generation configs back afterwards, whatever happens. Accepted counts
    stay unknown, since transformers does not report them.

    Raises:
        SettingsError: a setting that transformers' loop does not honour, or another dialect.
        UsageError: a model that is no transformers model.
    """
    _check(target, draft, settings)
    config = _generation_config(settings, target.config.get_text_config().vocab_size)
    rows = []
    with (
        lend_global_generators(generator),
        _own_generation_configs(target, draft, num_draft_tokens),
        _quiet(),
    ):
        for prompt, mask in zip(prompt_ids, attention_mask, strict=True):
            ids = prompt[mask.bool()][None]
            sequence = target.generate(
                ids,
                # Without a mask transformers guesses one from the pad id.
                attention_mask=ids.new_ones(ids.shape),
                assistant_model=draft,
                generation_config=config,
                prefix_allowed_tokens_fn=_prefix_constraint(settings, ids.shape[1]),
            )[0]
            rows.append(_without_padding(sequence[ids.shape[1] :], config.pad_token_id))
    return DecoderOutput(tokens=pad_sequence(rows, batch_first=True, padding_value=-1))


def _check(target: Any, draft: Any, settings: SamplingSettings) -> None:
    from transformers import PreTrainedModel

    for role, model in (("target", target), ("draft", draft)):
        if not isinstance(model, PreTrainedModel):
            raise UsageError(
                f"the {role} is {a_type(model)}; transformers generates with "
                "PreTrainedModel only: choose a pair of such models, e.g. --pair trained"
            )
    if settings.dialect != "huggingface":
        raise SettingsError(
            f"dialect={settings.dialect!r}: transformers decodes in the dialect 'huggingface' only"
        )
    for name in sorted(set(SamplingSettings.model_fields) - HONOURED - _ALWAYS):
        neutral = SamplingSettings.model_fields[name].get_default(call_default_factory=True)
        # The threshold only says at which probability XTC acts, if it acts.
        if name != "xtc_threshold" and getattr(settings, name) != neutral:
            raise SettingsError(
                f"{name}={getattr(settings, name)!r} is not honoured by transformers' assisted "
                f"generation; leave it at {neutral!r}"
            )


def _generation_config(settings: SamplingSettings, vocab_size: int) -> Any:
    """Every field that has a default other than neutral is set, so that no default applies."""
    from transformers import GenerationConfig

    stops = list(settings.stop_token_ids)
    # transformers ignores bad words that are one stop token, and rejects an empty list.
    bad_words = [list(word) for word in settings.bad_words if [*word] not in [[i] for i in stops]]
    fields: dict[str, Any] = {
        "max_new_tokens": settings.max_new_tokens,
        "min_new_tokens": settings.min_new_tokens if stops else None,
        "eos_token_id": stops or None,
        # Outside the vocabulary: no token of the text can be taken for padding.
        "pad_token_id": vocab_size,
        "do_sample": not settings.greedy,
        "repetition_penalty": settings.repetition_penalty,
        "no_repeat_ngram_size": settings.no_repeat_ngram_size or 0,
        "bad_words_ids": bad_words or None,
        "sequence_bias": [[[token], bias] for token, bias in settings.logit_bias.items()] or None,
    }
    if not settings.greedy:
        fields |= {
            "temperature": settings.temperature,
            "top_k": settings.top_k or 0,
            "top_p": 1.0 if settings.top_p is None else settings.top_p,
            "min_p": settings.min_p,
            "typical_p": 1.0 if settings.typical_p is None else settings.typical_p,
            "epsilon_cutoff": settings.epsilon_cutoff or 0.0,
            "eta_cutoff": settings.eta_cutoff or 0.0,
        }
    return GenerationConfig(**fields)


@contextmanager
def _own_generation_configs(target: Any, draft: Any, num_draft_tokens: int) -> Iterator[None]:
    """Replace what a checkpoint brings along, which fills every field that a call leaves open.

    The number of draft tokens and the confidence at which drafting stops (0.4 by default) are
    read from the draft's own config only; passed to `generate` they would have no effect.
    """
    from transformers import GenerationConfig

    kept = [(model, model.generation_config) for model in (target, draft)]
    try:
        for model, _ in kept:
            model.generation_config = GenerationConfig(
                num_assistant_tokens=num_draft_tokens,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
            )
        yield
    finally:
        for model, config in kept:
            model.generation_config = config


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the warning that the draft is handed the target's processors, once a process."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _prefix_constraint(
    settings: SamplingSettings, prompt_length: int
) -> Callable[[int, Tensor], list[int]] | None:
    allowed = settings.allowed_tokens
    if allowed is None:
        return None
    return lambda _row, ids: list(allowed(tuple(ids[prompt_length:].tolist())))


def _without_padding(tokens: Tensor, pad_token_id: int) -> Tensor:
    """Drop padding at the end. What else follows a stop token stays: it would be a violation."""
    real = (tokens != pad_token_id).nonzero()
    return tokens[: int(real[-1]) + 1] if len(real) else tokens[:0]


ASSISTED = Subject(
    name="transformers",
    kind="decoder",
    call=generate,
    capabilities=Capabilities(
        batch=False,
        generator=False,
        settings=HONOURED,
        algorithm="token",
        models=frozenset({"transformers"}),
    ),
    summary="Hugging Face transformers, generate(assistant_model=draft)",
    distribution="transformers",
)
