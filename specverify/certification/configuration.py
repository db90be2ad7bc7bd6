"""What a project says of its certifications in `[tool.specverify]` of its pyproject.toml.

`Configuration.model_json_schema()` is the published schema. The command line and arguments in a
test file win over it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from specverify.certification.fuzzing.limits import LONGEST as LONGEST_SEARCH
from specverify.certification.limits import (
    ALPHA,
    LARGEST_ALPHA,
    LARGEST_SEED,
    LONGEST_RUN,
    MOST_DRAFT_TOKENS,
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

Form = Literal["html", "markdown", "badge", "junit"]
"""A form of `reporting.formats`."""

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
    profile: Literal["quick", "standard", "thorough", "fuzz"] | None = Field(
        None,
        description="How many tokens to sample; fuzz, for specverify certify, searches random "
        "inputs too.",
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
    num_draft_tokens: int | None = Field(
        None, ge=1, le=MOST_DRAFT_TOKENS, description="Draft tokens a round; the pair's own number."
    )
    run_length: int | None = Field(
        None, ge=1, le=LONGEST_RUN, description="Tokens a run has at most; K + 2 when omitted."
    )
    jobs: int | None = Field(
        None, ge=1, description="Processes that sample, for specverify certify."
    )
    isolate: bool | None = Field(
        None, description="Whether a subject runs in processes of its own, which it may end."
    )
    time_limit: float | None = Field(
        None, gt=0, le=LONGEST, description="Seconds a single call into the subject may take."
    )
    expected: Name | None = Field(
        None, description="File of known failures, seen from the folder of pyproject.toml."
    )
    out: Name | None = Field(
        None, description="Folder for certificates, seen from the folder of pyproject.toml."
    )
    report: Form | Annotated[list[Form], Field(min_length=1)] | None = Field(
        None, description="Forms written beside certificates, by specverify certify."
    )
    fuzz_time: float | None = Field(
        None, gt=0, le=LONGEST_SEARCH, description="Of profile fuzz: seconds to search."
    )
    fuzz_inputs: int | None = Field(
        None, ge=1, description="Of profile fuzz: inputs after which to stop."
    )
    database: Name | None = Field(
        None,
        description="Of profile fuzz: folder of inputs that failed, seen from the folder of "
        "pyproject.toml.",
    )
    strict: bool | None = Field(None, description="Whether findings count as violations.")

    @field_validator("report", mode="after")
    @classmethod
    def _as_list(cls, report: Form | list[Form] | None) -> list[Form] | None:
        return [report] if isinstance(report, str) else report

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

    Paths in it are made absolute.

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
    given = {key: getattr(made, key) for key in ("expected", "out", "database")}
    absolute = {key: str(path.parent / name) for key, name in given.items() if name is not None}
    return path, made.model_copy(update=absolute)


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
    if key == "report":
        said += "; the folder they go to is `out`"
    choices = _choices(key)
    suggestion = did_you_mean(value, choices) if isinstance(value, str) and choices else ""
    return f"{where}: {key} = {json.dumps(value, default=str)}: {said}{suggestion}"


def check_options(given: Mapping[str, Any], prefix: str) -> None:
    """Hold options of a command line against the same limits.

    Args:
        given: values by key.
        prefix: what the options begin with, such as `--specverify-`.

    Raises:
        UsageError: a value is out of range; the message names the option and the value.
    """
    try:
        Configuration.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        said = first["msg"][:1].lower() + first["msg"][1:]
        raise UsageError(f"{prefix}{key.replace('_', '-')} {given[key]}: {said}") from None


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
