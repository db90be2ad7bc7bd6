"""Results in shard order, from every order of completion."""

from collections.abc import Generator
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specverify.errors import SpecverifyError
from specverify.sampling.prefix import FinishedShards, in_order


@given(st.permutations(range(12)))
def test_any_order_of_completion_gives_shard_order(order: list[int]) -> None:
    came = iter([(i, f"state {i}") for i in order])
    assert list(in_order(came)) == [f"state {i}" for i in range(12)]


Union = st.dictionaries(st.integers(0, 9), st.none()).map(
    lambda found: FinishedShards({index: f"state {index}" for index in found})
)


def union(*parts: FinishedShards) -> dict[int, str]:
    merged: FinishedShards = FinishedShards()
    for part in parts:
        merged.merge(part)
    return merged.waiting


@given(Union, Union, Union)
def test_merging_is_a_union_by_key(a: FinishedShards, b: FinishedShards, c: FinishedShards) -> None:
    together = union(a, b, c)
    assert together == union(c, b, a) == union(a, FinishedShards(union(b, c)))
    assert together == union(a, b, c, b, a)
    assert set(together) == {*a.waiting, *b.waiting, *c.waiting}
    assert list(FinishedShards(together).take()) == [
        f"state {i}" for i in range(len(together)) if set(range(i + 1)) <= set(together)
    ]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_result_is_yielded_as_soon_as_all_before_it_are_in(order: tuple[int, ...]) -> None:
    taken = 0

    def source() -> Generator[tuple[int, int], None, None]:
        nonlocal taken
        for index in order:
            taken += 1
            yield index, index

    for index in in_order(source()):
        needed = 1 + max(order.index(i) for i in range(index + 1))
        assert taken == needed


def test_closing_closes_the_source() -> None:
    closed = False

    def source() -> Generator[tuple[int, int], None, None]:
        nonlocal closed
        try:
            yield from ((i, i) for i in range(9))
        finally:
            closed = True

    ordered = in_order(source())
    assert next(ordered) == 0
    assert not closed
    ordered.close()
    assert closed


def test_no_results_are_no_error() -> None:
    assert list(in_order(iter([]))) == []


@pytest.mark.parametrize(
    ("came", "said"),
    [
        ([0, 2, 3], r"shard 1 never came, though later ones did \(2, 3\)"),
        (
            [9, 8, 7, 6, 5, 4],
            r"shard 0 never came, though later ones did \(4, 5, 6, 7, 8, \.\.\.\)",
        ),
        ([0, -1], "shard -1 came; shards are counted from 0"),
    ],
)
def test_a_gap_is_an_error(came: list[int], said: str) -> None:
    with pytest.raises(SpecverifyError, match=said):
        list(in_order((i, i) for i in came))


def test_a_shard_that_was_run_twice_counts_once() -> None:
    assert list(in_order(iter([(0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c")]))) == [*"abc"]
