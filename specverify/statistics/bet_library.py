"""What bets need to know of a row p, q: one pass over the vocabulary, then numbers of one token.

A bet is a law b on the tokens that p allows. All that is wanted of it is b(x)/p(x) for the token
emitted, so a row is reduced to the sums that normalise every b (`RowSums`), and the ratios follow
from p(x) and q(x) alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TILTS = (1.0, 1 / 4, 1 / 16)
"""Strengths of tilts by ln(q/p); square roots of one another, so that no power is taken."""

POWERS = (1 / 2, 1 / 8, 1 / 32)
"""Inverse temperatures are 1 plus and minus these."""

JOINT_TILT, JOINT_POWERS = TILTS[1], POWERS[1:]
"""Tilts by +-JOINT_TILT are also combined with each of these."""

TINY = 1e-300
LARGEST_TILT = np.exp(5.0)
"""ln(q/p) is clipped to +-5 in the tilts: few draws should not decide."""


@dataclass(frozen=True)
class Values:
    """Probabilities of the tokens emitted, [N] each: p(x), q(x), raw p(x) and raw q(x).

    Without transforms the raw ones are the others.
    """

    p: Floats
    q: Floats
    raw_p: Floats
    raw_q: Floats


@dataclass(frozen=True)
class RowSums:
    """Sums over the vocabulary, one a row; "possible" tokens are those with p > 0.

    All that the bets of a row need, [N] where no shape is given. `of` gives the formulas.
    """

    possible: Floats
    """How many tokens are possible."""
    draft: Floats
    """Mass of q on possible tokens."""
    raw_target: Floats
    """Mass of raw p on possible tokens."""
    accepted: Floats
    """[4, N]: mass of accepted tokens, drawn from q, q, raw q, raw q, by their ratio with q, raw q,
    q, raw q."""
    above: Floats
    """(p - q)+"""
    above_raw: Floats
    """(p - raw q)+"""
    below: Floats
    """(q - p)+"""
    below_possible: Floats
    """(q - p)+ on possible tokens."""
    raised: Floats
    """Mass of p where q > p."""
    largest_ratio: Floats
    """Largest q/p of a possible token."""
    tilts: Floats
    """[2 len(TILTS), N]: sums of p (q/p)^h, h = +-TILTS in turn."""
    powers: Floats
    """[2 len(POWERS), N]: sums of p^(1 + h), h = +-POWERS in turn."""
    joint: Floats
    """[4 len(JOINT_POWERS), N]: sums of p^(1 + g) (q/p)^h, h = +-JOINT_TILT, for each g in turn."""

    @staticmethod
    def of(
        p: Floats, q: Floats, raw_p: Floats | None = None, raw_q: Floats | None = None
    ) -> "RowSums":
        """Reduce normalised rows [N, V].

        possible = #{p > 0}, draft = q(p > 0), raw_target = raw p(p > 0), raised = p(q > p);
        accepted = sum q_s min(1, p/q_r), the acceptance of Leviathan et al. (2023);
        above = sum (p - q)+, above_raw = sum (p - raw q)+, below = sum (q - p)+;
        with r = q/p clipped to [e^-5, e^5],
        tilts = sum p r^h, powers = sum p^(1 + h), joint = sum p^(1 + g) r^h.
        They are the constants that give the bets mass 1 (elementary).

        Differences are summed as they are, not taken between sums, so that every bet keeps mass 1
        to the last digits where p and q nearly agree.

        Valid for float64 rows that are nonnegative and sum to 1, which `Bets` sees to and nothing
        here checks; both raw laws or neither.

        Args:
            p: [N, V].
            q: [N, V].
            raw_p: [N, V]; p takes its place when omitted.
            raw_q: [N, V]; q takes its place when omitted.
        """
        mask = p > 0
        full = bool(mask.all())
        difference = p - q
        above, below = np.maximum(difference, 0), np.maximum(-difference, 0)
        kept = _acceptance(p, q)
        q_kept, above_raw, raw_target = _dot(q, kept), above.sum(-1), np.ones(len(p))
        accepted = np.stack([q_kept] * 4)
        if raw_q is not None and raw_p is not None:
            raw_kept = _acceptance(p, raw_q)
            accepted[1:] = _dot(q, raw_kept), _dot(raw_q, kept), _dot(raw_q, raw_kept)
            above_raw = np.maximum(p - raw_q, 0).sum(-1)
            raw_target = _dot(raw_p, mask)
        floored = np.maximum(p, TINY)
        ratio = q / floored
        largest = (ratio if full else np.where(mask, ratio, 0.0)).max(-1)
        np.clip(ratio, 1 / LARGEST_TILT, LARGEST_TILT, out=ratio)
        tilts, powers = _roots(ratio, TILTS), _roots(floored, POWERS)
        milder = powers[-2 * len(JOINT_POWERS) :]
        # p (q/p)^+-h, for the joint tilt
        joint = [_moments(p * tilt, milder) for tilt in tilts[2:4]]
        return RowSums(
            possible=mask.sum(-1).astype(np.float64),
            draft=q.sum(-1) if full else _dot(q, mask),
            raw_target=raw_target,
            accepted=accepted,
            above=above.sum(-1),
            above_raw=above_raw,
            below=below.sum(-1),
            below_possible=below.sum(-1) if full else _dot(below, mask),
            raised=_dot(p, difference < 0),
            largest_ratio=largest,
            tilts=_moments(p, tilts),
            powers=_moments(p, powers),
            joint=np.concatenate(joint),
        )

    @staticmethod
    def joined(parts: "Sequence[RowSums]") -> "RowSums":
        """The sums of all rows, from those of some rows each.

        Joined along the axis of rows; row i of the first part stays row i.

        Args:
            parts: at least one; valid if all have raw laws, or none.
        """
        names = [field.name for field in fields(RowSums)]
        return RowSums(*(np.concatenate([getattr(part, n) for part in parts], -1) for n in names))

    def rows(self, index: NDArray[np.int64]) -> "RowSums":
        """The sums of some rows, in an order of their own: entry i = that of row index[i].

        Args:
            index: [M], rows from 0 to N - 1; a row may occur more than once.
        """
        return RowSums(*(getattr(self, field.name)[..., index] for field in fields(self)))


@dataclass(frozen=True)
class Base:
    """A law b that others dilute to (1 - e) p + e b.

    Valid as a bet once divided by its mass on possible tokens, which `Bets` does.
    """

    name: str
    ratio: Floats
    """[N]: b(x)/p(x)."""
    mass: Floats
    """[N] or [1]: mass of b on possible tokens."""


def plain_bases(at: Values, sums: RowSums, *, raw: bool) -> Iterator[Base]:
    """Draft, uniform law on possible tokens, and raw target, as ratios b(x)/p(x) and masses.

    q(x)/p(x) of mass q(p > 0); 1/(m p(x)) of mass 1, m the number of possible tokens; raw p(x)/p(x)
    of mass raw p(p > 0). Elementary: b(p > 0) = sum of b over possible tokens normalises b to a law
    on them.

    Valid for tokens with p(x) > 0, where the ratios are finite; `Bets` sets p to 1 on others and
    does not bet there.

    Args:
        at: probabilities of N tokens.
        sums: of their rows, or of the one row they share.
        raw: whether raw p and raw q exist.
    """
    yield Base("q", at.q / at.p, sums.draft)
    yield Base("uniform", 1 / (sums.possible * at.p), np.ones(1))
    if raw:
        yield Base("raw p", at.raw_p / at.p, sums.raw_target)


def library_bases(at: Values, sums: RowSums, *, raw: bool) -> Iterator[Base]:
    """Laws of known faults: acc + (1 - |acc|) res, in closed form.

    acc = q_s min(1, p/q_r) accepts draft tokens drawn from q_s by their ratio with q_r; res is what
    corrections are drawn from (Leviathan et al., 2023, with q_s = q_r = q and res = (p - q)+, gives
    p). Left out are combinations that are p, and with q_s = q_r = q two that are leaks towards q:
    res = (q - p)+ gives q itself, res = |p - q| gives (p + q)/2.
    """
    one = np.ones(1)
    scale = sums.above + sums.below
    away = _share(at.p, np.abs(at.p - at.q), sums.above + sums.below_possible, scale)
    below = _share(at.p, np.maximum(at.q - at.p, 0), sums.below_possible, sums.below)
    above = _share(at.p, np.maximum(at.p - at.q, 0), sums.above, sums.above)
    above_raw = _share(at.p, np.maximum(at.p - at.raw_q, 0), sums.above_raw, sums.above_raw)
    residuals = {
        "p": (np.ones_like(at.p), one),
        "(p-q)+": above,
        "(p-raw q)+": above_raw,
        "|p-q|": away,
        "(q-p)+": below,
    }
    pairs = product(("q", "raw q"), repeat=2) if raw else [("q", "q")]
    for index, (drawn, divided) in enumerate(pairs):
        q_drawn, q_divided = (at.q if q == "q" else at.raw_q for q in (drawn, divided))
        ratio, mass = q_drawn / np.maximum(at.p, q_divided), sums.accepted[index]
        rejected = np.maximum(1 - mass, 0)
        for residual, (residual_ratio, residual_mass) in residuals.items():
            if (drawn, divided) == ("q", "q") and residual != "p":
                continue
            if (drawn, divided) == ("raw q", "raw q") and residual in ("(p-q)+", "(p-raw q)+"):
                continue
            yield Base(
                _library_name(drawn, divided, residual),
                ratio + rejected * residual_ratio,
                mass + rejected * residual_mass,
            )


def _library_name(drawn: str, divided: str, residual: str) -> str:
    where = {
        ("q", "q"): "",
        ("q", "raw q"): "ratio with raw q, ",
        ("raw q", "q"): "draft from raw q, ",
        ("raw q", "raw q"): "draft and ratio with raw q, ",
    }
    return f"{where[drawn, divided]}residual = {residual}"


def _share(p: Floats, part: Floats, possible: Floats, whole: Floats) -> tuple[Floats, Floats]:
    """Ratio to p, and mass on possible tokens, of a law part/whole; p itself where it is empty."""
    empty = whole <= 0
    safe = np.where(empty, 1.0, whole)
    return np.where(empty, 1.0, part / safe / p), np.where(empty, 1.0, possible / safe)


def _acceptance(p: Floats, q: Floats) -> Floats:
    """min(1, p/q), 0 where p = 0."""
    ceiling = np.maximum(p, q)
    np.maximum(ceiling, TINY, out=ceiling)
    return np.divide(p, ceiling, out=ceiling)


def _roots(base: Floats, exponents: tuple[float, ...]) -> list[Floats]:
    """base^h and base^-h in turn, each exponent h being 1 or the one before halved some times."""
    powers, power = [], base
    for before, exponent in pairwise((1.0, *exponents)):
        for _ in range(round(np.log2(before / exponent))):
            power = np.sqrt(power)
        powers += [power, 1 / power]
    return powers


def _moments(law: Floats, powers: list[Floats]) -> Floats:
    """Sums of the law times each power."""
    return np.stack([_dot(law, power) for power in powers])


def _dot(a: NDArray, b: NDArray) -> Floats:
    return np.einsum("nv,nv->n", a, b)
