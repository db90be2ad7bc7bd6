"""False alarms among look-alikes: each is run many times, with a seed of its own every time.

Right decoders that look wrong must pass every run, and each e-process that decides must exceed
1/alpha, at any of its looks, in no more than a fraction alpha of them (Ville 1939). A run is a
case of a few shards on a small pair, judged after every shard as a certification judges it, each
test at its share of the budget. Rows of one call are dealt out to several runs, since they are
independent and a call of many rows costs little more than one of few.

Look-alikes that report wrongly where their rounds end emit right tokens: tests that trust the
report may be suspicious of them, which is no violation, and are not counted.

    python benchmarks/lookalikes.py [--runs 1000] [--tokens 3000] [--jobs 2] [--only ID]
"""

import argparse
import math
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import torch
from common import goal
from torch import Generator, Tensor

from specverify.certification.accumulator import Accumulator
from specverify.certification.limits import ALPHA
from specverify.certification.plan import PlannedCase, pair_presets, plan_decoder
from specverify.certification.registry import Property, properties_of
from specverify.certification.shard import FEWEST_SHARDS, Generate, ShardSampler
from specverify.decoding.output import DecoderOutput
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.models.pairs import Pair
from specverify.models.table import TableModel
from specverify.statistics.budget import Budget, combined
from specverify.subjects.guard import Call

ALPHAS = (0.1, 0.01, 0.001)
LOOKS = 3
"""Shards of a run; some bets are learned from the first."""
POOLED = 24
"""Calls made as one."""
CHUNK = 100
"""Runs handed to a process at once."""
ERROR = 4.0
"""Standard deviations of the binomial that a count may lie above its expectation."""
EVERY = "joint.every_token"


def tables(_: object) -> tuple[TableModel, TableModel]:
    """A target and a draft over four tokens: a run costs little, and drafts are often rejected."""
    target = TableModel.random(4, 1, seed=3)
    return target, target.near(seed=4, noise=0.8)


PAIR = Pair(
    name="small",
    summary="two Markov tables of order 1 over 4 tokens",
    prompts=((0,), (1, 2, 3)),
    load=tables,
    num_draft_tokens=2,
    model_classes=("language_model",),
)


@dataclass
class Found:
    """What some runs came to."""

    runs: int = 0
    tokens: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    """By property; under `together` those that only all tests taken together show."""
    suspicions: int = 0
    """Runs in which a test that trusts reported boundaries rejected."""
    judged: Counter[str] = field(default_factory=Counter)
    """Runs by property, where it says something and its test counts."""
    exceeded: Counter[tuple[str, float]] = field(default_factory=Counter)
    """The same, where E exceeded 1/alpha at some look."""

    def add(self, other: "Found") -> None:
        """Take in other runs."""
        self.runs += other.runs
        self.tokens += other.tokens
        self.suspicions += other.suspicions
        self.violations.update(other.violations)
        self.judged.update(other.judged)
        self.exceeded.update(other.exceeded)


class Pooled:
    """Makes many calls as one and hands out its rows."""

    def __init__(self, generate: Generate) -> None:
        self._generate = generate
        self._waiting: dict[tuple[int, ...], list[Call[DecoderOutput]]] = {}

    def __call__(self, ids: Tensor, mask: Tensor, generator: Generator) -> Call[DecoderOutput]:
        """See `Generate`; outputs that wait are those of other calls with the same prompts."""
        key = tuple(mask.sum(1).tolist())
        waiting = self._waiting.setdefault(key, [])
        if not waiting:
            call = self._generate(ids.repeat(POOLED, 1), mask.repeat(POOLED, 1), generator)
            output = call.value
            for first in range(0, len(output.tokens), len(ids)):
                rows = slice(first, first + len(ids))
                part = DecoderOutput(
                    output.tokens[rows],
                    accepted=None if output.accepted is None else output.accepted[rows],
                    drafted=None if output.drafted is None else output.drafted[rows],
                )
                waiting.append(Call(part, call.seconds / POOLED, call.findings))
        return waiting.pop()


@cache
def plan_of(id: str, name: str, tokens: int) -> tuple[PlannedCase, Pooled, list[Property], Budget]:
    """The plan of one look-alike under one of its settings, kept for the next runs."""
    subject = LOOKALIKES[id].subject
    settings = pair_presets(PAIR, PAIR.open("language_model")[0])[name]
    plan = plan_decoder(
        subject,
        PAIR,
        {name: settings},
        profile="quick",
        num_draft_tokens=None,
        # A case has at least FEWEST_SHARDS shards, of which a run takes some.
        tokens=tokens * FEWEST_SHARDS // LOOKS,
        time_limit=60.0,
    )
    properties = [
        p for p in properties_of("decoder") if p.evidence == "sampled" and p.needs(subject) is None
    ]
    (planned,) = plan.cases
    budget = Budget(ALPHA / 2, sum(p.tests for p in properties))
    return planned, Pooled(planned.generate), properties, budget


def run_once(id: str, name: str, tokens: int, seed: int) -> Found:
    """One run, judged after every shard."""
    lookalike = LOOKALIKES[id]
    planned, generate, properties, budget = plan_of(id, name, tokens)
    sampler = ShardSampler(lookalike.subject, generate, planned.case, planned.rows, seed=seed)
    accumulator = Accumulator(lookalike.subject, planned.case, log_threshold=budget.log_threshold)
    largest: dict[str, float] = {}
    violations: set[str] = set()
    suspicious = False
    for shard in range(LOOKS):
        tally = sampler.run(shard)
        if tally.failure is not None:
            raise SystemExit(f"{id} under {name} failed: {tally.failure}")
        accumulator.add(tally)
        evidence = accumulator.evidence(full=False)
        now: dict[str, float] = {}
        for property in properties:
            outcome = property.check(evidence, ALPHA)
            if outcome.not_applicable:
                continue
            if outcome.violations:
                violations.add(property.id)
            for test in outcome.tests:
                rejected = budget.rejects(test.p_value)
                if outcome.boundaries:
                    suspicious |= rejected
                elif rejected:
                    violations.add(property.id)
                if not (outcome.boundaries and lookalike.suspect):
                    now[property.id] = test.statistic
        if combined(list(now.values()), [now[EVERY]], budget.tests) >= -math.log(ALPHA):
            violations.add("together")
        for key, value in now.items():
            largest[key] = max(value, largest.get(key, -math.inf))
    found = Found(1, accumulator.total.tokens, suspicions=int(suspicious))
    found.violations.update(violations)
    found.judged.update(largest.keys())
    found.exceeded.update(
        (key, alpha)
        for key, value in largest.items()
        for alpha in ALPHAS
        if value >= -math.log(alpha)
    )
    return found


def run_chunk(work: tuple[str, str, int, int, int]) -> tuple[str, Found]:
    """Runs of one look-alike under one of its settings, with seeds `first` to `end` - 1."""
    torch.set_num_threads(1)
    id, name, tokens, first, end = work
    found = Found()
    for seed in range(first, end):
        found.add(run_once(id, name, tokens, seed))
    return id, found


def chunks(ids: list[str], runs: int, tokens: int) -> Iterator[tuple[str, str, int, int, int]]:
    """The work of all look-alikes; their runs take their settings in turn."""
    for id in ids:
        names = LOOKALIKES[id].settings
        share = -(-runs // len(names))
        for index, name in enumerate(names):
            count = min(share, runs - index * share)
            for first in range(0, count, CHUNK):
                yield id, name, tokens, first, min(first + CHUNK, count)


def measure(ids: list[str], runs: int, tokens: int, jobs: int) -> dict[str, Found]:
    """Run all look-alikes."""
    found = {id: Found() for id in ids}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for id, part in pool.imap_unordered(run_chunk, chunks(ids, runs, tokens)):
            found[id].add(part)
    return found


def report(found: dict[str, Found]) -> None:
    """Print a table by look-alike, one by e-process, and whether goals are met."""
    print(f"{'look-alike':<32}{'runs':>7}{'tokens':>13}{'violated':>10}{'suspect':>9}")
    total, suspicious = Found(), 0
    for id, one in found.items():
        total.add(one)
        violated = sum(one.violations.values())
        print(f"{id:<32}{one.runs:>7}{one.tokens:>13,}{violated:>10}{one.suspicions:>9}")
        suspicious += 0 if LOOKALIKES[id].suspect else one.suspicions
    print()
    columns = "".join(f"{f'E >= 1/{alpha:g}':>16}" for alpha in ALPHAS)
    print(f"{'e-process, largest of all looks':<32}{'runs':>7}{columns}")
    worst = dict.fromkeys(ALPHAS, -math.inf)
    for id, judged in sorted(total.judged.items()):
        cells = ""
        for alpha in ALPHAS:
            count = total.exceeded[id, alpha]
            deviation = math.sqrt(judged * alpha * (1 - alpha))
            # Of a count below one a standard deviation says nothing: one more is granted.
            worst[alpha] = max(worst[alpha], (count - judged * alpha - 1) / deviation)
            cells += f"{count / judged:>16.5f}"
        print(f"{id:<32}{judged:>7}{cells}")
    print()
    for id, count in sorted(total.violations.items()):
        print(f"violated: {id} in {count} runs")
    print(
        goal(
            "runs of right tokens called violated",
            sum(total.violations.values()),
            0,
            at_least=False,
        )
    )
    print(goal("suspicions where the report is right", suspicious, 0, at_least=False))
    for alpha, deviations in worst.items():
        name = f"worst exceedance at {alpha:g}, in binomial deviations"
        print(goal(name, deviations, ERROR, at_least=False))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description="False alarms among look-alikes")
    parser.add_argument("--runs", type=int, default=1000, help="of each look-alike")
    parser.add_argument("--tokens", type=int, default=3000, help="of each run")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", choices=list(LOOKALIKES), help="one look-alike")
    options = parser.parse_args()
    started = time.perf_counter()
    ids = [options.only] if options.only else list(LOOKALIKES)
    report(measure(ids, options.runs, options.tokens, options.jobs))
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
