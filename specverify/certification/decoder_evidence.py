"""What running a decoder case gave: its tallies, and the distributions they are held against."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specverify.certification.conditional import correction_distribution
from specverify.certification.decoder_case import DecoderCase
from specverify.exact.tree_walk import node_prefixes
from specverify.sampling.tally import Tally
from specverify.subjects.protocols import Subject

MAXIMUM_GROUPS = 4096

Counts = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class DecoderEvidence:
    """Tallies of one case, one for each prompt."""

    subject: Subject
    case: DecoderCase
    tallies: tuple[Tally, ...]

    @property
    def runs(self) -> int:
        """Runs tallied."""
        return sum(tally.runs for tally in self.tallies)

    @property
    def tokens(self) -> int:
        """Tokens tallied."""
        return sum(tally.tokens for tally in self.tallies)

    @property
    def reports_acceptance(self) -> bool:
        """Whether the subject says how many draft tokens it accepted."""
        return any(tally.first_round_accepted for tally in self.tallies)

    def first_tokens(self) -> tuple[list[Counts], list[Array]]:
        """Observed first tokens and their distribution, by prompt."""
        used = [i for i, tally in enumerate(self.tallies) if tally.runs]
        return [self.tallies[i].first for i in used], [self.case.first_token(i) for i in used]

    def joint(self) -> tuple[list[Counts], list[Array]]:
        """Observed runs by cell of the joint distribution, and its probabilities, by prompt."""
        used = [tally for tally in self.tallies if tally.cells.sum()]
        return [t.cells for t in used], [t.tree.leaf_probabilities() for t in used]

    def corrections(self) -> tuple[list[Counts], list[Array]]:
        """Observed corrections of first rounds and their distribution, by preceding tokens."""
        return self._by_context([t.corrections for t in self.tallies], self._residual)

    def excluded_corrections(self) -> tuple[int, int]:
        """Corrections of first rounds that the residual excludes, and all of them.

        A token counts as excluded only if it stays so when p and q are off by as much as two
        passes over the same prefix may differ. One of probability 0 is not counted here: whether
        it is impossible or a near tie, `DecoderCase.judge` has decided.
        """
        slack = math.exp(4 * self.case.tolerance)
        excluded = total = 0
        for prompt, tally in enumerate(self.tallies):
            for prefixes, counts in self._met(prompt, tally.corrections):
                law = self._residual(prompt, prefixes, slack)
                possible = self.case.target_forced[prompt](prefixes) > 0
                excluded += int(counts[possible & (law == 0)].sum())
                total += int(counts.sum())
        return excluded, total

    def _residual(self, prompt: int, prefixes: Counts, slack: float = 1.0) -> Array:
        """Closed form of the correction after each prefix, p multiplied by `slack`."""
        algorithm = self.subject.capabilities.algorithm or ""
        # Only block verification weighs the residual by what was accepted before.
        first = 0 if algorithm == "block" else prefixes.shape[1]
        paths = [prefixes[:, :depth] for depth in range(first, prefixes.shape[1] + 1)]
        p_path = np.stack([self.case.target_forced[prompt](path) for path in paths], 1)
        q_path = np.stack([self.case.draft_forced[prompt](path) for path in paths], 1)
        return correction_distribution(algorithm, slack * p_path, q_path, prefixes)

    def bonuses(self) -> tuple[list[Counts], list[Array]]:
        """Observed bonus tokens of first rounds and their distribution, by preceding tokens."""

        def expected(prompt: int, prefixes: Counts) -> Array:
            return self.case.target_forced[prompt](prefixes)

        return self._by_context([t.bonuses for t in self.tallies], expected)

    def _by_context(
        self, counts_by_prompt: list[Counts], expected: Callable[[int, Counts], Array]
    ) -> tuple[list[Counts], list[Array]]:
        """Add up nodes [nodes, V] whose prefixes end in the same tokens.

        Most nodes are met too seldom to be tested alone. Where the nodes of a group have different
        distributions, the sum of their counts varies less than the multinomial of their mean
        (E[p p'] exceeds E[p] E[p]' as a matrix), so the test on the group only loses power.
        """
        groups: dict[tuple[int, ...], tuple[Counts, Array]] = {}
        for prompt, counts in enumerate(counts_by_prompt):
            for prefixes, seen in self._met(prompt, counts):
                self._add_nodes(groups, prompt, prefixes, seen, expected(prompt, prefixes))
        # A group without weight is one that no right subject can meet; its tokens are excluded
        # corrections, which have a property of their own.
        used = [group for group in groups.values() if group[1].sum() > 0]
        return [counts for counts, _ in used], [weights / weights.sum() for _, weights in used]

    def _met(self, prompt: int, counts: Counts) -> Iterator[tuple[Counts, Counts]]:
        """Prefixes [n, depth] of the nodes with any count, and their counts [n, V], by depth."""
        prefixes, depths = node_prefixes(self.tallies[prompt].tree)
        met = counts.sum(1) > 0
        for depth in np.unique(depths[met]):
            here = met & (depths == depth)
            yield prefixes[here, :depth], counts[here]

    def _add_nodes(
        self,
        groups: dict[tuple[int, ...], tuple[Counts, Array]],
        prompt: int,
        prefixes: Counts,
        counts: Counts,
        laws: Array,
    ) -> None:
        sequences = [self.case.prompts[prompt] + tuple(row) for row in prefixes.tolist()]
        for sequence, observed, law in zip(sequences, counts, laws, strict=True):
            if not law.any():
                continue  # Nothing can follow here; `excluded_corrections` counts what does.
            key = tuple(sequence[-self._suffix :])
            seen, weights = groups.get(key, (np.zeros_like(observed), np.zeros_like(law)))
            groups[key] = (seen + observed, weights + observed.sum() * law)

    @property
    def _suffix(self) -> int:
        """Last tokens that nodes must share to be added up: as many as keep the groups few."""
        return 2 if self.case.target.vocab_size**2 <= MAXIMUM_GROUPS else 1
