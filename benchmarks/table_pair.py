"""Vectorised speculative sampling on the toy pair, against autoregressive and transformers.

Both table samplers use the same draw (`alias_table`), each at the batch size that suits it best,
on one thread, and both deliver the tokens of independent runs cut at the same length. The draft
writes the whole block in every round.

    python benchmarks/table_pair.py [--quick]
"""

import statistics
import time

import numpy as np
import torch
from common import goal, interleaved, median_ratio, parse_quick, process_peak, traced_peak
from numpy.random import SFC64, Generator

from specverify.decoding.table_pair import TablePairSampler, TableSampler
from specverify.fixtures.pairs.toy import PAIR, tables
from specverify.settings import SamplingSettings
from specverify.subjects.transformers_assisted import generate

K = 4
PROMPT = (0, 5)
LENGTH = 128
SEED = 20260


def sample(sampler: TableSampler | TablePairSampler, runs: int, seed: int = SEED) -> int:
    """Draw `runs` runs batch by batch, keeping none; returns the tokens drawn."""
    generator = Generator(SFC64(seed))
    return sum(batch.tokens.size for batch in sampler.batches(PROMPT, LENGTH, runs, generator))


def tokens_per_round(sampler: TablePairSampler, runs: int) -> float:
    """Mean tokens a round emits, over the rounds that no length limit cut."""
    generator = Generator(SFC64(SEED))
    emitted = rounds = 0
    for batch in sampler.batches(PROMPT, LENGTH, runs, generator):
        assert batch.accepted is not None
        # Every run makes at least this many rounds, so none is chosen by how it went.
        accepted = batch.accepted[:, : LENGTH // (K + 1)]
        emitted += int(accepted.sum(dtype=np.int64)) + accepted.size
        rounds += accepted.size
    return emitted / rounds


def visited_overlap(sampler: TablePairSampler, contexts: int, runs: int) -> float:
    """Mean of sum(min(p, q)) over the contexts that the target visits."""
    tokens = sampler.runs(PROMPT, LENGTH, runs, Generator(SFC64(SEED))).tokens.astype(np.int64)
    visited = tokens[:, :-1] * (sampler.vocab_size + 1) + tokens[:, 1:]
    share = np.bincount(visited.ravel(), minlength=contexts) / visited.size
    return float(share @ sampler.overlap)


def transformers_rate(seconds: float) -> float:
    """Tokens a second of `generate(assistant_model=...)` on the same pair as glass-box models."""
    target, draft = PAIR.load("transformers")
    prompt = torch.tensor([PROMPT])
    settings = SamplingSettings(max_new_tokens=LENGTH)
    generator = torch.Generator().manual_seed(SEED)

    def one_run() -> int:
        mask = torch.ones_like(prompt)
        return generate(target, draft, prompt, mask, settings, K, generator).tokens.numel()

    one_run()
    tokens, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        tokens += one_run()
    return tokens / (time.perf_counter() - started)


def main() -> None:
    """Measure, then print ratios first."""
    quick = parse_quick("speculative sampling on a table pair: tokens per second, as ratios")
    torch.set_num_threads(1)
    target, draft = tables()
    distributions = torch.softmax(target.logits, -1)
    distinct = len(distributions.unique(dim=0)) == target.num_contexts
    speculative, plain = TablePairSampler(target, draft, K), TableSampler(target)

    runs = 1 << (16 if quick else 17)
    rates = interleaved(
        {"plain": lambda: sample(plain, runs), "speculative": lambda: sample(speculative, runs)},
        repeats=7 if quick else 21,
    )
    ratio = median_ratio(rates["speculative"], rates["plain"])
    plain_rate, rate = (statistics.median(rates[name]) for name in ("plain", "speculative"))
    assisted = transformers_rate(2.0 if quick else 6.0)

    few, many = runs // 2, runs // 2 * 10
    peak_few = traced_peak(lambda: sample(speculative, few))
    process_few = process_peak()
    peak_many = traced_peak(lambda: sample(speculative, many))
    process_many = process_peak()
    per_round = tokens_per_round(speculative, runs)
    visited = visited_overlap(speculative, target.num_contexts, 1 << 13)

    print(goal("speculative / autoregressive, tokens/s", ratio, 0.25))
    print(goal("speculative / transformers generate(assistant_model=...)", rate / assisted, 1e4))
    print(goal("peak memory of 10 N runs / of N runs", peak_many / peak_few, 1.05, at_least=False))
    print()
    print(f"autoregressive              {plain_rate / 1e6:10.1f} M tokens/s (median, one thread)")
    print(f"speculative                 {rate / 1e6:10.1f} M tokens/s (median, one thread)")
    print(f"transformers assisted       {assisted:10.1f} tokens/s, glass-box models of the pair")
    print(f"tokens per round            {per_round:10.3f} from {2 * K + 1} draws; K = {K}")
    print(
        f"mean sum(min(p, q))         {speculative.overlap.mean():10.3f} over all contexts, "
        f"{visited:.3f} over those visited"
    )
    print(
        f"table                       V = {target.vocab_size}, order {target.order}, "
        f"{target.num_contexts} contexts, {'all' if distinct else 'NOT all'} distinct"
    )
    print(
        f"peak traced memory          {peak_few / 2**20:10.1f} MiB at {few:,} runs, "
        f"{peak_many / 2**20:.1f} MiB at {many:,} runs of {LENGTH} tokens"
    )
    print(
        f"peak of the process         {process_few / 2**20:10.1f} MiB after N runs, "
        f"{process_many / 2**20:.1f} MiB after 10 N"
    )


if __name__ == "__main__":
    main()
