"""Stored inputs: tried first, shared, and refused where they are malformed."""

import json
from pathlib import Path

import pytest
from torch import Generator, Tensor

from specverify.certification.fuzzing.database import Database
from specverify.errors import UsageError
from tests.certification.fuzzing.searched import (
    rule,
    sampled_seven,
    search,
    summary,
    unsteerable,
)


def stored(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.json"))


class TestStored:
    def test_a_failure_is_kept_and_tried_first(self, tmp_path: Path) -> None:
        (first,) = search(rule(sampled_seven), 120, database=tmp_path)
        assert len(stored(tmp_path)) == 1
        (second,) = search(rule(sampled_seven), 120, seed=5, database=tmp_path)
        assert second.verdict == "violated"
        assert (summary([second]).inputs, summary([second]).stored) == (1, 1)
        assert first.counterexample is not None
        assert second.counterexample is not None
        assert second.counterexample.inputs == first.counterexample.inputs
        assert len(stored(tmp_path)) == 1

    def test_a_subject_that_is_right_there_is_searched_on(self, tmp_path: Path) -> None:
        search(rule(sampled_seven), 120, database=tmp_path)
        cases = search(rule(unsteerable), 6, database=tmp_path)
        assert [case.verdict for case in cases] == ["preserved"]
        assert (summary(cases).inputs, summary(cases).stored) == (6, 1)

    def test_a_malformed_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "round-0.json").write_text("{")
        with pytest.raises(UsageError, match=r"round-0\.json' cannot be read"):
            search(rule(unsteerable), 2, database=tmp_path)
        (tmp_path / "round-0.json").write_text('{"format": 9}')
        with pytest.raises(UsageError, match="no stored input of this version"):
            search(rule(unsteerable), 2, database=tmp_path)

    def test_a_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="cannot be used"):
            Database(tmp_path / "file")

    def test_inputs_are_plain_numbers(self, tmp_path: Path) -> None:
        search(rule(sampled_seven), 120, database=tmp_path)
        content = json.loads(stored(tmp_path)[0].read_text())
        assert content["property"] == "joint.round"
        assert content["inputs"]["num_draft_tokens"] == 1


class TestProgress:
    def test_the_next_search_goes_on(self, tmp_path: Path) -> None:
        seen: list[set[object]] = []
        for _ in range(2):
            tried: set[object] = set()

            def noted(
                tokens: Tensor, q: Tensor, p: Tensor, generator: Generator, tried=tried
            ) -> Tensor:
                tried.add(tuple(p.shape[1:]))
                return unsteerable(tokens, q, p, generator)

            search(rule(noted), 34, database=tmp_path)
            seen.append(tried)
        # The first search had the simple and the mixed region, the next begins with the wide one.
        assert max(vocab for _, vocab in seen[0]) <= 4  # type: ignore[misc]
        assert max(vocab for _, vocab in seen[1]) > 4  # type: ignore[misc]

    def test_nothing_is_kept_without_a_folder(self, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        monkeypatch.chdir(tmp_path)
        search(rule(sampled_seven), 120)
        assert list(tmp_path.iterdir()) == []
