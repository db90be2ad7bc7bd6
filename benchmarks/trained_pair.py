"""The loop on the trained pair, one sequence at a time, against transformers' own assisted loop.

Prints target passes per token, and the time per target pass (drafting included) as a ratio to
`generate(assistant_model=...)` on the same models, prompts, block length and number of tokens.

    python benchmarks/trained_pair.py [--quick]
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from common import goal, parse_quick

from specverify.decoding.speculative import SpeculativeDecoder
from specverify.drafting.draft_model import DraftModel
from specverify.drafting.schedule import Fixed
from specverify.models.pairs import load_pair
from specverify.models.transformers_model import as_language_model
from specverify.settings import SamplingSettings
from specverify.subjects.transformers_assisted import generate
from specverify.verification import TOKEN

K = 5
LENGTH = 120
SETTINGS = SamplingSettings(max_new_tokens=LENGTH)


@contextmanager
def counting(model: Any) -> Iterator[list[int]]:
    """Count the forward passes of a transformers model."""
    forward, passes = model.forward, [0]

    def counted(*arguments: Any, **keywords: Any) -> Any:
        passes[0] += 1
        return forward(*arguments, **keywords)

    model.forward = counted
    try:
        yield passes
    finally:
        del model.forward


def main() -> None:
    """Measure, then print ratios first."""
    quick = parse_quick("the loop on the trained pair: passes per token, time per pass")
    torch.set_num_threads(1)
    pair = load_pair("trained")
    target, draft = pair.open("transformers")
    decoder = SpeculativeDecoder(
        as_language_model(target),
        DraftModel(as_language_model(draft)),
        TOKEN.unchecked(),
        Fixed(K),
    )
    prompts = [torch.tensor([prompt]) for prompt in pair.prompts]

    def ours(prompt: torch.Tensor, seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        return decoder.generate(prompt, settings=SETTINGS, generator=generator).tokens.numel()

    def theirs(prompt: torch.Tensor, seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        mask = torch.ones_like(prompt)
        return generate(target, draft, prompt, mask, SETTINGS, K, generator).tokens.numel()

    def measure(run: Callable[[torch.Tensor, int], int], seed: int) -> tuple[int, int, float]:
        """Tokens, target passes and seconds of one run of every prompt."""
        with counting(target) as passes:
            begin = time.perf_counter()
            tokens = sum(run(prompt, seed) for prompt in prompts)
            return tokens, passes[0], time.perf_counter() - begin

    for run in (ours, theirs):
        measure(run, 0)
    rounds = [(measure(ours, seed), measure(theirs, seed)) for seed in range(1, 4 if quick else 13)]
    passes_per_token = sum(a[1] for a, _ in rounds) / sum(a[0] for a, _ in rounds)
    theirs_per_token = sum(b[1] for _, b in rounds) / sum(b[0] for _, b in rounds)
    ratio = statistics.median((a[2] / a[1]) / (b[2] / b[1]) for a, b in rounds)
    milliseconds = [statistics.median(m[i][2] / m[i][1] for m in rounds) * 1e3 for i in (0, 1)]

    print(goal("target passes per token", passes_per_token, 0.45, at_least=False))
    print(goal("time per target pass / transformers'", ratio, 1.0, at_least=False))
    print()
    print(f"transformers                {theirs_per_token:10.3f} target passes per token")
    print(f"time per target pass        {milliseconds[0]:10.2f} ms")
    print(f"the same in transformers    {milliseconds[1]:10.2f} ms")
    print(f"runs                        {len(rounds) * len(prompts)} of {LENGTH} tokens, K = {K}")


if __name__ == "__main__":
    main()
