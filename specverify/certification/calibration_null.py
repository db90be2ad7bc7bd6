"""Null runs: the decision as `certify` takes it, on a decoder that is right, many times over.

A certification promises that a right decoder raises an alarm with probability at most alpha. This
is what the promise is checked with: the same shards, strata, tallies, bets and looks as in
`certify`, on a pair so small that a run takes milliseconds, at thresholds that are reached now and
then.

Rows of the decoder are prepared for a block of runs in one call: rows are independent, so it makes
no difference who asks for them, and what is tested here is the decision.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.certification.certificate import CaseRecord
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.decoder_run import Sampling, run_decoder_case
from specverify.certification.limits import ALPHA
from specverify.certification.phases import single_threaded
from specverify.certification.plan import plan_decoder
from specverify.certification.registry import Outcome, Property, properties_of
from specverify.certification.shard import FEWEST_SHARDS, derived_generator
from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError
from specverify.models.pairs import ModelClass, Pair
from specverify.models.table import TableModel
from specverify.sampling.engines import InProcess
from specverify.sampling.store import ShardStore
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.guard import DEFAULT_TIME_LIMIT, Call
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import TOKEN

VOCAB_SIZE, NUM_DRAFT_TOKENS, RUN_LENGTH, PROMPT = 4, 1, 3, (1, 2)
ROWS = 128
"""Runs of the decoder in a shard."""
SHARDS = 4
"""Shards of a null run: fewer than a certification has, since each takes its time."""
BLOCK = 10
"""Null runs whose rows are prepared together."""

SETTINGS = {
    "plain": SamplingSettings(),
    "filtered": SamplingSettings(temperature=0.8, top_k=VOCAB_SIZE - 1),
}
"""Null runs take these in turn. The second has tokens of probability 0, and bets of its own on
distributions without transforms."""

_SEEDS = 1 << 40
"""Null runs that have seeds of their own, for each seed."""
_NEVER = Budget(1e-300)
"""At which no test rejects, so that each keeps its value of every look."""

T = TypeVar("T")
Array = NDArray[np.float64]


def _load(_: ModelClass) -> tuple[Any, Any]:
    target = TableModel.random(VOCAB_SIZE, 1, seed=3)
    return target, target.near(seed=4, noise=0.8)


PAIR = Pair(
    name="tiny",
    summary="two Markov tables of order 1 over 4 tokens, for null runs",
    prompts=(PROMPT,),
    load=_load,
    num_draft_tokens=NUM_DRAFT_TOKENS,
    model_classes=("language_model",),
)


@dataclass(frozen=True)
class NullRun:
    """What one certification of one case came to."""

    case: str
    """Name of its settings."""
    log_es: dict[str, Array]
    """ln E of every deciding test after each shard, by property."""
    reported: dict[str, float]
    """p-values, at the end, of what decides nothing, by property and test."""
    tests: int
    """Tests that share the budget of a case, those counted that had nothing to look at."""
    violations: tuple[str, ...] = ()
    """Properties violated without statistics: a right decoder violates none."""


@dataclass(frozen=True)
class NullRuns:
    """Runs of the decision, in blocks: work for an engine, picklable if its subject is."""

    seed: int
    """Everything random derives from it."""
    subject: Subject | None = None
    """A decoder of specverify's own models; the reference when None."""
    reported: int = 1
    """One pair of runs in so many also computes what is only reported, which takes time."""
    resumed: int = 10
    """One run in so many is ended early and taken up again from its finished shards."""

    def __call__(self, block: int) -> list[NullRun]:
        """The runs of a block."""
        names = tuple(SETTINGS)
        with single_threaded():
            decider = _decider(self.subject)
            rows = {name: decider.prepare(name, self.seed, block) for name in names}
            return [
                decider.run(
                    names[run % len(names)],
                    rows,
                    self.seed * _SEEDS + run,
                    full=run // len(names) % self.reported == 0,
                    resumed=run % self.resumed == 0,
                )
                for run in range(block * BLOCK, (block + 1) * BLOCK)
            ]


class _Decider:
    """All that null runs share: it does not depend on what is drawn."""

    def __init__(self, subject: Subject | None) -> None:
        own = subject or TOKEN
        models = frozenset({"language_model"})
        self.subject = replace(own, capabilities=replace(own.capabilities, models=models))
        plan = plan_decoder(
            self.subject,
            PAIR,
            SETTINGS,
            profile="quick",
            num_draft_tokens=None,
            tokens=len(SETTINGS) * FEWEST_SHARDS * ROWS * RUN_LENGTH,
            time_limit=DEFAULT_TIME_LIMIT,
            run_length=RUN_LENGTH,
        )
        self._planned = {planned.case.id: planned for planned in plan.cases}
        self._properties = [
            property
            for property in properties_of("decoder")
            if property.evidence == "sampled" and property.needs(self.subject) is None
        ]

    def prepare(self, name: str, seed: int, block: int) -> "_Prepared":
        """Let the decoder generate for all runs of a block under the same settings."""
        planned = self._planned[name]
        ids = torch.tensor([PROMPT]).repeat(SHARDS * ROWS * BLOCK // len(SETTINGS), 1)
        generator = derived_generator(seed, name, block, 0)
        return _Prepared(planned.generate(ids, torch.ones_like(ids), generator).value)

    def run(
        self, name: str, rows: "dict[str, _Prepared]", seed: int, *, full: bool, resumed: bool
    ) -> NullRun:
        """Decide once, on rows that were prepared.

        Args:
            name: of the settings.
            rows: of all settings.
            seed: of the run.
            full: whether to compute what is only reported.
            resumed: whether to end early, after a shard that depends on the seed, and go on.
        """
        recorders = [_Recorder(property, full=full) for property in self._properties]
        recorded = [recorder.property for recorder in recorders]
        planned = replace(self._planned[name], generate=rows[name], request=None)

        def decide(
            properties: Sequence[Property], shards: int, store: ShardStore | None
        ) -> tuple[CaseRecord, bool]:
            return run_decoder_case(
                self.subject,
                planned,
                properties,
                _NEVER,
                seed,
                lambda event: None,
                alpha=ALPHA,
                sampling=Sampling(_FirstShards(shards), store, stop_early=False),
            )

        if not resumed:
            record, interrupted = decide(recorded, SHARDS, None)
        else:
            with (
                TemporaryDirectory() as folder,
                ShardStore(Path(folder) / "shards", {"seed": seed}) as store,
            ):
                decide([], 1 + seed % (SHARDS - 1), store)
                record, interrupted = decide(recorded, SHARDS, store)
        if interrupted:
            raise KeyboardInterrupt
        if record.verdict == "error":
            raise SubjectError(f"{self.subject.name!r} failed in a null run: {record.reason}")
        return NullRun(
            case=name,
            log_es={r.id: np.array(r.log_es) for r in recorders if r.applied},
            reported={name: p for r in recorders for name, p in r.reported.items()},
            tests=sum(property.tests for property in self._properties),
            violations=tuple(r.id for r in recorders if r.violated),
        )


@lru_cache(maxsize=1)
def _decider(subject: Subject | None) -> _Decider:
    return _Decider(subject)


class _Prepared:
    """Hands rows out, as many as are asked for, each once."""

    def __init__(self, output: DecoderOutput) -> None:
        self._output, self._next = output, 0

    def __call__(
        self, prompt_ids: Tensor, attention_mask: Tensor, generator: torch.Generator
    ) -> Call[DecoderOutput]:
        rows = slice(self._next, self._next + len(prompt_ids))
        self._next = rows.stop
        output = self._output
        part = DecoderOutput(
            output.tokens[rows],
            accepted=None if output.accepted is None else output.accepted[rows],
            drafted=None if output.drafted is None else output.drafted[rows],
        )
        return Call(part, 0.0)


class _FirstShards(InProcess):
    """Ends a run after its first shards, as an interrupt might: it is judged all the same."""

    def __init__(self, shards: int) -> None:
        self.shards = shards

    def run(
        self, work: Callable[[int], T], indices: Sequence[int]
    ) -> Generator[tuple[int, T], None, None]:
        yield from super().run(work, [index for index in indices if index < self.shards])


class _Recorder:
    """A property that remembers what it found after each shard."""

    def __init__(self, property: Property, *, full: bool) -> None:
        self.id, self._check, self._full = property.id, property.check, full
        self.property = replace(property, check=self._remember)
        self.log_es: list[float] = []
        self.reported: dict[str, float] = {}
        self.applied = self.violated = False
        self._last = Outcome()

    def _remember(self, evidence: DecoderEvidence, alpha: float) -> Outcome:
        if evidence.full and not self._full:
            return self._last
        self._last = outcome = self._check(evidence, alpha)
        if evidence.full:
            for index, test in enumerate(outcome.reported):
                again = sum(other.name == test.name for other in outcome.reported) > 1
                number = f" {index + 1}" if again else ""
                self.reported[f"{self.id}, {test.name}{number}"] = test.p_value
            return outcome
        self.applied |= bool(outcome.tests)
        self.violated |= bool(outcome.violations)
        # A test that has had nothing to look at yet stands where it starts, at E = 1.
        self.log_es.append(sum(test.statistic for test in outcome.tests))
        return outcome
