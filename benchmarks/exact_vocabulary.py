"""The exact check of a rule at a real vocabulary: time and memory for every draft token.

One context, K = 1, float32 rows that are as uneven as those of a language model. The rule draws its
last token by `torch.multinomial`, as transformers does; `--draw` takes other ways. The rows after
each draft token are made up from a few, so that no model's time is counted.

    python benchmarks/exact_vocabulary.py [--quick] [--draw multinomial|exponential|gumbel|inverse]
"""

import argparse
import time
from collections.abc import Callable

import torch
from common import goal, process_peak
from torch import Generator, Tensor

from specverify.exact.large import DraftedPosition, check_position

VOCAB_SIZE = 49_152
QUICK_TOKENS = 2_048
SCALE = 2.5
"""Standard deviation of the logits."""
SEED = 20260
LARGEST_SECONDS, LARGEST_BYTES = 300.0, 6 << 30

Draw = Callable[[Tensor, Generator], Tensor]


def multinomial(law: Tensor, generator: Generator) -> Tensor:
    """As `transformers` draws."""
    return torch.multinomial(law, 1, generator=generator)


def exponential(law: Tensor, generator: Generator) -> Tensor:
    """As vLLM draws."""
    return (law / torch.empty_like(law).exponential_(generator=generator)).argmax(-1, keepdim=True)


def gumbel(law: Tensor, generator: Generator) -> Tensor:
    """The largest logit with Gumbel noise."""
    uniform = torch.rand(law.shape, dtype=law.dtype, generator=generator)
    return (law.log() - (-uniform.log()).log()).argmax(-1, keepdim=True)


def inverse(law: Tensor, generator: Generator) -> Tensor:
    """By inverting the cumulative distribution, in float64."""
    cumulative = law.double().cumsum(-1)
    u = torch.rand(len(law), 1, dtype=torch.float64, generator=generator)
    return torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)


DRAWS: dict[str, Draw] = {
    "multinomial": multinomial,
    "exponential": exponential,
    "gumbel": gumbel,
    "inverse": inverse,
}


def rule_of(draw: Draw) -> Callable[[Tensor, Tensor | None, Tensor, Generator], Tensor]:
    """Token verification for K = 1, its last token drawn by `draw`."""

    def rule(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
        assert q is not None
        index = tokens.unsqueeze(2)
        ratio = (p[:, :1].gather(2, index) / q.gather(2, index)).squeeze(2)
        kept = torch.rand(ratio.shape, dtype=p.dtype, generator=generator) < ratio
        residual = (p[:, 0] - q[:, 0]).clamp(min=0)
        law = torch.where(kept, p[:, 1], residual / residual.sum(-1, keepdim=True))
        last = draw(law, generator)
        return torch.cat([tokens.where(kept, last), last.where(kept, -1)], 1)

    return rule


def position(tokens: int) -> DraftedPosition:
    """A draft over the `tokens` likeliest tokens of a random distribution."""
    generator = Generator().manual_seed(SEED)
    rows = torch.randn(66, VOCAB_SIZE, generator=generator).mul_(SCALE)
    rows[1] = rows[0] + torch.randn(VOCAB_SIZE, generator=generator)
    unlikely = rows[1].argsort(descending=True)[tokens:]
    rows[1, unlikely] = -torch.inf
    target, draft, after = rows.softmax(-1).split([1, 1, 64])
    return DraftedPosition(target, draft, lambda drafted: after[drafted % 64].unsqueeze(1))


def main() -> None:
    """Check and print."""
    parser = argparse.ArgumentParser(description="Time and memory at a real vocabulary")
    parser.add_argument("--quick", action="store_true", help="only the likeliest draft tokens")
    parser.add_argument("--draw", choices=DRAWS, default="multinomial", help="of the last token")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens = QUICK_TOKENS if options.quick else VOCAB_SIZE
    started, worked = time.perf_counter(), time.process_time()
    result = check_position(rule_of(DRAWS[options.draw]), position(tokens))
    seconds, work = time.perf_counter() - started, time.process_time() - worked
    if options.quick:
        print(
            f"{tokens:,} of {VOCAB_SIZE:,} draft tokens; all would take {VOCAB_SIZE / tokens:g} x"
        )
    else:
        print(goal("seconds, V=49,152, K=1", seconds, LARGEST_SECONDS, at_least=False))
    print(goal("peak memory, GB", process_peak() / 2**30, LARGEST_BYTES / 2**30, at_least=False))
    print()
    print(f"draw                        {options.draw}")
    print(f"wall, processor             {seconds:.1f} s, {work:.1f} s")
    print(f"draft tokens a second       {tokens / seconds:,.0f}")
    print(f"calls of the rule           {result.runs:,}")
    print(f"TV of completed pairs       {result.lower:.3g} to {result.upper:.3g}")
    print(f"largest ratio               {result.largest_ratio:.6g}")


if __name__ == "__main__":
    main()
