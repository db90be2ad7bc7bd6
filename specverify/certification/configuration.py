"""What a project says of its certifications in `[tool.specverify]` of its pyproject.toml.

`Configuration.model_json_schema()` is the published schema. The command line and arguments in a
test file win over it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from specverify.certification.limits import (
    ALPHA,
    LARGEST_ALPHA,
    LARGEST_SEED,
    MOST_TOKENS,
    SMALLEST_ALPHA,
)
from specverify.certification.plan import pair_presets
from specverify.certification.presets import read_settings
from specverify.errors import UsageError
from specverify.lookup import did_you_mean
from specverify.models.pairs import Pair
from specverify.pyproject import TABLE, find_table
from specverify.settings import SamplingSettings
from specverify.subjects.watchdog import LONGEST

Name = Annotated[str, Field(min_length=1)]


class Configuration(BaseModel):
    """The keys of `[tool.specverify]`, none of which is required."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    subject: Name | list[Name] | None = Field(
        None, description="What is certified: a name, package.module:object, or a list of them."
    )
    kind: Literal["rule", "transform", "decoder"] | None = Field(
        None, description="What the subjects are, where they do not say so themselves."
    )
    pair: Name | None = Field(None, description="Target and draft to test on.")
    settings: list[Name | dict[str, JsonValue]] | None = Field(
        None,
        min_length=1,
        description="Sampling settings: presets by name, or tables of fields; all presets when "
        "omitted.",
    )
    profile: Literal["quick", "standard", "thorough"] | None = Field(
        None, description="How many tokens to sample."
    )
    seed: int | None = Field(None, ge=0, le=LARGEST_SEED)
    alpha: float | None = Field(
        None,
        ge=SMALLEST_ALPHA,
        le=LARGEST_ALPHA,
        description=f"False-alarm budget of a run; {ALPHA:g} when omitted.",
    )
    tokens: int | None = Field(
        None, ge=1, le=MOST_TOKENS, description="Tokens to sample at most, over all settings."
    )
    time_limit: float | None = Field(
        None, gt=0, le=LONGEST, description="Seconds a single call into the subject may take."
    )
    expected: Name | None = Field(
        None, description="File of known failures, seen from the folder of pyproject.toml."
    )
    strict: bool | None = Field(None, description="Whether findings count as violations.")

    @property
    def subjects(self) -> tuple[str, ...]:
        """Names of what is certified."""
        if self.subject is None:
            return ()
        return (self.subject,) if isinstance(self.subject, str) else tuple(self.subject)

    @property
    def settings_texts(self) -> tuple[str, ...]:
        """The settings as the command line takes them."""
        given = self.settings or []
        return tuple(entry if isinstance(entry, str) else json.dumps(entry) for entry in given)


def read_configuration(folder: Path) -> tuple[Path, Configuration] | None:
    """The configuration that holds in a folder, and the file it is in; None if there is none.

    A path in it is made absolute.

    Raises:
        UsageError: a key is not known, or has a wrong value; the message names the file, the key
            and the value.
    """
    found = find_table(folder)
    if found is None:
        return None
    path, table = found
    try:
        made = Configuration.model_validate(table)
    except ValidationError as error:
        raise UsageError(_explain(path, table, error)) from None
    if made.expected is not None:
        made = made.model_copy(update={"expected": str(path.parent / made.expected)})
    return path, made


def _explain(path: Path, table: dict[str, Any], error: ValidationError) -> str:
    # Of a value that may be of several types, the first entry is about the first type.
    first = error.errors()[0]
    key = str(first["loc"][0])
    where = f"{str(path)!r}, [{TABLE}]"
    if first["type"] == "extra_forbidden":
        known = Configuration.model_fields
        remedy = did_you_mean(key, known) or f"; the keys are {', '.join(known)}"
        return f"{where}: unknown key {key!r}{remedy}"
    said = first["msg"][:1].lower() + first["msg"][1:]
    value = table[key]
    choices = _choices(key)
    suggestion = did_you_mean(value, choices) if isinstance(value, str) and choices else ""
    return f"{where}: {key} = {json.dumps(value, default=str)}: {said}{suggestion}"


def _choices(key: str) -> Sequence[str]:
    schema = Configuration.model_json_schema()["properties"][key]
    options = [schema, *schema.get("anyOf", ())]
    return [choice for option in options for choice in option.get("enum", ())]


def chosen_settings(texts: Sequence[str], pair: Pair) -> dict[str, SamplingSettings] | None:
    """Settings by name from presets, JSON files or JSON itself; None, all presets, for none.

    Raises:
        SettingsError: one cannot be read.
    """
    if not texts:
        return None
    available = pair_presets(pair, pair.open("language_model")[0])
    chosen: dict[str, SamplingSettings] = {}
    for text in texts:
        for name, settings in read_settings(text, available).items():
            if name in chosen and name not in available:
                name = f"{name}-{len(chosen) + 1}"
            chosen[name] = settings
    return chosen
