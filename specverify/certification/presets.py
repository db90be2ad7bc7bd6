"""The settings a subject is certified under when the user names none."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specverify.errors import SettingsError
from specverify.lookup import did_you_mean
from specverify.settings import SamplingSettings

CONTRACT_FIELDS = frozenset({"dialect", "max_new_tokens", "temperature"})
"""Settings every subject must honour; the rest it may decline in its capabilities."""

FOR_RULES = ("plain", "filtered", "greedy")
"""Presets that a rule can tell apart. It sees distributions: not whether a penalty made them, nor
where a run stops."""


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
    if not _is_json(text):
        path = Path(text)
        try:
            found = path.is_file()
            source = path.read_text(encoding="utf-8-sig") if found else ""
        except UnicodeDecodeError:
            raise SettingsError(f"settings {text!r} are not text in UTF-8; save them so") from None
        except OSError as error:
            raise SettingsError(f"settings {text!r} cannot be read: {error.strerror}") from None
        if not found and _is_path(text):
            raise SettingsError(
                f"there is no settings file {text!r}; name one that exists, seen from "
                f"{Path.cwd().name or '/'!r}, a preset ({', '.join(available)}), or give JSON "
                "itself"
            )
        if not found:
            raise SettingsError(
                f"no settings named {text!r}{did_you_mean(text, available)}; choose one of "
                f"{', '.join(available)}, name a JSON file, or give JSON such as "
                "'{\"temperature\": 0.7}'"
            )
        name = path.stem
    try:
        fields: Any = json.loads(source, object_pairs_hook=_without_repeats)
    except SettingsError:
        raise
    except (ValueError, RecursionError) as error:  # also for a number of too many digits
        raise SettingsError(f"settings {text[:200]!r} are not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise SettingsError(
            f"settings must be a JSON object of fields, such as '{{\"temperature\": 0.7}}', not "
            f"{fields!r}"
        )
    for field, value in fields.items():
        if field not in SamplingSettings.model_fields:
            known = SamplingSettings.model_fields
            remedy = did_you_mean(field, known) or f"; the fields are {', '.join(known)}"
            raise SettingsError(f"{field}={value!r}: settings have no such field{remedy}")
    return {name: SamplingSettings(**fields)}


def _is_json(text: str) -> bool:
    """Whether a text is JSON, or was meant to be: an object, broken or not, or any other value."""
    if text.lstrip().startswith("{"):
        return True
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text.lstrip().startswith("[")
    return True


def _is_path(text: str) -> bool:
    return text.lower().endswith(".json") or "/" in text or os.sep in text


def _without_repeats(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that is there twice, one value would be dropped without a word."""
    fields = dict(entries)
    if len(fields) < len(entries):
        keys = [key for key, _ in entries]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise SettingsError(f"settings give {repeated!r} more than once; leave one of them")
    return fields
