import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from specverify.errors import UsageError
from specverify.statistics.dirichlet import log_kt
from specverify.statistics.independence import (
    BitCounts,
    bit_names,
    count_bits,
    log_independence,
    null_rates,
)

LAGS = 4
Place = tuple[int, int]
CAUGHT = math.log(1e6)


def both_orders(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same numbers in both orders, as for a draft that orders tokens by their ids."""
    return np.stack([u, u])


def evidence(u: NDArray[np.float64], present: NDArray[np.bool_] | None = None) -> dict[str, float]:
    """All e-values of one call; the mean as `all`."""
    there = np.ones(u.shape, bool) if present is None else present
    log_e, kinds = log_independence(count_bits(both_orders(u), there, LAGS))
    return {"all": log_e} | kinds


def slowly(u: NDArray[np.float64], present: NDArray[np.bool_], lags: int) -> BitCounts:
    """`count_bits`, bit by bit."""
    counted = []
    for numbers in u:
        place = np.floor(np.where(present, numbers, 0) * 65536).astype(int)
        for pairs in pairs_of(len(present), present.shape[1], lags):
            there = [(place[a], place[b]) for a, b in pairs if present[a] and present[b]]
            gaps = [abs(a - b) for a, b in there]
            counted.append((sum((a < 32768) == (b < 32768) for a, b in there), len(there)))
            counted.append((sum(min(gap, 65536 - gap) <= 3276 for gap in gaps), len(there)))
        agreeing = []
        for row, exists in zip(place >= 32768, present, strict=True):
            for t in np.flatnonzero(exists):
                before = row[:t][exists[:t]]
                if 2 * before.sum() != len(before):
                    agreeing.append(row[t] == (2 * before.sum() > len(before)))
        counted.append((sum(agreeing), len(agreeing)))
    ones, n = np.array(counted, np.int64).T
    return BitCounts(ones, n)


def pairs_of(rows: int, length: int, lags: int) -> Iterator[list[tuple[Place, Place]]]:
    """All (row, position) that are compared, by kind."""
    for k in range(1, lags + 1):
        yield [((r, t - k), (r, t)) for r in range(rows) for t in range(k, length)]
    half = rows // 2
    yield [((2 * i, t), (2 * i + 1, t)) for i in range(half) for t in range(length)]
    yield [((i, t), (i + half, t)) for i in range(half) for t in range(length)]


@pytest.mark.parametrize(("rows", "length"), [(5, 9), (8, 3), (1, 6), (2, 1), (3, 0)])
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_counts_are_those_of_the_definition(rows: int, length: int, share: float) -> None:
    rng = np.random.default_rng(rows)
    u, present = rng.random((2, rows, length)), rng.random((rows, length)) < share
    u[:, ~present] = np.nan
    fast, slow = count_bits(u, present, LAGS), slowly(u, present, LAGS)
    assert fast.ones.tolist() == slow.ones.tolist()
    assert fast.n.tolist() == slow.n.tolist()
    assert len(fast.n) == len(bit_names(LAGS)) == len(null_rates(LAGS))


def test_shards_add_up_and_start_from_nothing() -> None:
    rng = np.random.default_rng(1)
    u, present = rng.random((2, 6, 40)), np.ones((6, 40), bool)
    calls = [count_bits(u[:, rows], present[rows], LAGS) for rows in (slice(0, 2), slice(2, 6))]
    total, whole = calls[0] + calls[1], count_bits(u, present, LAGS)
    within = [name.split(".")[1] not in ("neighbours", "halves") for name in bit_names(LAGS)]
    assert total.n[within].tolist() == whole.n[within].tolist()
    assert total.ones[within].tolist() == whole.ones[within].tolist()
    assert (total + BitCounts.empty(LAGS)).ones.tolist() == total.ones.tolist()
    assert log_independence(BitCounts.empty(LAGS))[0] == pytest.approx(0.0)


def test_e_values_are_those_of_krichevsky_and_trofimov() -> None:
    rng = np.random.default_rng(2)
    counts = count_bits(rng.random((2, 40, 30)), np.ones((40, 30), bool), LAGS)
    log_e, kinds = log_independence(counts)
    rates = null_rates(LAGS)
    expected = [log_kt(*row) for row in zip(counts.ones, counts.n, rates, strict=True)]
    assert list(kinds) == list(bit_names(LAGS))
    assert list(kinds.values()) == pytest.approx(expected, abs=1e-9)
    assert math.exp(log_e) == pytest.approx(np.mean(np.exp(expected)))


def test_rates_are_what_uniform_numbers_give() -> None:
    """A million bits of most kinds: a rate off by 0.002 would be seen."""
    rng = np.random.default_rng(3)
    present = np.ones((1000, 500), bool)
    counts = count_bits(rng.random((2, 1000, 500)), present, LAGS)
    counts += count_bits(rng.random((2, 1000, 500)), present, LAGS)
    rates = null_rates(LAGS)
    deviation = (counts.ones - counts.n * rates) / np.sqrt(counts.n * rates * (1 - rates))
    assert abs(deviation).max() < 4


def highest_of_runs(runs: int, rng: np.random.Generator, *, ragged: bool) -> NDArray[np.float64]:
    """Largest ln E over four looks at right tokens, of the mean and of each kind: [runs, 1 + K]."""
    lags, looks = 1, 4
    highest = np.full((runs, 1 + len(bit_names(lags))), -np.inf)
    for run in highest:
        counts = BitCounts.empty(lags)
        for u in rng.random((looks, 2, 6, 8)):
            present = np.ones((6, 8), bool)
            if ragged:
                # A number in the upper tenth ends its row: lengths depend on what was emitted.
                present[:, 1:] = np.logical_and.accumulate(u[0, :, :-1] < 0.9, axis=1)
            counts += count_bits(u, present, lags)
            log_e, kinds = log_independence(counts)
            np.maximum(run, [log_e, *kinds.values()], out=run)
    return highest


@pytest.mark.parametrize(
    ("ragged", "runs"),
    [(True, 2000), pytest.param(True, 6000, marks=pytest.mark.slow), (False, 500)],
)
def test_false_alarms_over_all_looks(ragged: bool, runs: int) -> None:
    highest = highest_of_runs(runs, np.random.default_rng(runs), ragged=ragged)
    for alpha in (0.1, 0.01):
        exceeded = (highest >= -math.log(alpha)).mean(0)
        assert exceeded.max() <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / runs)
        # The bets are placed: under the null they win now and then.
        assert exceeded.max() > alpha / 10


def one_for_a_row(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.tile(rng.random((40, 1)), 50)


def again_after_four(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.tile(rng.random((40, 4)), (1, 12))


def reflected(rng: np.random.Generator) -> NDArray[np.float64]:
    u = rng.random((40, 50))
    u[:, 1::2] = 1 - np.nextafter(1, 0) * u[:, ::2]
    return u


def one_for_all_rows(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.tile(rng.random(50), (40, 1))


def neighbours_share(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.repeat(rng.random((20, 50)), 2, axis=0)


def halves_share(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.tile(rng.random((20, 50)), (2, 1))


def half_repeated(rng: np.random.Generator) -> NDArray[np.float64]:
    """Every second position of all blocks is decided by the same uniform, blurred by its token."""
    u = rng.random((40, 50))
    u[:, ::2] = (np.tile(u[:, :1], 25) + 0.3 * rng.random((40, 25))) % 1
    return u


COUPLINGS = {
    one_for_a_row: {"lag1.close", "lag3.same_half", "majority.same_half"},
    again_after_four: {"lag4.close", "lag4.same_half"},
    reflected: {"lag1.same_half"},
    one_for_all_rows: {"neighbours.close", "halves.close", "halves.same_half"},
    neighbours_share: {"neighbours.close", "neighbours.same_half"},
    halves_share: {"halves.close", "halves.same_half"},
    half_repeated: {"lag2.close", "majority.same_half"},
}


@pytest.mark.parametrize("coupling", COUPLINGS, ids=lambda coupling: coupling.__name__)
def test_each_coupling_is_caught_by_its_bits(coupling) -> None:
    seen = evidence(coupling(np.random.default_rng(5)))
    assert seen["all"] >= CAUGHT
    for name in COUPLINGS[coupling]:
        assert seen[f"ratio.{name}"] >= CAUGHT
        assert seen[f"index.{name}"] >= CAUGHT


@pytest.mark.parametrize(
    ("coupling", "blind"), [(neighbours_share, "halves"), (halves_share, "neighbours")]
)
def test_only_by_its_bits(coupling, blind: str) -> None:
    seen = evidence(coupling(np.random.default_rng(6)))
    assert max(value for name, value in seen.items() if f".{blind}." in name) < 3


def test_coupling_in_one_order_alone_is_caught() -> None:
    rng = np.random.default_rng(7)
    u = np.stack([rng.random((40, 50)), one_for_a_row(rng)])
    log_e, kinds = log_independence(count_bits(u, np.ones((40, 50), bool), LAGS))
    assert log_e >= CAUGHT
    assert max(value for name, value in kinds.items() if name.startswith("ratio")) < 3


def test_right_rows_of_many_lengths_are_not_accused() -> None:
    rng = np.random.default_rng(8)
    u = rng.random((400, 60))
    present = np.arange(60) < rng.integers(1, 61, 400)[:, None]
    u[~present] = 0.25
    assert evidence(u, present)["all"] < 0
    # What stands in the empty places would be seen, did it count.
    assert evidence(u)["all"] >= CAUGHT


def test_slack_is_taken_from_both_tokens_of_each_bit() -> None:
    counts = count_bits(
        both_orders(one_for_a_row(np.random.default_rng(9))), np.ones((40, 50), bool), LAGS
    )
    _, strict = log_independence(counts)
    _, lenient = log_independence(counts, slack=0.01)
    for index, name in enumerate(bit_names(LAGS)):
        assert strict[name] - lenient[name] == pytest.approx(0.02 * counts.n[index])


def test_mistaken_arguments_are_explained() -> None:
    u, present = np.full((2, 3, 4), 0.5), np.ones((3, 4), bool)
    with pytest.raises(UsageError, match=r"u \[2, R, L\]"):
        count_bits(u[0], present, LAGS)
    for wrong in (1.0, -0.1, np.nan):
        with pytest.raises(UsageError, match="outside"):
            count_bits(np.full_like(u, wrong), present, LAGS)
    with pytest.raises(UsageError, match="lags=0"):
        count_bits(u, present, 0)
    counts = count_bits(u, present, LAGS)
    with pytest.raises(UsageError, match="same number of lags"):
        _ = counts + BitCounts.empty(LAGS + 1)
    with pytest.raises(UsageError, match="fit no number of lags"):
        log_independence(BitCounts(counts.ones[:-1], counts.n[:-1]))
    with pytest.raises(UsageError, match="slack"):
        log_independence(counts, slack=-1e-3)
