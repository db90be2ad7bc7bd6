"""What a certification will do: its cases, checked before any work starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specverify.certification.decoder_case import DecoderCase, runs_for
from specverify.certification.generation import decoder_generation, rule_generation
from specverify.certification.limits import LONGEST_RUN, MOST_DRAFT_TOKENS, MOST_TOKENS
from specverify.certification.portable import portable_pair, portable_subject
from specverify.certification.presets import FOR_RULES, presets, restrict
from specverify.certification.profiles import ROWS, Speed, profile_named
from specverify.certification.shard import Generate
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
    dropped: tuple[str, ...] = ()
    """Settings of the preset that the subject does not honour."""
    request: "PlanRequest | None" = None
    """What another process plans the same case from."""


@dataclass(frozen=True)
class PlanRequest:
    """All that a plan depends on; it can be pickled if its subject and its pair can."""

    subject: Subject
    pair: Pair
    settings: Mapping[str, SamplingSettings] | None
    profile: str
    num_draft_tokens: int | None
    tokens: int | None
    time_limit: float
    run_length: int | None

    def plan(self) -> "Plan":
        """Lay out the cases."""
        return plan_decoder(
            self.subject,
            self.pair,
            self.settings,
            profile=self.profile,
            num_draft_tokens=self.num_draft_tokens,
            tokens=self.tokens,
            time_limit=self.time_limit,
            run_length=self.run_length,
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "subject": portable_subject(self.subject),
            "pair": portable_pair(self.pair),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        made = {"subject": state["subject"](), "pair": state["pair"]()}
        self.__dict__.update(state | made)


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
    run_length: int | None = None,
) -> Plan:
    """Lay out the cases of a decoder or rule subject.

    Args:
        subject: what is tested.
        pair: what it is tested on.
        settings: by name; the presets when None, of a rule those that it can tell apart.
        profile: how many tokens to sample.
        num_draft_tokens: K; the pair's own when None.
        tokens: over all cases; the profile's number when None.
        time_limit: seconds for one call.
        run_length: tokens a run has at most; K + 2 when None.

    Raises:
        UsageError: something is out of range, or subject, pair and settings do not go together.
    """
    request = PlanRequest(
        subject, pair, settings, profile, num_draft_tokens, tokens, time_limit, run_length
    )
    k = pair.num_draft_tokens if num_draft_tokens is None else num_draft_tokens
    _check_sizes(k, tokens, run_length)
    target, draft = pair.open("language_model")
    model_class = _model_class(subject, pair)
    # Models of its own, since a subject may change what it is handed.
    models = pair.open(model_class)
    for role, model in (("target", target), ("draft", draft)):
        _check_logits(pair, role, model)
    speed = _speed(subject, model_class, target)
    usual = profile_named(profile).tokens[speed]
    total = usual if tokens is None else tokens
    usual_settings = pair_presets(pair, target)
    if settings is None:
        names = FOR_RULES if subject.kind == "rule" else tuple(usual_settings)
        settings = {name: usual_settings[name] for name in names}
    chosen, left_out = _applicable(subject, settings, usual_settings)
    cases = []
    for name, (kept, dropped) in chosen.items():
        length = k + 2 if run_length is None else run_length
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
            leak_limit=profile_named(profile).leak_limit,
        )
        arguments = (subject, *models, kept, k, time_limit)
        generation = rule_generation if subject.kind == "rule" else decoder_generation
        made = generation(*arguments)
        cases.append(PlannedCase(case, made, ROWS[speed], tuple(dropped), request))
    for planned in cases:
        # Enumerated now, so that settings which leave a prefix no token are refused before any
        # call of the subject.
        _ = planned.case.trees
    return Plan(
        tuple(cases),
        _dtype(as_language_model(models[0]), pair),
        tuple(left_out),
        tuple(name for name in chosen if settings[name] == usual_settings.get(name)),
    )


def _check_sizes(num_draft_tokens: int, tokens: int | None, run_length: int | None) -> None:
    """Refuse numbers that ask for nothing, or for more than can be done."""
    k = num_draft_tokens
    if k < 1:
        raise UsageError(f"num_draft_tokens={k}; a certification needs at least 1 draft token")
    if k > MOST_DRAFT_TOKENS:
        raise UsageError(
            f"num_draft_tokens={k}; a round has at most {MOST_DRAFT_TOKENS} draft tokens here, and "
            "a few show every mistake that more do: give fewer (--num-draft-tokens)"
        )
    if run_length is not None and run_length < 1:
        raise UsageError(f"run_length={run_length}; a run has at least 1 token")
    if run_length is not None and run_length > LONGEST_RUN:
        raise UsageError(
            f"run_length={run_length}; a run has at most {LONGEST_RUN:,} tokens: give fewer "
            "(--run-length), K + 2 show every position of a block"
        )
    if tokens is not None and tokens < 1:
        raise UsageError(f"tokens={tokens}; a certification needs at least 1 token")
    if tokens is not None and tokens > MOST_TOKENS:
        raise UsageError(
            f"tokens={tokens}; at most {MOST_TOKENS:,} can be sampled: give fewer (--tokens), and "
            "ask `specverify power` how many a deviation needs"
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
