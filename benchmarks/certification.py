"""What a certification costs: time beside sampling alone, memory, and the size of what is counted.

"Sampling alone" is the same decoder, called on the same prompts with the same generators, so that
it emits the same runs, and nothing made of what it returns. Certifying is all that happens to a
case once it is planned: sampling, forced passes, tallies, bets, a decision after every shard.

python benchmarks/certification.py [--quick]
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from common import Work, goal, interleaved, median_ratio, parse_quick
from numpy.typing import NDArray

from specverify.certification.case_tally import CaseTally
from specverify.certification.decoder_case import DecoderCase
from specverify.certification.decoder_run import Sampling, run_decoder_case
from specverify.certification.generation import decoder_generation
from specverify.certification.limits import ALPHA
from specverify.certification.plan import Plan, plan_decoder
from specverify.certification.registry import properties_of
from specverify.certification.shard import (
    ONE_AFTER_THE_OTHER,
    ShardSampler,
    derived_generator,
    left_padded,
    shard_runs,
)
from specverify.models.pairs import load_pair
from specverify.models.table import TableModel
from specverify.sampling.packing import pack
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import TOKEN

PLAIN = SamplingSettings()
BATCHED = replace(
    TOKEN, capabilities=replace(TOKEN.capabilities, models=frozenset({"language_model"}))
)
SINGLE = replace(BATCHED, capabilities=replace(BATCHED.capabilities, batch=False))
SEED = 0
VOCAB_SIZE = 50_000
"""Of the case whose tallies are measured."""

PEAK = """
import sys
from specverify.certification.run import certify
from specverify.settings import SamplingSettings
sys.path.insert(0, "benchmarks")
from common import process_peak
plain = {"plain": SamplingSettings()}
certify("reference", "toy", settings=plain, tokens=int(sys.argv[1]), stop_early=False, exact=False)
print(process_peak())
"""


def plan(subject: Subject, pair: str, tokens: int) -> Plan:
    """A plan of one case."""
    return plan_decoder(
        subject,
        load_pair(pair),
        {"plain": PLAIN},
        profile="quick",
        num_draft_tokens=None,
        tokens=tokens,
        time_limit=60.0,
    )


def certifying(subject: Subject, made: Plan) -> Work:
    """Certify the case of a plan, to its end."""
    properties = [
        property
        for property in properties_of("decoder")
        if property.evidence == "sampled" and property.needs(subject) is None
    ]
    budget = Budget(ALPHA / 2, len(properties))

    def work() -> int:
        record, _ = run_decoder_case(
            subject,
            made.cases[0],
            properties,
            budget,
            SEED,
            lambda event: None,
            alpha=ALPHA,
            sampling=Sampling(stop_early=False),
        )
        return record.tokens

    return work


def sampling(subject: Subject, pair: str, made: Plan) -> Work:
    """Let the subject itself generate the same runs, and drop them."""
    case, rows = made.cases[0].case, made.cases[0].rows
    target, draft = load_pair(pair).open("language_model")
    one_by_one = not subject.capabilities.batch
    size = shard_runs(case.runs, rows)

    def generate(prompts: NDArray[np.int64], generator: torch.Generator) -> int:
        ids, shown = left_padded(case.prompts, prompts)
        output = subject.call(
            target, draft, ids, shown, case.settings, case.num_draft_tokens, generator
        )
        return int((output.tokens >= 0).sum())

    def work() -> int:
        tokens = 0
        for shard, start in enumerate(range(0, case.runs, size)):
            runs = np.arange(start, min(start + size, case.runs)) % len(case.prompts)
            width = ONE_AFTER_THE_OTHER if one_by_one else rows
            for call, done in enumerate(range(0, len(runs), width)):
                generator = derived_generator(SEED, case.id, shard, call)
                prompts = runs[done : done + width]
                for part in np.split(prompts, len(prompts)) if one_by_one else [prompts]:
                    tokens += generate(part, generator)
        return tokens

    return work


def compare(subject: Subject, pair: str, tokens: int, repeats: int) -> tuple[float, str]:
    """Time per token of certifying over that of sampling alone, and a line of figures."""
    begin = time.perf_counter()
    made = plan(subject, pair, tokens)
    seconds = time.perf_counter() - begin
    works = {"alone": sampling(subject, pair, made), "certify": certifying(subject, made)}
    rates = interleaved(works, repeats, alike=True)
    ratio = median_ratio(rates["alone"], rates["certify"])
    alone, certified = (float(np.median(rates[name])) for name in ("alone", "certify"))
    return ratio, (
        f"{pair}, {made.cases[0].rows} rows a call: {alone:,.0f} tokens/s alone, {certified:,.0f} "
        f"certifying, after {seconds:.1f} s of planning; {tokens:,} tokens, {repeats} repeats"
    )


def peak(tokens: int) -> int:
    """Peak memory in bytes of a process that certifies with this many tokens."""
    command = [sys.executable, "-c", PEAK, str(tokens)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def arrays(state: Any) -> Iterator[np.ndarray]:
    """All arrays of a nested state."""
    if isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from arrays(value)


def large_tally() -> CaseTally:
    """The tally of a shard at a large vocabulary."""
    target = TableModel.random(VOCAB_SIZE, 0, seed=0)
    draft = target.near(seed=1, noise=0.8)
    case = DecoderCase(
        id="large",
        # Looks at the history, as real models do, so that no table of distributions is kept.
        settings=SamplingSettings(max_new_tokens=6, presence_penalty=0.1),
        num_draft_tokens=4,
        prompts=((0,), (1, 2)),
        target=target,
        draft=draft,
        runs=4_000,
        rows=64,
    )
    arguments = (target, draft, case.settings, case.num_draft_tokens, 60.0)
    generate = decoder_generation(BATCHED, *arguments)
    return ShardSampler(BATCHED, generate, case, case.rows, seed=0).run(0)


def main() -> None:
    """Measure, then print ratios first."""
    quick = parse_quick("cost of a certification beside sampling alone")
    torch.set_num_threads(1)
    tokens = 2_000_000 if quick else 4_000_000
    repeats = 1 if quick else 3
    toy, toy_line = compare(BATCHED, "toy", tokens, 3 * repeats)
    # Shards of a few runs would be measured by what each costs whatever it holds.
    single, single_line = compare(SINGLE, "trained", 2_520 if quick else 20_160, repeats)
    # 32 shards of one call each.
    batch, batch_line = compare(BATCHED, "trained", 32 * 256 * 6, repeats)
    few, many = peak(tokens // 4), peak(tokens * (2 if quick else 5))
    tally = large_tally()
    state = tally.state()
    size = sum(array.nbytes for array in arrays(state))
    print(goal("toy pair: certifying / sampling, per token", toy, 1.5, at_least=False))
    print(goal("trained pair, one sequence a call", single, 1.05, at_least=False))
    print(goal("trained pair, 256 rows a call", batch, 2.0, at_least=False))
    print(goal("peak memory of many tokens / of few", many / few, 1.05, at_least=False))
    print(goal(f"MB of the tallies at V = {VOCAB_SIZE:,}", size / 1e6, 50, at_least=False))
    print()
    for line in (toy_line, single_line, batch_line):
        print(line)
    print(
        f"peak of the process: {few / 2**20:.1f} MiB at {tokens // 4:,} tokens, "
        f"{many / 2**20:.1f} MiB at {tokens * (2 if quick else 5):,}"
    )
    print(f"tallies of {tally.tokens:,} tokens as a file: {len(pack(state)) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
