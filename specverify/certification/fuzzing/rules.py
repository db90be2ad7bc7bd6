"""Rounds on which a rule is tried."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from pydantic import JsonValue

from specverify.certification.certificate import CounterexampleRecord
from specverify.certification.counterexamples.rules import expected_of, given, round_inputs
from specverify.certification.counterexamples.stored import stored_round
from specverify.certification.exact_evidence import Comparison
from specverify.certification.exact_outcome import distance_outcome, exact_numbers
from specverify.certification.fuzzing.problem import Computed, Problem, Region
from specverify.certification.fuzzing.sampled import Counted, Stream
from specverify.certification.generated.pairs_of_rows import ONE_TARGET, PAIR_KINDS, SIMPLE
from specverify.certification.generated.rounds import RoundTables, round_tables
from specverify.certification.probes.rule_trial import RuleTrial, completed
from specverify.exact.compare_round import compare_round
from specverify.exact.compare_round import completed as completed_law

ROWS = {True: 4_096, False: 256}
"""Rows of one sampled part, for rules that take batches and for those that take one row a call."""

_REGIONS: tuple[tuple[str, tuple[int, int], tuple[int, int], tuple[str, ...]], ...] = (
    ("simple", (2, 3), (1, 2), SIMPLE),
    ("mixed", (2, 4), (1, 2), PAIR_KINDS),
    ("wide", (2, 16), (1, 1), PAIR_KINDS),
    ("long", (2, 2), (1, 5), PAIR_KINDS),
    ("large", (2, 4), (1, 3), PAIR_KINDS),
    ("broad", (2, 8), (1, 2), PAIR_KINDS),
)
"""Name, vocabulary, draft tokens, and kinds of rows. All begin with the smallest sizes, so that a
failure of any region shrinks to them."""


class RuleProblem(Problem[RoundTables]):
    """One round, completed by the target, has the target's joint distribution."""

    kind = "round"
    property_id = "joint.round"

    @property
    def _trial(self) -> RuleTrial:
        return RuleTrial(self.subject, "fuzz", "", self.seed, self.time_limit)

    def regions(self) -> Sequence[Region[RoundTables]]:
        return [self._region(*region) for region in _REGIONS]

    def smaller(self, value: RoundTables) -> Sequence[Region[RoundTables]]:
        most, width = value.vocab_size, value.num_draft_tokens
        tried = (
            (2, 1, SIMPLE),
            (3, 1, SIMPLE),
            (2, 2, SIMPLE),
            (most, 1, SIMPLE),
            (3, 1, PAIR_KINDS),
            (3, 2, PAIR_KINDS),
            (most, 1, PAIR_KINDS),
        )
        return [
            self._region("smaller", (size, size), (count, count), kinds)
            for size, count, kinds in dict.fromkeys(tried)
            if size <= most and count <= width and (size, count) != (most, width)
        ]

    def _region(
        self, name: str, sizes: tuple[int, int], widths: tuple[int, int], kinds: tuple[str, ...]
    ) -> Region[RoundTables]:
        # At temperature 0, which is what a greedy rule is right at, one token is possible.
        greedy = self.subject.capabilities.algorithm == "greedy"
        inputs = round_tables(
            vocab_sizes=st.integers(*sizes),
            num_draft_tokens=st.integers(*widths),
            kinds=ONE_TARGET if greedy else kinds,
        )
        return Region(name, inputs)

    def passes_over(self, value: RoundTables) -> bool:
        greedy = self.subject.capabilities.algorithm == "greedy"
        return greedy and any(max(row) < 1 for table in value.target for row in table)

    def compute(self, value: RoundTables) -> Computed:
        trial, round = self._trial, value.round
        joint = trial.joint(round)
        compared = Comparison.of_round(compare_round(round, joint.probabilities))
        what = f"one round over V={value.vocab_size}, K={value.num_draft_tokens}"
        tolerance = trial.tolerance(round)
        wrong = distance_outcome(compared, joint, tolerance, what).violations
        whole = sum(joint.probabilities.values()) > 1 - tolerance
        observed = completed_law(round, joint.probabilities) if whole else joint.probabilities
        return Computed(
            "; ".join(wrong),
            max(joint.crashes, key=joint.crashes.__getitem__, default=""),
            compared.missing,
            observed,
            expected_of(value),
            exact_numbers(compared, joint, tolerance),
        )

    def count(self, value: RoundTables, stream: Stream, call: int) -> Counted:
        round, rng = value.round, stream.numpy(call)
        rows = ROWS[self.subject.capabilities.batch]
        masses = round.block_probabilities
        chosen = rng.choice(len(round.blocks), rows, p=masses / masses.sum())
        blocks = round.blocks[torch.from_numpy(chosen)]
        tokens = self._trial.call(*round.inputs(blocks), stream.generator(call)).numpy()
        runs = completed(round, tokens, rng)
        length = round.num_draft_tokens + 1
        law = np.ones(1)
        for depth in range(length):
            law = (law[:, None] * round.p(depth)).reshape(-1)
        powers = round.vocab_size ** np.arange(length - 1, -1, -1)
        counts = np.bincount(runs @ powers, minlength=len(law))
        names = tuple(itertools.product(range(round.vocab_size), repeat=length))
        return Counted((names,), (counts,), (law,), rows * length)

    def given(self, value: RoundTables) -> str:
        return given(value)

    def inputs(self, value: RoundTables) -> dict[str, JsonValue]:
        return round_inputs(value)

    def load(self, inputs: Mapping[str, JsonValue]) -> RoundTables:
        record = CounterexampleRecord(
            kind="round", property=self.property_id, inputs=dict(inputs), outcomes=(), text=""
        )
        return stored_round(record)

    def tolerance(self, value: RoundTables) -> float:
        return self._trial.tolerance(value.round)
