"""The rounds rules are computed on: what they are named after is really there."""

import numpy as np
import pytest
import torch

from specverify.certification.exact_rounds import DTYPES, KINDS, degenerate, exact_rounds
from specverify.exact.round import Round

each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def rows(round: Round) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of rows that a draft token is judged by, [N, V] each."""
    depths = range(round.num_draft_tokens)
    p = np.concatenate([round.handed_target[t].double().numpy() for t in depths])
    q = np.concatenate([round.handed_draft[t].double().numpy() for t in depths])
    return p, q


def of_kind(kind: str, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    return rows(degenerate(KINDS[kind], kind, dtype))


def test_ids_are_unique_and_rounds_the_same_every_time() -> None:
    cases, again = exact_rounds(), exact_rounds()
    assert len({case.id for case in cases}) == len(cases)
    assert all(case.id.startswith("exact/") for case in cases)
    for case, other in zip(cases, again, strict=True):
        for left, right in zip(rows(case.round), rows(other.round), strict=True):
            assert np.array_equal(left, right)


def test_every_prefix_has_rows_of_its_own() -> None:
    (case,) = [case for case in exact_rounds() if case.id == "exact/random-V4-K3-float64"]
    assert case.size == "V=4, K=3"
    for table in rows(case.round):
        assert len(np.unique(table, axis=0)) == 1 + 4 + 16


def test_rows_are_compared_on_one_round() -> None:
    assert [case.id for case in exact_rounds() if case.rows_compared] == [
        "exact/random-V3-K2-float64"
    ]


def test_edge_coins_are_run_on_small_rounds() -> None:
    found = [case for case in exact_rounds() if case.edge_coins]
    assert [case.id.removeprefix("exact/") for case in found] == [
        "random-V3-K1-float64",
        "zeros-float64",
        "random-V3-K1-float32",
    ]
    assert all(len(case.round.blocks) <= 16 for case in found)


def test_a_greedy_rule_meets_targets_of_one_token() -> None:
    cases = exact_rounds("greedy")
    assert len(cases) == 4
    assert all((rows(case.round)[0].max(1) == 1).all() for case in cases)


@each_dtype
def test_rows_an_ulp_apart_may_have_an_empty_residual(dtype: torch.dtype) -> None:
    p, q = of_kind("ulp-apart", dtype)
    resolution = np.float64 if dtype == torch.float64 else np.float32
    ulps = np.abs(p - q) / np.spacing(p.astype(resolution))
    assert (ulps.max(1) > 0).all()
    assert (ulps <= 2).all()
    emptied = (np.maximum(p - q, 0).sum(1) == 0) & (p != q).any(1)
    assert 0 < emptied.sum() < len(p)


@each_dtype
def test_kinds_are_what_they_are_called(dtype: torch.dtype) -> None:
    p, q = of_kind("equal", dtype)
    assert np.array_equal(p, q)
    p, q = of_kind("one-hot-draft", dtype)
    assert (q.max(1) == 1).all()
    assert (p > 0).all()
    p, q = of_kind("disjoint", dtype)
    assert not ((p > 0) & (q > 0)).any()
    p, q = of_kind("zeros", dtype)
    assert ((p == 0) & (q > 0)).any(1).all()
    assert ((q == 0) & (p > 0)).any(1).all()
    p, q = of_kind("ties", dtype)
    assert (p == q).any(1).sum() > 1
    assert all(len(np.unique(row)) == 3 for row in p)


@each_dtype
def test_subnormal_entries_survive_rounding(dtype: torch.dtype) -> None:
    for table in of_kind("subnormal", dtype):
        least = table.min(1)
        assert (least > 0).all()
        assert (least < torch.finfo(dtype).tiny).all()
