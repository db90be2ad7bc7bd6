"""The settings a subject is certified under when the user names none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specverify.errors import SettingsError
from specverify.lookup import did_you_mean
from specverify.settings import SamplingSettings

CONTRACT_FIELDS = frozenset({"dialect", "max_new_tokens", "temperature"})
"""Settings every subject must honour; the rest it may decline in its capabilities."""


def presets(
    vocab_size: int, eos: int, stop_sequence: tuple[int, ...]
) -> dict[str, SamplingSettings]:
    """Settings by name, each aimed at one family of mistakes.

    Args:
        vocab_size: sets how many tokens the truncation keeps.
        eos: the token that ends a run under `stopping`.
        stop_sequence: tokens that end a run under `stopping`; likely ones make the test sharp.
    """
    return {
        "plain": SamplingSettings(),
        "filtered": SamplingSettings(
            temperature=0.8, top_k=max(1, min(20, 3 * vocab_size // 4)), top_p=0.9
        ),
        "history": SamplingSettings(
            repetition_penalty=1.2,
            presence_penalty=0.7,
            frequency_penalty=0.3,
            no_repeat_ngram_size=2,
        ),
        "stopping": SamplingSettings(
            stop_token_ids=(eos,), stop_sequences=(stop_sequence,), min_new_tokens=1
        ),
        "greedy": SamplingSettings(temperature=0.0),
    }


def restrict(
    settings: SamplingSettings, honoured: frozenset[str] | None
) -> tuple[SamplingSettings, list[str]]:
    """Drop the settings a subject does not honour.

    Returns:
        What is left, and the names of the dropped fields that were not neutral.
    """
    if honoured is None:
        return settings, []
    changed = settings.model_fields_set & {
        name
        for name, field in SamplingSettings.model_fields.items()
        if getattr(settings, name) != field.get_default(call_default_factory=True)
    }
    dropped = sorted(changed - honoured - CONTRACT_FIELDS)
    kept = {name: getattr(settings, name) for name in settings.model_fields_set - set(dropped)}
    return SamplingSettings(**kept), dropped


def read_settings(
    text: str, available: Mapping[str, SamplingSettings]
) -> dict[str, SamplingSettings]:
    """Settings from what a user typed: a preset's name, a JSON file, or JSON itself.

    Raises:
        SettingsError: none of the three, or values out of range.
    """
    if text in available:
        return {text: available[text]}
    name, source = "custom", text
    if not text.lstrip().startswith("{"):
        path = Path(text)
        try:
            found = path.is_file()
            source = path.read_text(encoding="utf-8-sig") if found else ""
        except UnicodeDecodeError:
            raise SettingsError(f"settings {text!r} are not text in UTF-8; save them so") from None
        except OSError as error:
            raise SettingsError(f"settings {text!r} cannot be read: {error.strerror}") from None
        if not found:
            raise SettingsError(
                f"no settings named {text!r}{did_you_mean(text, available)}; choose one of "
                f"{', '.join(available)}, name a JSON file, or give JSON such as "
                "'{\"temperature\": 0.7}'"
            )
        name = path.stem
    try:
        fields: Any = json.loads(source)
    except (json.JSONDecodeError, RecursionError) as error:
        raise SettingsError(f"settings {text!r} are not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise SettingsError(f"settings must be a JSON object of fields, not {fields!r}")
    for field, value in fields.items():
        if field not in SamplingSettings.model_fields:
            known = SamplingSettings.model_fields
            remedy = did_you_mean(field, known) or f"; the fields are {', '.join(known)}"
            raise SettingsError(f"{field}={value!r}: settings have no such field{remedy}")
    return {name: SamplingSettings(**fields)}
