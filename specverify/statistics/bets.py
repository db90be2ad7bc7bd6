"""Bets of a mixture e-process: predictable laws b_j of the next token, as ln b_j(x)/p(x)."""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError
from specverify.statistics.bet_components import LEAKS, components, leak_name
from specverify.statistics.bet_library import (
    JOINT_POWERS,
    JOINT_TILT,
    LARGEST_TILT,
    POWERS,
    TILTS,
    TINY,
    RowSums,
    Values,
    library_bases,
    plain_bases,
)

_LARGEST_LOG = 700.0
"""Ratios beyond exp(+-700) are cut there, so that sums stay finite; the laws lose mass, or gain
exp(-700)."""

_ENTRIES = 1 << 14
"""Vocabulary entries handled at once: a dozen arrays of so many floats stay in the cache, and none
is so large that the allocator maps fresh pages for it each time, which costs more than the sums."""

_ROUNDING = 1e-13
"""How far from 1 the sum of a law may be that counts as normalised."""

_TOKENS = 1 << 11
"""Tokens handled at once where sums over the vocabulary are known."""


@dataclass(frozen=True, eq=False)
class Bets:
    """The components of a mixture and their weights.

    Every component is a law on the tokens with p > 0, fixed before the token is looked at, with
    mass at most 1. A law that would also emit impossible tokens is conditioned on the others: the
    process of impossible tokens (`support`) judges those.

    Two families. "library" are the laws of known faults: leaks towards the draft q and the closed
    forms of `bet_library.library_bases`, each pure and diluted by p. "agnostic" are directions that
    many other faults share: leaks away from q, towards the uniform law and the raw target, tilts
    p e^(h f)/Z by f = ln(q/p) and by f = 1{q > p}, other temperatures, and tilts by ln(q/p) at
    other temperatures. See statistics.md section 2.
    """

    raw: bool
    """Whether raw p and raw q, those before transforms, differ from p and q."""

    names: tuple[str, ...]
    """[J], readable."""

    families: tuple[str, ...]
    """[J], "library" or "agnostic"."""

    log_weights: NDArray[np.float64]
    """[J]; the weights sum to 1."""

    leak_grid: NDArray[np.float64]
    """[G], rates d of the components (1-d) p + d q."""

    leak_index: NDArray[np.int64]
    """[G], where those components are."""

    _base: NDArray[np.int64]
    """For the diluted components, which come first: the law that is diluted."""

    _rate: NDArray[np.float64]
    """And its share."""

    @staticmethod
    def standard(*, raw: bool) -> "Bets":
        """The bets of the decision, with the weights w_j of `bet_components.components`.

        The method of mixtures (Robbins 1970): E = sum_j w_j prod_t b_j(x_t)/p(x_t) is an e-process
        for whatever laws b_j and weights, with sum_j w_j = 1, are fixed before the token, and is at
        least w_j times each product, so that not knowing j costs ln(1/w_j) nats. These are fixed
        beforehand; the laws depend on the prefix alone. Error rates are those of
        `mixture.log_mixture`.

        Args:
            raw: whether transforms make raw p and raw q differ from p and q. Without them the
                components that use them do not exist.
        """
        plan = components(raw=raw)
        weights = np.array([component.weight for component in plan])
        names = tuple(component.name for component in plan)
        diluted = [component for component in plan if component.base is not None]
        return Bets(
            raw=raw,
            names=names,
            families=tuple(component.family for component in plan),
            log_weights=np.log(weights / weights.sum()),
            leak_grid=LEAKS.copy(),
            leak_index=np.array([names.index(leak_name(d)) for d in LEAKS]),
            _base=np.array([component.base for component in diluted]),
            _rate=np.array([component.rate for component in diluted]),
        )

    def log_ratios(
        self,
        tokens: ArrayLike,
        p: ArrayLike,
        q: ArrayLike,
        p_raw: ArrayLike | None = None,
        q_raw: ArrayLike | None = None,
        rows: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        """Give ln b_j(x)/p(x) of every token and component.

        A diluted law has ln((1-e) + e b(x)/p(x)) - ln((1-e) + e b(p > 0)), a tilt h f(x) - ln Z
        with Z = sum_x p(x) exp(h f(x)). Bets on the next token in the sense of Shafer (2021).

        Valid where p is the law of the token given the prefix, and q and the raw laws depend on the
        prefix alone: then exp of each value has mean at most 1 given the past (elementary: it is
        sum_x b_j(x)), so sums over tokens are logs of e-processes, up to rounding (some 1e-13 a
        token at most) and the cut.

        Rows are normalised in float64. Where there is no draft, as for a bonus token, pass q = p:
        what bets on q alone is then 0. All is exactly 0 for tokens with p(x) = 0. Values are cut at
        +-700. Work and memory grow with the vocabulary, not with vocabulary times components.

        Args:
            tokens: int [N], the tokens emitted.
            p: [M, V], the target's laws given the emitted prefixes.
            q: [M, V], the draft's.
            p_raw: [M, V], before transforms; needed if `raw`, else ignored.
            q_raw: the same of the draft.
            rows: [N], which of them each token was drawn under, as tokens with one prefix share a
                law; token i under law i when omitted.

        Returns:
            float64 [N, J].

        Raises:
            UsageError: shapes do not match, raw laws are missing, tokens lie outside the
                vocabulary or name no law, or a row is no law.
        """
        given, x = self._rows(p, q, p_raw, q_raw), np.asarray(tokens)
        shape = given[0].shape
        under = np.arange(len(given[0])) if rows is None else rows
        if x.shape != under.shape or (len(x) and not np.issubdtype(x.dtype, np.integer)):
            raise UsageError(f"needs integer tokens [N] for p [N, V]; got {x.shape} and {shape}")
        if len(x) and not (x.min() >= 0 and x.max() < shape[1]):
            raise UsageError(f"tokens run from {x.min()} to {x.max()}, outside 0 to {shape[1] - 1}")
        if len(x) and not (under.min() >= 0 and under.max() < shape[0]):
            raise UsageError(f"rows run from {under.min()} to {under.max()}, of {shape[0]} laws")
        if not len(x):
            return np.empty((0, len(self.names)))
        by_row = np.argsort(under, kind="stable")
        step, parts = max(1, _ENTRIES // max(1, shape[1])), []
        at = np.empty((len(given), len(x)))
        for start in range(0, len(given[0]), step):
            laws = [_normalised(law[start : start + step], start) for law in given]
            begin, end = np.searchsorted(under, (start, start + step), sorter=by_row)
            here = by_row[begin:end]
            for law, values in zip(laws, at, strict=True):
                values[here] = law[under[here] - start, x[here]]
            parts.append(RowSums.of(*laws))
        sums, out = RowSums.joined(parts), np.empty((len(x), len(self.names)))
        for start in range(0, len(x), _TOKENS):
            part = slice(start, start + _TOKENS)
            out[part] = self._at(self._values(list(at[:, part])), sums.rows(under[part]))
        return out

    def table(
        self,
        p: ArrayLike,
        q: ArrayLike,
        p_raw: ArrayLike | None = None,
        q_raw: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """`log_ratios` of every token of one row: ln b_j(x)/p(x) for x = 0 to V - 1.

        Source and validity are those of `log_ratios`. sum_x p(x) exp(table[x, j]) <= 1 up to
        rounding, which is what makes every bet fair (elementary); it is 1 unless p(x) is below
        1e-300 or a value is cut.

        Args:
            p: [V].
            q: [V].
            p_raw: [V]; needed if `raw`.
            q_raw: [V]; needed if `raw`.

        Returns:
            float64 [V, J].

        Raises:
            UsageError: as `log_ratios`.
        """
        raw = (p_raw, q_raw) if p_raw is not None and q_raw is not None else ()
        rows = [np.asarray(law)[None] for law in (p, q, *raw)]
        laws = [_normalised(law, 0) for law in self._rows(*rows)]
        sums, size = RowSums.of(*laws), laws[0].shape[1]
        out = np.empty((size, len(self.names)))
        for start in range(0, size, _TOKENS):
            at = self._values([law[0, start : start + _TOKENS] for law in laws])
            out[start : start + _TOKENS] = self._at(at, sums)
        return out

    def _rows(
        self,
        p: ArrayLike,
        q: ArrayLike,
        p_raw: ArrayLike | None = None,
        q_raw: ArrayLike | None = None,
    ) -> list[NDArray]:
        if self.raw and (p_raw is None or q_raw is None):
            raise UsageError("these bets compare with raw laws: pass p_raw and q_raw")
        chosen = (p, q, p_raw, q_raw) if self.raw else (p, q)
        laws = [np.asarray(law) for law in chosen]
        if any(law.ndim != 2 or law.shape != laws[0].shape for law in laws):
            shapes = [law.shape for law in laws]
            raise UsageError(f"p, q and the raw laws need one shape [N, V], got {shapes}")
        return laws

    def _values(self, at: list[NDArray[np.float64]]) -> Values:
        p, q = at[:2]
        return Values(p, q, *(at[2:] if self.raw else (p, q)))

    def _at(self, at: Values, sums: RowSums) -> NDArray[np.float64]:
        """[N, J] from the probabilities of N tokens; `sums` are of N rows or of one."""
        hit = at.p <= 0
        # Below TINY quotients overflow; with TINY in its place a law loses what mass it has there.
        p = np.where(hit, 1.0, np.maximum(at.p, TINY))
        at = Values(p, at.q, at.raw_p, at.raw_q)
        with np.errstate(divide="ignore"):
            out = np.concatenate([self._diluted(at, sums), _tilted(at, sums)], -1)
        np.clip(out, -_LARGEST_LOG, _LARGEST_LOG, out=out)
        out[hit] = 0.0
        return out

    def _diluted(self, at: Values, sums: RowSums) -> NDArray[np.float64]:
        """Take ln of (1-e) + e b(x)/p(x), less ln of the mass of (1-e) p + e b where p > 0."""
        bases = [*plain_bases(at, sums, raw=self.raw), *library_bases(at, sums, raw=self.raw)]
        ratios = np.stack([base.ratio for base in bases], -1)
        masses = np.stack(np.broadcast_arrays(*(base.mass for base in bases)), -1)
        # A base without mass on possible tokens says nothing about them: p takes its place.
        nothing = masses <= 0
        ratios = np.where(nothing, 1.0, ratios)
        masses = np.where(nothing, 1.0, masses)
        # Undiluted, 1 + (b/p - 1) would lose the digits of a small b/p, so that has its own line.
        diluted = np.where(self._rate == 1, 0.0, self._rate)
        rates = np.broadcast_to(diluted, (len(masses), len(diluted)))
        if (diluted < 0).any():
            # A negative leak is bet on only where it is nonnegative for every token.
            room = -rates * (sums.largest_ratio[:, None] - 1) < 1 - 1e-6
            rates = np.where((rates > 0) | room, rates, 0.0)
        out = np.log1p(rates * (ratios - 1)[:, self._base])
        out -= np.log1p(rates * (masses - 1)[:, self._base])
        pure = np.flatnonzero(self._rate == 1)
        base = self._base[pure]
        out[:, pure] = np.log(ratios[:, base]) - np.log(masses[:, base])
        return out


def _tilted(at: Values, sums: RowSums) -> NDArray[np.float64]:
    """Tilts by ln(q/p) and 1{q > p}, temperatures, and both: ln of a factor less ln of its sum."""
    log_ratio = np.log(np.clip(at.q / at.p, 1 / LARGEST_TILT, LARGEST_TILT))
    log_p = np.log(at.p)
    columns = []
    for row, (strength, sign) in enumerate(product(TILTS, (1, -1))):
        columns.append(sign * strength * log_ratio - np.log(sums.tilts[row]))
    for strength, sign in product(TILTS, (1, -1)):
        gain = sign * strength
        columns.append(gain * (at.q > at.p) - np.log1p(math.expm1(gain) * sums.raised))
    for row, (exponent, sign) in enumerate(product(POWERS, (1, -1))):
        columns.append(sign * exponent * log_p - np.log(sums.powers[row]))
    signed = [sign * exponent for exponent, sign in product(JOINT_POWERS, (1, -1))]
    for row, (sign, exponent) in enumerate(product((1, -1), signed)):
        log_factor = sign * JOINT_TILT * log_ratio + exponent * log_p
        columns.append(log_factor - np.log(sums.joint[row]))
    return np.stack(columns, -1)


def _normalised(law: NDArray, start: int) -> NDArray[np.float64]:
    rows = np.asarray(law, np.float64)
    totals = rows.sum(-1, keepdims=True)
    if rows.size and not (rows.min() >= 0 and (totals > 0).all() and np.isfinite(totals).all()):
        wrong = ~((rows >= 0).all(-1) & (totals[:, 0] > 0) & np.isfinite(totals[:, 0]))
        index = int(wrong.argmax())
        raise UsageError(
            f"row {start + index} is no law (sum {float(totals[index, 0])!r}, smallest entry "
            f"{float(rows[index].min())!r}); pass probabilities, not logits"
        )
    # A division that would change last digits only takes as long as a sum.
    return rows / totals if (np.abs(totals - 1) > _ROUNDING).any() else rows
