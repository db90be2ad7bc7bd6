"""Certificates held against themselves: real ones agree, a number changed by hand is caught."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.certification.certificate import Certificate
from specverify.certification.rechecked.recheck import Rechecked, recheck, recheck_file
from specverify.errors import UsageError
from tests.certified import OUTCOMES, certified

TAMPERED = ("preserved", "inconclusive", "violated", "lossy", "interrupted", "transform")

NOT_DECIDED = re.compile(
    r"""
      (seed|schema_version|environment\.threads|prompts\.\d+\.\d+)$        # what was run
    | (kill_table\..*)$                                                    # of another run
    | (seconds|cases\.\d+\.(seconds|measurements\..*))$                    # not in the digest
    | cases\.\d+\.(rows|planned_runs|num_draft_tokens|settings\..*)$       # what was run
    | cases\.\d+\.tests\.\d+\.(components\..*|cells|detectable)$           # sums over tokens
    | cases\.\d+\.tests\.\d+\.exact\.(runs|crashing|largest_ratio)$
    | cases\.\d+\.tests\.\d+\.exact\.worst\.\d+\.(tokens\.\d+|observed|expected)$
    | cases\.\d+\.bounds\.\d+\.(value|limit)$                              # sums over tokens
    | cases\.\d+\.looks\..*\.\d+$                                          # but the last, below
    | cases\.\d+\.counters\..*$
    | cases\.\d+\.counterexample\.(tried|inputs\..*|outcomes\.\d+\.tokens\.\d+)$
    | cases\.\d+\.counterexample\.outcomes\.\d+\.observed$                 # unless it grows
    """,
    re.VERBOSE,
)
"""Numbers that no other number of a certificate decides, or only from one side."""

Path_ = tuple[str | int, ...]


@cache
def contents(outcome: str) -> str:
    return certified(outcome).model_dump_json(exclude={"sha256": True})


def numbers(part: Any, path: Path_ = ()) -> Iterator[tuple[Path_, float]]:
    """Every number of a certificate with its place."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from numbers(value, (*path, key))
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from numbers(value, (*path, index))
    elif isinstance(part, int | float) and not isinstance(part, bool):
        yield path, part


@cache
def decided(outcome: str) -> tuple[tuple[Path_, float], ...]:
    """Numbers that the others decide, each kind of place at most three times."""
    found, kinds = [], dict[str, int]()
    for path, value in numbers(json.loads(contents(outcome))):
        name = ".".join(map(str, path))
        kind = re.sub(r"\d+", "#", name)
        kinds[kind] = kinds.get(kind, 0) + 1
        undecided = NOT_DECIDED.match(name) or goes_nowhere(outcome, path)
        undecided = undecided or (name in {"alpha", "tests"} and not shares_budget(outcome))
        if not undecided and kinds[kind] <= 3:
            found.append((path, value))
    return tuple(found)


def shares_budget(outcome: str) -> bool:
    """Whether any test did."""
    return any(test.alpha is not None for c in certified(outcome).cases for test in c.tests)


def goes_nowhere(outcome: str, path: Path_) -> bool:
    """Whether it is a number of a test with p = 1 that enters nothing but p.

    The ln E of one that rests on where rounds end, or the observations of a band.
    """
    if path[0] != "cases" or path[2] != "tests" or path[-1] not in {"statistic", "n"}:
        return False
    found = certified(outcome).cases[int(path[1])].tests[int(path[3])]
    entry = found.boundaries if path[-1] == "statistic" else str(found.test).startswith("band")
    return entry and found.p_value == 1.0


def changed(outcome: str, path: Sequence[str | int], value: Any) -> Certificate:
    """The certificate with another value somewhere."""
    content = json.loads(contents(outcome))
    part = content
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return Certificate.model_validate(content)


def rechecked(certificate: Certificate) -> Rechecked:
    """With the digest made to fit."""
    return recheck(certificate, certificate.digest())


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_certificate_as_it_was_written_agrees(outcome: str, tmp_path: Path) -> None:
    path = certified(outcome).save(tmp_path / "it.json")
    certificate, found = recheck_file(path)
    assert found.disagreements == ()
    assert certificate == certified(outcome)
    kinds = dict(found.compared)
    assert kinds["digest"] == kinds["verdict of the run from its cases"] == 1
    assert found.unknown


def test_the_outcomes_are_what_they_are_called() -> None:
    verdicts = {outcome: certified(outcome).verdict for outcome in OUTCOMES}
    assert verdicts == {
        "preserved": "preserved",
        "inconclusive": "inconclusive",
        "violated": "violated",
        "suspect": "inconclusive",
        "overlong": "violated",
        "error": "error",
        "lossy": "lossy-as-declared",
        "interrupted": "inconclusive",
        "transform": "preserved",
    }
    assert {t.decision for t in certified("suspect").cases[0].tests} >= {"suspect", "pass"}
    assert certified("interrupted").interrupted
    assert certified("violated").cases[1].counterexample is not None


@pytest.mark.parametrize("outcome", TAMPERED)
def test_a_number_that_others_decide_cannot_be_changed(outcome: str) -> None:
    """Each of them, up and down, with the digest made to fit."""
    missed = []
    for path, value in decided(outcome):
        steps = [1, -1] if isinstance(value, int) else [1e-4 + 0.01 * value, -1e-4 - 0.01 * value]
        for step in steps:
            try:
                certificate = changed(outcome, path, value + step)
            except ValueError:
                continue  # no certificate any more
            if not rechecked(certificate).disagreements:
                missed.append((".".join(map(str, path)), value, value + step))
    assert missed == []


@given(st.data())
@settings(max_examples=150)
def test_no_change_is_too_wild(data: st.DataObject) -> None:
    """Whatever a number is replaced by, the answer is a list of disagreements, not a crash."""
    outcome = data.draw(st.sampled_from(TAMPERED))
    path, value = data.draw(st.sampled_from(decided(outcome)))
    wild = st.sampled_from([-1, 0, 10**9, -(10**9), 1e300, -1e300, "Infinity", "-Infinity"])
    new = data.draw(wild.filter(lambda new: abs(float(new) - value) > 1e-6))
    try:
        certificate = changed(outcome, path, new)
    except ValueError:
        return
    assert rechecked(certificate).disagreements, (path, value, new)


def test_the_last_look_is_held_against_the_case() -> None:
    looks = json.loads(contents("preserved"))["cases"][0]["looks"]
    paths = [("shards",), ("runs",), ("tokens",)]
    paths += [(part, name) for part in ("log_e", "bounds") for name in looks[part]]
    for path in paths:
        end = looks[path[0]] if len(path) == 1 else looks[path[0]][path[1]]
        certificate = changed("preserved", ("cases", 0, "looks", *path, len(end) - 1), end[-1] + 1)
        assert rechecked(certificate).disagreements, path


def test_a_path_may_not_come_back_from_its_threshold() -> None:
    certificate = changed("preserved", ("cases", 0, "looks", "log_e", "joint.every_token", 0), 40.0)
    (found,) = rechecked(certificate).disagreements
    assert found.field == "cases[plain].looks.joint.every_token"
    assert (found.stated, found.recomputed) == ("40", "below the threshold before it rejects")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("verdict",), "preserved", "verdict"),
        (("reason",), "nothing was rejected", "reason"),
        (("level",), "algorithmic", "level"),
        (("cases", 0, "verdict"), "preserved", "cases[plain].verdict"),
        (("cases", 1, "id"), "plain", "cases"),
        (("finished",), "2020-01-01T00:00:00Z", "finished"),
    ],
)
def test_so_are_words(path: Path_, value: str, field: str) -> None:
    if path == ("level",):
        certificate = changed("violated", ("environment", "dtype"), "float32")
        certificate = certificate.model_copy(update={"level": value})
    else:
        certificate = changed("violated", path, value)
    fields = [entry.field for entry in rechecked(certificate).disagreements]
    assert f"certificate.{field}" in fields or field in fields


def test_a_decision_follows_from_its_p_value() -> None:
    content = json.loads(contents("violated"))
    tests = content["cases"][0]["tests"]
    index = next(i for i, test in enumerate(tests) if test["decision"] in ("violated", "blocked"))
    certificate = changed("violated", ("cases", 0, "tests", index, "decision"), "pass")
    fields = {entry.field: entry for entry in rechecked(certificate).disagreements}
    found = fields[f"cases[plain].{tests[index]['property']}[e-process].decision"]
    assert (found.stated, found.recomputed[:19]) == ("pass", "blocked or violated")


def test_what_is_blocked_needs_a_cause() -> None:
    content = json.loads(contents("violated"))
    places = [
        (case, test)
        for case in range(len(content["cases"]))
        for test in range(len(content["cases"][case]["tests"]))
        if content["cases"][case]["tests"][test]["decision"] == "blocked"
    ]
    case, test = places[0]
    path = ("cases", case, "tests", test, "detail")
    certificate = changed("violated", path, "blocked by stopping.run_length")
    assert any("detail" in entry.field for entry in rechecked(certificate).disagreements)


def test_another_digest_is_named(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_text(certified("preserved").save(path).read_text().replace('"seed": 0', '"seed": 1'))
    _, found = recheck_file(path)
    (entry,) = found.disagreements
    assert entry.field == "sha256"
    assert entry.stated == certified("preserved").digest()


def test_something_else_is_no_certificate(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    for text in ("[]", "{}", "no JSON", '{"schema_version": 5}'):
        path.write_text(text)
        with pytest.raises(UsageError, match="certificate"):
            recheck_file(path)
