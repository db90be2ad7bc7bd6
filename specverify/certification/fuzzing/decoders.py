"""Worlds in which a decoder is tried: small models, prompts and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import JsonValue

from specverify.certification.certificate import CounterexampleRecord
from specverify.certification.counterexamples.decoders import given, world_inputs
from specverify.certification.counterexamples.stored import stored_world
from specverify.certification.exact_evidence import Comparison
from specverify.certification.exact_outcome import distance_outcome, exact_numbers
from specverify.certification.fuzzing.problem import Computed, Problem, Region
from specverify.certification.fuzzing.sampled import Counted, Stream
from specverify.certification.generated.contracts import FIELDS, settings
from specverify.certification.generated.worlds import WorldTables, world_tables
from specverify.certification.probes.decoder_trial import ROWS, DecoderTrial
from specverify.certification.probes.world import World
from specverify.decoding.output import joined
from specverify.exact.joint import total_variation
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings

PARTS = {"table": 1, "batch": 4, "single": 100}
"""Calls of one sampled part, by how fast the subject is."""

_CUTTING = (
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_n_sigma",
)
"""Settings that keep a token or not, which rounding decides where probabilities tie."""
_NUDGE = 1e-5
_JUMP = 1e-3
"""Total variation by which a law that nudges change has been cut elsewhere."""
_NUDGES = 4


class DecoderProblem(Problem[WorldTables]):
    """A whole run on a tiny model has exactly the target's stopped joint distribution."""

    kind = "world"
    property_id = "joint.run"

    @property
    def _trial(self) -> DecoderTrial:
        return DecoderTrial(self.subject, "fuzz", "", self.seed, self.time_limit)

    def regions(self) -> Sequence[Region[WorldTables]]:
        declared = self.subject.capabilities
        if declared.algorithm == "greedy":
            plain: SearchStrategy[SamplingSettings] = st.just(SamplingSettings(temperature=0.0))
        else:
            plain = st.just(SamplingSettings())
        honoured = declared.settings
        fields = tuple(name for name in FIELDS if honoured is None or name in honoured)
        # Token ids below 2 are in every vocabulary.
        any_of = plain if declared.algorithm == "greedy" else settings(2, fields=fields)
        few, more = st.integers(1, 2), st.integers(1, 3)
        two = st.just(2)
        found = [
            Region("simple", world_tables(plain, vocab_sizes=two, lengths=two)),
            Region("zeros", world_tables(plain, num_draft_tokens=more, zeros=True, longest=3)),
            Region("settings", world_tables(any_of, num_draft_tokens=few, longest=3)),
            Region(
                "history",
                world_tables(any_of, vocab_sizes=two, orders=two, lengths=st.integers(2, 4)),
            ),
            Region(
                "blocks", world_tables(plain, vocab_sizes=two, num_draft_tokens=st.integers(3, 5))
            ),
        ]
        if declared.batch:
            found.append(
                Region(
                    "rows",
                    world_tables(any_of, vocab_sizes=two, lengths=two, rows=two, longest=3),
                )
            )
        return found

    def smaller(self, value: WorldTables) -> Sequence[Region[WorldTables]]:
        fields = st.just(value.settings)
        two = st.just(2)
        if len(value.target[0]) == 2 and value.num_draft_tokens == 1 and len(value.prompts) == 1:
            return []
        one_row = world_tables(
            fields, vocab_sizes=two, num_draft_tokens=st.integers(1, 2), longest=1
        )
        if len(value.prompts) == 1:
            return [Region("smaller", one_row)]
        batch = world_tables(fields, vocab_sizes=two, num_draft_tokens=st.just(1), rows=two)
        return [Region("smaller", one_row), Region("smaller", batch)]

    def passes_over(self, value: WorldTables) -> bool:
        world = value.world
        return world.refused_by(self.subject) is not None or _on_a_boundary(world)

    def compute(self, value: WorldTables) -> Computed:
        trial, world = self._trial, value.world
        joint, expected = trial.joint(world), world.expected()
        compared = Comparison.of_runs(joint.probabilities, expected, sum(joint.crashes.values()))
        wrong = distance_outcome(compared, joint, trial.tolerance, "a whole run").violations
        return Computed(
            "; ".join(wrong),
            max(joint.crashes, key=joint.crashes.__getitem__, default=""),
            compared.missing,
            joint.probabilities,
            expected,
            exact_numbers(compared, joint, trial.tolerance),
        )

    def count(self, value: WorldTables, stream: Stream, call: int) -> Counted:
        trial, world = self._trial, value.world
        speed = "single" if not self.subject.capabilities.batch else "batch"
        if speed == "batch" and trial.takes_tables:
            speed = "table"
        parts = range(call * PARTS[speed], (call + 1) * PARTS[speed])
        outputs = [
            trial.generate(world, stream.generator(part), rows=ROWS[speed]) for part in parts
        ]
        tokens = joined(outputs).tokens.numpy()
        prompts = np.concatenate([np.arange(len(o.tokens)) % len(world.prompts) for o in outputs])
        names, counts, laws = [], [], []
        for prompt in range(len(world.prompts)):
            tree = world.tree(prompt)
            law = tree.leaf_probabilities()
            cells = tree.locate(tokens[prompts == prompt])
            # What the target excludes gets a cell of its own, the last.
            cells[cells < 0] = len(law)
            counts.append(np.bincount(cells, minlength=len(law) + 1))
            laws.append(np.append(law, 0.0))
            names.append((*(tuple(row[row >= 0].tolist()) for row in tree.tokens), ()))
        length = world.settings.max_new_tokens
        return Counted(tuple(names), tuple(counts), tuple(laws), len(tokens) * length)

    def given(self, value: WorldTables) -> str:
        return given(value)

    def inputs(self, value: WorldTables) -> dict[str, JsonValue]:
        return world_inputs(value)

    def load(self, inputs: Mapping[str, JsonValue]) -> WorldTables:
        record = CounterexampleRecord(
            kind="world", property=self.property_id, inputs=dict(inputs), outcomes=(), text=""
        )
        return stored_world(record)

    def tolerance(self, value: WorldTables) -> float:
        return self._trial.tolerance


def _on_a_boundary(world: World) -> bool:
    """Whether rounding decides which tokens the settings keep.

    Right decoders differ there: with simple probabilities ties and sums at a threshold are common,
    and a float32 decoder may see either side of them.
    """
    asked = world.settings
    if asked.temperature > 0 and all(getattr(asked, name) is None for name in _CUTTING):
        return False
    expected = world.expected()
    noise = np.random.default_rng(0)
    for _ in range(_NUDGES):
        signs = torch.from_numpy(noise.uniform(0.5, 1.0, size=tuple(world.target.logits.shape)))
        signs *= torch.from_numpy(noise.choice([-1.0, 1.0], size=tuple(signs.shape)))
        for direction in (_NUDGE, -_NUDGE):
            target = TableModel(world.target.logits + signs * direction, world.target.order)
            if total_variation(replace(world, target=target).expected(), expected) > _JUMP:
                return True
    return False
