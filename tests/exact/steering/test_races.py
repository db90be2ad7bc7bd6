import pytest
import torch
from torch.distributions import Gumbel
from torch.nn.functional import gumbel_softmax

from specverify.errors import CannotSteer
from specverify.exact.steering import arithmetic
from tests.exact.steering.following import (
    LAW,
    WEIGHTS,
    check,
    clocks,
    product_law,
    refused,
    steered,
    uniform,
)

LOGITS = WEIGHTS.log()
ZERO = torch.zeros(3, dtype=torch.float64)
BOTH = torch.stack([WEIGHTS, WEIGHTS.flip(0)])
REVERSED = {(2 - x,): mass for (x,), mass in LAW.items()}


def in_place(g):
    noise = torch.empty_like(WEIGHTS)
    noise.exponential_(generator=g)
    return WEIGHTS.clone().div_(noise).argmax()


def gumbel_in_place(g):
    noise = uniform(g, 3).clamp_(min=1e-10, max=1.0)
    return noise.log_().neg_().log_().neg_().add_(LOGITS).argmax()


def winner_of_max(g):
    values, indices = (WEIGHTS / clocks(g, 3)).max(-1)
    del values
    return indices


RACES = {
    "exponential": lambda g: (WEIGHTS / clocks(g, 3)).argmax(),
    "smallest clock": lambda g: (clocks(g, 3) / WEIGHTS).argmin(),
    "in place": in_place,
    "guarded": lambda g: (WEIGHTS / (clocks(g, 3) + 1e-10)).argmax(),
    "clamped": lambda g: (WEIGHTS / clocks(g, 3).clamp(min=1e-12)).argmax(),
    "max": winner_of_max,
    "min": lambda g: (clocks(g, 3) / WEIGHTS).min(-1).indices,
    "max out": lambda g: torch.max(
        WEIGHTS / clocks(g, 3), 0, out=(torch.empty(0).double(), torch.empty(0, dtype=torch.long))
    )[1],
    "topk": lambda g: (WEIGHTS / clocks(g, 3)).topk(1).indices,
    "smallest of topk": lambda g: (clocks(g, 3) / WEIGHTS).topk(1, largest=False).indices,
    "keepdim": lambda g: (WEIGHTS[None] / clocks(g, 1, 3)).argmax(-1, keepdim=True),
    "logarithms": lambda g: (LOGITS - clocks(g, 3).log()).argmax(),
    "negative logarithms": lambda g: (clocks(g, 3).log() - LOGITS).argmin(),
    "from uniforms": lambda g: (WEIGHTS / -uniform(g, 3).log()).argmax(),
    "from complements": lambda g: (WEIGHTS / -torch.log1p(-uniform(g, 3))).argmax(),
    "from 1 - u": lambda g: (WEIGHTS / -(1 - uniform(g, 3)).log()).argmax(),
    "log u / w": lambda g: (uniform(g, 3).log() / WEIGHTS).argmax(),
    "u ** (1 / w)": lambda g: (uniform(g, 3) ** (1 / WEIGHTS)).argmax(),
    "exp(log u / w)": lambda g: (uniform(g, 3).log() / WEIGHTS).exp().argmax(),
    "Gumbel": lambda g: (LOGITS - (-uniform(g, 3).log()).log()).argmax(),
    "Gumbel in place": gumbel_in_place,
    "Gumbel with guards": lambda g: (
        LOGITS - torch.log(-torch.log(uniform(g, 3) + 1e-20) + 1e-20)
    ).argmax(),
    "Gumbel, clamped": lambda g: (
        LOGITS - torch.log(-torch.log(uniform(g, 3).clamp(1e-20, 1.0)))
    ).argmax(),
    "Gumbel and temperature": lambda g: (
        (LOGITS * 2 - (-uniform(g, 3).log()).log() - LOGITS) / 0.7
    ).argmax(),
    "softmax of Gumbel": lambda g: (LOGITS - clocks(g, 3).log()).softmax(0).argmax(),
    "log_softmax": lambda g: (LOGITS - clocks(g, 3).log()).log_softmax(-1).argmax(-1),
    "gumbel_softmax": lambda g: gumbel_softmax(LOGITS, tau=0.5).argmax(),
    "distributions.Gumbel": lambda g: (LOGITS + Gumbel(ZERO, 1.0).sample()).argmax(),
    "distributions.Gumbel of logits": lambda g: Gumbel(LOGITS, 1.0).sample().argmax(),
    "float32": lambda g: (WEIGHTS.float() / torch.empty(3).exponential_(generator=g)).argmax(),
    "some weights are zero": lambda g: (
        torch.cat([WEIGHTS, ZERO]) / clocks(g, 6)
    ).argmax(),
    "some logits are -inf": lambda g: (
        torch.cat([WEIGHTS, ZERO]).log() - clocks(g, 6).log()
    ).argmax(),
}  # fmt: skip


@pytest.mark.parametrize("emit", RACES.values(), ids=RACES)
def test_races(emit):
    check(emit, LAW, 1e-7 if emit is RACES["float32"] else 1e-12)


@pytest.mark.parametrize(
    "emit",
    [
        lambda g: (BOTH / clocks(g, 2, 3)).argmax(1),
        lambda g: (BOTH.t() / clocks(g, 3, 2)).argmax(0),
        lambda g: (BOTH.log() - clocks(g, 2, 3).log()).softmax(1).argmax(1),
        lambda g: (BOTH.t().log() - clocks(g, 3, 2).log()).softmax(0).t().argmax(1),
        lambda g: torch.stack([(w / clocks(g, 3)).argmax() for w in BOTH]),
    ],
)
def test_several_races(emit):
    check(emit, product_law(LAW, REVERSED))


def test_masked_runners_lose():
    masked = {(1,): 0.6, (2,): 0.4}
    none = torch.tensor([True, False, False])
    check(lambda g: (WEIGHTS / clocks(g, 3)).masked_fill(none, 0.0).argmax(), masked)
    check(lambda g: (LOGITS - clocks(g, 3).log()).masked_fill(none, -torch.inf).argmax(), masked)


def test_one_clock_alone():
    check(lambda g: (WEIGHTS / clocks(g, 3))[:1].argmax(), {(0,): 1.0})


def test_disjoint_parts_of_one_row():
    check(
        lambda g: torch.stack([(x := WEIGHTS / clocks(g, 3))[:2].argmax(), x[2:].argmax()]),
        product_law({(0,): 0.625, (1,): 0.375}, {(0,): 1.0}),
    )


def test_winner_that_is_looked_at():
    check(lambda g: 1 if (WEIGHTS / clocks(g, 3)).argmax() == 0 else 0, {(1,): 0.5, (0,): 0.5})


NO_RACE = {
    "loser": lambda g: (WEIGHTS / clocks(g, 3)).argmin(),
    "uniforms": lambda g: uniform(g, 3).argmax(),
    "weighted uniforms": lambda g: (uniform(g, 3) * WEIGHTS).argmax(),
    "noise that is scaled": lambda g: (LOGITS - 0.5 * clocks(g, 3).log()).argmax(),
    "two winners": lambda g: (WEIGHTS / clocks(g, 3)).topk(2).indices,
    "order": lambda g: (WEIGHTS / clocks(g, 3)).argsort(),
    "value": lambda g: (WEIGHTS / clocks(g, 3)).max() > 1,
    "value of max": lambda g: (WEIGHTS / clocks(g, 3)).max(-1).values > 1,
    "level": lambda g: clocks(g, 3) < 1,
    "sum": lambda g: clocks(g, 2).sum() < 1,
    "plain runner": lambda g: torch.cat([clocks(g, 2), ZERO[:1] + 0.5]).argmin(),
    "cut off above": lambda g: (clocks(g, 3).clamp(max=1e-12) / WEIGHTS).argmin(),
    "cut off below": lambda g: (clocks(g, 3).clamp(min=torch.tensor(1.0)) / WEIGHTS).argmin(),
    "too much added": lambda g: (WEIGHTS / (clocks(g, 3) + 0.1)).argmax(),
    "added to small ones": lambda g: (1 / (clocks(g, 3) / (WEIGHTS * 1e9) + 1e-9)).argmax(),
    "rounded": lambda g: torch.div(clocks(g, 3), WEIGHTS, rounding_mode="floor").argmin(),
    "half width": lambda g: (LOGITS - clocks(g, 3).log()).bfloat16().argmax(),
    "half width and back": lambda g: (LOGITS - clocks(g, 3).log()).bfloat16().double().argmax(),
    "across softmaxes": lambda g: (BOTH.log() - clocks(g, 2, 3).log()).softmax(0).argmax(1),
    "log of a power": lambda g: (uniform(g, 3) ** (1 / WEIGHTS)).clamp(min=1e-10).log().argmax(),
    "log of a square": lambda g: (uniform(g, 3) ** (1 / WEIGHTS)).square().log().argmax(),
    "twice among masked ones": lambda g: (
        (clocks(g, 1).expand(3) / WEIGHTS).masked_fill(torch.arange(3) == 0, torch.inf).argmin()
    ),
    "twice in one race": lambda g: (
        (x := clocks(g, 1)).expand(3).div(WEIGHTS).argmin() + 0 * x.numel()
    ),
}


@pytest.mark.parametrize("emit", NO_RACE.values(), ids=NO_RACE)
def test_what_is_no_race_is_refused(emit):
    refused(emit, "random|race|noise")


REUSED = {
    "two winners, both emitted": lambda g: torch.stack(
        [((x := clocks(g, 3)) / WEIGHTS).argmin(), (x / WEIGHTS.flip(0)).argmin()]
    ),
    "winner taken out": lambda g: [
        first := int((x := WEIGHTS / clocks(g, 3)).argmax()),
        int(x.index_fill(0, torch.tensor([first]), 0.0).argmax()),
    ],
    "race and coin": lambda g: [
        int((-(u := uniform(g, 3)).log() / WEIGHTS).argmin()), int(u[0] < 0.5)
    ],
    "coin and race": lambda g: [
        int((u := uniform(g, 3))[0] < 0.5), int((-u.log() / WEIGHTS).argmin())
    ],
}  # fmt: skip


@pytest.mark.parametrize("emit", REUSED.values(), ids=REUSED)
def test_noise_that_decides_twice(emit):
    assert type(refused(emit, "decides")).__name__ == "CoupledRandomness"


def test_noise_of_two_races_of_which_one_is_used():
    def emit(g):
        noise = clocks(g, 3)
        first, second = (WEIGHTS / noise).argmax(), (WEIGHTS.flip(0) / noise).argmax()
        return second if uniform(g) < 0.25 else first

    expected = {(x,): 0.75 * LAW[x,] + 0.25 * REVERSED[x,] for x in range(3)}
    check(emit, expected)


def test_no_positive_weight():
    """What is no race is decided by the plain numbers, as it is when nobody looks."""
    check(lambda g: (ZERO / clocks(g, 3)).argmax(), {(0,): 1.0})


def test_negative_weights_lose():
    check(lambda g: ((WEIGHTS - 0.4) / clocks(g, 3)).argmax(), {(0,): 1.0})


def test_slack_is_small():
    assert arithmetic.SLACK <= 1e-9
    with pytest.raises(CannotSteer):
        steered(lambda g: (WEIGHTS / (clocks(g, 3) + 2 * arithmetic.SLACK)).argmax())
