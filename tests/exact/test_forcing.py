"""Rows of a batch: right, or refused."""

import pytest
import torch

from specverify.errors import CannotSteer, SubjectError
from specverify.exact.compare_round import compare_round
from specverify.exact.forcing import branched_distribution, forced_distribution
from specverify.exact.joint import total_variation
from specverify.exact.round import Round

ROUND = Round.random(3, 2, seed=1)


def by_rand(rows, width, g):
    return torch.rand(rows, width, dtype=torch.float64, generator=g)


def by_multinomial(law, g):
    return torch.multinomial(law, 1, generator=g)[:, 0]


def token_rule(toss=by_rand, draw=by_multinomial):
    """Token verification with its coins and its last token drawn in some way."""

    def rule(tokens, q, p, g):
        rows, width = tokens.shape
        chosen = tokens.unsqueeze(2)
        ratio = (p[:, :width].gather(2, chosen) / q.gather(2, chosen)).squeeze(2)
        count = (toss(rows, width, g) < ratio).long().cumprod(1).sum(1)
        laws = torch.cat([(p[:, :width] - q).clamp(min=0), p[:, width:]], 1)
        last = draw(laws[torch.arange(rows), count], g).unsqueeze(1)
        out = torch.cat([tokens, last], 1).scatter(1, count.unsqueeze(1), last)
        return out.masked_fill(torch.arange(width + 1) > count.unsqueeze(1), -1)

    return rule


def gap(found, round):
    assert not found.crashes
    return compare_round(round, found.probabilities).total_variation


def race(law, g):
    return (law / torch.empty_like(law).exponential_(generator=g)).argmax(1)


def gumbel(law, g):
    noise = torch.rand(law.shape, dtype=law.dtype, generator=g)
    return (law.log() - (-noise.log()).log()).argmax(1)


def inversion(law, g):
    cdf = law.cumsum(1)
    u = torch.rand(len(law), 1, dtype=law.dtype, generator=g) * cdf[:, -1:]
    return torch.searchsorted(cdf, u, right=True)[:, 0]


FOLLOWED = {
    "plain": token_rule(),
    "coins [K, B]": token_rule(lambda b, k, g: by_rand(k, b, g).t()),
    "flat coins": token_rule(lambda b, k, g: by_rand(b * k, 1, g).view(b, k)),
    "coins [B, K, 1]": token_rule(lambda b, k, g: by_rand(b, k, g).unsqueeze(2).squeeze(2)),
    "one by one": token_rule(lambda b, k, g: torch.cat(
        [by_rand(b, i > 0, g) for i in range(k + 1)], 1
    )),
    "some coins unused": token_rule(lambda b, k, g: by_rand(b, k + 3, g)[:, 3:]),
    "race": token_rule(draw=race),
    "race, transposed": token_rule(draw=lambda law, g: (
        law / torch.empty_like(law.t()).exponential_(generator=g).t()
    ).argmax(1)),
    "gumbel": token_rule(draw=gumbel),
    "inversion": token_rule(draw=inversion),
}  # fmt: skip


@pytest.mark.parametrize(
    "round", [ROUND, Round.random(2, 2), Round.random(2, 1), Round.random(3, 0)]
)
@pytest.mark.parametrize("rule", FOLLOWED.values(), ids=FOLLOWED)
def test_all_rows_at_once(rule, round):
    found = forced_distribution(rule, round)
    assert found.method == "forcing"
    assert gap(found, round) < 1e-14


def test_no_more_runs_than_outcomes():
    few, many = (forced_distribution(token_rule(), Round.random(v, 2)).runs for v in (3, 6))
    assert few == many


def alive_only(tokens, q, p, g):
    """Draws only for rows that have not been rejected."""
    rows, width = tokens.shape
    out, alive = torch.full((rows, width + 1), -1), torch.ones(rows, dtype=torch.bool)
    for i in range(width + 1):
        index = alive.nonzero()[:, 0]
        if not len(index):
            break
        if i == width:
            out[index, i] = by_multinomial(p[index, i], g)
            break
        x = tokens[index, i]
        ok = torch.rand(int(alive.sum()), dtype=p.dtype, generator=g) < (
            p[index, i, x] / q[index, i, x]
        )
        out[index[ok], i] = x[ok]
        bad = index[~ok]
        if len(bad):
            out[bad, i] = by_multinomial((p[bad, i] - q[bad, i]).clamp(min=0), g)
        alive[bad] = False
    return out


def one_after_the_other(tokens, q, p, g):
    rule = token_rule()
    return torch.cat([rule(tokens[[i]], q[[i]], p[[i]], g) for i in range(len(tokens))])


RIGHT_ALONE = {
    "[K, B] as rows": token_rule(lambda b, k, g: by_rand(b * k, 1, g).view(k, b).t()),
    "rows reversed": token_rule(lambda b, k, g: by_rand(b, k, g).flip(0)),
    "rows rolled": token_rule(lambda b, k, g: by_rand(b, k, g).roll(1, 0)),
    "alive only": alive_only,
    "row by row": one_after_the_other,
    "coins shared by rows": token_rule(lambda b, k, g: by_rand(1, k, g).expand(b, k)),
    "noise shared by rows": token_rule(draw=lambda law, g: (
        law / torch.empty(law.shape[1]).double().exponential_(generator=g)
    ).argmax(1)),
}  # fmt: skip


@pytest.mark.parametrize("rule", RIGHT_ALONE.values(), ids=RIGHT_ALONE)
def test_right_for_one_row_but_not_followed_for_many(rule):
    with pytest.raises(CannotSteer):
        forced_distribution(rule, ROUND)
    assert gap(branched_distribution(rule, ROUND), ROUND) < 1e-14


def cut_alike(tokens, q, p, g):
    """Every row keeps as many tokens as the worst one."""
    out = token_rule()(tokens, q, p, g)
    length = (out >= 0).sum(1).min()
    return out.masked_fill(torch.arange(out.shape[1]) >= length, -1)


def next_row(tokens, q, p, g):
    return token_rule()(tokens, q, p.roll(1, 0), g)


def depends_on_size(tokens, q, p, g):
    return token_rule()(tokens, q, p if len(p) == 1 else p.flip(2), g)


def first_row_decides(tokens, q, p, g):
    u = torch.rand(len(tokens), 1, dtype=p.dtype, generator=g)
    return torch.where(u[:1] < 0.5, tokens[:, :1], 0).expand(-1, tokens.shape[1] + 1)


@pytest.mark.parametrize("rule", [cut_alike, next_row, depends_on_size, first_row_decides])
def test_rows_that_depend_on_each_other(rule):
    with pytest.raises(CannotSteer, match="row"):
        forced_distribution(rule, ROUND)


def test_rows_that_are_sorted_and_put_back():
    def rule(tokens, q, p, g):
        order = p[:, 0, 0].argsort()
        out = token_rule()(tokens[order], q[order], p[order], g)
        return torch.empty_like(out).index_copy_(0, order, out)

    assert gap(forced_distribution(rule, ROUND), ROUND) < 1e-14


def test_one_coin_for_a_block_is_exact_and_reported():
    rule = token_rule(lambda b, k, g: by_rand(b, 1, g).expand(b, k))
    found, alone = forced_distribution(rule, ROUND), branched_distribution(rule, ROUND)
    assert total_variation(found.probabilities, alone.probabilities) < 1e-15
    assert gap(found, ROUND) > 0.01
    assert found.reuses


def test_a_wrong_rule():
    def rule(tokens, q, p, g):
        return token_rule(draw=lambda law, g: by_multinomial(torch.ones_like(law), g))(
            tokens, q, p, g
        )

    assert gap(forced_distribution(rule, ROUND), ROUND) > 0.05


@pytest.mark.parametrize(
    "value",
    [
        lambda tokens: tokens,
        lambda tokens: torch.zeros(len(tokens), 3),
        lambda tokens: torch.full((len(tokens), 3), -2),
        lambda tokens: torch.tensor([[-1, 0, 1]]).expand(len(tokens), 3),
        lambda tokens: tokens.tolist(),
    ],
)
def test_outputs_of_another_form(value):
    with pytest.raises((SubjectError, CannotSteer)) as caught:
        forced_distribution(lambda tokens, q, p, g: value(tokens), ROUND)
    assert (
        "must be" in str(caught.value)
        or "padding" in str(caught.value)
        or ("must return" in str(caught.value))
    )


def test_the_rule_cannot_change_what_the_next_call_is_handed():
    def rule(tokens, q, p, g):
        out = token_rule()(tokens, q, p, g)
        for tensor in (tokens, q, p):
            tensor.zero_()
        return out

    assert gap(forced_distribution(rule, ROUND), ROUND) < 1e-14
