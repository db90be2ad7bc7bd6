"""What a project says in its pyproject.toml, and how mistakes in it are told."""

import json
from pathlib import Path

import pytest

from specverify.certification.configuration import (
    Configuration,
    chosen_settings,
    read_configuration,
)
from specverify.errors import UsageError
from specverify.models.pairs import load_pair


def write(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def read(folder: Path, text: str) -> Configuration:
    write(folder, f"[tool.specverify]\n{text}")
    found = read_configuration(folder)
    assert found is not None
    return found[1]


def test_all_keys(tmp_path: Path) -> None:
    made = read(
        tmp_path,
        'subject = ["mylib:verify", "mylib:TopK"]\nkind = "rule"\npair = "toy"\n'
        'settings = ["plain", {temperature = 0.7}]\nprofile = "standard"\nseed = 3\n'
        'alpha = 1e-4\ntokens = 1000\ntime_limit = 5\nexpected = "ci/expected.toml"\nstrict = true',
    )
    assert made.subjects == ("mylib:verify", "mylib:TopK")
    assert made.settings_texts == ("plain", '{"temperature": 0.7}')
    assert made.expected == str(tmp_path / "ci" / "expected.toml")
    assert (made.kind, made.pair, made.profile, made.seed) == ("rule", "toy", "standard", 3)
    assert (made.alpha, made.tokens, made.time_limit, made.strict) == (1e-4, 1000, 5.0, True)


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    path = write(tmp_path, "[tool.specverify]\nseed = 1")
    assert read_configuration(inner) == (path, Configuration(seed=1))
    write(tmp_path / "a", "[project]\nname = 'another'")
    assert read_configuration(inner) is None


def test_no_file_is_no_configuration(tmp_path: Path) -> None:
    assert read_configuration(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sed = 3", "unknown key 'sed' (did you mean 'seed'?)"),
        ("colour = 3", "unknown key 'colour'; the keys are subject, "),
        ('seed = "3"', 'seed = "3": input should be a valid integer'),
        ("seed = -1", "seed = -1: input should be greater than or equal to 0"),
        ("tokens = 1.5", "tokens = 1.5: "),
        ("strict = 1", "strict = 1: input should be a valid boolean"),
        ("alpha = 0.9", "alpha = 0.9: input should be less than or equal to 0.05"),
        ("alpha = nan", "alpha = NaN: "),
        ("time_limit = 0", "time_limit = 0: "),
        ('profile = "quik"', "(did you mean 'quick'?)"),
        ('kind = "Rule"', "(did you mean 'rule'?)"),
        ('subject = ""', 'subject = "": '),
        ("subject = 3", "subject = 3: "),
        ("settings = []", "settings = []: "),
    ],
)
def test_mistakes_name_file_key_and_value(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert f"{str(tmp_path / 'pyproject.toml')!r}, [tool.specverify]: " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool", "is not valid TOML"),
        ("tool.specverify = 3", "is no table; write [tool.specverify]"),
    ],
)
def test_a_broken_file(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_configuration(tmp_path)
    assert said in str(caught.value)


def test_every_key_is_in_the_schema_and_no_other_is_allowed() -> None:
    schema = Configuration.model_json_schema()
    assert set(schema["properties"]) == set(Configuration.model_fields)
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_settings_by_name_and_by_fields() -> None:
    chosen = chosen_settings(("plain", '{"temperature": 0.7}'), load_pair("toy"))
    assert chosen is not None
    assert set(chosen) == {"plain", "custom"}
    assert chosen["custom"].temperature == 0.7
    assert chosen_settings((), load_pair("toy")) is None
