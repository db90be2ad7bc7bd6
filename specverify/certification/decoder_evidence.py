"""What running a decoder case gave: its tallies, and the distributions they are held against."""

from collections.abc import Callable
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
        algorithm = self.subject.capabilities.algorithm or ""

        def expected(prompt: int, prefixes: Counts) -> Array:
            paths = [prefixes[:, :depth] for depth in range(prefixes.shape[1] + 1)]
            p_path = np.stack([self.case.target_forced[prompt](path) for path in paths], 1)
            q_path = np.stack([self.case.draft_forced[prompt](path) for path in paths], 1)
            return correction_distribution(algorithm, p_path, q_path, prefixes)

        return self._by_context([t.corrections for t in self.tallies], expected)

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
            prefixes, depths = node_prefixes(self.tallies[prompt].tree)
            met = counts.sum(1) > 0
            for depth in np.unique(depths[met]):
                here = met & (depths == depth)
                inside = prefixes[here, :depth]
                laws = expected(prompt, inside)
                self._add_nodes(groups, prompt, inside, counts[here], laws)
        observed = [counts for counts, _ in groups.values()]
        return observed, [weights / weights.sum() for _, weights in groups.values()]

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
            key = tuple(sequence[-self._suffix :])
            seen, weights = groups.get(key, (np.zeros_like(observed), np.zeros_like(law)))
            groups[key] = (seen + observed, weights + observed.sum() * law)

    @property
    def _suffix(self) -> int:
        """Last tokens that nodes must share to be added up: as many as keep the groups few."""
        return 2 if self.case.target.vocab_size**2 <= MAXIMUM_GROUPS else 1
