"""What running a decoder case gave: its tallies, and the distributions they are held against."""

from collections.abc import Callable
from dataclasses import dataclass

from specverify.certification.case_tally import CaseTally
from specverify.certification.decoder_case import DecoderCase
from specverify.certification.positions import position_label
from specverify.certification.round_ends import round_end_label
from specverify.certification.worst_cells import Strata
from specverify.sampling.context_tally import ContextTally
from specverify.sampling.first_rounds import FirstRounds
from specverify.sampling.tally import Tally
from specverify.subjects.protocols import Subject


@dataclass(frozen=True)
class DecoderEvidence:
    """Tallies of one case, and what bets on its shards in their order came to."""

    subject: Subject
    case: DecoderCase
    tally: CaseTally
    full: bool = True
    """Whether all numbers are wanted, or only those that decide."""
    looks: int = 1
    """Times at which a fixed-n bound may be looked at."""
    shards: int = 0
    """That were added."""
    log_threshold: float = 0.0
    """ln E at which a test rejects."""
    log_positions: float = 0.0
    """ln E of tokens by position and context, see `statistics.tilt`."""
    log_corrections: float = 0.0
    log_bonuses: float = 0.0

    @property
    def runs(self) -> int:
        """Runs tallied."""
        return self.tally.runs

    @property
    def tokens(self) -> int:
        """Tokens tallied."""
        return self.tally.tokens

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """Runs by prompt."""
        return self.tally.tallies

    @property
    def first_rounds(self) -> FirstRounds:
        """First rounds over all prompts."""
        return self.tally.first_rounds

    @property
    def reports_acceptance(self) -> bool:
        """Whether the subject says how many draft tokens it accepted."""
        return bool(self.first_rounds.accepted)

    def first_tokens(self) -> Strata:
        """First tokens by prompt."""
        used = [i for i, tally in enumerate(self.tallies) if tally.runs]
        return Strata(
            [self.tallies[i].first for i in used],
            [self.case.first_token(i) for i in used],
            lambda stratum, cell: f"token {cell} after prompt {used[stratum]}",
        )

    def joint(self) -> Strata:
        """Runs by cell of the joint distribution, by prompt."""
        used = [i for i, tally in enumerate(self.tallies) if tally.cells.sum()]
        trees = [self.tallies[i].tree for i in used]

        def label(stratum: int, cell: int) -> str:
            tree = trees[stratum]
            tokens = [token for token in tree.tokens[cell].tolist() if token >= 0]
            others = ", then other tokens" if tree.rest[cell] else ""
            return f"run {tokens}{others} after prompt {used[stratum]}"

        counts = [self.tallies[i].cells for i in used]
        return Strata(counts, [tree.leaf_probabilities() for tree in trees], label)

    def each_position(self) -> Strata:
        """Tokens by their position in the run and the token before them."""
        return self._by_context(self.tally.positions, position_label)

    def corrections(self) -> Strata:
        """Corrections of first rounds, by the last tokens of their contexts."""
        return self._by_context(self.first_rounds.corrections, round_end_label)

    def bonuses(self) -> Strata:
        """Bonus tokens of first rounds, by the last tokens of their contexts."""
        return self._by_context(self.first_rounds.bonuses, round_end_label)

    def excluded_corrections(self) -> tuple[int, int]:
        """Corrections of first rounds that the residual excludes, and all of them."""
        return self.first_rounds.excluded_corrections, self.first_rounds.judged_corrections

    def _by_context(
        self, tally: ContextTally, describe: Callable[[DecoderCase, int], str]
    ) -> Strata:
        groups, counts, laws = tally.strata()

        def label(stratum: int, cell: int) -> str:
            return f"token {cell} {describe(self.case, int(groups[stratum]))}"

        return Strata(counts, laws, label)
