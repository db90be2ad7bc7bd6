"""Which bets there are, what they are called, and what each weighs.

Weights and rates are design, not derived: any that are fixed before the data keep the mixture an
e-process (Robbins 1970), and one of weight w costs ln(1/w) nats (statistics.md section 2).
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specverify.statistics.bet_library import (
    JOINT_POWERS,
    JOINT_TILT,
    POWERS,
    TILTS,
    RowSums,
    Values,
    library_bases,
    plain_bases,
)

LEAKS = np.logspace(-4, 0, 24)
"""Rates d of leaks, (1-d) p + d q; between two rates at most 4 % of the growth is lost."""

_NEGATIVE_LEAKS = np.logspace(-3, -0.5, 6)
_LEAKS_ELSEWHERE = np.logspace(-3, 0, 7)
_DILUTIONS = np.logspace(0, -3, 7)

_LIBRARY = 2 / 3
_LEAK_SHARE = {False: 0.7, True: 0.3}
"""Of the library; the rest is shared by the laws of known faults."""
_UNDILUTED = 0.6
"""Of the share of each law of a known fault; the rest is spread over its dilutions."""


class Component(NamedTuple):
    """One bet, a law of the next token; the diluted ones come first, in the order of `Bets`.

    Diluted: (1 - rate) p + rate b for a law b of `bet_library`; else a tilt p exp(h f) / Z, which
    its name tells. Valid as a bet for any rate in [0, 1], and for a negative one while the law is
    nonnegative, which `Bets.log_ratios` sees to row by row.
    """

    name: str
    family: str
    weight: float
    base: int | None = None
    """Which of `plain_bases` and then `library_bases` is diluted by p; None for tilts."""
    rate: float = 0.0
    """Its share."""


def leak_name(rate: float) -> str:
    """Name of the component (1-d) p + d q: d to two digits, which tell those of `LEAKS` apart.

    Args:
        rate: d, in (0, 1].
    """
    return f"leak to q, {rate:.2g}"


def components(*, raw: bool) -> list[Component]:
    """All components: weights by family, then by direction, then by rate.

    1 = 2/3 library + 1/3 agnostic. Of the library, 0.7 (with raw laws 0.3) is spread evenly over
    the leaks (1-d) p + d q of `LEAKS`, the rest evenly over the laws of known faults, each 0.6 pure
    and 0.4 over its dilutions. Of the agnostic: leaks away from q 0.1, to the uniform law and raw p
    0.1, tilts by ln(q/p) 0.25, tilts by 1{q > p} 0.15, temperatures 0.2, both together 0.2.

    Source: the method of mixtures (Robbins 1970) with leaks and known faults in closed form
    (statistics.md section 2); tilts are exponential families around p (elementary: fair after
    division by Z). Valid in a mixture because names, laws and weights are fixed before any token
    and the weights sum to 1 up to rounding.

    Args:
        raw: whether raw p and raw q exist.

    Returns:
        Components in the order of `Bets.names`.
    """
    one = np.ones(1)
    at, sums = Values(one, one, one, one), RowSums.of(*np.ones((4, 1, 1)))
    plain = [base.name for base in plain_bases(at, sums, raw=raw)]
    library = [base.name for base in library_bases(at, sums, raw=raw)]
    agnostic = 1 - _LIBRARY
    leak = _LIBRARY * _LEAK_SHARE[raw] / len(LEAKS)
    plan = [Component(leak_name(d), "library", leak, 0, float(d)) for d in LEAKS]
    plan += _rates("leak away from q", 0, -_NEGATIVE_LEAKS, 0.1 * agnostic)
    elsewhere = 0.1 * agnostic / (len(plain) - 1)
    for index, name in enumerate(plain[1:], 1):
        plan += _rates(f"leak to {name}", index, _LEAKS_ELSEWHERE, elsewhere)
    share = _LIBRARY * (1 - _LEAK_SHARE[raw]) / len(library)
    rest = share * (1 - _UNDILUTED) / (len(_DILUTIONS) - 1)
    for index, name in enumerate(library, len(plain)):
        plan.append(Component(name, "library", share * _UNDILUTED, index, 1.0))
        plan += [
            Component(f"{name}, diluted {e:.2g}", "library", rest, index, float(e))
            for e in _DILUTIONS[1:]
        ]
    plan += _signed("tilt ln(q/p)", 0.25 * agnostic)
    plan += _signed("tilt q > p", 0.15 * agnostic)
    plan += [
        Component(_temperature(power), "agnostic", 0.2 * agnostic / (2 * len(POWERS)))
        for power in _both_signs(POWERS)
    ]
    each = 0.2 * agnostic / (4 * len(JOINT_POWERS))
    for sign, power in product((1, -1), _both_signs(JOINT_POWERS)):
        name = f"tilt ln(q/p), {sign * JOINT_TILT:g}, {_temperature(power)}"
        plan.append(Component(name, "agnostic", each))
    return plan


def _rates(name: str, base: int, rates: NDArray[np.float64], weight: float) -> list[Component]:
    each = weight / len(rates)
    return [Component(f"{name}, {abs(r):.2g}", "agnostic", each, base, float(r)) for r in rates]


def _signed(name: str, weight: float) -> list[Component]:
    each = weight / (2 * len(TILTS))
    return [Component(f"{name}, {tilt:g}", "agnostic", each) for tilt in _both_signs(TILTS)]


def _temperature(power: float) -> str:
    return f"temperature {1 / (1 + power):.3g}"


def _both_signs(values: tuple[float, ...]) -> list[float]:
    return [sign * value for value, sign in product(values, (1, -1))]
