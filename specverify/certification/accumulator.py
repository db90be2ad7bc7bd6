"""Shards of a case, added in their order."""

from specverify.certification.case_tally import CaseTally
from specverify.certification.decoder_case import DecoderCase
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.sampling.context_tally import ContextTally
from specverify.statistics.tilt import TiltProcess
from specverify.subjects.protocols import Subject


class Accumulator:
    """The contiguous prefix of finished shards.

    Order matters twice: float sums are taken in it, and some bets are learned from earlier shards.
    """

    def __init__(
        self, subject: Subject, case: DecoderCase, *, looks: int = 1, log_threshold: float = 0.0
    ) -> None:
        self._subject, self._case = subject, case
        self._looks, self._log_threshold = looks, log_threshold
        self.total = CaseTally(case)
        self.shards = 0
        rounds = self.total.first_rounds
        self._positions = _process(self.total.positions)
        self._corrections = _process(rounds.corrections)
        self._bonuses = _process(rounds.bonuses)

    def add(self, shard: CaseTally) -> None:
        """Add the next shard."""
        self.total.merge(shard)
        for process, tally in (
            (self._positions, shard.positions),
            (self._corrections, shard.first_rounds.corrections),
            (self._bonuses, shard.first_rounds.bonuses),
        ):
            process.update(tally.observed, tally.expected, tally.met)
        self.shards += 1

    def evidence(self, *, full: bool = True) -> DecoderEvidence:
        """What has been added so far; see `DecoderEvidence.full`."""
        return DecoderEvidence(
            subject=self._subject,
            case=self._case,
            tally=self.total,
            full=full,
            looks=self._looks,
            shards=self.shards,
            log_threshold=self._log_threshold,
            log_positions=self._positions.log_e,
            log_corrections=self._corrections.log_e,
            log_bonuses=self._bonuses.log_e,
        )


def _process(tally: ContextTally) -> TiltProcess:
    return TiltProcess(tally.groups, tally.vocab_size)
