"""How long exact distributions take, and how that grows with V and K.

python benchmarks/exact_distributions.py [--quick]
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from common import goal, parse_quick
from torch import Generator, Tensor

from specverify.exact import JointDistribution, Round, compare_round
from specverify.exact.forcing import Rule, branched_distribution, forced_distribution
from specverify.exact.programs import program_distribution
from specverify.models.glass_box import GlassBoxModel
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.transformers_assisted import generate
from specverify.verification import BLOCK, TOKEN


@dataclass(frozen=True)
class Timed:
    """One computation."""

    seconds: float
    runs: int
    total_variation: float


def rule(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
    """Token verification as a batched rule is usually written."""
    assert q is not None
    index = tokens[..., None]
    ratio = (p[:, :-1].gather(2, index) / q.gather(2, index))[..., 0]
    coins = torch.rand(ratio.shape, dtype=p.dtype, generator=generator)
    accepted = (coins < ratio).long().cumprod(1).sum(1, keepdim=True)
    weights = torch.cat([(p[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)
    chosen = weights.gather(1, accepted[..., None].expand(-1, 1, p.shape[2]))[:, 0]
    last = torch.multinomial(chosen, 1, generator=generator)
    out = torch.cat([tokens, last], 1).scatter(1, accepted, last)
    return out.masked_fill(torch.arange(out.shape[1]) > accepted, -1)


def transformers_rule(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
    """The rule of transformers, which takes one row, and logits."""
    from transformers.generation.utils import _speculative_sampling

    assert q is not None
    width = tokens.shape[1]
    valid, _ = _speculative_sampling(tokens, q.log(), width, p.log())
    return torch.nn.functional.pad(valid, (0, width + 1 - valid.shape[1]), value=-1)


def of_round(
    vocab_size: int,
    k: int,
    subject: Rule = rule,
    follow: Callable[..., JointDistribution] = forced_distribution,
    dtype: torch.dtype = torch.float64,
) -> Timed:
    """One round of a rule, comparison with the target included."""
    round = Round.random(vocab_size, k, seed=1, dtype=dtype)
    begin = time.perf_counter()
    joint = follow(subject, round)
    compared = compare_round(round, joint.probabilities)
    return Timed(time.perf_counter() - begin, joint.runs, compared.total_variation)


def of_generate(length: int) -> Timed:
    """A whole `generate(assistant_model=...)` on glass-box models, V = 3, K = 2."""
    target = TableModel.random(3, 2, 5)
    models = [GlassBoxModel.from_table(table) for table in (target, target.near(7, 0.8))]
    prompt = torch.tensor([[0, 1]])
    settings = SamplingSettings(max_new_tokens=length)

    def program(generator: Generator) -> Tensor:
        mask = torch.ones_like(prompt)
        return generate(*models, prompt, mask, settings, 2, generator).tokens

    begin = time.perf_counter()
    joint = program_distribution(program)
    return Timed(time.perf_counter() - begin, joint.runs, abs(joint.total - 1))


def main() -> None:
    """Measure; the goals first, then the table of growth."""
    quick = parse_quick("seconds that exact distributions take")
    torch.set_num_threads(1)
    of_round(2, 1)
    cases: list[tuple[str, float, Callable[[], Timed]]] = [
        ("forced, V=8, K=4, float64", 1.0, lambda: of_round(8, 4)),
        ("forced, V=8, K=4, block verification, all patterns", 1.0, lambda: of_round(8, 4, _block)),
        ("forced, V=64, K=2, float64", 2.0, lambda: of_round(64, 2)),
        (
            "branching, transformers' _speculative_sampling, V=8, K=2",
            3.0,
            lambda: of_round(8, 2, transformers_rule, branched_distribution),
        ),
        ("branching, generate(assistant_model), V=3, K=2, 3 tokens", 4.0, lambda: of_generate(3)),
    ]
    if not quick:
        cases.append(("the same, 4 tokens", 60.0, lambda: of_generate(4)))
    for name, most, run in cases:
        timed = run()
        print(f"{goal(name + ', s', timed.seconds, most, at_least=False)}   {timed.runs:>6,} runs")
    _growth(quick=quick)


def _growth(*, quick: bool) -> None:
    print("\n| rule | followed | V | K | runs | seconds | TV |")
    print("|---|---|---|---|---|---|---|")
    sizes = [(4, 1), (4, 2), (4, 3), (8, 2), (16, 2)]
    sizes += [] if quick else [(4, 4), (4, 5), (8, 3), (8, 4), (32, 2), (64, 2), (1024, 1)]
    for name, subject in (("token", _token), ("block", _block)):
        for v, k in sorted(sizes):
            _row(name, "together", v, k, of_round(v, k, subject))
    for v, k in [(4, 1), (4, 2), (4, 3), (8, 1), (8, 2)][: 3 if quick else None]:
        _row("token", "one by one", v, k, of_round(v, k, _token, branched_distribution))


def _row(name: str, followed: str, v: int, k: int, timed: Timed) -> None:
    print(
        f"| {name} | {followed} | {v} | {k} | {timed.runs:,} | {timed.seconds:.2f} "
        f"| {timed.total_variation:.1e} |"
    )


def _token(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
    return TOKEN(tokens, q, p, generator).tokens


def _block(tokens: Tensor, q: Tensor | None, p: Tensor, generator: Generator) -> Tensor:
    return BLOCK(tokens, q, p, generator).tokens


if __name__ == "__main__":
    main()
