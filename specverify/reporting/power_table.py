"""How many tokens each check needs, as a table with words under it or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

MEANINGS = {
    "chi-squared or G": (
        "an alarm, at one look fixed beforehand, for any distribution of the first token this far "
        "from the target's, provided 25 runs are expected for each token"
    ),
    "Dirichlet e-process": (
        "the same with looks at any time, provided 5 runs are expected for each token: it learns "
        "the distribution on the way, and pays for every token of the vocabulary"
    ),
    "learned tilt": (
        "the same, learned on the way from 32 shards, where 5 runs are expected for each token; it "
        "stands for one position, and other positions have more contexts to learn"
    ),
    "mixture e-process": (
        "an alarm for (1 - e) p + e q at this total variation from p, in the hardest pair of this "
        "overlap; pairs of many tokens need about half of it or less"
    ),
    "PIT band": (
        "the band is left, at one look fixed beforehand, where the distribution function of the "
        "PIT is off by this much at an edge of bins: for a leak in the order of q/p its total "
        "variation; proven, so fewer do; reported, and decides nothing"
    ),
    "independence": (
        "an alarm for pairs of tokens whose PIT numbers lie in the same half more often than half "
        "of the time by this much; a pair is two rows of a call, and within a run there are more"
    ),
    "support": "an alarm for tokens of probability 0 at this rate",
    "homogeneity": (
        "two black boxes told apart, at one look fixed beforehand, by single tokens they answer to "
        "one prompt, provided 25 of each are expected for every token; no part of a certification"
    ),
    "agnostic bound": (
        "the smallest upper bound that a correct sampler can expect on the total variation of its "
        "first token, whatever the deviation"
    ),
    "half-space bound": (
        "no leak towards q above this: the mass moved to tokens with q > c p is bounded at any "
        "time, for c = 1/2, 1 and 2; a bound on that direction, not on total variation"
    ),
    "Clopper-Pearson": (
        "no more than this share of runs has a token of probability 0, where none was seen, at "
        "looks fixed beforehand"
    ),
}
"""What a row means, by its method."""

DIRECTIONAL_FROM = 64
"""Vocabulary above which `preserved` asks for the half-space bound in place of the agnostic one."""


_SPELLED_OUT = 10**11
"""Counts from which on the power of ten says more than the digits."""


@dataclass(frozen=True)
class PowerRow:
    """One check, with its two answers."""

    question: str
    method: str
    gives: Literal["sees", "bounds"]
    unit: str
    """What is counted, see `statistics.triples.Triple`."""
    needed: int | None
    """Of the unit; None if no number of them does."""
    tokens_needed: int | None
    """Tokens in all: `tokens_per_run` for each run, which has one first token; two for each pair
    of tokens, or of answers."""
    at_tokens: float | None
    """Smallest deviation seen, or bound reached, with the tokens asked about."""
    why_not: str = ""
    """Why nothing is needed."""


@dataclass(frozen=True)
class PowerPlan:
    """What was asked, and the answers: predictions, all of them."""

    vocab_size: int
    tv: float
    alpha: float
    tests: int
    power: float
    overlap: float
    tokens_per_run: float
    tokens: int | None
    rows: tuple[PowerRow, ...]


def to_json(plan: PowerPlan) -> str:
    """The plan with what each row means."""
    content = asdict(plan)
    content["predictions"] = True
    for row in content["rows"]:
        row["meaning"] = MEANINGS[row["method"]]
    return json.dumps(content, indent=2)


def print_plan(plan: PowerPlan, console: Console) -> None:
    """Print what was asked, the table, and what its rows mean."""
    console.print(
        Text(
            f"{plan.vocab_size:,} tokens · deviation {plan.tv:g} · alpha {plan.alpha:g} over "
            f"{plan.tests} tests · power {plan.power:g} · overlap {plan.overlap:g} · "
            f"{plan.tokens_per_run:g} tokens a run"
        )
    )
    console.print()
    console.print(_table(plan))
    console.print()
    for line in _words(plan):
        console.print(Text(line))


def _table(plan: PowerPlan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("question")
    table.add_column("method")
    table.add_column("needs", justify="right")
    table.add_column("counted in")
    table.add_column("tokens in all", justify="right")
    if plan.tokens is not None:
        table.add_column(f"at {plan.tokens:,} tokens", justify="right")
    for row in plan.rows:
        cells = [
            f"{row.question} {plan.tv:g}",
            row.method,
            _count(row.needed),
            row.unit,
            _count(row.tokens_needed),
        ]
        if plan.tokens is not None:
            cells.append("nothing" if row.at_tokens is None else f"{row.gives} {row.at_tokens:.2g}")
        table.add_row(*cells)
    return table


def _count(n: int | None) -> str:
    if n is None:
        return "-"
    return f"{n:,}" if n < _SPELLED_OUT else f"{n:.2e}"


def _words(plan: PowerPlan) -> "Sequence[str]":
    lines = [
        "All figures are predictions, made before any token is sampled. Each run has one first "
        "token.",
    ]
    if plan.tokens is not None:
        lines.append(
            f"sees: smallest deviation that raises an alarm with probability {plan.power:g}; "
            "bounds: upper bound that a correct decoder can expect; nothing: too few for either."
        )
    lines += [f"- {row.method}: {MEANINGS[row.method]}." for row in plan.rows]
    lines += [f"- {row.method}: {row.why_not}." for row in plan.rows if row.why_not]
    agnostic = [row for row in plan.rows if row.method == "agnostic bound"]
    if plan.vocab_size > DIRECTIONAL_FROM and agnostic and agnostic[0].tokens_needed:
        lines.append(
            f"At {plan.vocab_size:,} tokens of vocabulary a bound on every deviation costs "
            f"{_count(agnostic[0].tokens_needed)} tokens; above {DIRECTIONAL_FROM} `preserved` "
            "asks for the half-space bound, which does not depend on the vocabulary."
        )
    return lines
