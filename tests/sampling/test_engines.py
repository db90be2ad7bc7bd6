"""Engines: the same results, whoever runs the shards; lazily where it is this process."""

import pytest

from specverify.sampling.engines import InProcess


def test_shards_run_one_after_the_other_and_none_ahead() -> None:
    ran = []

    def work(index: int) -> int:
        ran.append(index)
        return index * index

    with InProcess() as engine:
        results = engine.run(work, [4, 2, 7])
        assert ran == []
        assert next(results) == (4, 16)
        assert ran == [4]
        results.close()
        assert list(results) == []
    assert ran == [4]
    assert list(engine.run(work, range(3))) == [(0, 0), (1, 1), (2, 4)]


def test_what_the_work_raises_is_raised() -> None:
    def work(index: int) -> float:
        return 1 / (1 - index)

    results = InProcess().run(work, range(3))
    assert next(results) == (0, 1.0)
    with pytest.raises(ZeroDivisionError):
        next(results)
