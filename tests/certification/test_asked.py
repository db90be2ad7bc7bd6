"""What a run asks: properties by pattern, inputs of probed ones, and the budget they share."""

import pickle

import pytest

from specverify.certification.asked import asked_of, chosen_of
from specverify.certification.isolated import CaseWork
from specverify.certification.registry import properties_of
from specverify.errors import UsageError
from specverify.statistics.budget import Budget
from specverify.subjects.reference import TOKEN

EVERYTHING = properties_of("decoder")


def test_patterns_name_properties_and_chapters() -> None:
    assert chosen_of(EVERYTHING, ["*"]) == EVERYTHING
    found = [p.id for p in chosen_of(EVERYTHING, ["bonus.*", "joint.run"])]
    assert found == ["bonus.given_full_acceptance", "joint.run"]
    with pytest.raises(UsageError, match=r"no property 'joint\.rum'.*'joint\.run'"):
        chosen_of(EVERYTHING, ["joint.rum"])


def test_behind_a_slash_stands_an_input() -> None:
    (settings,) = chosen_of(EVERYTHING, ["history.settings/top_*"])
    assert settings.inputs == ("top_k", "top_p", "top_n_sigma", "top_k_then_top_p")
    two = chosen_of(EVERYTHING, ["history.settings/xtc", "batch.rows", "history.settings/top_k"])
    assert [p.inputs for p in two if p.id == "history.settings"] == [("top_k", "xtc")]
    assert [len(p.inputs) for p in two if p.id == "batch.rows"] == [11]
    (whole,) = chosen_of(EVERYTHING, ["history.settings", "history.settings/xtc"])
    assert len(whole.inputs) == 16, "named without an input, it is asked on all"


@pytest.mark.parametrize("pattern", ["history.settings/top-k", "joint.run/plain"])
def test_an_input_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="has no input"):
        chosen_of(EVERYTHING, [pattern])


def test_who_asks_for_less_has_no_larger_share() -> None:
    whole = asked_of(TOKEN, ["*"], sample=True, exact=True)
    part = asked_of(TOKEN, ["stopping.law/rows"], sample=True, exact=True)
    assert [probe.id for probe in part.probes] == ["probe/stopping.law/rows"]
    assert part.budget(1e-6, 2).share == whole.budget(1e-6, 2).share


def test_a_worker_process_asks_the_same() -> None:
    properties = chosen_of(EVERYTHING, ["stopping.law/rows", "randomness.repeatable"])
    work = CaseWork("probed", TOKEN, properties, Budget(1e-6), 0, 60.0)
    again = pickle.loads(pickle.dumps(work))
    assert [case.id for case in again.cases] == [case.id for case in work.cases]
    assert len(work.cases) == 2
