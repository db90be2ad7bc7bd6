"""What a certification will do: its cases, checked before any work starts."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from specverify.certification.decoder_case import DecoderCase, runs_for
from specverify.certification.generation import decoder_generation, rule_generation
from specverify.certification.presets import presets, restrict
from specverify.certification.profiles import ROWS, Speed, profile_named
from specverify.certification.sampled import Generate
from specverify.decoding.scoring import TeacherForced
from specverify.errors import UsageError
from specverify.models.pairs import ModelClass, Pair
from specverify.models.protocol import LanguageModel
from specverify.models.table import TableModel
from specverify.models.transformers_model import as_language_model
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject


@dataclass(frozen=True)
class PlannedCase:
    """A case, how to run it, and what had to be left out of it."""

    case: DecoderCase
    generate: Generate
    rows: int
    dropped: tuple[str, ...]
    """Settings of the preset that the subject does not honour."""


@dataclass(frozen=True)
class Plan:
    """All cases of a decoder or a rule on one pair."""

    cases: tuple[PlannedCase, ...]
    dtype: str
    """dtype of the logits of the target that the subject is handed."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Names of the settings the subject cannot be asked to honour, each with the reason."""
    presets: tuple[str, ...] = ()
    """Names of the cases that are presets of the pair, whole or cut."""


def plan_decoder(
    subject: Subject,
    pair: Pair,
    settings: Mapping[str, SamplingSettings] | None,
    *,
    profile: str,
    num_draft_tokens: int | None,
    tokens: int | None,
    time_limit: float,
) -> Plan:
    """Lay out the cases of a decoder or rule subject.

    Args:
        subject: what is tested.
        pair: what it is tested on.
        settings: by name; the presets when None.
        profile: how many tokens to sample.
        num_draft_tokens: K; the pair's own when None.
        tokens: over all cases; the profile's number when None.
        time_limit: seconds for one call.

    Raises:
        UsageError: something is out of range, or subject, pair and settings do not go together.
    """
    target, draft = pair.open("language_model")
    model_class = _model_class(subject, pair)
    # Models of its own, since a subject may change what it is handed.
    models = pair.open(model_class)
    for role, model in (("target", target), ("draft", draft)):
        _check_logits(pair, role, model)
    k = pair.num_draft_tokens if num_draft_tokens is None else num_draft_tokens
    if k < 1:
        raise UsageError(f"num_draft_tokens={k}; a certification needs at least 1 draft token")
    speed = _speed(subject, model_class, target)
    usual = profile_named(profile).tokens[speed]
    total = usual if tokens is None else tokens
    if total < 1:
        raise UsageError(f"tokens={total}; a certification needs at least 1 token")
    usual_settings = pair_presets(pair, target)
    chosen, left_out = _applicable(subject, settings or usual_settings, usual_settings)
    cases = []
    for name, (kept, dropped) in chosen.items():
        length = k + 2
        if "max_new_tokens" in kept.model_fields_set:
            length = min(kept.max_new_tokens, length)
        least = min(kept.min_new_tokens, length)
        kept = kept.model_copy(update={"max_new_tokens": length, "min_new_tokens": least})
        kept.check_vocabulary(target.vocab_size)
        for role, model in (("target", target), ("draft", draft)):
            _check_window(pair, role, model, length)
        case = DecoderCase(
            id=name,
            settings=kept,
            num_draft_tokens=k,
            prompts=pair.prompts,
            target=target,
            draft=draft,
            runs=runs_for(total // len(chosen), length, pair.prompts),
            rows=ROWS["table"] if isinstance(target, TableModel) else ROWS["batch"],
        )
        arguments = (subject, *models, kept, k, time_limit)
        generation = rule_generation if subject.kind == "rule" else decoder_generation
        cases.append(PlannedCase(case, generation(*arguments), ROWS[speed], tuple(dropped)))
    for planned in cases:
        # Enumerated now, so that settings which leave a prefix no token are refused before any
        # call of the subject.
        _ = planned.case.trees
    return Plan(
        tuple(cases),
        _dtype(as_language_model(models[0]), pair),
        tuple(left_out),
        tuple(
            name
            for name in chosen
            if (settings or usual_settings)[name] == usual_settings.get(name)
        ),
    )


def pair_presets(pair: Pair, target: LanguageModel) -> dict[str, SamplingSettings]:
    """The presets for a pair: its own end-of-text token, and a stop sequence its target likes."""
    vocabulary = pair.vocabularies[0]
    eos = None if vocabulary is None else vocabulary.special_tokens.get("eos_token")
    end = target.vocab_size - 1 if eos is None else eos
    forced = TeacherForced(target, pair.prompts[0], SamplingSettings())
    sequence: list[int] = []
    for _ in range(2):
        probs = forced(np.array([sequence], np.int64).reshape(1, -1))[0].copy()
        if target.vocab_size > 1:
            probs[end] = 0.0
        sequence.append(int(probs.argmax()))
    return presets(target.vocab_size, end, tuple(sequence))


def _applicable(
    subject: Subject,
    wanted: Mapping[str, SamplingSettings],
    usual: Mapping[str, SamplingSettings],
) -> tuple[dict[str, tuple[SamplingSettings, list[str]]], list[tuple[str, str]]]:
    """Settings the subject takes.

    A preset is cut down to what the subject honours, and left out if nothing is left that another
    one does not test; settings of the user's own are taken as they are or not at all.

    Returns:
        By name the settings and the fields cut from them; names left out, each with the reason.
    """
    chosen: dict[str, tuple[SamplingSettings, list[str]]] = {}
    left_out: list[tuple[str, str]] = []
    for name, settings in wanted.items():
        kept, dropped = restrict(settings, subject.capabilities.settings)
        if dropped and usual.get(name) != settings:
            raise UsageError(
                f"{subject.name!r} does not honour {', '.join(dropped)}, which the settings "
                f"{name!r} ask for; leave them out, or declare them in its capabilities (settings=)"
            )
        if subject.capabilities.algorithm == "greedy" and not kept.greedy:
            left_out.append((name, "the subject decodes greedily only"))
        elif dropped and any(kept == other for other, _ in chosen.values()):
            left_out.append((name, f"the subject honours none of {', '.join(dropped)}"))
        else:
            chosen[name] = kept, dropped
    if not chosen:
        raise UsageError(
            f"{subject.name!r} declares the greedy algorithm, but none of the settings "
            f"({', '.join(wanted)}) has temperature 0; use --settings greedy"
        )
    return chosen, left_out


def _model_class(subject: Subject, pair: Pair) -> ModelClass:
    accepted = subject.capabilities.models
    if subject.kind == "rule" or "language_model" in accepted:
        return "language_model"
    if "transformers" in accepted and "transformers" in pair.model_classes:
        return "transformers"
    raise UsageError(
        f"{subject.name!r} takes {', '.join(sorted(accepted))} models, pair {pair.name!r} offers "
        f"{', '.join(pair.model_classes)}; choose another pair"
    )


def _speed(subject: Subject, model_class: ModelClass, target: LanguageModel) -> Speed:
    if not subject.capabilities.batch:
        # A rule is called row by row inside a loop that stays vectorised.
        return "batch" if subject.kind == "rule" else "single"
    if model_class == "language_model" and isinstance(target, TableModel):
        return "table"
    return "batch"


def _check_logits(pair: Pair, role: str, model: LanguageModel) -> None:
    """Refuse a model that is no distribution before it is taken for the subject's fault."""
    for index, prompt in enumerate(pair.prompts):
        tokens = torch.tensor([prompt])
        logits = model.start(tokens).extend(tokens[:, -1:])
        if bool((logits.isnan() | logits.isposinf()).any()) or bool((logits == -torch.inf).all()):
            raise UsageError(
                f"the {role} of pair {pair.name!r} returns logits after prompt {index} that are no "
                "distribution (NaN, infinity, or every token masked); check its weights"
            )


def _check_window(pair: Pair, role: str, model: LanguageModel, length: int) -> None:
    longest = max(len(prompt) for prompt in pair.prompts)
    if model.window is not None and longest + length > model.window:
        remedy = "lower num_draft_tokens" if longest < model.window else "shorten the prompts"
        raise UsageError(
            f"the longest prompt of pair {pair.name!r} has {longest} tokens and a run {length}, "
            f"but the {role}'s window holds {model.window}; {remedy} or choose another pair"
        )


def _dtype(target: LanguageModel, pair: Pair) -> str:
    prompt = torch.tensor([pair.prompts[0]])
    logits = target.start(prompt).extend(prompt[:, -1:])
    return str(logits.dtype).removeprefix("torch.")
