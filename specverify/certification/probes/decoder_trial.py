"""What a probed property may do with a decoder: compute whole runs in a world, or let it decode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from specverify.certification.exact_calls import MAXIMUM_RUNS, SteeredCalls, check_tokens
from specverify.certification.exact_evidence import Comparison, tolerance_of
from specverify.certification.exact_outcome import distance_outcome, unless_crashed
from specverify.certification.probes.sampled import sampled_outcome, wrong_ends
from specverify.certification.probes.trial import Trial
from specverify.certification.probes.world import World
from specverify.certification.registry import Outcome
from specverify.decoding.output import DecoderOutput, joined
from specverify.errors import CannotSteer, SubjectError
from specverify.exact.distribution import JointDistribution
from specverify.exact.programs import program_distribution
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.calling import call_decoder, own_settings

REPLAYS = 2
"""Paths that are taken again in each world, to see whether the same comes out. There are some sixty
worlds, so a decoder that something outside decides is found out as well as by many in one."""

SAMPLED = {"table": 20_000, "batch": 4_000, "single": 500}
"""Runs sampled where they cannot be computed, by how fast the subject is."""
ROWS = {"table": 4_096, "batch": 256, "single": 1}

MakeModel = Callable[[TableModel], Any]


class DecoderTrial(Trial):
    """A property of a decoder on one of its inputs."""

    def models(self, world: World, make: MakeModel | None = None) -> tuple[Any, Any]:
        """Target and draft of a class that the subject takes.

        Args:
            world: whose tables they show.
            make: makes a transformers model of a table; a `GlassBoxModel` when omitted.
        """
        if make is None and self.takes_tables:
            return world.target, world.draft
        from specverify.models.glass_box import GlassBoxModel

        made = make or GlassBoxModel.from_table
        return made(world.target), made(world.draft)

    @property
    def takes_tables(self) -> bool:
        """Whether the subject takes tables as they are, in float64."""
        return "language_model" in self.subject.capabilities.models

    @property
    def tolerance(self) -> float:
        """Largest total variation of a right decoder."""
        return tolerance_of(self.subject, float64=self.takes_tables)

    def joint(self, world: World, make: MakeModel | None = None) -> JointDistribution:
        """What the decoder emits, over all rows, with `SEPARATOR` between them.

        Raises:
            CannotSteer: its randomness cannot be followed.
            SubjectError: it returned something malformed.
        """
        calls = SteeredCalls(self.subject, self.time_limit)
        target, draft = self.models(world, make)
        ids, mask = world.batch

        def program(source: Generator) -> Tensor:
            settings = own_settings(world.contract)
            arguments = (ids.clone(), mask.clone(), settings, world.num_draft_tokens, source)
            try:
                value = calls(target, draft, *arguments)
            except SubjectError as error:
                self.failures.append(error)
                raise
            # Looking at the tokens would decide draws that may stay open until the end.
            return value.tokens if isinstance(value, DecoderOutput) else value

        joint = program_distribution(
            program, seed=self.seed, maximum_runs=MAXIMUM_RUNS, replays=REPLAYS
        )
        check_tokens(self.subject, joint, world.target.vocab_size)
        self.note(calls.remarks(joint))
        return joint

    def follows(self, world: World, what: str, make: MakeModel | None = None) -> Outcome:
        """Whether runs have the target's stopped joint distribution, over all rows.

        It is computed, or sampled where it cannot be.

        Args:
            world: what the decoder is handed.
            what: the input in words, for a reader.
            make: see `models`.
        """
        if (refused := world.refused_by(self.subject)) is not None:
            return Outcome(not_applicable=refused)
        try:
            joint = self.joint(world, make)
        except CannotSteer:
            return self._sampled(world, what, make)
        missing = sum(joint.crashes.values())
        compared = Comparison.of_runs(joint.probabilities, world.expected(), missing)
        outcome = distance_outcome(compared, joint, self.tolerance, what)
        return unless_crashed(outcome, joint)

    def generate(
        self,
        world: World,
        generator: Generator,
        *,
        rows: int | None = None,
        make: MakeModel | None = None,
    ) -> DecoderOutput:
        """Let it decode once.

        Args:
            world: what the decoder is handed.
            generator: source of all draws.
            rows: of the batch, the prompts in turn; one for each prompt when omitted.
            make: see `models`.
        """
        ids, mask = world.batch
        chosen = torch.arange(len(ids) if rows is None else rows) % len(ids)
        contract = world.contract
        if not isinstance(contract, SamplingSettings):
            contract = [contract[row] for row in chosen.tolist()]
        result = call_decoder(
            self.subject,
            *self.models(world, make),
            ids[chosen],
            mask[chosen],
            contract,
            world.num_draft_tokens,
            generator,
            time_limit=self.time_limit,
        )
        self.note(result.findings)
        return result.value

    def _sampled(self, world: World, what: str, make: MakeModel | None) -> Outcome:
        speed = "single" if not self.subject.capabilities.batch else "batch"
        if speed == "batch" and make is None and self.takes_tables:
            speed = "table"
        calls = -(-SAMPLED[speed] // ROWS[speed])
        outputs = [
            self.generate(world, self.generator(call), rows=ROWS[speed], make=make)
            for call in range(calls)
        ]
        tokens = joined(outputs).tokens.numpy()
        prompts = np.concatenate([np.arange(len(o.tokens)) % len(world.prompts) for o in outputs])
        counts, laws, violations = [], [], ()
        for prompt in range(len(world.prompts)):
            tree = world.tree(prompt)
            law = tree.leaf_probabilities()
            runs = tokens[prompts == prompt]
            cells = tree.locate(runs)
            violations = violations or wrong_ends(runs, cells, what)
            # What the target excludes gets a cell of its own, the last.
            cells[cells < 0] = len(law)
            counts.append(np.bincount(cells, minlength=len(law) + 1))
            laws.append(np.append(law, 0.0))
        return sampled_outcome(
            counts,
            laws,
            what,
            tokens=max(world.of_row(row).max_new_tokens for row in range(len(world.prompts))),
            coin_dtype=self.subject.capabilities.coin_dtype,
            share=self.share,
            violations=violations,
        )
