"""What a project says in its pyproject.toml, and how mistakes in it are told."""

import json
from pathlib import Path
from typing import get_args

import pytest

from specverify.certification.configuration import (
    Configuration,
    Form,
    chosen_settings,
    read_configuration,
)
from specverify.certification.profiles import PROFILES
from specverify.errors import UsageError
from specverify.models.pairs import load_pair
from specverify.reporting.formats import SUFFIXES


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
        'alpha = 1e-4\ntokens = 1000\ntime_limit = 5\nexpected = "ci/expected.toml"\n'
        "strict = true\nnum_draft_tokens = 3\nrun_length = 9\njobs = 2\nisolate = true\n"
        'out = "made"\nreport = "html"\nfuzz_time = 5\nfuzz_inputs = 7\ndatabase = "found"',
    )
    assert made.subjects == ("mylib:verify", "mylib:TopK")
    assert made.settings_texts == ("plain", '{"temperature": 0.7}')
    assert made.expected == str(tmp_path / "ci" / "expected.toml")
    assert (made.kind, made.pair, made.profile, made.seed) == ("rule", "toy", "standard", 3)
    assert (made.out, made.report) == (str(tmp_path / "made"), ["html"])
    assert (made.fuzz_time, made.fuzz_inputs) == (5, 7)
    assert made.database == str(tmp_path / "found")
    assert (made.num_draft_tokens, made.run_length, made.jobs, made.isolate) == (3, 9, 2, True)
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
        ("run_length = 0", "run_length = 0: input should be greater than or equal to 1"),
        ("num_draft_tokens = 1000", "num_draft_tokens = 1000: input should be less than or equal"),
        ("jobs = 0", "jobs = 0: "),
        ('isolate = "yes"', 'isolate = "yes": input should be a valid boolean'),
        ("out = 3", "out = 3: "),
        ("jobs = 1.5", "jobs = 1.5: "),
        ('report = "made"', "; the folder they go to is `out`"),
        ('report = "htlm"', "(did you mean 'html'?)"),
        ('report = ["made"]', 'report = ["made"]: input should be'),
        ("report = []", "report = []: "),
        ("fuzz_time = 0", "fuzz_time = 0: input should be greater than 0"),
        ("fuzz_time = 1e9", "fuzz_time = 1000000000.0: input should be less than or equal to"),
        ("fuzz_inputs = 0", "fuzz_inputs = 0: "),
        ("database = 3", "database = 3: "),
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


def test_the_forms_of_reports_are_those_that_can_be_written() -> None:
    assert get_args(Form) == tuple(SUFFIXES)


def test_the_search_is_one_of_all_profiles() -> None:
    for name in PROFILES:
        assert Configuration.model_validate({"profile": name}).profile == name


def test_settings_by_name_and_by_fields() -> None:
    chosen = chosen_settings(("plain", '{"temperature": 0.7}'), load_pair("toy"))
    assert chosen is not None
    assert set(chosen) == {"plain", "custom"}
    assert chosen["custom"].temperature == 0.7
    assert chosen_settings((), load_pair("toy")) is None
